"""Tests of what a diagnosis advises a program of each library."""

from __future__ import annotations

import msgspec
import pytest
from make_trace import Recorder
from test_diagnose import costs, diagnosed

from microbench.diagnosis import advice, words
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
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
    *_, last = words.findings(found)
    assert (last.rule, last.severity) == ("diagnose.interruptions", "advice")
    assert "cudaStreamSynchronize (6 a step)" in last.title
    assert last.advice == advice.FIRST["waits for the GPU"]
    once = msgspec.structs.replace(of("torch", "train.py:8 main", waits=1), graph=None, why_no_graph="it is unclear")
    assert "diagnose.interruptions" not in advised(once)
