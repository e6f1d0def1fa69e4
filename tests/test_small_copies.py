"""Tests of many small copies in a trace: how they are found, and which faster way is advised."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call
from make_fake_run import for_a_fit, make_fake_run
from make_fit import make_fit
from make_link_run import measured_batches
from make_run import with_suite
from make_trace import GAP_NS, WAY_NS, Recorder, kineto
from msgspec.structs import replace
from recorded_runs import save

from microbench.core.bench import discover
from microbench.core.units import quantity
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.words import findings
from microbench.gpu.fake.costs import FakeCosts
from microbench.model.constants import Constant, Fit, batched_rate
from microbench.model.fit import fit_for
from microbench.model.workload import Kernels, Wait, Workload
from microbench.traces.trace import Memory

STEPS, CALL_NS, BETWEEN_NS, COPY_NS, KERNELS, KERNEL_NS, WAIT_NS = 12, 2000, 6000, 1300, 20, 20_000, 1500
PINNED: tuple[Memory, Memory] = ("pinned", "device")


def copy(made: Recorder, size: int = 4096, memories: tuple[Memory, Memory] = PINNED, stream: int = 7) -> None:
    made.runs(BETWEEN_NS)
    call = made.call("cudaMemcpyAsync", CALL_NS)
    made.submit(call, "Memcpy HtoD (Pinned -> Device)", COPY_NS, stream, kind="copy", memories=memories, size=size)


def steps(copies: Callable[[Recorder], None]) -> Recorder:
    """Steps of copies, of kernels that take longer than their launches, and of a wait."""
    made = Recorder()
    for _ in made.steps(STEPS):
        copies(made)
        made.launches(KERNELS, 9000, KERNEL_NS)
        made.wait(ns=WAIT_NS)
    return made


def several(count: int, size: int = 4096, between: Callable[[Recorder], object] | None = None) -> Recorder:
    """``count`` copies a step; ``between`` comes after the first half of them."""

    def copies(made: Recorder) -> None:
        for place in range(count):
            if between is not None and place == count // 2:
                between(made)
            copy(made, size)

    return steps(copies)


def costs(machine: str = "H200") -> Fit:
    """A fit by hand, with the rates that link_batch measured on a real GPU."""
    rates: dict[str, dict[tuple[int, int], Constant]] = {}
    for (way, size, pieces), rate in measured_batches(machine).items():
        rates.setdefault(way, {})[pieces, size] = Constant(rate, 0.99 * rate, 1.01 * rate, (f"{way} {pieces} {size}",))
    return replace(make_fit(), batches=rates)


def diagnosed(made: Recorder, fit: Fit | None = None, gpu: str = "NVIDIA H200") -> Diagnosis:
    """The diagnosis; a step takes as long without the recorder."""
    return diagnose(made.trace(), fit or costs(), made.now_ns / STEPS * 1e-9, gpu)


def test_rates_are_those_of_the_trace_and_of_the_run() -> None:
    found = diagnosed(several(256))
    copies = found.recorded.small_copies
    span_ns = 255 * (BETWEEN_NS + CALL_NS) + COPY_NS
    assert (len(copies.places), copies.piece_bytes) == (256, 4096)
    assert copies.rate == pytest.approx(256 * 4096 / span_ns * 1e9)
    assert {way: one.value for way, one in found.batched.items()} == {"batched": 2.86e9, "gather": 32.6e9}
    (said,) = (one for one in findings(found) if one.rule == "diagnose.small_copies")
    assert said.title.startswith(
        f"256 copies of 4 KiB reach {quantity(copies.rate, 'B/s')} as recorded; one gathering kernel 32.6 GB/s, one "
        "batched call 2.86 GB/s. A step then takes "
    )
    assert said.severity == "advice"
    assert said.advice.endswith("where the SMs are busy, by one cudaMemcpyBatchAsync (CUDA 12.8 or newer)")


def test_a_step_with_one_call_is_played() -> None:
    """Behind the one call, the kernels set the pace; the call takes as long as measured, whatever a copy costs."""
    remedies, others = (
        {
            one.name: one
            for one in diagnosed(several(256), replace(make_fit(h2d_latency=at), batches=costs().batches)).remedies
        }
        for at in (2e-6, 4e-6)
    )
    kernels_ns = KERNELS * KERNEL_NS + (KERNELS - 1) * GAP_NS
    for way, rate in (("gather", 32.6), ("batched", 2.86)):
        step_ns = BETWEEN_NS + CALL_NS + WAY_NS + 256 * 4096 / rate + GAP_NS + kernels_ns
        assert remedies[way].step_s == pytest.approx(step_ns * 1e-9, rel=0.01)
        assert remedies[way].step_s == pytest.approx(others[way].step_s, rel=1e-6)
        assert remedies[way].what.startswith("256 copies of 4 KiB: ")


def test_the_fastest_way_is_advised_first() -> None:
    """On an H100 one call of pieces of 16 KiB is no faster than a copy for each; of 28 KiB it is."""
    assert list(diagnosed(several(256, 16 << 10), costs("H100")).batched) == ["gather"]
    found = diagnosed(several(256, 28 << 10), costs("H100"))
    assert {way: one.value for way, one in found.batched.items()} == {"batched": 19.76e9, "gather": 46.87e9}


@pytest.mark.parametrize(("between", "parts"), [
    (None, False), (lambda made: made.record_event(7), False), (lambda made: made.call("cudaGetDevice", 300), False),
    (lambda made: made.launch("kernel", 2000), True), (lambda made: made.wait(), True),
    (lambda made: made.call("cudaMalloc", 3000), True), (lambda made: copy(made, 64 << 10), True),
    (lambda made: copy(made, memories=("device", "pinned")), True),
    (lambda made: copy(made, memories=("pageable", "device")), True),
    (lambda made: made.wait_event(made.record_event(7), 7), False),
    (lambda made: copy(made, stream=20), True),
])  # fmt: skip
def test_what_comes_between_two_copies_may_part_them(between: Callable[[Recorder], object] | None, parts: bool) -> None:
    found = diagnosed(several(40, between=between)).recorded.small_copies
    assert len(found.places) == (20 if parts else 40)
    assert (diagnosed(several(30, between=between)).recorded.small_copies is None) == parts


def test_a_wait_for_another_stream_parts_copies() -> None:
    def copies(made: Recorder) -> None:
        made.launch("kernel", 5000, stream=20)
        event = made.record_event(20)
        for place in range(40):
            if place == 20:
                made.wait_event(event, 7)
            copy(made)

    assert len(diagnosed(steps(copies)).recorded.small_copies.places) == 20


def test_alike_sizes_are_copied_together() -> None:
    def growing(factor: float) -> int:
        found = diagnosed(steps(lambda made: [copy(made, round(4096 * factor ** (at % 2))) for at in range(64)]))
        return 0 if found.recorded.small_copies is None else found.recorded.small_copies.piece_bytes

    assert growing(1.2) == pytest.approx(1.1 * 4096, rel=0.001)
    assert growing(1.3) == 0


@pytest.mark.parametrize(("count", "size", "said"), [
    (16, 4096, True), (15, 4096, False), (64, 512, False), (64, 1 << 20, False), (64, 200 << 10, True),
])  # fmt: skip
def test_nothing_is_said_of_what_the_run_does_not_have(count: int, size: int, said: bool) -> None:
    made = several(count, size)
    assert bool(diagnosed(made).batched) == said
    fit = costs()
    only = {way: {at: rate for at, rate in known.items() if at[0] == 256} for way, known in fit.batches.items()}
    assert not diagnosed(made, replace(fit, batches=only)).batched, "256 pieces say nothing of fewer"
    for other in (make_fit(), replace(fit, batches={"loop": fit.batches["loop"]})):
        found = diagnosed(made, other)
        assert not found.batched
        assert not {"gather", "batched"} & {one.name for one in found.remedies}
        assert "diagnose.small_copies" not in {one.rule for one in findings(found)}


def test_a_rate_between_measured_ones_has_their_whole_interval() -> None:
    def known(value: float) -> Constant:
        return Constant(value, 0.9 * value, 1.1 * value, (f"{value:g}",))

    rates = {(16, 1024): known(1e9), (16, 4096): known(4e9), (256, 1024): known(4e9), (256, 4096): known(16e9)}
    assert batched_rate(rates, 16, 4096) == known(4e9)
    assert batched_rate(rates, 9999, 4096) == known(16e9)
    between = batched_rate(rates, 64, 2048)
    assert between.value == pytest.approx(4e9)
    assert (between.low, between.high) == (0.9e9, pytest.approx(17.6e9))
    assert set(between.rests_on) == {"1e+09", "4e+09", "1.6e+10"}
    for pieces, size in ((15, 4096), (16, 1023), (16, 4097)):
        assert batched_rate(rates, pieces, size) is None
    assert batched_rate({}, 16, 1024) is None


def test_copies_that_were_as_fast_have_no_other_way() -> None:
    fit = costs()
    slow = {way: {at: replace(rate, low=0.5e9) for at, rate in known.items()} for way, known in fit.batches.items()}
    assert not diagnosed(several(256), replace(fit, batches=slow)).batched


def test_a_simulated_run_gives_its_own_figures_marked(tmp_path: Path) -> None:
    run, names = for_a_fit(), ("link_copy", "link_latency", "link_batch")
    cases = [(name, one.params) for name in names for one in discover()[name].cases("default")]
    run = with_suite(run, names, "default", make_fake_run(FakeCosts(), cases).outcomes)
    fit = fit_for(run, Workload((Kernels(10, (1e-6,)), Wait())))[1]
    path, trace = str(save(tmp_path, run)), tmp_path / "trace.json"
    trace.write_bytes(kineto(several(256).trace()))
    shown = " ".join(call("diagnose", str(trace), "--run", path, "--all").output.split())
    assert "SIMULATED costs of run" in shown
    gather = quantity(fit.batches["gather"][256, 4096].value, "B/s")
    assert f"as recorded; on SIMULATED GPU one gathering kernel {gather}" in shown
    assert f"one gathering kernel {gather}" in shown.partition("What to change")[2]
    remedies = json.loads(call("diagnose", str(trace), "--run", path, "--json").output)["advice"]
    assert {"gather", "batched"} <= {one["name"] for one in remedies}
    assert "gathering kernel" not in call("diagnose", str(trace), "--all").output, "bundled runs have no such figures"


def test_memory_is_pinned_only_where_it_is_not() -> None:
    for source, beginning in (("pinned", "Copy ahead"), ("pageable", "Pin the memory")):

        def copies(made: Recorder, source: Memory = source) -> None:
            for _ in range(256):
                copy(made, memories=(source, "device"))

        (said,) = (one for one in findings(diagnosed(steps(copies))) if one.rule == "diagnose.copies")
        assert said.advice.startswith(beginning)
