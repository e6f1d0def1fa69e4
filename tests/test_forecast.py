"""Forecasts from constants made by hand: the law, intervals, break-even, flowing steps, advice, extrapolation."""

import math
from collections.abc import Iterator, Sequence

import pytest
import snapshots
from make_fit import make_fit
from msgspec.structs import replace

from microbench.core.errors import UsageError
from microbench.model.constants import Fit
from microbench.model.forecast import BEYOND, Forecast, forecast, predict
from microbench.model.model import WAYS, Act, Played, needed, play
from microbench.model.words import findings
from microbench.model.workload import Copies, HostWork, Kernels, Part, Wait, Workload

VALUES = {
    "empty": 0.1e-6, "sync": 0.1e-6, "gap_stream": 1.5e-6, "replay_node": 1e-9, "replay_way": 2.5e-6,
    "call.loop.0": 2.5e-6, "call.loop.4": 2.6e-6, "call.torch_eager.1": 6e-6, "call.cupy_raw.0": 3e-6,
    "call.cupy_raw.4": 5e-6, "replay.torch_eager": 2e-6, "replay.cupy_raw": 1.5e-6, "h2d_call": 1.2e-6,
    "h2d_way": 0.5e-6, "d2h_call": 1.1e-6, "d2h_latency": 1.7e-6, "h2d_pageable_latency": 5e-6,
    "h2d_pageable_rate": 10e9, "d2h_pageable_latency": 5e-6, "d2h_pageable_rate": 10e9,
}  # fmt: skip


def fit(half: float = 0.0, most: float = 0.02, **others: float) -> Fit:
    return make_fit(half=half, most=most, **VALUES | others)


def step(count: int, duration_s: float, layer: str = "loop", **others: object) -> Workload:
    kernels = Kernels(count, (duration_s,), **others)
    return Workload((kernels, Wait()), layer=layer)


@pytest.mark.parametrize(("duration_s", "period_s"), [(0.2e-6, 2.5e-6), (0.99e-6, 2.5e-6), (6e-6, 7.5e-6)])
def test_a_step_takes_what_the_law_says(duration_s: float, period_s: float) -> None:
    found = forecast(step(200, duration_s), fit())
    assert found.stream.step_s == pytest.approx(2.5e-6 + 3e-6 + 199 * period_s + duration_s + 2e-6)
    call_s = 1e-6 + 200e-9
    assert found.graph.step_s == pytest.approx(call_s + 2.5e-6 + 200 * duration_s + 199 * 0.5e-6 + 2e-6)
    assert found.making == pytest.approx((0.0, 0.0, 10e-6 + 200 * 2e-6))
    assert found.making_s == pytest.approx(sum(found.making))
    assert found.break_even == math.ceil(found.making_s / (found.stream.step_s - found.graph.step_s))
    assert found.stream.limit == ("kernel" if duration_s > 1e-6 else "host")
    for one in (found.stream, found.graph):
        assert sum(one.shares.values()) == pytest.approx(one.step_s)
        assert one.idle_share == pytest.approx(1 - 200 * duration_s / one.step_s)


def test_the_interval_is_misfit_and_constants_together() -> None:
    workload = step(500, 0.0)
    alone = predict(workload, fit(half=0.0, most=0.03), "stream")
    assert alone.half_width == pytest.approx(0.03, rel=0.001)
    both = predict(workload, fit(half=0.04, most=0.03), "stream")
    # All but 7 us of such a step are its calls: one constant, so its share of the step is its share.
    assert both.half_width == pytest.approx(math.hypot(0.03, 0.04), rel=0.02)
    assert both.low_s < both.step_s < both.high_s


def test_a_long_step_has_the_interval_of_a_short_one() -> None:
    short, long = (predict(step(count, 6e-6), fit(half=0.04), "stream") for count in (600, 20_000))
    assert long.half_width == pytest.approx(short.half_width, rel=0.02)


def test_a_long_step_is_shortened_with_all_that_is_in_it() -> None:
    """Host work, waits and copies keep their share: an interval is that of the whole step."""
    host = Workload((HostWork(1.0), Kernels(20_000), Wait()))
    calls_share = 20_000 * 2.5e-6 / 1.05
    assert predict(host, fit(half=0.2, most=0.0), "stream").half_width == pytest.approx(0.2 * calls_share, rel=0.02)
    waits = Workload((Kernels(1000, (2e-6,)), Wait()) * 20)
    one = predict(Workload(waits.parts[:2]), fit(half=0.5, most=0.0), "stream")
    assert predict(waits, fit(half=0.5, most=0.0), "stream").half_width == pytest.approx(one.half_width, rel=0.02)


@pytest.mark.slow
def test_advice_on_a_long_step_is_about_the_whole_of_it() -> None:
    parts: tuple[Part, ...] = (HostWork(0.1), Kernels(20_000, layer="cupy_raw"), Wait())
    found = {advice.name: advice for advice in forecast(Workload(parts), fit()).advice}
    assert found["layer"].saves == pytest.approx(20_000 * 0.5e-6 / 0.16, rel=0.01)
    waits = forecast(Workload((Kernels(1000, (2e-6,)), Wait()) * 20), fit())
    assert "syncs" not in {advice.name for advice in waits.advice}, "6 us of 3.5 ms each"


def test_many_copies_are_predicted_with_as_few_plays_as_many_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def counted(of: Sequence[Act], **more: float) -> Played:
        played.append(len(of))
        return play(of, **more)

    monkeypatch.setattr("microbench.model.model.play", counted)
    predict(Workload((Copies("h2d", 8, 5000), Kernels(1), Wait())), fit(half=0.1), "stream")
    assert max(played) == 5002
    assert sum(played) < 5 * 5002


def test_advice_is_what_the_changed_step_would_take() -> None:
    found = forecast(step(1000, 0.2e-6, "torch_eager", arguments=1, host_s=0.0), fit())
    by_name = {advice.name: advice for advice in found.advice}
    assert list(found.advice) == sorted(found.advice, key=lambda advice: advice.step_s)
    assert by_name["graph"].step_s == pytest.approx(found.graph.step_s)
    compiled = predict(step(1000, 0.2e-6, "loop", arguments=1), fit(**{"call.loop.1": 2.525e-6}), "stream")
    assert by_name["layer"].step_s == pytest.approx(compiled.step_s, rel=0.01)
    fused = predict(step(500, 0.4e-6, "torch_eager", arguments=1, host_s=0.0), fit(), "stream")
    assert by_name["fuse"].step_s == pytest.approx(fused.step_s)
    for advice in found.advice:
        assert advice.saves == pytest.approx(1 - advice.step_s / found.stream.step_s)


def test_a_step_beyond_what_was_measured_is_named() -> None:
    inside = int(1000 * BEYOND)
    assert predict(step(inside, 1e-6), fit(), "stream").outside == ()
    (words,) = predict(step(inside + 1, 1e-6), fit(), "stream").outside
    assert "measured: up to 1000" in words
    assert predict(Workload((Kernels(inside + 1), Wait(), Kernels(1), Wait())), fit(), "graph").outside
    assert not predict(Workload((Kernels(inside), Wait()) * 2), fit(), "graph").outside


def test_every_constant_used_is_named_and_a_missing_one_refused() -> None:
    workload = Workload((Copies("h2d", 8), Kernels(3, bytes=1e3), Copies("d2h", 8, memory="pageable"), Wait()))
    for way in WAYS:
        names = predict(workload, fit(), way).names
        assert set(names) == set(needed(workload, way))
        whole = fit()
        for name in names:
            others = {one: constant for one, constant in whole.constants.items() if one != name}
            lacking = replace(whole, constants=others)
            with pytest.raises(UsageError, match=name.replace(".", r"\.")):
                predict(workload, lacking, way)


PAGEABLE: tuple[Part, ...] = (
    Copies("h2d", 100_000, memory="pageable"), Kernels(10, (1e-6,), host_s=2e-6), Wait(), Kernels(10, (1e-6,)), Wait(),
)  # fmt: skip
OVERLAPPING = tuple(
    part
    for stream in (0, 1)
    for part in (Copies("h2d", 5_000_000, stream=stream), Kernels(1, (100e-6,), stream=stream))
)
SHORT_GAPS = fit(half=0.01, gap_graph=63e-9, one_stream_graph=178e-9)
STEPS: dict[str, Forecast] = {
    "a graph that saves nothing never pays": forecast(step(10, 6e-6), fit(gap_graph=5e-6)),
    "steps without a wait flow into one another, bound by the host": forecast(Workload((Kernels(100),)), fit()),
    "and bound by the GPU": forecast(Workload((Kernels(100, (6e-6,)),)), fit()),
    "one wait": forecast(step(60, 6e-6), fit()),
    "six waits": forecast(Workload((Kernels(10, (6e-6,)), Wait()) * 6), fit()),
    "streams move no more bytes than the memory": forecast(
        Workload((Kernels(200, (0.0,), bytes=40e6), Wait()), streams=8), fit()
    ),
    "streams overlap kernels and copies": forecast(Workload((*OVERLAPPING, Wait()), streams=2), fit()),
    "one stream does not": forecast(
        Workload((*(replace(part, stream=0) for part in OVERLAPPING), Wait())), fit()
    ),
    "kernels of several streams begin one after the other": forecast(
        Workload((Kernels(64, (50e-6,)), Wait()), streams=64), fit(front_end=4e-6)
    ),
    "of pairs that are fused an odd kernel stays alone": forecast(
        Workload((Kernels(5, (1e-6, 2e-6), bytes=100.0), Wait())), fit()
    ),
    "waits, host time and pageable memory are advised against": forecast(Workload(PAGEABLE), fit()),
    "what cannot be captured has no graph": forecast(
        Workload((HostWork(1e-3), Copies("h2d", 1000, memory="pageable"), Wait())), fit()
    ),
    # The misfit is of overhead, and of little of kernels and copies; no interval begins below the kernels' own time.
    **{f"a misfit of {most}, {name}": forecast(workload, fit(half=0.0, most=most))
       for name, workload, most in (
        ("long kernels", step(100, 50e-6), 0.1), ("short ones", step(100, 2e-6), 0.1),
        ("shorter than calls", step(100, 0.5e-6), 0.1), ("one long kernel", step(1, 1.0), 0.1),
        ("a copy", Workload((Copies("h2d", 10_000_000), Kernels(10, (50e-6,)), Wait())), 0.1),
        ("no more than it", step(1, 1e-3), 0.5), ("nor less", step(100, 50e-6), 0.5),
        ("side by side", Workload((Kernels(2, (1e-3,), sm_share=0.0), Wait()), streams=2), 0.5),
        ("two of one stream", Workload(
            (Kernels(2, (1e-3,), stream=1), Kernels(1, (1e-3,), stream=0), Wait()), streams=2
        ), 0.5),
        ("of two lengths", Workload((Kernels(3, (1e-3, 2e-3), sm_share=0.0), Wait()), streams=2), 0.5),
    )},
    "launches of a framework": forecast(step(1000, 0.2e-6, "torch_eager", arguments=1, host_s=0.0), fit()),
    # Profilers' durations overlap there; the interval knows this on both sides.
    "a graph of one stream may be shorter than its kernels": forecast(step(1000, 20e-6), SHORT_GAPS),
    "copies of pageable memory take the link": forecast(
        Workload((Copies("h2d", 1 << 24, memory="pageable"), Kernels(1, (1e-6,)), Wait())), fit(half=0.01)
    ),
}  # fmt: skip


def told(found: Forecast) -> Iterator[str]:
    """Times in us."""
    for way, one in (("stream", found.stream), ("graph", found.graph)):
        if one is not None:
            shares = ", ".join(f"{name} {seconds * 1e6:.5g}" for name, seconds in one.shares.items())
            times = " ".join(f"{seconds * 1e6:.5g}" for seconds in (one.low_s, one.step_s, one.high_s))
            yield f"{way} {times}, {one.limit}-bound, the GPU idles {one.idle_share:.4f}: {shares}"
    making = [f"{seconds * 1e6:.5g}" for seconds in found.making]
    yield f"{found.speedup:.4g} times as fast; made in {making}, pays after {found.break_even}"
    yield from (f"{one.name} {one.step_s * 1e6:.5g}, saves {one.saves:.4f}" for one in found.advice)
    yield from (finding.text for finding in findings(found) if finding.rule == "prediction.stream")


def test_what_steps_take() -> None:
    snapshots.same("forecasts", "\n\n".join("\n".join((f"== {name}", *told(found))) for name, found in STEPS.items()))
