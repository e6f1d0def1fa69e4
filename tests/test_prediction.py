"""A predicted step as findings, tables and bars, and the same step with something changed."""

from functools import partial

import pytest
import snapshots
from changed_run import simulated
from hypothesis import given
from hypothesis import strategies as st
from make_fit import GAP_S, TORCH_S, VALUES, make_fit
from msgspec.structs import replace
from sections import drawn as drawn_whole
from sections import lines_of, some, widest
from test_unknowns import told, told_of_change

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.analysis.limits import pcie_rate
from microbench.core.errors import UsageError
from microbench.core.model import GpuInfo, LinkInfo
from microbench.core.units import rate_of
from microbench.gpu.layers.base import layer_names, layer_titles
from microbench.model import step_file, words
from microbench.model.constants import Fit
from microbench.model.forecast import Forecast, forecast
from microbench.model.step_file import examples
from microbench.model.whatif import Change, Changes, changed, in_words, pairs
from microbench.model.workload import Copies, HostWork, Kernels, StepOptions, Wait, Workload
from microbench.report.curves import LEAST
from microbench.report.document import Portion, Report, Stack, Stacks
from microbench.report.sheets import prediction
from microbench.report.sheets.prediction import Side
from microbench.report.terminal import charts

ROWS = evidence_by_device(simulated("launch", "graph"))[0]
described = partial(step_file.described, layers=layer_names())
read = partial(step_file.read, layers=layer_names())
GPU = GpuInfo("Made", "GPU-made", link=LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256))


def step(count: int = 100, duration: str = "1us", layer: str = "loop", **more: int | str) -> Workload:
    return described(None, StepOptions(kernels=count, duration=duration, layer=layer, **more))


def predicted(workload: Workload, fit: Fit | None = None) -> Forecast:
    return forecast(workload, fit or make_fit())


def drawn(report: Report, width: int = 120, encoding: str = "utf-8") -> str:
    return drawn_whole(report, width, encoding, brief=True)


def sheet(workload: Workload, fit: Fit | None = None, **side: object) -> Report:
    return prediction.sheet(Side(predicted(workload, fit), ROWS, **side))


def finding_of(rule: str, workload: Workload, fit: Fit | None = None, **side: object) -> Finding | None:
    """The finding of that rule on the whole sheet, verdict included."""
    sections = sheet(workload, fit, **side).sections
    every = [finding for section in sections for finding in (section.verdict, *section.findings) if finding is not None]
    return next((finding for finding in every if finding.rule == rule), None)


SLOW = make_fit(replay__loop=1e-3)
PAGEABLE = Workload((HostWork(1e-6), Wait(), Copies("h2d", 4096, memory="pageable")))
TORCH = step(10, "1us", "torch", arguments=1, host="0")


LATE = step(1000, "1us", replays=2)
STEPS: dict[str, tuple[Workload, Fit]] = {
    "a graph that pays": (step(1000, "1us"), make_fit()), "one that changes little": (step(1000, "1ms"), make_fit()),
    "one that never pays": (step(2, "1us"), SLOW), "one that pays later than planned": (LATE, make_fit()),
    "what no graph holds": (PAGEABLE, make_fit()), "kernels of no length": (step(100, "0"), make_fit()),
    "kernels that take longer than calls": (step(100, "9us"), make_fit()),
    "nothing to advise": (step(1, "1ms"), make_fit()), "as many kernels as were measured": (step(1250), make_fit()),
    "more": (step(1251), make_fit()), "no measured steps": (step(), make_fit(steps=0)),
    "a layer's replay is assumed": (TORCH, make_fit()),
    "its host time is not known": (step(10, "1us", "torch", arguments=1), make_fit()),
    "an example": (read("decode-7b"), make_fit(call__torch_eager__0=TORCH_S)),
}  # fmt: skip
TORCH_1000 = step(1000, "0", "torch", arguments=1, host="0")
BYTES = Workload((Kernels(100, bytes=40e6), Wait()))
BOTH = Workload((Kernels(100, (50e-6,), bytes=40e6), Kernels(100, bytes=40e6), Wait()))
OWN_TIME = Workload((HostWork(100e-6), Kernels(100, (0.0,), host_s=10e-6), Wait()))
PAGEABLE_IN = Workload((Copies("h2d", 1 << 20, memory="pageable"), Kernels(3, (1e-6,))))
CHANGED: dict[str, tuple[Workload, dict[str, object]]] = {
    "a shorter call": (TORCH_1000, {"submit_s": 2e-6}), "a longer one": (TORCH_1000, {"submit_s": 16e-6}),
    "a shorter gap": (step(1000, "9us"), {"gap_s": 0.0}),
    "a time that reads differently is not the same": (step(1000, "9us"), {"gap_s": 0.9 * GAP_S}),
    "a gap that is as long": (step(1000, "9us"), {"gap_s": GAP_S}),
    "a gap that the host hides": (step(1000, "0"), {"gap_s": 0.0}),
    "a shorter gap of graphs": (step(1000, "1us"), {"graph_gap_s": 0.0}),
    "beyond what was measured": (step(2000), {"gap_s": 0.0}),
    "slower memory bounds kernels with bytes": (BYTES, {"memory_rate": 1e12}),
    "and no others": (step(), {"memory_rate": 1e12}),
    "the kernels' work scales with its bytes": (BOTH, {"kernel_time": 0.5}),
    "the program's own time wherever it is": (OWN_TIME, {"host_time": 0.0}),
    "no time of its own": (step(), {"host_time": 0.5}),
    "a link that pageable copies do not use is named once": (PAGEABLE_IN, {"pcie_generation": 6}),
}  # fmt: skip


def test_what_is_said_of_steps_and_changes() -> None:
    every = {name: told(forecast(*asked)) for name, asked in STEPS.items()}
    every |= {name: told_of_change(of, make_fit(), what, GPU) for name, (of, what) in CHANGED.items()}
    snapshots.same("predictions", snapshots.in_turn(every))


@pytest.mark.parametrize(("reference", "severity"), [(True, "advice"), (False, "warning")])
def test_constants_of_another_machine_are_marked(reference: bool, severity: str) -> None:
    """The run is simulated, so its constants are never this machine's."""
    finding = some(finding_of("prediction.origin", step(), reference=reference))
    assert finding.severity == severity
    assert finding.advice
    assert len(finding.rests_on) == 16
    assert words.benchmarks(finding.rests_on)[:3] == ("bench_way", "bench_empty", "bench_complete")


def test_a_step_is_described_by_what_is_in_it() -> None:
    torch = words.described(step(1100, "6us", "torch"), layer_titles())
    assert torch == "1100 kernels of 6.00 µs from PyTorch eager, 1 wait"
    copies = step(8, "0", copy_in="1MiB", copy_out="4KiB", syncs_per_step=0, streams=2)
    assert words.described(copies, layer_titles()) == (
        "8 empty kernels from the compiled loop on 2 streams, 1 MiB in, 4 KiB out, no wait"
    )
    assert words.described(read("decode-7b"), {}).startswith("one token")


def test_the_changes_that_save_most_come_first() -> None:
    workload = step(100, "1us", "torch", arguments=1, host="0", syncs_per_step=4)
    advice, text = predicted(workload).advice, drawn(sheet(workload))
    assert advice[0].name == "graph"
    places = [text.index(f"{place}.  {change.what}"[:40]) for place, change in enumerate(advice, start=1)]
    assert places == sorted(places)


def test_a_rate_is_in_the_workload_s_own_unit() -> None:
    workload = replace(step(100, "9us"), unit="image", per_step=64.0)
    assert rate_of(64.0 / predicted(workload).stream.step_s, "images") in drawn(sheet(workload))


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", sorted(examples()))
def test_the_page_holds_every_example(name: str, width: int) -> None:
    known = make_fit(call__torch_eager__0=TORCH_S, call__cupy_raw__4=5e-6)
    text = drawn(sheet(read(name), known), width)
    assert widest(text) <= width


def test_the_page_can_be_ascii_and_keeps_hostile_text_in_its_place() -> None:
    hostile = replace(step(), title="\x1b[31m[red]x[/red]\u202e", unit="\x07bell", about="[b]\n\x1b]0;x")
    text = drawn(sheet(hostile), 80, "ascii")
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "[red]x[/red]" in text


def test_bars_are_to_scale_and_name_their_portions() -> None:
    long = Stack("long", (Portion("host", 6.0, "6 s", "first"), Portion("kernel", 2.0, "2 s", "second")), "8 s")
    short = Stack("short", (Portion("kernel", 2.0, "2 s", "second"), Portion("sync", 0.0, "0 s", "quiet")), "2 s")
    lines = lines_of(charts.stacks(Stacks("", "", (long, short)), 52))
    assert (lines[0].count("█"), lines[0].count("▓")) == (3 * lines[0].count("▓"), lines[3].count("▓"))
    assert lines[0].endswith("  8 s")
    assert "█ host 6 s  ▓ kernel 2 s" in lines[1]
    assert "▓ kernel 2 s  ─ sync 0 s" in lines[4]


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.sampled_from(["first", "second", "quiet"])), max_size=6),
    st.integers(30, 130),
)
def test_bars_keep_to_the_page(portions: list[tuple[float, str]], width: int) -> None:
    made = tuple(Portion("name", value, "1.00 ms, 5 %", tone) for value, tone in portions)
    drawing = charts.stacks(Stacks("", "", (Stack("stream", made, "1.00 ms"),)), width)
    bar = lines_of(drawing)[0]
    assert len(bar) <= width
    total = sum(value for value, _ in portions)
    assert total <= LEAST or abs(sum(bar.count(sign) for sign in "█▓─") - (width - 17)) <= 1


def changes(workload: Workload, **what: object) -> tuple[Change, ...]:
    return changed(workload, make_fit(), GPU, Changes(**what)).changes


def test_another_layer_launches_all_of_it() -> None:
    parts = (Kernels(10, (0.0,), arguments=1), Kernels(10, (0.0,), arguments=1, layer="cupy_raw"), Wait())
    workload = Workload(parts, layer="torch_eager")
    then = changed(workload, make_fit(), GPU, Changes(layer="loop"))
    assert then.change(workload, then.fit).layers == ("loop",)
    assert then.changes[0][1:3] == ("PyTorch eager and CuPy RawKernel", "the compiled loop")
    with pytest.raises(UsageError, match="no launches through triton") as caught:
        changed(workload, make_fit(), GPU, Changes(layer="triton"))
    assert "launch_layers" in caught.value.next_step


def test_another_link_scales_copies_by_the_ceilings() -> None:
    workload = Workload((Copies("h2d", 1 << 26), Kernels(1), Copies("d2h", 1 << 26, memory="pageable"), Wait()))
    then = changed(workload, make_fit(), GPU, Changes(pcie_generation=3, lanes=8)).fit.constants
    for name, direction in (("h2d_rate", "h2d"), ("d2h_rate", "d2h")):
        own, other = pcie_rate(5, 16, direction, 256), pcie_rate(3, 8, direction, 256)
        assert then[name].value == pytest.approx(VALUES[name] * some(other) / some(own))
    assert then["d2h_pageable_rate"].value == then["d2h_rate"].value  # slower than what the host managed
    faster = changed(workload, make_fit(), GPU, Changes(pcie_generation=6)).fit.constants
    assert faster["h2d_rate"].value > VALUES["h2d_rate"]
    assert faster["d2h_pageable_rate"].value == VALUES["d2h_pageable_rate"]


@pytest.mark.parametrize("gpu", [None, GpuInfo("x", "x"), replace(GPU, integrated=True)])
def test_a_link_that_is_not_known_cannot_be_scaled(gpu: GpuInfo | None) -> None:
    with pytest.raises(UsageError, match="does not say which PCIe link"):
        changed(step(), make_fit(), gpu, Changes(pcie_generation=4))


def test_two_machines_stand_side_by_side() -> None:
    slower = Side(predicted(step(900, "0"), make_fit(call__loop__0=4e-6)), ROWS, True)
    report = prediction.against_sheet(Side(predicted(step(900, "0")), ROWS), slower)
    text = drawn(report)
    assert all(words in text for words in ("2.0× as long", "stream first"))
    ((_, costs),) = report.facts
    assert costs.split(" · against ") == ["NVIDIA H200, not a real one"] * 2
    found = pairs(predicted(step(900, "0")), slower.forecast)
    assert [in_words(pair) for pair in found] == ["2.0× as long", "the same"]
