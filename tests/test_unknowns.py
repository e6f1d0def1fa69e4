"""What a step's description leaves out: host time between launches, the share of the SMs, the making of a graph."""

import json
import math
import re
from pathlib import Path

import pytest
from command_line import call
from fake_session import exactly
from make_fake_run import for_a_fit
from make_fit import CALL_S, GAP_S, TORCH_S, make_fit
from make_run import outcome, with_suite
from msgspec.structs import replace
from sections import some

from microbench.analysis.evidence import evidence_by_device
from microbench.archive import store
from microbench.core.errors import ExitCode, UsageError
from microbench.core.model import GpuInfo, Measurement, Run
from microbench.core.ops import ARRAY_LAYERS
from microbench.core.units import two_times
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.layers.base import layer_names
from microbench.model import fit as fitting
from microbench.model import step_file, unknowns, words
from microbench.model.constants import Fit, ModelCode
from microbench.model.forecast import Forecast, forecast, step_time
from microbench.model.whatif import Changes, Times, changed, findings, in_words, pairs
from microbench.model.workload import Copies, HostWork, Kernels, Wait, Workload
from microbench.report.sheets import prediction

EXAMPLES = tuple(
    ModelCode(name, launch_s, TORCH_S, 0.5, (f"launch_model[compiled=eager,model={name}] launch_submit",))
    for name, launch_s in (("a", 12e-6), ("b", 16e-6), ("c", 30e-6))
)

DATA = Path(__file__).parent / "data"


def with_examples(fit: Fit | None = None) -> Fit:
    return replace(fit or make_fit(), model_code=EXAMPLES)


def chain(count: int = 100, duration_s: float = 20e-6, layer: str = "torch_eager", **more: object) -> Workload:
    arguments = 1 if layer in ARRAY_LAYERS else 0
    return Workload((Kernels(count, (duration_s,), arguments=arguments, **more), Wait()), layer=layer)


def test_a_framework_without_host_time_gets_two_cases_bare_operations_and_model_code() -> None:
    found = forecast(chain(duration_s=10e-6), with_examples())
    host = some(found.host)
    assert (host.bare_s, host.typical_s) == pytest.approx((8e-6, 16e-6))
    assert not host.assumed
    assert host.rests_on == tuple(row for example in EXAMPLES for row in example.rests_on)
    low, high = found.stream.ends
    assert low.step_s == pytest.approx(99 * (10e-6 + GAP_S) + 8e-6 + 15e-6)
    assert high.step_s == pytest.approx(100 * 16e-6 + 15e-6)
    assert (found.stream.low_s, found.stream.high_s) == (low.low_s, high.high_s)
    assert found.speedups == pytest.approx(
        (low.step_s / some(found.graph).step_s, high.step_s / some(found.graph).step_s)
    )
    assert some(found.graph).ends == (), "a replay spends no host time between kernels"
    assert found.stream.limits == ("kernel", "host")


def test_both_cases_are_said_and_watch_tells_them_apart() -> None:
    (sentence,) = words.unknown(forecast(chain(), with_examples()))
    assert "a launch takes 8.00 µs (bare call) or 16.0 µs (typical model code). The step is launch-bound" in sentence
    assert "`microbench watch python train.py` measures yours" in sentence
    rows = prediction.ways_table(forecast(chain(duration_s=3e-6), with_examples())).rows
    assert [[cell.text for cell in row[:2]] for row in rows[:2]] == [
        ["stream, bare operations", "808 µs"], ["stream, typical model code", "1.61 ms"],
    ]  # fmt: skip
    fit = with_examples(make_fit(call__jax_jit__1=40e-6))
    (sentence,) = words.unknown(forecast(chain(layer="jax_jit"), fit))
    assert "2.00 µs (many launches in a call)" in sentence
    assert sentence.endswith("less the bare call's 40.0 µs.")


@pytest.mark.parametrize("steps", [True, False])
def test_a_call_that_steps_show_too_says_so(steps: bool) -> None:
    """It can differ from the call measured by itself, which `microbench show` gives."""
    rows = ("launch_layers[layer=torch_eager] submit", *(("graph_gain[kernels=10] stream",) if steps else ()))
    fit = with_examples()
    call_s = replace(fit.constants["call.torch_eager.1"], rests_on=rows)
    found = forecast(chain(), replace(fit, constants={**fit.constants, "call.torch_eager.1": call_s}))
    finding = next(one for one in words.findings(found) if one.rule == "prediction.host")
    assert ("8.00 µs, fitted to single calls (launch_layers) and to steps (graph_gain)." in finding.text) == steps


@pytest.mark.parametrize("launch_s", [8e-6, 9e-6, 14e-6, 16e-6])
def test_any_program_between_the_two_cases_lies_within_the_range(launch_s: float) -> None:
    given = forecast(chain(duration_s=3e-6, host_s=launch_s - TORCH_S), with_examples())
    ranged = forecast(chain(duration_s=3e-6), with_examples())
    assert given.host is None
    assert given.stream.ends == ()
    assert ranged.stream.low_s <= given.stream.step_s <= ranged.stream.high_s


def test_without_examples_the_range_is_assumed_and_says_so() -> None:
    found = forecast(chain(), make_fit())
    host = some(found.host)
    assert host.assumed
    assert (host.bare_s, host.typical_s) == pytest.approx((8e-6, 18.5e-6))
    finding = next(one for one in words.foundations(found, "run", reference=False, simulated=False)
                   if one.rule == "prediction.assumed")  # fmt: skip
    assert "no run has measured model code" in finding.text


@pytest.mark.parametrize(("layer", "ranged"), [("torch_eager", True), ("loop", False), ("cupy_raw", False)])
def test_only_a_framework_s_launches_have_a_range(layer: str, ranged: bool) -> None:
    """Programs call their own kernels in their own way, so no example can stand for the host time between them."""
    assert (forecast(chain(layer=layer), with_examples()).host is not None) == ranged
    assert forecast(chain(layer=layer, host_s=0.0), with_examples()).host is None


def test_a_compiled_framework_launches_as_fast_as_compiled_code_and_another_adds_its_own_call() -> None:
    fit = with_examples(make_fit(call__jax_jit__1=40e-6, call__cupy_ufunc__1=10e-6))
    jax, cupy = (unknowns.host_time(fit, layer, 1) for layer in ("jax_jit", "cupy_ufunc"))
    assert jax.bare_s == pytest.approx(CALL_S)
    assert (cupy.bare_s, cupy.typical_s) == pytest.approx((10e-6, 18e-6))


@pytest.mark.parametrize("duration_s", [3e-6, 20e-6, 100e-6])
def test_the_verdict_flips_where_a_launch_takes_as_long_as_a_kernel_and_its_gap(duration_s: float) -> None:
    found = forecast(chain(500, duration_s), with_examples())
    bound_s = some(found.launch_bound_s)
    assert bound_s == pytest.approx(duration_s + GAP_S, rel=0.01)
    below, above = (
        forecast(chain(500, duration_s, host_s=bound_s * factor - TORCH_S), with_examples()).stream.limit
        for factor in (0.98, 1.02)
    )
    assert (below, above) == ("kernel", "host")
    assert forecast(chain(1, 10e-3), with_examples()).launch_bound_s is None


def test_another_call_leaves_what_a_program_does_between_launches() -> None:
    workload, fit = chain(1000, 3e-6), with_examples()
    then = changed(workload, fit, None, Changes(submit_s=2e-6))
    before, after = forecast(workload, fit), forecast(workload, then.fit, then.change)
    saved = [first.step_s - later.step_s for first, later in zip(before.stream.ends, after.stream.ends, strict=True)]
    assert saved[1] == pytest.approx(1000 * (TORCH_S - 2e-6), rel=0.01)
    assert after.stream.ends[0].step_s == pytest.approx(1000 * (3e-6 + GAP_S), rel=0.02)
    assert in_words(pairs(before, after)[0]).endswith("as fast")


def after(workload: Workload, **what: object) -> Forecast:
    then = changed(workload, with_examples(), None, Changes(**what))
    return forecast(workload, then.fit, then.change)


CHANGES: tuple[dict[str, object], ...] = (
    {"submit_s": 2e-6}, {"submit_s": 12e-6}, {"layer": "cupy_raw"}, {"host_time": 0.5}, {"host_time": 3.0},
    {"kernel_time": 0.5}, {"gap_s": 3e-6},
)  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_what_if_holds_for_every_program_within_the_range(what: dict[str, object]) -> None:
    """A shorter call gains most where the step becomes launch-bound, which is at neither end of the range."""
    fit = make_fit(call__cupy_raw__1=4e-6)
    workload, fit = chain(500, 12e-6), with_examples(fit)
    then = changed(workload, fit, None, Changes(**what))
    (stream, _) = pairs(forecast(workload, fit), forecast(workload, then.fit, then.change))
    low, high = stream.ends
    for host_s in (0.0, 1e-6, 4e-6, 5e-6, 7e-6, 8e-6):
        given = chain(500, 12e-6, host_s=host_s)
        then = changed(given, fit, None, Changes(**what))
        own = Times(step_time(given, fit, "stream"), step_time(then.change(given, then.fit), then.fit, "stream"))
        assert low.ratio * 0.999 <= own.ratio <= high.ratio * 1.001, host_s


def test_a_shorter_call_gains_most_where_the_step_becomes_launch_bound() -> None:
    (stream, graph) = pairs(forecast(chain(1000, 6e-6), with_examples()), after(chain(1000, 6e-6), submit_s=2e-6))
    # A kernel and its gap take 7 us. A program of 5 us beside the call takes 13 us a launch, then 7 us.
    assert stream.ends[1].ratio == pytest.approx(13 / 7, rel=0.01)
    assert stream.ends[0].ratio == pytest.approx(8 / 7, rel=0.01)
    assert in_words(stream) == "1.14× to 1.86× as fast"
    assert in_words(graph) == "the same"


def test_a_longer_gap_is_said_in_order() -> None:
    workload = chain(1000, 12e-6)
    before, then = forecast(workload, with_examples()), after(workload, gap_s=3e-6)
    ways = pairs(before, then)
    assert in_words(ways[0]) == "the same to 1.15× as long"
    told = changed(workload, with_examples(), None, Changes(gap_s=3e-6)).changes
    title = findings(before, then, told, ("now", "then"), ways)
    assert "stays the same or becomes up to 1.15× as long (the same in typical model code)" in title[0].title


def test_another_layer_keeps_what_the_program_does_between_launches() -> None:
    workload = chain(1000, 3e-6)
    low, high = after(workload, layer="loop").stream.ends
    call_s = make_fit().values["call.loop.0"] + 0.5e-6 / 2  # with one argument
    assert high.step_s == pytest.approx(1000 * (16e-6 - TORCH_S + call_s), rel=0.01)
    assert low.step_s == pytest.approx(1000 * (3e-6 + GAP_S), rel=0.02), "the kernels limit bare launches"
    advice = {one.name: one for one in forecast(workload, with_examples()).advice}
    assert advice["layer"].step_s == pytest.approx(1000 * (16e-6 - TORCH_S + call_s), rel=0.01)
    assert advice["host"].step_s == pytest.approx(1000 * TORCH_S, rel=0.01)
    given = {one.name: one for one in forecast(chain(1000, 3e-6, host_s=8e-6), with_examples()).advice}
    assert advice["layer"].step_s == pytest.approx(given["layer"].step_s)


def test_printed_times_rates_and_speed_ups_agree() -> None:
    """They are those of the ends; the model's own error stands beside them."""
    found = forecast(chain(1000, 3e-6), with_examples())
    low, high = found.stream.ends
    assert words.between(found.stream) == two_times(low.step_s, high.step_s)
    assert found.speedups == pytest.approx([end.step_s / some(found.graph).step_s for end in (low, high)])
    assert found.stream.low_s < low.step_s < high.step_s < found.stream.high_s


def test_the_answer_names_typical_model_code_and_is_good_only_where_it_was_measured() -> None:
    known, assumed = (words.gain(forecast(chain(1000, 3e-6), fit)) for fit in (with_examples(), make_fit()))
    assert "instead of 8.01 ms (bare operations) or 16.0 ms (typical model code): " in known.title
    assert (known.severity, assumed.severity) == ("good", "note")
    text = next(one.text for one in words.findings(forecast(chain(1000, 3e-6), with_examples()))
                if one.rule == "prediction.stream")  # fmt: skip
    assert text == "In one step kernels take the GPU 3.00 ms; calls take the host 16.0 ms in typical model code."
    several = words.findings(forecast(side_by_side(), make_fit()))
    assert any("GPU 2.00 ms, summed over streams; " in one.text for one in several)


def side_by_side(**more: object) -> Workload:
    return Workload((Kernels(2, (1e-3,), **more), Wait()), streams=2)


def test_kernels_of_several_streams_lie_between_side_by_side_and_one_after_another() -> None:
    found = forecast(side_by_side(), make_fit())
    for way in (found.stream, some(found.graph)):
        low, high = way.ends
        assert low.step_s == pytest.approx(1e-3, rel=0.02)
        assert high.step_s == pytest.approx(2e-3, rel=0.02)
    assert "--sm-share" in "".join(words.unknown(found))
    assert forecast(Workload((Kernels(2, (1e-3,)), Wait())), make_fit()).stream.ends == ()


@pytest.mark.parametrize(
    ("share", "takes_s"), [({"sm_share": 0.5}, 1e-3), ({"sm_share": 1.0}, 2e-3), ({"sm_share": 0.75}, 1.5e-3),
                           ({"blocks": 50}, 1e-3), ({"blocks": 132}, 2e-3), ({"blocks": 10_000}, 2e-3)],
)  # fmt: skip
def test_a_share_of_the_sms_decides(share: dict[str, object], takes_s: float) -> None:
    found = forecast(side_by_side(**share), replace(make_fit(), sms=132))
    assert found.ends == ()
    assert (found.stream.step_s, some(found.graph).step_s) == pytest.approx((takes_s, takes_s), rel=0.02)


def test_blocks_on_a_gpu_of_unknown_size_decide_nothing() -> None:
    assert len(forecast(side_by_side(blocks=132), make_fit()).ends) == 2
    assert forecast(side_by_side(bytes=1e6), make_fit()).ends == (), "the memory decides"


def test_two_unknowns_make_every_speed_up_between_their_four_corners() -> None:
    """Slow hosts gain most where kernels run side by side, and all are slower where they run one after another."""
    workload = Workload((Kernels(400, (10e-6,), arguments=1), Wait()), layer="torch_eager", streams=4)
    found = forecast(workload, with_examples())
    host_s = some(found.host).typical_s - TORCH_S
    corners = [
        forecast(replace(workload, parts=(Kernels(400, (10e-6,), arguments=1, host_s=host_s, sm_share=share), Wait())),
                 with_examples())
        for share in (0.0, 1.0)
    ]  # fmt: skip
    assert len(found.ends) == 4
    least, most = found.speedups
    assert all(least <= corner.speedup <= most for corner in corners)
    assert corners[0].speedup == pytest.approx(most)
    assert found.stream.low_s <= min(corner.stream.step_s for corner in corners)


def test_kernels_of_one_stream_beside_copies_of_another_are_known() -> None:
    parts = (Copies("h2d", 1 << 20, stream=1), Kernels(2, (1e-3,), stream=0), Wait())
    found = forecast(Workload(parts, streams=2), make_fit())
    assert found.ends == ()
    assert list(words.unknown(found)) == []


def test_a_kernel_or_copy_larger_than_the_memory_is_refused_in_words() -> None:
    gpu = GpuInfo("Made", "GPU-made", memory_bytes=1 << 34)
    for part, what in (
        (Kernels(1, bytes=2e10), "a kernel moves 18.6 GiB"),
        (Copies("h2d", 1 << 35), "a copy moves 32.0 GiB"),
    ):
        with pytest.raises(UsageError, match=r"the memory of the Made holds 16\.0 GiB") as raised:
            fitting.check_sizes(Workload((part, Wait())), gpu)
        assert what in raised.value.cause
    fitting.check_sizes(Workload((Kernels(1, bytes=1e10), Copies("d2h", 1 << 34), HostWork(1.0))), gpu)


def made(workload: Workload, fit: Fit | None = None) -> Forecast:
    return forecast(workload, fit or make_fit())


def test_a_graph_is_made_by_the_calls_of_the_layer_that_captures_it_and_warm_up_steps() -> None:
    found = made(chain(1000, host_s=10e-6))
    assert found.making.calls_s == pytest.approx(1000 * (TORCH_S + 10e-6))
    assert found.making.driver_s == pytest.approx(10e-6 + 1000 * 2e-6)
    assert found.making.warm_up_s == pytest.approx(3 * found.stream.step_s)
    saved_s = found.stream.step_s - some(found.graph).step_s
    if saved_s > 0:
        assert found.break_even == math.ceil(found.making_s / saved_s)
    measured = made(chain(1000, host_s=10e-6), with_examples())
    assert measured.making.calls_s == pytest.approx(found.making.calls_s / 2), "as the examples' captures show"
    loop = made(chain(1000, layer="loop"))
    assert (loop.making.calls_s, loop.making.warm_up_s) == (0.0, 0.0)


def test_a_range_of_steps_pays_off_within_a_range() -> None:
    low, high = made(chain(100, 3e-6)).ends
    text = words.paying(made(chain(100, 3e-6)))
    assert f"after {high.break_even} to {low.break_even} steps" in text
    assert "PyTorch eager" in text


# The run's own rows.


def with_model_code(run: Run) -> Run:
    """The run with what the simulated machine measures of PyTorch's model code."""
    asked = [{"model": model, "compiled": "eager"} for model in FakeCosts().models]
    made = []
    for params in asked:
        items = exactly("launch_model", None, params)
        made.append(outcome("launch_model", [item for item in items if isinstance(item, Measurement)], **params))
    return with_suite(run, ["launch_model"], "default", made)


def test_the_fit_reads_the_model_code_of_its_run_or_borrows_that_of_another() -> None:
    run = for_a_fit()
    other = with_model_code(run)
    own = fitting.fit(evidence_by_device(other)[0])
    costs = FakeCosts()
    assert [example.launch_s for example in own.model_code] == pytest.approx(
        [one.launch_ns * 1e-9 for one in costs.models.values()], rel=1e-3
    )
    assert {example.call_s for example in own.model_code} == {own.constants["call.torch_eager.1"].value}
    assert own.model_code_of == ""
    borrowed = fitting.with_model_code_of(fitting.fit(evidence_by_device(run)[0]), other)
    assert [example.model for example in borrowed.model_code] == list(costs.models)
    assert borrowed.model_code_of
    assert "of the bundled reference" in unknowns.host_time(borrowed, "torch_eager", 1).source


@pytest.mark.parametrize("duration_ns", [0, 5000])
@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "busy"])
def test_a_graph_of_many_roots_takes_what_an_h200_measured(quiet: bool, duration_ns: int) -> None:
    """The prediction was 56 to 62 % too short when the roots counted as one replay.

    The host submits each root, so only a run of a quiet host has a narrow limit.
    """
    run = store.read(DATA / f"{'quiet' if quiet else 'busy'}-h200.json.xz")
    duration_s = duration_ns * 1e-9
    workload = Workload((Kernels(64, (duration_s,), sm_share=0.0), Wait()), streams=64)
    rows, fit = fitting.fit_for(run, workload)
    row = some(rows.row("graph_shape", "graph", shape="independent", duration_ns=duration_ns))
    graph = some(forecast(workload, fit).graph)
    assert graph.low_s <= row.value <= graph.high_s
    assert graph.step_s == pytest.approx(row.value, rel=0.06 if quiet else 0.15)


# The commands.

ASKED = ("--kernels", "1100", "--duration", "6us", "--layer", "torch")


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("command", [("predict", "--all"), ("whatif", "--gap", "1us"), ("timeline",)])
def test_the_answer_stands_in_the_first_ten_lines(command: tuple[str, ...], width: str, data: Path) -> None:
    result = call(*command, *ASKED, COLUMNS=width)
    assert result.exit_code == ExitCode.MEASURED
    lines = result.output.splitlines()
    assert lines[2].startswith("╰"), "the box of the machine has three lines"
    answer = " ".join("\n".join(lines[3:10]).split())
    assert ("In the stream the step" if command[0] == "whatif" else "As a graph the step takes") in answer
    assert "not this machine" in lines[1]


@pytest.mark.parametrize("command", [("predict", "--all"), ("whatif", "--gap", "1us"), ("timeline",)])
def test_each_command_takes_the_host_time_of_a_launch(command: tuple[str, ...], data: Path) -> None:
    asked = call(*command, *ASKED, COLUMNS="120").output
    assert "Host time is not given: " in asked or "of host time a launch" in asked
    given = call(*command, *ASKED, "--host", "12us", COLUMNS="120").output
    assert "Host time is not given: " not in given
    assert "of host time a launch" not in given


def test_host_time_is_added_to_each_call_and_replaces_that_of_a_file(data: Path) -> None:
    none, some_s = (
        json.loads(call("predict", *ASKED, "--host", host, "--json").output)["stream"]["step_s"]
        for host in ("0", "20us")
    )
    assert some_s == pytest.approx(none + 1100 * 20e-6, rel=0.01)
    asked = (("--host", "0"), ())
    bare, usual = (
        json.loads(call("predict", "decode-7b", *host, "--json").output)["stream"]["step_s"] for host in asked
    )
    assert bare < 0.8 * usual


def test_a_factor_on_host_time_changes_nothing_only_where_there_is_none(data: Path) -> None:
    asked = ("--kernels", "100", "--duration", "6us", "--layer", "loop", "--host-time", "3x")
    text = " ".join(call("whatif", *asked, COLUMNS="120").output.split())
    assert "This changes nothing: the step has no host time of its own; --host TIME gives it" in text
    unknown = " ".join(call("whatif", *ASKED, "--host-time", "0x", COLUMNS="120").output.split())
    assert "changes nothing" not in unknown
    assert re.search(r"becomes up to [\d.]+× as fast \([\d.]+× as fast in typical model code\)", unknown)
    memory = call("whatif", "--kernels", "100", "--duration", "6us", "--memory", "2TB/s", COLUMNS="120").output
    assert "This changes nothing: nothing in the step uses the GPU's memory" in memory
    given = call("whatif", *ASKED, "--host-time", "3x", "--host", "12us", COLUMNS="120").output
    assert "changes nothing" not in given


def test_the_capture_of_the_7b_model_takes_its_layer_s_calls(data: Path) -> None:
    """PyTorch's own call and the example's 11.8 µs for each of 1116 kernels, or the share of it that captures take."""
    making = json.loads(call("predict", "decode-7b", "--json").output)["making"]
    fit = fitting.fit(evidence_by_device(store.read(store.bundled()["nvidia-h200"]))[0])
    shares = [example.capture_share or 1.0 for example in fit.model_code] or [1.0]
    kernels = step_file.read("decode-7b", layer_names()).kernels
    calls_s = kernels * (fit.values["call.torch_eager.1"] + 11.8e-6)
    assert min(shares) * calls_s <= making["calls_s"] * 1.0001
    assert making["calls_s"] <= max(shares) * calls_s * 1.0001
    (few, less), (many, more) = [(nodes, taken.value) for nodes, taken in fit.made if nodes in (1000, 10_000)]
    driver_s = less + (kernels - few) * (more - less) / (many - few)
    assert making["warm_up_s"] > making["driver_s"] == pytest.approx(driver_s, rel=0.01)


def test_a_step_file_says_how_much_of_the_gpu_its_kernels_fill(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'streams = 2\n[[part]]\nkernels = 2\nduration = "1ms"\n{}\n[[part]]\nsync = true'
    for extra, low_s, high_s in (
        ("", 0.9e-3, 2.1e-3),
        ("blocks = 132", 1.9e-3, 2.1e-3),
        ("sm_share = 0.25", 0.9e-3, 1.1e-3),
    ):
        path.write_text(text.format(extra), encoding="utf-8")
        stream = json.loads(call("predict", str(path), "--json").output)["stream"]
        assert low_s < stream["low_s"] < stream["high_s"] < high_s
        assert (stream["high_s"] > 1.8 * stream["low_s"]) == (not extra)
    path.write_text(text.format("sm_share = 2"), encoding="utf-8")
    assert "sm_share: 2 is too large" in call("predict", str(path)).stderr
    path.write_text(text.replace('duration = "1ms"', 'bytes = "900GiB"').format(""), encoding="utf-8")
    assert "a kernel moves 900 GiB, and the memory of the NVIDIA H200 holds" in call("predict", str(path)).stderr
