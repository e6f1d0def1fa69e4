"""What a reader sees of a diagnosis: the same value in words and in JSON, and no word that the trace does not bear."""

import html
import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from command_line import call
from make_trace import Recorder, kineto, steps_of
from test_advice import in_order
from test_diagnose import costs, diagnosed, line_of

from microbench.core.units import as_time
from microbench.diagnosis import ranks, words
from microbench.diagnosis.advice import how, of_target, target
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.health import ANEW, FEWER
from microbench.diagnosis.host_time import BETWEEN
from microbench.diagnosis.idle import OWN_TIME
from microbench.diagnosis.stacks import speedscope
from microbench.report.page.diagnosis import build
from microbench.report.sheets.diagnosis import answer, ranks_screen, screen, tables
from microbench.report.sheets.recorded_step import pictures
from microbench.traces.trace import Format, Thread


def all_words(found: Diagnosis) -> str:
    """The screen with its tables, the timeline and the flame graph, as one text."""
    return repr((screen(found, "", "", everything=True), pictures(found), speedscope(found)))


def finding(found: Diagnosis, rule: str) -> Any:
    return next(one for one in words.findings(found) if one.rule == rule)


def never_repeating() -> Recorder:
    """40 different kernels in 2 s."""
    made = Recorder()
    for kernel in range(40):
        made.runs(50_000_000 + 1_000_000 * (kernel % 7))
        made.launch(f"kernel_{kernel}", 10_000_000 + 100_000 * kernel)
    return made


def test_graphs_without_kernels_that_keep_the_gpu_busy_are_to_be_recorded_with_them() -> None:
    made = Recorder()
    for _ in range(12):
        made.submit(made.call("cudaGraphLaunch", 9000), "graph", 5_000_000, kind="graph")
        made.wait()
    found = diagnosed(made)
    assert found.bound == "GPU-bound"
    told = finding(found, "diagnose.kernels")
    assert told.title == "Graphs whose kernels were not recorded take 5.00 ms, 99.8 % of the step"
    assert "--cuda-graph-trace=node" in told.advice


def test_without_steps_words_and_json_have_the_time_of_the_whole_trace() -> None:
    found = diagnosed(never_repeating())
    assert found.steps is None
    told = json.loads(msgspec.json.encode(answer(found)))
    assert told["idle"][BETWEEN] > 1
    between, span = as_time(told["idle"][BETWEEN]), as_time(told["span_s"])
    assert f"Of that it idles for: {BETWEEN} {between}" in told["findings"][0]["text"]
    assert told["findings"][0]["title"].endswith(f"of the trace of {span}")
    assert f"of {span}" in line_of(found, "idle")
    assert f"{BETWEEN} {between}" in line_of(found, "idle")
    assert as_time(told["owners"][0]["seconds"]) in line_of(found, "whose")


@pytest.mark.parametrize(
    ("changes", "python"),
    [
        ({"format": "Nsight Systems", "threads": (Thread(1, 1, "a.out"), Thread(1, 2))}, False),
        ({"format": "Nsight Systems", "threads": (Thread(1, 1, "python3"), Thread(1, 2))}, True),
        ({"format": "Nsight Systems", "threads": (Thread(1, 1, "pt_main_thread"), Thread(1, 2))}, True),
        ({"format": "microbench recording", "versions": {"CUPTI": "130001"}}, False),
        ({"format": "microbench recording", "versions": {"Python": "3.12.3"}}, True),
        ({}, True),
    ],
)
def test_python_is_named_where_the_program_runs_it(changes: dict[str, object], python: bool) -> None:
    found = diagnose(steps_of(between_ns=40_000).trace(**changes), costs())
    name, other = (BETWEEN, OWN_TIME) if python else (OWN_TIME, BETWEEN)
    for shown in (all_words(found), html.unescape(build([found], ""))):
        assert name in shown
        assert other not in shown


def pausing(*names: str) -> Recorder:
    """Steps with a pause of 5 ms in these ranges."""
    made = Recorder()
    for _ in range(12):
        made.launches(10, 20_000, 2_000)
        with made.range(names[0]):
            made.runs(1000)
            with made.range(names[-1]):
                made.runs(5_000_000)
    return made


@pytest.mark.parametrize(
    ("names", "start", "text", "change"),
    [
        (("aten::linear", "aten::mm"), "Pauses between launches take", "more than 1 ms. ", "a graph saves"),
        (("load", "load"), "The program's own work between", "No graph shortens that.", "Do it once"),
        (
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "aten::div"),
            "The program's own work between", "No graph shortens that.", "Give it workers",
        ),
        (
            ("uvicorn/server.py Server.run", "python3.12/selectors.py EpollSelector.select"),
            "Waiting for a request takes 5", "No graph shortens that.", "Nothing is slow",
        ),
        (
            ("train.py(9): step", "<built-in function sleep>"),
            "Waiting in a sleep takes 5", "No graph shortens that.", "No sleep in the loop",
        ),
    ],
)  # fmt: skip
def test_a_pause_in_a_frameworks_operators_is_not_called_the_programs_own(
    names: tuple[str, ...], start: str, text: str, change: str
) -> None:
    told = finding(diagnosed(pausing(*names)), "diagnose.pauses")
    assert told.title.startswith(start)
    assert told.text.endswith(text)
    assert change in told.advice


def test_what_comes_at_its_own_pace_is_not_hurried() -> None:
    made, comes_ns = Recorder(), 0
    for step in range(12):
        comes_ns += 40_000_000
        made.launches(10, 20_000 + 100_000 * (step % 5), 2_000)
        made.runs(max(comes_ns - made.now_ns, 0))
    assert "It waits for what comes every 40.1 ms" in finding(diagnosed(made), "diagnose.pauses").advice


def test_the_json_has_the_largest_kernels_by_family_and_a_busy_gpu_is_told_them() -> None:
    made = Recorder()
    for _ in range(12):
        for size in (64, 128):
            made.launch(f"sm80_xmma_gemm_f32f32_{size}", 400_000 + size)
        made.launch("ncclDevKernel_AllReduce_Sum_f32", 20_000)
        made.launch("my_kernel(float*)", 200_000)
    found = diagnosed(made)
    told = json.loads(msgspec.json.encode(answer(found)))["kernels"]
    assert [(one["name"], one["count"]) for one in told] == [
        ("matrix product", 2), ("my_kernel", 1), ("NCCL AllReduce", 1),
    ]  # fmt: skip
    assert told[0]["seconds"] == pytest.approx(800_192e-9)
    assert told[0]["most"] == "sm80_xmma_gemm_f32f32_128"
    largest = finding(found, "diagnose.kernels")
    assert "matrix product 800 µs; my_kernel 200 µs" in largest.title
    assert "microbench measure FILE.py::STEP" in largest.advice
    assert "diagnose.kernels" not in in_order(diagnosed(steps_of(between_ns=40_000)))
    busy = diagnosed(steps_of(kernels=4, duration_ns=60_000, between_ns=70_000))
    assert busy.bound == "launch-bound"
    assert busy.idle.busy_s > 0.75 * busy.idle.span_s
    assert "diagnose.kernels" in in_order(busy), "a graph would save less than they take"


def test_elementwise_kernels_are_one_class_of_the_largest() -> None:
    made = Recorder()
    for _ in range(12):
        made.launch("sm80_xmma_gemm_f32f32_64", 300_000)
        for name in (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
            "void at::native::(anonymous namespace)::launch_clamp_scalar::elementwise_kernel<128, 2>(int)",
            "triton_poi_fused_relu_3",
        ):
            made.launch(name, 150_000)
        made.launch("void at::native::reduce_kernel<512, 1, float>(int)", 100_000)
    found = diagnosed(made)
    told = json.loads(msgspec.json.encode(answer(found)))["kernels"]
    assert [(one["name"], one["count"]) for one in told] == [
        ("elementwise kernels", 3), ("matrix product", 1), ("at::native::reduce_kernel<float>", 1),
    ]  # fmt: skip
    assert "elementwise kernels 450 µs; matrix product 300 µs" in finding(found, "diagnose.kernels").title


def test_blockers_are_in_the_json_where_no_graph_is_foreseen() -> None:
    made = steps_of(waits=True, between_ns=40_000)
    told = answer(diagnose(made.trace(resolution_ns=1000), costs()))
    assert told["graph"] is None
    assert told["blockers"][0]["call"] == "cudaStreamSynchronize"  # type: ignore[index]
    assert answer(diagnosed(never_repeating()))["blockers"] == []


def test_ranks_that_communicate_say_that_computing_leaves_it_out() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(10, 20_000, 2_000)
        made.launch("ncclDevKernel_AllReduce_Sum_f32", 50_000)
    (table,) = ranks_screen([diagnose(made.trace(rank=one), costs()) for one in (0, 1)], "").tables
    assert "computes" in [column.title for column in table.columns]
    assert "computes: the GPU works, and not only on communication" in table.question
    (table,) = ranks_screen([diagnosed(steps_of()) for _ in range(2)], "").tables
    assert "GPU works" in [column.title for column in table.columns]


def test_ranks_are_named_without_the_folder_that_they_share() -> None:
    several = [diagnose(steps_of().trace(source=f"/data/job/{name}.sqlite"), costs()) for name in ("a/0", "a/1", "b/0")]
    assert ranks.names(several) == ["a/0", "a/1", "b/0"]
    assert ranks.names(several[:2]) == ["0", "1"]


def test_the_timeline_with_all_has_every_table(tmp_path: Path) -> None:
    made = steps_of(waits=True, between_ns=40_000)
    trace = tmp_path / "trace.json"
    trace.write_bytes(kineto(made.trace()))
    titles = [table.title for table in tables(diagnosed(made))]
    shown = call("diagnose", str(trace), "--timeline", "--all").output
    assert len(titles) > 3
    assert all(title in shown for title in titles)


def test_a_graph_that_may_not_help_is_to_be_timed() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(3)
        made.submit(made.call("cudaLaunchKernel", 2000), "Memset (Device)", 1000, kind="memset")
    found = diagnosed(made)
    assert found.graph is not None
    assert found.graph.speedup_low < 1 < found.graph.speedup_high
    assert "; without the profiler it takes " in finding(found, "diagnose.graph").title
    assert finding(found, "diagnose.graph").advice.startswith("Time both by `microbench graph FILE.py::STEP`")
    assert not {"diagnose.watched", "diagnose.pieces"} & set(in_order(found))
    names = [one.name for one in found.remedies]
    assert len(names) > 1
    assert names[-1] == "graph"
    pieces = msgspec.structs.replace(found, graph=msgspec.structs.replace(found.graph, graphs=9))
    assert not {"diagnose.graph", "diagnose.pieces"} & set(in_order(pieces))
    assert "as a graph" not in build([found], "").partition("<h2")[2].partition("</h2>")[0].lower()


def test_a_start_that_waits_for_other_ranks_is_told_to_record_later_and_nothing_of_communication() -> None:
    made = Recorder()
    for kernel in range(12):
        made.launch(f"first_{kernel}", 3_000, call_ns=40_000_000 if kernel < 6 else 3_000)
    made.launch("ncclDevKernel_AllReduce_Sum_f32", 80_000_000)
    found = diagnosed(made)
    assert found.bound == "start-up"
    assert found.idle is not None
    assert found.idle.exposed_s > 0.2 * found.idle.span_s
    assert in_order(found) == ["diagnose.start_up"]


@pytest.mark.parametrize("format", get_args(Format))
def test_what_is_odd_comes_with_what_to_type(format: Format) -> None:
    lost = diagnose(steps_of().trace(format=format, lost={"records": 3}), costs())
    assert finding(lost, "diagnose.health").advice == FEWER[format]
    early = Recorder()
    for kernel in range(12):
        early.launch(f"kernel_{kernel}", 3_000)
    wrong = early.trace(format=format)
    wrong.work["begin_ns"] -= 10_000_000
    wrong.work["end_ns"] -= 10_000_000
    assert finding(diagnose(wrong, costs()), "diagnose.health").advice == ANEW
    assert re.search(r"microbench|nsys|schedule=|start_trace", FEWER[format])
    assert "--delay" not in FEWER[format], "a program may be over sooner"


def test_a_folder_fits_a_narrow_terminal_with_what_is_left_out(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank_{rank}.json").write_bytes(kineto(steps_of().trace(rank=rank)))
    (tmp_path / "truth_of_the_measurement.json").write_text('{"figures": [1, 2, 3], "other": 4}')
    result = call("diagnose", str(tmp_path), COLUMNS="80")
    assert "left out: truth_of_the_measurement.json is no trace" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_copies_within_the_gpu_are_not_told_to_be_pinned() -> None:
    def copying(*memories: str) -> str:
        made = Recorder()
        for _ in range(12):
            made.launch("kernel", 10_000)
            made.submit(
                made.call("cudaMemcpyAsync", 4000), "Memcpy", 900_000, kind="copy", size=1 << 20, memories=memories
            )
        advice: str = finding(diagnosed(made), "diagnose.copies_alone").advice
        return advice

    assert "without a copy from GPU memory" in copying("device", "device")
    assert copying("pageable", "device").endswith("from and to pinned memory")
    assert copying("pinned", "device").endswith("copy the rest while they run")


def test_a_launch_bound_step_that_cannot_be_predicted_is_told_how_to_submit_less() -> None:
    made = Recorder()
    for step in range(2):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            for kernel in range(60):
                made.runs(20_000)
                made.launch(f"kernel_{kernel}_{step}", 2_000)
    differing = diagnosed(made)
    assert differing.steps is not None
    assert differing.bound == "launch-bound"
    assert in_order(differing)[0] == "diagnose.library"
    once = Recorder()
    for kernel in range(60):
        with once.range("aten::add"):
            once.runs(20_000 + 500 * kernel)
            once.launch(f"kernel_{kernel}", 2_000)
    found = diagnosed(once)
    assert found.steps is None
    assert finding(found, "diagnose.library").title.startswith("The GPU waits")


def test_work_that_waits_in_its_queue_while_nothing_runs_is_said_and_no_graph_is_foreseen() -> None:
    made = steps_of()
    made.call("cudaStreamWaitEvent", 700)
    trace = made.trace()
    later_ns = 200_000 * np.arange(len(trace.work))
    trace.work["begin_ns"] += later_ns
    trace.work["end_ns"] += later_ns
    found = diagnose(trace, costs())
    assert found.graph is None
    assert found.idle.causes["another stream"] == 0, "there is one stream"
    (told,) = (one for one in words.findings(found) if "probably another program uses it" in one.title and one.advice)
    assert told.advice.startswith("`nvidia-smi` shows who uses the GPU")
    assert line_of(found, "next").startswith(told.title), "what else would save time comes behind it"
    assert "work waits in its queue meanwhile" in next(
        one.title for one in words.findings(found) if one.rule == "diagnose.bound"
    )


@pytest.mark.parametrize(("before", "named"), [(50, "act.py::act"), (51, "act.py::STEP")])
def test_the_graph_is_advised_of_the_function_that_the_loop_itself_calls(before: int, named: str) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(3)
    found = diagnosed(made)
    assert found.steps is not None
    steps = msgspec.structs.replace(found.steps, found="loop", name="act.py:51 main")
    callers = {"act.py:45 act": frozenset({"act.py:52 main"}), "act.py:40 setup": frozenset({f"act.py:{before} main"})}
    callers["lib/model.py:9 forward"] = frozenset({"act.py:45 act"})
    trace = msgspec.structs.replace(found.trace, callers=callers, versions={"torch": "2"})
    asked = msgspec.structs.replace(found, steps=steps, trace=trace)
    assert target(asked) == named
    inline = how(asked).startswith("Put the body of the loop at act.py:51 main into a function STEP: `microbench graph")
    assert inline == (named == "act.py::STEP")
    assert of_target(asked, "lib/model.py:9 forward") == (named == "act.py::act")
    assert not of_target(asked, "act.py:52 main")


def test_a_page_has_findings_where_the_answer_leaves_some() -> None:
    told = [diagnosed(made) for made in (steps_of(), steps_of(marked=True, between_ns=40_000), never_repeating())]
    left = [bool(screen(found, "", "").findings) for found in told]
    assert {*left} == {False, True}
    assert [">Findings</h2>" in build([found], "") for found in told] == left


@pytest.mark.parametrize(("source", "versions", "helps"), [
    ("python3-7.rows", {"Python": "3.12"}, "; record without --no-stacks to name it"),
    ("python3-7.rows", {}, "; keep microbench's PYTHONPATH, with Python 3.9 or newer, to name it"),
    ("server-7.rows", {}, ""),
])  # fmt: skip
def test_what_would_name_the_hosts_code_fits_the_program(source: str, versions: dict[str, str], helps: str) -> None:
    changes = {"format": "microbench recording", "source": source, "versions": versions}
    made = Recorder()
    for _ in range(12):
        made.launches(10, 20_000, 2_000)
        made.runs(5_000_000)
    said = line_of(diagnose(made.trace(**changes), costs()), "whose")
    assert "host code without a name" in said
    assert said.endswith(helps), said
    assert ("to name it" in said) == bool(helps)
