"""Profilers as Recorders: what is counted, what a refusal leaves, and what recording takes on a real GPU."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_session import EQUAL, exact
from make_trace import kineto, steps_of

from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.benchmarks.launch import launch_watched
from microbench.core.errors import Skip
from microbench.core.model import Fact, Measurement
from microbench.experiments.launch.models import SimulatedRecorder
from microbench.gpu.cuda import profiler
from microbench.gpu.cuda.profiler import KERNEL_RECORD, KernelRecords
from microbench.gpu.fake.costs import FakeCosts, RecorderCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.layers import torch_models
from microbench.gpu.layers.torch_models import TorchRecorder, counted
from microbench.gpu.protocol.gpu import Recorded, RecorderKind
from microbench.meter.timer import Meter
from microbench.traces.reading import read

TRACE = kineto(steps_of(count=4, kernels=6, marked=True).trace())


class Profile:
    """A stand-in for torch.profiler.profile, which notes its calls and writes TRACE."""

    def __init__(self, notes: list[Any], activities: list[str], with_stack: bool, refuses: str) -> None:
        self.notes, self.refuses = notes, refuses
        notes.append((activities, with_stack))

    def start(self) -> None:
        self.does("start")

    def stop(self) -> None:
        self.does("stop")

    def export_chrome_trace(self, path: str) -> None:
        self.does("export")
        Path(path).write_bytes(TRACE)

    def does(self, what: str) -> None:
        self.notes.append(what)
        if what == self.refuses:
            raise RuntimeError(f"cannot {what}\nhere")


def recorder(monkeypatch: pytest.MonkeyPatch, kind: RecorderKind, refuses: str = "") -> tuple[TorchRecorder, list[Any]]:
    notes: list[Any] = []
    profiler = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="CPU", CUDA="CUDA"),
        profile=lambda activities, with_stack: Profile(notes, activities, with_stack, refuses),
    )
    monkeypatch.setattr(torch_models, "load_torch", lambda: None)
    monkeypatch.setattr(torch_models.base, "load", lambda package, install: profiler)
    return TorchRecorder(kind), notes


@pytest.mark.parametrize(("kind", "expected"), [
    ("torch_cuda", (["CUDA"], False)), ("torch_cpu", (["CPU", "CUDA"], False)),
    ("torch_stack", (["CPU", "CUDA"], True)),
])  # fmt: skip
def test_a_recording_is_started_and_stopped_around_what_runs(
    monkeypatch: pytest.MonkeyPatch, kind: RecorderKind, expected: tuple[list[str], bool]
) -> None:
    made, notes = recorder(monkeypatch, kind)
    assert made.recorded(lambda: notes.append("run")) == counted(TRACE)
    assert notes == [expected, "start", "run", "stop", "export"]
    notes.clear()
    with pytest.raises(KeyError), made.recording():
        raise KeyError
    assert notes == [expected, "start", "stop"], "a program's own error stops the recording too"


@pytest.mark.parametrize("refuses", ["start", "stop", "export"])
def test_what_the_profiler_refuses_is_a_skip_with_its_reason(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    made, _ = recorder(monkeypatch, "torch_cpu", refuses)
    with pytest.raises(Skip, match=rf"torch.profiler does not record here \(RuntimeError: cannot {refuses}"):
        made.recorded(lambda: None)


def test_records_are_counted_as_diagnose_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    trace = read(path)
    found = counted(TRACE)
    assert (found.kernels, found.calls) == (len(trace.work), len(trace.calls))
    assert found.operators == 24
    assert found.functions == 0
    assert counted(b'{"cat":"python_function"},{"cat": "cuda_driver"}') == Recorded(0, 1, 0, 1)


class Cupti:
    """A stand-in for libcupti that gives one buffer of records when it is flushed, and notes what is switched."""

    def __init__(self, kinds: tuple[int, ...]) -> None:
        self.kinds, self.notes, self.left = kinds, list[str](), 0
        self.records = (ctypes.c_uint64 * (4 * len(kinds)))()
        self.callbacks: Any = None

    def cuptiActivityRegisterCallbacks(self, *callbacks: Any) -> int:  # noqa: N802 - CUPTI's names
        self.callbacks = callbacks
        return 0

    def cuptiActivityEnable(self, kind: int) -> int:  # noqa: N802
        self.notes.append(f"on {kind}")
        return 0

    def cuptiActivityDisable(self, kind: int) -> int:  # noqa: N802
        self.notes.append(f"off {kind}")
        return 0

    def cuptiActivityFlushAll(self, flag: int) -> int:  # noqa: N802
        for place, kind in enumerate(self.kinds):  # kind, and begin and end at 16 and 24
            self.records[4 * place : 4 * place + 4] = [kind, 0, 100 * place, 100 * place + 7]
        self.left = len(self.kinds)
        self.callbacks[1](None, 0, ctypes.addressof(self.records), 4096, 8 * len(self.records))
        return 0

    def cuptiActivityGetNextRecord(self, buffer: Any, size: Any, record: Any) -> int:  # noqa: N802
        if not self.left:
            return 1
        self.left -= 1
        record._obj.value = ctypes.addressof(self.records) + 32 * self.left
        return 0

    def cuptiActivityGetNumDroppedRecords(self, context: Any, stream: int, lost: Any) -> int:  # noqa: N802
        return 0


def test_cuptis_records_of_kernels_are_counted_and_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cupti = Cupti((KERNEL_RECORD, 4, KERNEL_RECORD))
    monkeypatch.setattr(profiler, "cupti_library", lambda: Path("libcupti.so.13"))
    monkeypatch.setattr(profiler.ctypes, "CDLL", lambda path, mode: cupti)
    records = KernelRecords()
    switched = [f"on {KERNEL_RECORD}", f"off {KERNEL_RECORD}"]
    assert records.recorded(lambda: None) == Recorded(kernels=2)
    assert records.durations_ns(lambda: None).tolist() == [7, 7], "those of an earlier recording are gone"
    assert cupti.notes == 2 * switched
    cupti.notes.clear()
    with pytest.raises(KeyError), records.recording():
        raise KeyError
    assert cupti.notes == switched


# The benchmark where a recorder refuses or records nothing, simulated.


class Refusing:
    """The simulated GPU, some of whose recorders refuse; what others record is changed."""

    def __init__(self, refused: tuple[str, ...], changed: Callable[[Recorded], Recorded] = lambda found: found) -> None:
        self._gpu, self._refused, self._changed = exact(), refused, changed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpu, name)

    def carry_out(self, real: Any, simulated: Any, *arguments: Any, **options: Any) -> Any:
        if simulated is SimulatedRecorder and arguments[0] in self._refused:
            raise Skip(f"{arguments[0]} is refused")
        made = self._gpu.carry_out(real, simulated, *arguments, **options)
        if simulated is not SimulatedRecorder:
            return made
        count = made.recorded
        made.recorded = lambda run: self._changed(count(run))
        return made


def measured(gpu: Any, records: str) -> tuple[set[str], dict[str, str | None]]:
    meter = Meter(gpu.clock, gpu, limits=EQUAL)
    with gpu.case():
        found = list(launch_watched.measure(gpu, meter, records))
    unknown = {one.name: one.reason for one in found if isinstance(one, Fact) and one.value is None}
    return {one.metric for one in found if isinstance(one, Measurement)}, unknown


def test_a_recorder_that_refuses_leaves_what_others_show() -> None:
    figures, unknown = measured(Refusing(("torch_cpu",)), "torch")
    assert figures == {"call", "node", "node_left"}
    assert unknown == {"operator": "torch_cpu is refused"}
    for refused, records in (("torch_cpu", "torch_stack"), ("torch_stack", "torch_stack"), ("cupti", "cupti")):
        with pytest.raises(Skip, match=f"{refused} is refused"):
            measured(Refusing((refused,)), records)


def test_what_is_not_recorded_has_no_cost() -> None:
    figures, unknown = measured(Refusing((), lambda found: found._replace(kernels=1)), "torch")
    assert figures == {"call", "operator"}
    assert unknown == dict.fromkeys(("node", "node_left"), "no nodes of the graph were recorded")
    figures, unknown = measured(Refusing((), lambda found: found._replace(operators=0)), "torch")
    assert figures == {"call", "node", "node_left"}
    assert unknown == {"operator": "no operators were recorded"}
    with pytest.raises(Skip, match="no functions were recorded"):
        measured(Refusing((), lambda found: Recorded(0)), "torch_stack")


def test_a_cost_below_what_can_be_seen_is_unknown_and_leaves_the_others() -> None:
    costs = FakeCosts(recorder=RecorderCosts(left_node_ns=0.0, operator_ns=0.0))
    figures, unknown = measured(open_fake(costs, spread=0), "torch")
    assert figures == {"call", "node"}
    assert unknown == dict.fromkeys(("operator", "node_left"), "most samples took no longer with it than without")


# On a real GPU, where each row has a process of its own: two profilers in one would be in each other's way.

SANE_S = {
    "call": (0.2e-6, 30e-6), "operator": (0.2e-6, 10e-6), "function": (0.02e-6, 3e-6), "node": (0.0, 10e-6),
    "node_left": (0.0, 5e-6),
}  # fmt: skip


@pytest.mark.gpu
def test_each_cost_is_sane_on_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    command = [sys.executable, "-m", "microbench", "run", "launch_watched", "--out", str(path)]
    subprocess.run(command, check=True, timeout=300)
    run = store.read(path)
    for outcome in run.outcomes:
        records = str(outcome.case.params["records"])
        if outcome.status == "skipped":
            assert "needs" in str(outcome.reason), outcome.reason
            continue
        assert outcome.status == "ok", outcome.reason
        unknown = {fact.name for fact in outcome.facts if fact.value is None}
        assert unknown <= {"node_left"}
        found = {row.metric.name: row.value for row in rows(run) if row.case_id == outcome.case.id}
        assert set(found) | unknown == {cost.metric for cost in launch_watched.COSTS[records]}
        each = [(fact.name.partition("_")[0], fact.value) for fact in outcome.facts if fact.value is not None]
        for name, value_s in [*found.items(), *each]:
            low_s, high_s = SANE_S[name]
            assert low_s < value_s < high_s, (records, name, value_s)
