"""What limits a user's own functions and kernels: facts of each case, the lines of the screen, and the findings."""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, facts_of, rule, said, sentence
from microbench.analysis.stats import Row
from microbench.core.model import Scalar
from microbench.core.units import as_time, counted, percent, plain, quantity, times
from microbench.explain.compute_products import bandwidth_roof, compute_roof
from microbench.explain.memory_levels import footprints, l2_bytes

STEP, KERNEL = "own_step", "own_kernel"
# Parameters of the two benchmarks themselves; all others are axes of the user's.
OWN_PARAMETERS = frozenset({
    "function", "setup", "kernel", "grid", "block", "arguments", "shared", "bytes", "flop", "precision", "options",
})  # fmt: skip
# A function is launch-bound if the host submits for this many times as long as the GPU works.
LAUNCH_FROM = 1.1
# The time with a cold L2 is shown if it is this many times as long.
COLD_FROM = 1.1
# Launches that fill half of the launch queue, behind a gate.
QUEUE = 500
# A kernel is at a ceiling from this share of it on.
NEAR_SHARE = 0.6
# The last wave costs more than this share of the time if it is as empty as it can be.
TAIL_SHARE = 0.15
MOST_LINES = 8
TAILS: tuple[Literal["p90", "p99"], ...] = ("p90", "p99")
L2_RANGE = (1 / 8, 1 / 2)  # working sets that fit the L2 for certain, and the L1s for certain not
# A gate opens by itself after half a second.
GATE_S = 0.4
WARP = 32
ELSEWHERE = "its work runs in streams of the library's own"  # how the reason ends if a gate cannot time it
L2_CEILING = "the L2 as measured"
MEASURE_THEM = "microbench run memory compute measures them"
Limit = Literal["launch", "bandwidth", "compute", "tail", "latency", "unknown"]


class Ceiling(NamedTuple):
    """A rate that this GPU was measured to give, its name, and what a kernel reaches of it."""

    name: str
    rate: float
    unit: str
    share: float


class Rates(NamedTuple):
    """What a case moves and computes a second, from the bytes and operations that were given for it, and the ceilings
    that it is compared with. A row is None if its work was not given, or if the GPU's time is unknown."""

    case: Row
    bandwidth: Row | None
    throughput: Row | None
    ceilings: tuple[Ceiling, ...] = ()

    @property
    def precision(self) -> str:
        return str(self.case.params.get("precision", "fp32"))

    @property
    def near(self) -> Ceiling | None:
        return max(self.ceilings, key=lambda ceiling: ceiling.share, default=None)

    @property
    def point(self) -> tuple[float, float] | None:
        """Its operations for each byte, and its operations a second; None unless both are known."""
        if self.bandwidth is None or self.throughput is None:
            return None
        return self.throughput.measurement.work.flops / self.bandwidth.measurement.work.bytes, self.throughput.value

    @property
    def reached(self) -> str:
        """The rate that is nearest to its ceiling, the time that it is made from, and its share of the ceiling."""
        near, over = self.near, plain(fact(self.case, "rates_over") or "", 40)
        of_time = f" over {over}" if over else ""
        if near is not None:
            share = f"{percent(near.share)} of {near.name} ({quantity(near.rate, near.unit)})"
            return f"{quantity(near.rate * near.share, near.unit)}{of_time}, {share}"
        known = [row for row in (self.bandwidth, self.throughput) if row is not None]
        return " and ".join(quantity(row.value, row.metric.unit) for row in known) + of_time

    @property
    def bound(self) -> tuple[Limit, str] | None:
        """The ceiling that it is at, in a word and as a clause with its figure."""
        near = self.near
        if near is None or near.share < NEAR_SHARE:
            return None
        bound: Limit = "bandwidth" if near.unit == "B/s" else "compute"
        return bound, f"{bound}-bound: {self.reached}"

    @property
    def unknown(self) -> str:
        """What has to be given or measured to know its limit. It is at none of the ceilings that are known."""
        near, given = self.near, {"bytes", "flop"} & set(self.case.params)
        if near is not None:
            known, other = ("bandwidth", "flop") if near.unit == "B/s" else ("compute", "bytes")
            more = f"give --{other} to see whether the other ceiling limits it"
            if other in given:
                more = f"the other ceiling is not known: {MEASURE_THEM}"
            return f"not {known}-bound: {self.reached}; {more}"
        if self.bandwidth or self.throughput:
            return f"{self.reached}; no ceiling of this GPU is known: {MEASURE_THEM}"
        reason = plain(_reason(self.case, "rates_over"), 100)
        return f"no rate: {reason}" if reason else "give --bytes and --flop to see what limits it"


class Step(NamedTuple):
    """One measured case of a function. Rows that were not measured are None."""

    name: str
    submit: Row
    rates: Rates
    step: Row | None
    gpu: Row | None
    cold: Row | None
    graph: Row | None
    capture: Row | None
    instantiate: Row | None
    kernels: Row | None

    def fact(self, name: str) -> Scalar:
        """A fact of the newest round; None if it is unknown."""
        return fact(self.submit, name)

    @property
    def gain(self) -> float | None:
        """How many times as fast a replay is as a call; None without a graph, and for one that lacks kernels."""
        if self.graph is None or self.step is None or self.graph.value <= 0 or self.kernels_outside:
            return None
        return self.step.value / self.graph.value

    @property
    def kernels_outside(self) -> int:
        """Kernels of a call that its graph does not have, because they run in streams that were not captured."""
        recorded, captured = self.fact("recorded_kernels"), self.fact("launches")
        return max(recorded - captured, 0) if isinstance(recorded, int) and isinstance(captured, int) else 0

    @property
    def pays_after(self) -> int | None:
        """From how many replays on making the graph has paid; None if it never does."""
        if self.gain is None or self.graph is None or self.step is None:
            return None
        if self.capture is None or self.instantiate is None:
            return None
        won_s = self.step.value - self.graph.value
        return math.ceil((self.capture.value + self.instantiate.value) / won_s) if won_s > 0 else None

    @property
    def limit(self) -> str:
        """A sentence that says what limits the step: launches, the GPU, or that this is not known."""
        submit_s = self.submit.value
        if self.gpu is None:
            launches = self.fact("launches") or self.fact("recorded_kernels")
            full = isinstance(launches, int) and launches >= QUEUE
            if submit_s >= GATE_S:
                return "launch-bound: it takes longer to submit than a gate may hold the GPU"
            if _reason(self.submit, "gpu").endswith(ELSEWHERE):
                return "unknown: its work runs in streams of the library's own"
            return "launches: more than the queue holds" if full else "waits: it waits for the GPU in its own calls"
        if self.gpu.trust == "below floor":
            return "host: what the GPU does is too short for its clock"
        if submit_s >= LAUNCH_FROM * self.gpu.value:
            return f"launch-bound: the host submits {times(submit_s / self.gpu.value)} as long as the GPU works"
        if self.gpu.value >= LAUNCH_FROM * submit_s:
            bound = self.rates.bound
            return bound[1] if bound is not None else "GPU-bound: the host submits faster than the GPU works"
        return "balanced: host and GPU take about equally long"


def fact(row: Row, name: str) -> Scalar:
    """A fact of the newest round of a row's case; None if it is unknown."""
    return (facts_of(row, name) or [None])[-1]


def _reason(row: Row, name: str) -> str:
    reasons = [each.reason for outcome in row.outcomes for each in outcome.facts if each.name == name]
    return (reasons[-1] if reasons else "") or ""


def axes_of(row: Row) -> str:
    """The user's own axes of a case: "batch=8"."""
    return " ".join(f"{name}={value}" for name, value in row.params.items() if name not in OWN_PARAMETERS)


def _cases(evidence: Evidence, benchmark: str, metric: str) -> list[tuple[str, Row, dict[str, Row]]]:
    """What the screen calls each measured case, a row of it, and all its rows by their metric, in the order of the run.

    A case is called by its axes, with the function's or kernel's name before them where the run has several.
    """
    every, each = evidence.rows(benchmark), evidence.rows(benchmark, metric)
    targets = [str(row.params.get("function") or row.params.get("kernel") or "").rpartition(":")[2] for row in each]
    several = len(set(targets)) > 1
    return [
        (f"{plain(target[:24])} {plain(axes, 24)}" if several and axes else plain(axes or target, 24), one,
         {row.metric.name: row for row in every if row.case_id == one.case_id})
        for one, target, axes in zip(each, targets, map(axes_of, each), strict=True)
    ]  # fmt: skip


def steps(evidence: Evidence) -> list[Step]:
    """Every measured case of a function, in the order of the run."""
    others = ("step", "gpu", "cold", "graph", "capture", "instantiate", "kernels")
    return [
        Step(name, submit, _rates(evidence, submit, same), *map(same.get, others))
        for name, submit, same in _cases(evidence, STEP, "submit")
    ]


class Kernel(NamedTuple):
    """One measured case of a kernel."""

    name: str
    duration: Row
    kernel: Row | None
    submit: Row | None
    cold: Row | None
    rates: Rates

    def whole(self, name: str) -> int:
        """A fact that is a number; 0 if it is unknown."""
        value = fact(self.duration, name)
        return int(value) if isinstance(value, int | float) else 0

    @property
    def best_s(self) -> float:
        """Its duration: CUPTI's, or else that of launches in a row."""
        return self.kernel.value if self.kernel is not None and self.kernel.value > 0 else self.duration.value

    @property
    def waves(self) -> float:
        """The grid over all blocks that are resident at once."""
        value = fact(self.duration, "waves")
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def tail(self) -> float:
        """The share of the time in which the last wave leaves blocks' places empty, if all blocks take as long."""
        return 1 - self.waves / math.ceil(self.waves) if self.waves > 0 else 0.0

    @property
    def occupancy(self) -> float:
        """Warps that are resident on an SM, of the most that it holds."""
        most = self.whole("most_threads_per_sm")
        threads = -(-self.whole("block_threads") // WARP) * WARP
        return min(self.whole("blocks_per_sm") * threads / most, 1.0) if most else 0.0

    @property
    def limit(self) -> tuple[Limit, str]:
        """What limits it, in a word and as a clause with its figure."""
        if (bound := self.rates.bound) is not None:
            return bound
        if self.submit is not None and self.submit.value > self.best_s:
            return "launch", f"launch-bound: a launch takes the host {as_time(self.submit.value)}"
        if self.waves < 1:
            return "tail", f"small grid: it fills {percent(self.waves)} of the GPU"
        if self.tail >= TAIL_SHARE:
            empty = f"the last one leaves {percent(self.tail)} of the GPU's time empty"
            return "tail", f"tail: {self.waves:.3g} waves: {empty}"
        if len(self.rates.ceilings) > 1:
            return "latency", f"latency-bound: {self.rates.reached}, at {percent(self.occupancy)} occupancy"
        return "unknown", self.rates.unknown


def kernels(evidence: Evidence) -> list[Kernel]:
    """Every measured case of a kernel, in the order of the run."""
    return [
        Kernel(name, one, same.get("kernel"), same.get("submit"), same.get("cold"), _rates(evidence, one, same))
        for name, one, same in _cases(evidence, KERNEL, "duration")
    ]


def _rates(evidence: Evidence, case: Row, same: Mapping[str, Row]) -> Rates:
    made = Rates(case, same.get("bandwidth"), same.get("throughput"))
    return made._replace(ceilings=tuple(_ceilings(with_roofs(evidence), made)))


def with_roofs(evidence: Evidence) -> Evidence:
    """This run if it has the memory's bandwidth, else the run whose ceilings it was given."""
    several = [one for one in (evidence, evidence.ceilings) if one is not None]
    return next((one for one in several if (roof := bandwidth_roof(one)) and roof.row is not None), evidence)


def _ceilings(where: Evidence, rates: Rates) -> Iterator[Ceiling]:
    if (moved := rates.bandwidth) is not None:
        roof, size_bytes = bandwidth_roof(where), l2_bytes(where) or 0
        least, most = (share * size_bytes for share in L2_RANGE)
        points = footprints(where, "memory_levels", "bandwidth") if moved.measurement.work.bytes <= most else []
        cached = max((row.value for count, row in points if least <= count <= most), default=None)
        # Its rate where as many bytes fit the L2 as well as those of that figure.
        if cached is not None:
            yield Ceiling(L2_CEILING, cached, "B/s", moved.value / cached)
        elif roof is not None and roof.row is not None:
            yield Ceiling("DRAM as measured", roof.value, "B/s", moved.value / roof.value)
    best = compute_roof(where, rates.precision) if rates.throughput is not None else None
    if best is not None and best.row is not None and rates.throughput is not None:
        share = rates.throughput.value / best.value
        yield Ceiling(f"{rates.precision} products as measured", best.value, best.unit, share)


# A line of the screen: its name, and its parts with the rows behind them.
Words = tuple[str, list[tuple[str, Row | None]]]


def lines(evidence: Evidence) -> list[Words]:
    """A line for each case; the tables have those beyond MOST_LINES."""
    found = [_step_line(each) for each in steps(evidence)] + [_kernel_line(each) for each in kernels(evidence)]
    return found[:MOST_LINES]


def _step_line(one: Step) -> Words:
    parts: list[tuple[str, Row | None]] = []
    if one.step is not None:
        tails = ", ".join(f"{name} {as_time(one.step.over_rounds(name))}" for name in TAILS)
        parts.append((f"{as_time(one.step.value)} a step ({tails})", one.step))
    parts.append((f"submit {as_time(one.submit.value)}", one.submit))
    if one.gpu is not None:
        parts.append((f"GPU {as_time(one.gpu.value)}", one.gpu))
        if one.cold is not None and _is_colder(one.cold, one.gpu):
            parts.append((f"{as_time(one.cold.value)} with a cold L2", one.cold))
    launches = one.fact("launches")
    recorded = one.fact("recorded_kernels")
    if launches is not None:
        parts.append((f"{launches} launch{'es' if launches != 1 else ''}", None))
    elif recorded is not None:
        parts.append((f"{recorded} kernels", None))
    parts.append((one.limit, None))
    if {"bytes", "flop"} & set(one.submit.params) and (one.rates.bound or ("", ""))[1] != one.limit:
        rate = one.rates.bandwidth or one.rates.throughput
        parts.append((one.rates.reached if one.rates.ceilings else one.rates.unknown, rate))
    if one.gain is not None and one.graph is not None:
        pays = ", never faster" if one.gain <= 1 else ""
        if one.pays_after is not None:
            pays = f", pays off after {counted(one.pays_after, 'replay')}"
        parts.append((f"as a graph {as_time(one.graph.value)}: {times(one.gain)}{pays}", one.graph))
    elif one.fact("capturable") is False:
        parts.append((f"no graph: {blocked(one)}", None))
    return one.name, parts


def _is_colder(cold: Row, warm: Row) -> bool:
    """Whether the time with a cold L2 exceeds a call by more than the two events around a single call add."""
    events_s = cold.measurement.floor_s or 0.0
    return cold.value >= COLD_FROM * warm.value and cold.value - warm.value > 2 * events_s


def blocked(one: Step) -> str:
    """The line that stops a capture, or else the error."""
    return plain(one.fact("blocked_line") or blocking_error(one), 100)


def blocking_error(one: Step) -> str:
    """The error that ended the capture."""
    return plain(_reason(one.submit, "capturable") or "the capture failed", 200)


def _kernel_line(one: Kernel) -> Words:
    shown = one.kernel if one.kernel is not None and one.kernel.value > 0 else one.duration
    parts: list[tuple[str, Row | None]] = [(as_time(shown.value), shown)]
    if shown is not one.duration:
        parts.append((f"{as_time(one.duration.value)} a launch in a row", one.duration))
    if one.cold is not None and _is_colder(one.cold, one.duration):
        parts.append((f"{as_time(one.cold.value)} with a cold L2", one.cold))
    parts.append((one.limit[1], None))
    spills = f", {one.whole('spill_bytes')} B spilled" if one.whole("spill_bytes") else ""
    parts.append((f"{one.whole('registers')} registers{spills}", None))
    held = f", limited by {plain(fact(one.duration, 'held_by'), 20)}" if one.occupancy < 1 else ""
    parts.append((f"occupancy {percent(one.occupancy)}{held}", None))
    return one.name, parts


def launched(one: Step) -> list[tuple[str, str, str, int]]:
    """The launches of a captured step: name, grid, block and how often each."""
    import json

    stored = one.fact("kernels")
    try:
        found = json.loads(stored) if isinstance(stored, str) else []
        return [(str(name), _shape(grid), _shape(block), int(count)) for name, grid, block, count in found]
    except (ValueError, TypeError):
        return []


def _shape(given: object) -> str:
    return " × ".join(str(one) for one in given) if isinstance(given, list) else ""


# What stops captures, by what the error's words hold, and what helps.
ADVICE = (
    ("IMPLICIT", "Launch into the current stream, or the one that the function gets, instead of the default stream."),
    ("legacy stream", "Launch into the current stream instead of the default stream."),
    ("graph is empty", "Pass the function its stream as an argument, or use PyTorch's or CuPy's current stream."),
    ("JAX", "Use jax.jit and XLA's own command buffers (--xla_gpu_enable_command_buffer)."),
    ("", "Move the wait, the copy or the allocation on that line out of the function, or do it once in --setup."),
)


@rule("own.blocked", "a stream capture of one call failed")
def cannot_be_captured(evidence: Evidence) -> Finding | None:
    """The line that stops the capture of a function."""
    found = [one for one in steps(evidence) if one.fact("capturable") is False]
    if not found:
        return None
    first = found[0]
    error = blocking_error(first)
    call = first.fact("blocked_call")
    more = f" {len(found) - 1} more cases cannot be captured either." if len(found) > 1 else ""
    title = f"{first.name} cannot be captured into a graph: {blocked(first)}"
    text = f"{error}{f' (in {plain(call, 60)})' if call else ''}.{more}"
    advice = next(advice for words, advice in ADVICE if words.lower() in error.lower())
    return said(title, text, advice, rows=(one.submit for one in found), severity="warning")


@rule("own.graph", f"a replay at least {times(LAUNCH_FROM)} as fast as a call")
def a_graph_helps(evidence: Evidence) -> Finding | None:
    """What a graph gives the function that gains most."""
    found = [(one.gain, one) for one in steps(evidence) if one.gain is not None and one.gain >= LAUNCH_FROM]
    if not found:
        return None
    gain, one = max(found, key=lambda pair: pair[0])
    moved, after = one.fact("moved_nodes"), one.pays_after
    text = sentence(f"{one.fact('compared') or ''}.")
    if moved:
        text += f" {moved} of its nodes have other arguments at a second capture: inputs that move must be copied."
    text += " Where the program does not wait after each call, host and GPU work at the same time"
    text += " and a graph gains less."
    pays = f"; with its capture it pays off after {counted(after, 'replay')}" if after is not None else ""
    title = f"As a CUDA graph, {one.name} is {times(gain)} as fast, each call with one wait{pays}"
    advice = "Capture it once and replay it; copy each step's inputs into the same memory."
    return said(title, text, advice, rows=(one.step, one.graph))


@rule("own.elsewhere", "CUPTI recorded more kernels of one call than its graph has nodes")
def work_elsewhere(evidence: Evidence) -> Finding | None:
    """Warns if a function's graph lacks some of its kernels."""
    found = [one for one in steps(evidence) if one.kernels_outside]
    if not found:
        return None
    first = found[0]
    title = f"The graph of {first.name} lacks {first.kernels_outside} of its kernels"
    text = "They run in another stream, which the capture does not see. So no gain is given."
    advice = "Submit everything to the current stream, or let the other stream wait for an event of it."
    return said(title, text, advice, rows=(one.submit for one in found), severity="warning")


RULES: tuple[Rule, ...] = (cannot_be_captured, work_elsewhere, a_graph_helps)
