"""Tests of what a diagnosis advises a program of each library."""

import msgspec
import numpy as np
import pytest
from make_trace import Recorder
from test_diagnose import costs, diagnosed

from microbench.core.units import as_time, times
from microbench.diagnosis import advice, diagnosis, words
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.owners import LOCK
from microbench.diagnosis.recorded import Blocker
from microbench.model.constants import around
from microbench.traces.trace import Loop


def launching(waits: int = 0) -> Recorder:
    made = Recorder()
    for _ in range(12):
        for kernel in range(12):
            made.runs(20_000)
            made.launch(f"kernel_{kernel}", 2_000)
            if kernel < waits:
                made.wait()
    return made


def of(package: str, *places: str, waits: int = 0, launches: dict[str, float] | None = None) -> Diagnosis:
    """The diagnosis of a program that imported a package and has loops at these places."""
    torch = {"torch": "2"} if "torch" in package else {}
    loops = tuple(Loop(place, own=False, beneath=False) for place in places)
    trace = msgspec.structs.replace(
        launching(waits).trace(), format="microbench recording", versions={**torch, package: "1"}, loops=loops
    )
    constants = {name: around(value, 0.0, ()) for name, value in (launches or {}).items()}
    return diagnose(trace, msgspec.structs.replace(costs(), constants={**costs().constants, **constants}))


def advised(found: Diagnosis) -> dict[str, str]:
    return {finding.rule: finding.advice for finding in words.findings(found) if finding.advice}


def test_what_reads_values_to_check_them_is_named() -> None:
    for name, named in (("Distribution.__init__", True), ("<module>", False)):
        made = Recorder()
        read = made.call("cudaMemcpyAsync", 2000)
        made.submit(read, "Memcpy DtoH", 1000, kind="copy", memories=("device", "pinned"), size=4)
        made.name(f"torch/distributions/distribution.py {name}")
        trace = msgspec.structs.replace(made.trace(), format="microbench recording", versions={"torch": "2"})
        waits = Blocker("waits for the GPU", "cudaStreamSynchronize", "train.py:8 main", 1.0)
        assert ("validate_args=False" in advice.first(diagnose(trace, costs()), (waits,))) == named


@pytest.mark.parametrize(("size", "count", "said"), [
    (64, 8.0, advice.UPLOADS), (64, 1.0, advice.FIRST["copies pageable memory"]),
    (1 << 20, 8.0, advice.FIRST["copies pageable memory"]),
])  # fmt: skip
def test_many_small_uploads_are_made_on_the_gpu(size: int, count: float, said: str) -> None:
    made = Recorder()
    for _ in range(3):
        call = made.call("cudaMemcpyAsync", 2000)
        made.submit(call, "Memcpy HtoD", 1000, kind="copy", memories=("pageable", "device"), size=size)
    trace = msgspec.structs.replace(made.trace(), format="microbench recording", versions={"torch": "2"})
    brings = "a value to the GPU" if size == 64 else ""
    copies = Blocker("copies pageable memory", "cudaMemcpyAsync", "train.py:8 main", count, brings=brings)
    assert advice.first(diagnose(trace, costs()), (copies,)) == said


@pytest.mark.parametrize(("brings", "said"), [
    ("a value to the host", advice.READING[True]), ("", advice.FIRST["copies pageable memory"]),
])  # fmt: skip
def test_many_small_copies_to_the_host_are_read_less_often(brings: str, said: str) -> None:
    """And large ones to the GPU beside them are not."""
    made = Recorder()
    for _ in range(12):
        made.launches(4)
        for source, target, size in (("pageable", "device", 1 << 20), ("device", "pageable", 64)):
            for _ in range(4):
                with made.range(f"train.py:8 {source}", "annotation"):
                    call = made.call("cudaMemcpyAsync", 2000)
                    made.submit(call, "Memcpy", 1000, kind="copy", memories=(source, target), size=size)
        made.wait()
    found = diagnose(
        msgspec.structs.replace(made.trace(), format="microbench recording", versions={"torch": "2"}), costs()
    )
    copies = [one for one in found.recorded.blockers if one.why == "copies pageable memory"]
    assert [advice.first(found, (one,)) for one in copies if one.brings == brings] == [said]


@pytest.mark.parametrize(("package", "call", "part"), [
    ("torch", "cudaFree", "gives memory back and gets it anew"),
    ("torch", "cudaMalloc", "gets more memory in these steps"),
    ("cupy", "cudaFree", "free_all_blocks"), ("cupy", "cudaMalloc", "from a memory pool"),
])  # fmt: skip
def test_allocation_is_told_by_library(package: str, call: str, part: str) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(10)
        made.call(call, 900_000)
    trace = msgspec.structs.replace(made.trace(), format="microbench recording", versions={package: "1"})
    found = diagnose(trace, costs())
    assert found.bound == "allocation-bound"
    assert part in advised(found)["diagnose.allocation"]


def test_what_to_do_about_the_lock_that_a_step_waits_for_comes_first() -> None:
    """Most waits are short, and what parts the step into pieces is not what makes it slow."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(12):
            with made.range(f"{LOCK} held at train.py:9 other", kind="python"):
                made.runs(600_000 if kernel else 1_200_000)
            made.launch(f"kernel_{kernel}", 2000)
            if kernel % 2:
                made.wait()
        made.runs(20_000)
    versions = {"torch": "2", "Python": "3.12"}
    found = diagnose(msgspec.structs.replace(made.trace(), format="microbench recording", versions=versions), costs())
    said = [finding.rule for finding in words.findings(found) if finding.severity == "advice"]
    assert said == ["diagnose.pauses", "diagnose.pieces", "diagnose.library"]


def test_without_better_advice_the_owner_of_most_host_time_comes_next() -> None:
    """Steps that replay graphs already, whose host time is an operator's."""
    made = Recorder()
    for _ in range(12):
        graph = made.call("cudaGraphLaunch", 5000)
        for kernel in range(4):
            made.submit(graph, f"kernel_{kernel}", 20_000, node=kernel + 1)
        for kernel in range(6):
            with made.range("aten::part"):
                made.runs(40_000)
            made.launch(f"own_{kernel}", 2000)
    found = diagnosed(made)
    (one,) = (finding for finding in words.findings(found) if finding.severity == "advice")
    assert (one.rule, one.advice) == ("diagnose.owner", "A graph or torch.compile saves it")
    assert one.title.startswith("Between CUDA calls the host's time goes to PyTorch's operators")


@pytest.mark.parametrize(("package", "place", "program", "part"), [
    ("torch", "train.py:8 main", "torch", "torch.cuda.graph"),
    ("torch", "torch/optim/adam.py:229 step", "training", "capturable=True"),
    ("torch", "transformers/generation/utils.py:3025 _sample", "generate", "static cache"),
    ("torch_geometric", "train.py:8 main", "graphs", "edges"),
    ("jax", "train.py:8 main", "jax", "jax.lax.scan"),
    ("cupy", "solve.py:8 main", "cupy", "begin_capture"),
    ("numba.cuda", "price.py:8 main", "numba", "cuda.core"),
    ("triton", "a.py:8 main", "other", "Capture the step"),
])  # fmt: skip
def test_the_advice_is_that_of_the_library(package: str, place: str, program: str, part: str) -> None:
    found = of(package, place)
    assert advice.program_of(found.trace) == program
    assert part in advised(found)["diagnose.graph"]


def test_a_step_of_many_pieces_is_no_graph_before_what_parts_it_has_gone() -> None:
    found = of("torch", "train.py:8 main", waits=6)
    assert found.graph is not None
    assert found.graph.graphs > advice.MOST_GRAPHS
    said = advised(found)
    assert "diagnose.graph" not in said
    assert said["diagnose.pieces"] == advice.FIRST["waits for the GPU"]
    assert "torch.cuda.graph" in said["diagnose.library"]
    own = advised(of("torch", "transformers/generation/utils.py:3025 _sample", waits=6))
    assert "static cache" in own["diagnose.pieces"], "its waits are not the user's"
    assert "diagnose.library" not in own


def test_a_numba_program_is_told_what_a_launch_by_cuda_core_costs() -> None:
    measured = {"call.numba_each_call.4": 20e-6, "call.cuda_core.4": 5e-6}
    found = of("numba.cuda", "price.py:8 main", launches=measured)
    ladder = advice.ladder(found)
    assert ladder is not None
    assert found.step is not None
    assert ladder.step_s == pytest.approx(found.step.unwatched_s - 12 * 15e-6)
    assert "5.00 µs instead of 20.0 µs" in advised(found)["diagnose.ladder"]
    assert advice.ladder(of("torch", "price.py:8 main")) is None
    slow = advice.ladder(of("numba.cuda", "price.py:8 main", launches={**measured, "call.numba_each_call.4": 900e-6}))
    assert slow is not None
    assert slow.step_s == pytest.approx(12 * 5e-6), "no less than its launches take"


def test_a_busy_gpu_is_told_nothing_about_launches() -> None:
    made = Recorder()
    for _ in range(12):
        for kernel in range(12):
            made.launch(f"kernel_{kernel}", 200_000)
    found = diagnosed(made)
    assert found.bound == "GPU-bound"
    assert not {"diagnose.library", "diagnose.ladder", "diagnose.graph"} & set(advised(found))


def test_what_a_step_stops_for_is_said_where_no_graph_is_foreseen() -> None:
    found = msgspec.structs.replace(of("torch", "train.py:8 main", waits=6), graph=None, why_no_graph="it is unclear")
    (told,) = (one for one in words.findings(found) if one.rule == "diagnose.interruptions")
    assert "cudaStreamSynchronize (6 a step)" in told.title
    assert told.advice == advice.FIRST["waits for the GPU"]
    once = msgspec.structs.replace(of("torch", "train.py:8 main", waits=1), graph=None, why_no_graph="it is unclear")
    assert "diagnose.interruptions" not in advised(once)


def in_order(found: Diagnosis) -> list[str]:
    """The rules of what to change, as the screen has them."""
    return [one.rule for one in words.findings(found) if one.severity == "advice"]


def test_the_first_advice_is_what_gains_most() -> None:
    made = Recorder()
    for _ in range(12):
        made.runs(2_000_000)
        for kernel in range(40):
            made.runs(100_000)
            made.launch(f"kernel_{kernel}", 30_000)
        made.runs(max(made.ends_ns[7] - made.now_ns, 0))
        made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1_500_000, stream=20)
        made.wait()
    exact, rounded = diagnosed(made), diagnose(made.trace(resolution_ns=1000), costs())
    assert exact.graph is not None
    assert rounded.graph is None
    for found, first in ((exact, "diagnose.graph"), (rounded, "diagnose.library")):
        rules = in_order(found)
        assert rules[0] == first
        assert rules.index("diagnose.pauses") < rules.index("diagnose.communication")
    stopping = diagnose(launching(2).trace(resolution_ns=1000), costs())
    assert "diagnose.library" not in in_order(stopping), "no graph holds what the step stops for"
    assert "diagnose.interruptions" in in_order(stopping)
    pieces = Recorder()
    for _ in range(12):
        for _ in range(2):
            pieces.launches(40, 20_000, 2_000)
            pieces.wait()
    assert in_order(diagnose(pieces.trace(resolution_ns=1000), costs()))[0] == "diagnose.library"
    (late,) = (one for one in words.findings(rounded) if one.rule == "diagnose.library")
    assert late.title.startswith("The GPU waits 2.86")
    assert late.title.endswith(" ms of each step for work to be submitted; what a graph saves of it is not predicted")


def test_a_graph_that_may_not_pay_is_said_so() -> None:
    found = of("cupy", "solve.py:8 main", waits=1)
    assert found.graph is not None
    assert found.step is not None
    doubtful = msgspec.structs.replace(
        found, graph=msgspec.structs.replace(found.graph, speedup_low=0.62, speedup_high=3.6), remedies=()
    )
    (told,) = (one for one in words.findings(doubtful) if one.rule == "diagnose.graph")
    assert told.title.startswith("As a graph a step takes ")
    assert told.title.endswith(", so a graph makes it at most 3.6× as fast")
    measured = msgspec.structs.replace(doubtful, step=msgspec.structs.replace(found.step, measured=True))
    (told,) = (one for one in words.findings(measured) if one.rule == "diagnose.graph")
    assert told.severity == "note"
    assert told.title.startswith("Whether a graph helps is not known")
    assert told.title.endswith("(0.62 to 3.6×) as fast")
    assert "diagnose.blockers" not in advised(doubtful)
    assert in_order(found)[0] == "diagnose.graph"
    profiled = diagnosed(launching(1))
    assert profiled.graph is not None
    unsure = msgspec.structs.replace(profiled, graph=msgspec.structs.replace(profiled.graph, speedup_low=0.62))
    assert in_order(profiled)[0] == "diagnose.graph"
    assert in_order(unsure)[0] == "diagnose.graph", "it says that the step is to be timed"
    pausing = Recorder()
    for _ in range(12):
        pausing.runs(5_000_000)
        pausing.launches(100, 8_000, 2_000)
        pausing.wait()
    paused = diagnosed(pausing)
    assert (paused.bound, paused.graph is not None) == ("host-bound", True)
    unsure = msgspec.structs.replace(paused, graph=msgspec.structs.replace(paused.graph, speedup_low=0.62), remedies=())
    assert in_order(unsure)[0] == "diagnose.pauses", "the largest cause"
    assert in_order(unsure)[1] == "diagnose.graph"


def test_a_wait_behind_each_step_is_told_beside_the_graph() -> None:
    made = Recorder()
    for _ in range(12):
        for kernel in range(12):
            made.runs(8_000)
            made.launch(f"kernel_{kernel}", 80_000 if kernel == 11 else 2_000)
        made.wait()
    found = diagnosed(made)
    (told,) = (one for one in words.findings(found) if one.rule == "diagnose.wait_behind")
    (without,) = (one for one in found.remedies if one.name == "waits")
    assert told.title == (
        "cudaStreamSynchronize (1 a step) ends each step: without that wait alone a step takes "
        f"{as_time(without.step_s)}, {times(without.speedup)} as fast"
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_a_graph_is_no_shorter_than_the_work_of_a_stream(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "ELSEWHERE", 0.4)
    made = Recorder()
    for _ in range(12):
        for kernel in range(30):
            made.runs(60_000)
            made.launch(f"kernel_{kernel}", 20_000, stream=7 + 13 * (overlap and kernel % 2))
    graph = diagnose(made.trace(), costs(), elsewhere=True).graph
    assert graph is not None
    assert graph.low_s == pytest.approx(30 * 20e-6 / (2 if overlap else 1))


@pytest.mark.parametrize("waits", [0, 1, 30])
def test_waits_come_before_a_graph_where_no_step_repeats(waits: int) -> None:
    made, chance = Recorder(), np.random.default_rng(1)
    made.launch("before", 2000)
    for kernel in range(600):
        made.runs(15_000)
        with made.range(f"aten::op{chance.integers(1000)}", "operator"):
            made.launch(f"kernel_{chance.integers(1000)}", 3000)
        if waits and kernel % (600 // waits) == 0:
            made.wait()
    found = diagnosed(made)
    assert (found.steps, found.bound) == (None, "launch-bound")
    (told,) = (one for one in words.findings(found) if one.rule == "diagnose.library")
    assert told.title.endswith("Remove the host's 30 waits first: no graph holds them") == (waits == 30)
