"""The link suite's findings on healthy and broken made runs: the verdict and its causes, copies, memory and places."""

from collections.abc import Iterator

import snapshots
from changed_run import changed, is_case, scaled, with_gpu, without
from link_evidence import SEVERAL, WHOLE, findings, peer_outcomes, slower, with_facts
from make_link_run import FLAT, Facts, make_link_run, state, two_switches
from msgspec.structs import replace
from read_findings import check_shape, drawn, evidence

from microbench.core.model import Fact, LinkInfo, Outcome, Param, Run
from microbench.experiments.link.copies import BUSY_FACT
from microbench.explain.link_facts import OTHERS_BUSY
from microbench.explain.link_verdict import causes


def only(size_bytes: int, most: bool, run: Run) -> Run:
    """The run with copies of that size alone, or of no more than it."""

    def kept(one: Outcome) -> Outcome | None:
        size = int(one.case.params.get("size_bytes", 0)) if one.case.benchmark == "link_copy" else size_bytes
        return one if (size <= size_bytes if most else size == size_bytes) else None

    return changed(run, kept)


def idle(**other: int) -> Facts:
    return two_switches(read_under_load=False, hop4_generation_now=1, **other)


def partly(run: Run, benchmark: str, **params: Param) -> Run:
    """The run with others that ended before the measured copies did."""
    return changed(
        run, lambda one: replace(one, facts=(Fact(OTHERS_BUSY, False),)) if is_case(one, benchmark, params) else one
    )


def facts_alone(facts: Facts) -> Run:
    return changed(WHOLE, lambda one: state(facts) if one.case.benchmark == "link_state" else None)


METAL = with_facts(two_switches())
SHARED = without(with_facts(two_switches(iommu="translated"), slower(0.7, SEVERAL)), "link_numa")
SMALL, ONE_SIZE = only(1 << 16, True, METAL), only(1, False, METAL)
NARROW = two_switches(
    lanes_now=8, lanes_slot_max=8, generation_slot_max=4, generation_now=4, slot_limit_bus_id="0000:3a:00.0"
)
OLD = two_switches(generation_gpu_max=3, generation_now=3, hop0_generation_max=3, hop4_generation_now=4)
COHERENT = LinkInfo(generation_max=1, lanes_max=1, coherent=True)


def verdicts() -> dict[str, Run]:
    return {
        "healthy": WHOLE, "slow from the GPU": scaled(WHOLE, "link_copy", "bandwidth", 0.8, direction="d2h"),
        "8 of 16 lanes": with_facts(two_switches(lanes_now=8), slower(0.5)),
        "generation 4 of 5": with_facts(two_switches(generation_now=4), slower(0.5)),
        "generation 3, the slot hidden": with_facts({**FLAT, "generation_now": 3}, slower(0.25)),
        "a narrow slot": with_facts(NARROW, slower(0.25)),
        "a narrow root port": with_facts(two_switches(hop4_lanes_now=8, hop5_lanes_now=8), slower(0.5)),
        "a slow bridge": with_facts(two_switches(hop2_generation_now=3), slower(0.2)),
        "idle facts": with_facts(idle(generation_now=4, lanes_now=8), slower(0.1)),
        "a far node": scaled(make_link_run(nodes=2, facts=two_switches()), "link_copy", "bandwidth", 0.7),
        "a shared uplink": SHARED, "errors": with_facts(two_switches(pcie_correctable_errors_risen=40)),
        "a fatal error": with_facts(two_switches(pcie_fatal_errors_risen=1)),
        "busy": with_gpu(slower(0.7), lambda gpu: replace(gpu, other_processes=("python (1)",))),
        "slow, all hidden": slower(0.7), "small copies": SMALL, "one size": ONE_SIZE,
        "small copies of 8 lanes": with_facts(two_switches(lanes_now=8), SMALL),
        "slow, nothing seen": with_facts(two_switches(), slower(0.7)),
        "slow, nothing looked at": without(slower(0.7), "link_state"),
        "above the limit": with_facts(two_switches(), scaled(WHOLE, "link_copy", "bandwidth", 1.1)),
        "packets unread": with_gpu(WHOLE, lambda gpu: replace(gpu, link=LinkInfo(generation_max=5, lanes_max=16))),
        "two causes": with_facts(two_switches(lanes_now=8, hop4_lanes_now=8), slower(0.5)),
        # Copies were faster than such a link, and errors were few.
        "misread": with_facts(two_switches(generation_now=1, lanes_now=1)),
        "a bridge misread": with_facts(two_switches(hop4_lanes_now=1)),
        "one replay": with_facts(two_switches(pcie_replays_risen=1)),
        "errors of NVLink": with_facts(two_switches(nvlink_errors_risen=40)),
        "a slow bridge that the GPU could not use": with_facts(OLD, slower(0.2)),
        "integrated": with_gpu(WHOLE, lambda gpu: replace(gpu, integrated=True)),
        "C2C": with_facts({**FLAT, "c2c": True}),
        "coherent": with_gpu(WHOLE, lambda gpu: replace(gpu, link=COHERENT)),
        "an unknown link": with_gpu(WHOLE, lambda gpu: replace(gpu, link=LinkInfo())),
        "pageable copies": changed(WHOLE,
            lambda one: None if one.case.benchmark == "link_copy" and one.case.params["memory"] != "pageable" else one
        ),
        **{f"facts alone, {name}": facts_alone(facts) for name, facts in (
            ("4 lanes", two_switches(lanes_now=4)), ("healthy", two_switches()),
            ("errors of NVLink", two_switches(nvlink_errors_risen=40)), ("unknown", {**FLAT, "generation_now": None}),
            ("idle", idle(generation_now=1, lanes_now=8)),
        )},
    }  # fmt: skip


PAGEABLE = {"memory": "pageable"}
APART = scaled(SEVERAL, "link_concurrent", "together", 1 / 0.511)
HIDDEN = with_facts(two_switches(numa_node=None), SEVERAL)
TO_GPU = without(WHOLE, "link_copy", memory="pageable", direction="d2h")


def paired() -> Run:
    """Two GPUs share an uplink, and so do the other two."""
    run = make_link_run(gpus=4, nodes=2, preset="full")
    for one, other in ((0, "1"), (1, "0"), (2, "3"), (3, "2")):
        run = scaled(run, "link_concurrent", "together", 0.51, gpu_index=one, beside=other)
    return run


def others() -> dict[str, tuple[str, Run]]:
    return {
        "pinned copies": ("pin", WHOLE), "to the GPU alone": ("pin", TO_GPU),
        **{f"pageable {factor} times as fast": ("pin", scaled(WHOLE, "link_copy", "bandwidth_host", factor, **PAGEABLE))
           for factor in (0.2, 3.4, 9.0)},
        "pageable fast one way": (
            "pin", scaled(WHOLE, "link_copy", "bandwidth_host", 9.0, direction="d2h", **PAGEABLE),
        ),
        "without link_pinning": ("pin", without(WHOLE, "link_pinning")),
        "no way to compare": ("pin", without(TO_GPU, "link_copy", memory="pinned", direction="h2d")),
        "a node beside the GPU's": ("numa", SEVERAL), "one node": ("numa", WHOLE),
        "the GPU's node": ("numa", with_facts(two_switches(numa_node=0), SEVERAL)),
        "equal nodes": ("numa", scaled(SEVERAL, "link_numa", "bandwidth", 1 / 0.722, node=1)),
        "the node hidden": ("numa", HIDDEN),
        "hidden, equal": ("numa", scaled(HIDDEN, "link_numa", "bandwidth", 1 / 0.722, node=1)),
        "one uplink": ("concurrent", SEVERAL), "an uplink for two": ("concurrent", paired()),
        "apart": ("concurrent", APART),
        "others ended before": ("concurrent", partly(APART, "link_concurrent")),
        "one did": ("concurrent", partly(SEVERAL, "link_concurrent", direction="h2d", gpu_index=2)),
        "halves": ("peers", SEVERAL), "two GPUs": ("peers", make_link_run(gpus=2)),
        "pairs without access": ("peers", peer_outcomes(SEVERAL, "skipped", "other root", second=1)),
        "a pair failed": ("peers", peer_outcomes(SEVERAL, "failed", "byte 3 differs", first=0, second=1)),
        "all failed": ("peers", peer_outcomes(SEVERAL, "failed", "byte 3 differs")),
        "no access at all": ("peers", peer_outcomes(SEVERAL, "skipped", "no peer access")),
        "odd settings": (
            "settings", with_facts(two_switches(max_payload_bytes=128, acs=True, relaxed_ordering=False), SEVERAL),
        ),
        "no resizable BAR": ("settings", with_facts(two_switches(resizable_bar=False))),
        "usual settings": ("settings", SEVERAL),
        "ACS harms several GPUs only": ("settings", with_facts(two_switches(acs=True))),
    }  # fmt: skip


def told(run: Run, rule: str = "verdict") -> Iterator[str]:
    if (found := findings(run).get(f"link.{rule}")) is not None:
        check_shape(found)
        yield drawn(found)
    if rule == "verdict":
        for cause in causes(evidence(run)):
            yield f"{cause.name}, certain: {cause.certain}, by {', '.join(cause.rests_on)}: {cause.text}"
        yield f"with {', '.join(sorted(findings(run)))}"


def test_what_is_said_of_a_link() -> None:
    every = {name: told(run) for name, run in verdicts().items()}
    every |= {f"{rule}: {name}": told(run, rule) for name, (rule, run) in others().items()}
    snapshots.same("links", snapshots.in_turn(every))


def test_the_busy_fact_has_one_name() -> None:
    assert OTHERS_BUSY == BUSY_FACT
