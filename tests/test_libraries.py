"""lab/libraries.py: which way each rule chooses, and what it measures on the simulated GPU."""

import csv
import random
import sys
from pathlib import Path

import libraries
import pytest
from changed_run import without
from libraries import LIBRARIES, Constants, Partition, Pieces
from link_evidence import WHOLE
from make_link_run import measured_batches, with_batches
from read_findings import evidence

import microbench as mb
from microbench.explain.constants import crossovers
from microbench.library.constants import MachineConstant
from microbench.meter.sampling import SamplingLimits


def constant(low: float, high: float) -> MachineConstant:
    return MachineConstant((low + high) / 2, low, high, "", "", "", 3, "stable")


@pytest.fixture(scope="module", params=["H100", "H200"])
def of_a_card(request: pytest.FixtureRequest) -> Constants:
    """The bundled constants, with crossovers from a real card's batched copies and a copy of 3.4 us added."""
    found = crossovers(evidence(with_batches(without(WHOLE, "link_batch"), measured_batches(request.param))))
    own = {one.name: constant(one.constant.low, one.constant.high) for one in found if ".h2d_" in one.name}
    return {**mb.constants("nvidia-h200"), **own, "graph.transition.copy_d2d.stream": constant(3.2e-6, 3.6e-6)}


@pytest.mark.parametrize(("kib", "pieces", "theirs", "ours"), [
    (27, 16, "gather", "gather"),
    (28, 16, "batched", "gather"),
    (28, 256, "batched", "gather"),
    (64, 1024, "batched", "gather"),
    (200, 16, "batched", "batched"),  # in doubt
    (512, 16, "batched", "batched"),
    (1, 15, "batched", "batched"),  # so few were not measured
])  # fmt: skip
def test_pieces_go_as_each_rule_says(kib: int, pieces: int, theirs: str, ours: str, of_a_card: Constants) -> None:
    case = Pieces(kib << 10, pieces)
    assert (LIBRARIES["vllm"].theirs(case), LIBRARIES["vllm"].ours(case, of_a_card)) == (theirs, ours)


def test_a_call_for_each_piece_wins_only_without_doubt() -> None:
    names = {"gathered_up_to.16": (0, 0), "batched_up_to.16": (4096, 8192), "batched_from.16": (20000, 30000)}
    known = {f"link.h2d_{name}": constant(*ends) for name, ends in names.items()}
    assert [libraries.our_copy(Pieces(size, 64), known) for size in (6000, 16384, 25000)] == [
        "batched",
        "loop",
        "batched",
    ]


@pytest.mark.parametrize(("name", "kernels", "inputs", "theirs", "ours"), [
    ("aotinductor", 2, 0, "stream", "graph"),
    ("aotinductor", 7, 0, "stream", "graph"),
    ("aotinductor", 7, 2, "stream", "stream"),
    ("aotinductor", 8, 0, "graph", "graph"),
    ("torch_compile", 1, 0, "graph", "graph"),
    ("torch_compile", 1, 9, "graph", "stream"),
])  # fmt: skip
def test_partitions_become_graphs_as_each_rule_says(
    name: str, kernels: int, inputs: int, theirs: str, ours: str, of_a_card: Constants
) -> None:
    case = Partition(kernels, 2000, inputs)
    assert (LIBRARIES[name].theirs(case), LIBRARIES[name].ours(case, of_a_card)) == (theirs, ours)


def test_a_replay_that_is_not_known_can_only_lose(of_a_card: Constants) -> None:
    of_the_loop = {name: one for name, one in of_a_card.items() if not name.startswith("graph.replay.torch")}
    chosen = [libraries.our_partition("torch_compile", Partition(1, 2000, inputs), of_the_loop) for inputs in (0, 9)]
    assert chosen == ["graph", "stream"]
    del of_the_loop["graph.replay.loop"]
    assert libraries.our_partition("torch_compile", Partition(1, 2000, 9), of_the_loop) == "graph"


def test_constants_that_scatter_with_the_host_still_decide(of_a_card: Constants) -> None:
    """All at half, then all at twice their value: which way is faster does not change, and so it is told."""
    scattered = {name: constant(one.value / 2, 2 * one.value) for name, one in of_a_card.items()}
    assert libraries.our_partition("aotinductor", Partition(7, 2000, 0), scattered) == "graph"
    in_doubt = scattered | {"graph.replay.loop": constant(1e-6, 50e-6)}
    assert libraries.our_partition("aotinductor", Partition(7, 2000, 0), in_doubt) == "stream"


@pytest.mark.parametrize("name", LIBRARIES)
def test_without_constants_the_library_decides(name: str) -> None:
    library = LIBRARIES[name]
    cases = library.cases(random.Random(1))
    assert all(library.ours(case, {}) == library.theirs(case) for case in cases)
    assert sum(not case.published for case in cases) >= 100


def test_the_table_has_both_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_card: Constants) -> None:
    few = {
        "vllm": [Pieces(28 << 10, 64, "vllm#57555"), Pieces(1024, 32)],
        "aotinductor": [Partition(7, 2000, 0, "pytorch#184092"), Partition(12, 2000, 2)],
        "torch_compile": [Partition(3, 2000, 1)],
    }
    for name, cases in few.items():
        monkeypatch.setitem(LIBRARIES, name, LIBRARIES[name]._replace(cases=lambda numbers, cases=cases: cases))
    monkeypatch.setattr(libraries, "LIMITS", SamplingLimits(seconds=0.001, minimum=5))
    machine, out = mb.constants("nvidia-h200"), tmp_path / "out.csv"
    monkeypatch.setattr(machine, "_constants", dict(of_a_card))
    (tmp_path / "machine.toml").write_text(machine.to_toml())
    monkeypatch.setattr(sys, "argv", ["libraries.py", str(tmp_path / "machine.toml"), str(out), "--device", "fake"])
    libraries.main()
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == libraries.TABLE.read_text().partition("\n")[0].split(",")
    assert [row["section"] for row in rows] == [name for name, cases in few.items() for _ in cases]
    assert [float(row["ratio"]) < 0.9 for row in rows] == [True, False, True, False, False]
    for row in rows:
        own, other = float(row["microbench"]), float(row["other"])
        assert own / other == pytest.approx(float(row["ratio"]), rel=0.01)
        assert float(row["low"]) <= float(row["ratio"]) <= float(row["high"])
