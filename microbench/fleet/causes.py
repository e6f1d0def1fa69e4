"""Says why a GPU may be slower than others of its class, from its findings and facts that the others do not share."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from microbench.core.model import MemoryErrors
from microbench.core.units import percent, plain
from microbench.explain.environment import errors_in_words, repair_due

# A finding or fact of a GPU tells it from the others if at most this share of them has it too.
FEW = 0.1
# A fact has a usual value if at least this share of the others has it.
USUAL = 0.8
# How much hotter than the middle of the others a GPU is before heat is a cause, and how much more often throttled.
HOTTER_C = 10.0
THROTTLED_MORE = 0.1
# A count of memory errors that is this high is a cause if at most FEW of the others have half as many.
MANY_ERRORS = {
    "corrected_volatile": 10, "corrected_aggregate": 10, "rows_remapped_corrected": 1, "rows_remapped_uncorrected": 1,
}  # fmt: skip
# A link that lost this much has lost half of its lanes or a generation.
HALVED = 0.8
WORRYING = ("warning", "problem")
LONGEST = 160
# Facts that differ between GPUs without a meaning for their speed.
OWN = ("gpu pci_bus_id", "submit_core", "watcher_core", "parent_cores", "load_average_1min", "swap_used_bytes")
LINK_NOW = {"lanes": ("link lanes_now", "link lanes_max"), "generation": ("link generation_now", "link generation_max")}

# Facts that causes report themselves.
TOLD = (
    "gpu power_limit_w", *(name for pair in LINK_NOW.values() for name in pair),
    *(f"memory {name}" for name in MemoryErrors.__struct_fields__),
)  # fmt: skip
# What the groups of figures of each part of the machine begin with.
LINK, DRAM = ("copies ", "link_"), ("DRAM", "memory_")
HOST = ("calls on the host", "host_", "launch_", "graph_")
ELSEWHERE = "elsewhere"
TRAFFIC_RULES = ("environment.other_processes", "environment.load", "environment.mps")
# Findings that repeat what causes report from facts.
TOLD_RULES = ("environment.memory_errors", "environment.narrow_link")

Finding = tuple[str, str, str, str]  # rule, severity, title, advice


class Gpu(NamedTuple):
    """A GPU of a campaign, with the facts and findings of its newest run."""

    node: str
    device: str
    number: int | None
    of_class: str
    labels: Mapping[str, str]
    numa_node: int | None
    power_limit_w: float | None
    temperature_c: float | None
    throttled: float | None
    throttle_reasons: str
    facts: Mapping[str, str]
    simulated: bool
    findings: tuple[Finding, ...]

    @property
    def places(self) -> dict[str, str]:
        """Its labels, and what else places it among others: its machine, NUMA node and driver."""
        known = {"node": self.node, "numa_node": self.numa_node, "driver": self.facts.get("driver")}
        return {name: str(value) for name, value in known.items() if value is not None} | dict(self.labels)

    @property
    def memory_errors(self) -> MemoryErrors:
        known = {name: self.facts.get(f"memory {name}") for name in MemoryErrors.__struct_fields__}
        return msgspec.convert(known, MemoryErrors, strict=False)


class Cause(NamedTuple):
    """A likely cause: its kind in a few words, what was seen, and what to do."""

    kind: str
    seen: str
    check: str


DOWN_TRAINED, SLOW_LINK, TRAFFIC, THROTTLED = "down-trained link", "slow link", "other traffic", "throttled"
SLOW_HOST, MEMORY_ERRORS, MEMORY, UNKNOWN = "slow host", "memory errors", "slow memory", "unknown"


def likely(gpu: Gpu, others: Sequence[Gpu], slow: Mapping[str, float], where: str = ELSEWHERE) -> list[Cause]:
    """Causes of what a GPU is slow in, the likeliest first; ``slow`` is the loss by group of figures.

    The others may be the GPU itself in earlier campaigns; ``where`` says in a word where they are.
    """
    found = seen(gpu, others, slow, where) or [_guess(gpu, slow)]
    if differing := facts(gpu, others, where, TOLD):
        last = found[-1]
        found[-1] = last._replace(seen="; ".join(filter(None, (last.seen, *differing))))
    return found


def seen(gpu: Gpu, others: Sequence[Gpu], slow: Mapping[str, float], where: str) -> list[Cause]:
    """The causes that findings and facts of the GPU show, without a guess."""
    link = _link(gpu, others, slow, where)
    found = [*_traffic(gpu, others), *_throttled(gpu, others, where), *_memory_errors(gpu, others, slow)]
    unusual = [cause for cause in _unusual(gpu, others, slow) if not link or cause.kind != SLOW_LINK]
    return [*link, *found, *unusual]


def facts(gpu: Gpu, others: Sequence[Gpu], where: str, told: Collection[str] = ()) -> list[str]:
    """A few facts in which this GPU differs although nearly all others agree, without the names in ``told``."""
    found = []
    for name, value in gpu.facts.items():
        common = usual(others, name)
        if name not in told and name not in OWN and common is not None and common != value:
            found.append(f"{plain(name)} is {plain(value, 40)}, {where} {plain(common, 40)}")
    return found[:4]


def _losses(slow: Mapping[str, float], part: tuple[str, ...]) -> list[float]:
    return [loss for group, loss in slow.items() if group.startswith(part)]


def _link(gpu: Gpu, others: Sequence[Gpu], slow: Mapping[str, float], where: str) -> list[Cause]:
    """The link came up with fewer lanes or at a lower speed than it could, or than others."""
    if not _losses(slow, LINK):
        return []
    words = []
    for name, (now, most) in LINK_NOW.items():
        own, could = gpu.facts.get(now), gpu.facts.get(most)
        common = usual(others, now)
        if own is None:
            continue
        if name == "lanes" and could is not None and own not in (could, common):
            words.append(f"{own} of {could} lanes")
        elif common is not None and own != common:
            words.append(f"PCIe {name} {own}, {where} {common}")
    check = "Reseat the board; check riser, cable, slot and bifurcation: nvidia-smi -q -d PERFORMANCE, lspci -vv"
    return [Cause(DOWN_TRAINED, ", ".join(words), check)] if words else []


def _traffic(gpu: Gpu, others: Sequence[Gpu]) -> Iterator[Cause]:
    for rule, _, title, advice in _own_findings(gpu, others):
        if rule in TRAFFIC_RULES:
            yield Cause(TRAFFIC, plain(title, LONGEST), plain(advice, LONGEST))


def _throttled(gpu: Gpu, others: Sequence[Gpu], where: str) -> Iterator[Cause]:
    """Its clocks fell more often, it is hotter, or its power limit is lower."""
    words = []
    often = middle([one.throttled for one in others])
    if gpu.throttled is not None and gpu.throttled > (often or 0.0) + THROTTLED_MORE:
        reasons = f" ({plain(gpu.throttle_reasons, LONGEST)})" if gpu.throttle_reasons else ""
        words.append(f"{percent(gpu.throttled)} of its figures were throttled{reasons}")
    heat = middle([one.temperature_c for one in others])
    if gpu.temperature_c is not None and heat is not None and gpu.temperature_c > heat + HOTTER_C:
        words.append(f"{gpu.temperature_c:.0f} °C, {where} {heat:.0f} °C")
    limit = middle([one.power_limit_w for one in others])
    if gpu.power_limit_w is not None and limit is not None and gpu.power_limit_w < limit:
        words.append(f"power limit {gpu.power_limit_w:.0f} W, {where} {limit:.0f} W")
    if words:
        yield Cause(THROTTLED, ", ".join(words), "Look at cooling and power: nvidia-smi -q -d PERFORMANCE,POWER")


def _memory_errors(gpu: Gpu, others: Sequence[Gpu], slow: Mapping[str, float]) -> Iterator[Cause]:
    """Its memory has errors or repairs that healthy memory does not have, or far more of them than others."""
    if not _losses(slow, DRAM):
        return
    own, due = gpu.memory_errors, repair_due(gpu.memory_errors)
    lost = own.uncorrected_volatile or own.uncorrected_aggregate or own.pages_retired
    many = any(
        (count := getattr(own, name) or 0) >= least
        and sum(2 * (getattr(one.memory_errors, name) or 0) >= count for one in others) <= FEW * len(others)
        for name, least in MANY_ERRORS.items()
    )
    if due or lost or many:
        check = due[2] if due else "run NVIDIA's field diagnostic, and follow the counts: nvidia-smi -q -d ECC"
        yield Cause(MEMORY_ERRORS, errors_in_words(own) or "", f"{check[0].upper()}{check[1:]}")


def _unusual(gpu: Gpu, others: Sequence[Gpu], slow: Mapping[str, float]) -> Iterator[Cause]:
    """Findings of this GPU's run that concern what is slow and that few others have."""
    for rule, _, title, advice in _own_findings(gpu, others):
        suite = rule.partition(".")[0]
        kind = None
        if suite == "link" and _losses(slow, LINK):
            kind = DOWN_TRAINED if rule == "link.verdict" and "lanes" in title else SLOW_LINK
        elif rule == "environment.numa":
            kind = SLOW_LINK if _losses(slow, LINK) else None
        elif suite in ("environment", "host") and _losses(slow, HOST):
            kind = SLOW_HOST
        elif suite in ("memory", "compute") and rule.endswith((".verdict", ".limited", ".sustained", ".clock")):
            kind = f"slow {suite}"
        if kind is not None and rule not in (*TRAFFIC_RULES, *TOLD_RULES):
            yield Cause(kind, plain(title, LONGEST), plain(advice, LONGEST))


def _guess(gpu: Gpu, slow: Mapping[str, float]) -> Cause:
    """What the pattern of slow figures alone suggests."""
    link = max(_losses(slow, LINK), default=0.0)
    if link >= HALVED:
        words = "probable, because copies lost about half or more; its run does not say which lanes or speed"
        return Cause(DOWN_TRAINED, words, "Look at lanes and speed under load: lspci -vv, microbench check link")
    if link:
        words = "the link is slower, not halved: a shared uplink or another program"
        return Cause(TRAFFIC, words, "Measure again while the machine is idle: microbench run link")
    if len(_losses(slow, HOST)) == len(slow):
        return Cause(SLOW_HOST, "only calls on the host are slow", "Look at CPU clocks and load: microbench doctor")
    if _losses(slow, DRAM):
        errors = errors_in_words(gpu.memory_errors)
        known = f"its memory errors: {errors}" if errors else "its run does not say whether the memory has errors"
        check = "Look at ECC errors, retired pages and remapped rows: nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER"
        again = "Measure it again with --rounds 3, and run NVIDIA's field diagnostic if it stays slow"
        return Cause(MEMORY, f"nothing was throttled; {known}", again if errors else check)
    return Cause(UNKNOWN, "nothing that its run recorded explains it", "Measure it again with --rounds 3")


def _own_findings(gpu: Gpu, others: Sequence[Gpu]) -> Iterator[Finding]:
    """Findings whose rule warns of this GPU and of few others."""
    warnings = [{rule for rule, severity, *_ in one.findings if severity in WORRYING} for one in others]
    common = Counter(rule for rules in warnings for rule in rules)
    for finding in gpu.findings:
        if finding[1] in WORRYING and common[finding[0]] <= FEW * len(others):
            yield finding


def usual(others: Sequence[Gpu], name: str) -> str | None:
    """The value of a fact that most others have, or None."""
    counts = Counter(one.facts[name] for one in others if name in one.facts)
    ((value, count),) = counts.most_common(1) or ((None, 0),)
    return value if len(others) and count >= USUAL * len(others) else None


def middle(values: Sequence[float | None]) -> float | None:
    """The upper middle of the values that are known, or None."""
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None
