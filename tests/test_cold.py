"""Cold starts against a driver that only counts: what is timed, what happens before, and what is refused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from layer_stand_ins import OK, Code, cupy_stand_in, put_stand_ins

from microbench.core.errors import MeasurementError, Skip

cold = pytest.importorskip("microbench.gpu.cuda.cold", reason="needs cuda-bindings")

NAMES = (
    "context", "nvrtc", "module_load_lazy", "module_load_eager", "first_launch_lazy", "first_launch_eager",
    "second_launch", "numba_import", "numba_jit", "cupy_import", "cupy_rawkernel", "cupy_ufunc",
)  # fmt: skip
UUID = "GPU-0"
EAGER, LAZY = 1, 2

# Seconds of each act on the driver below: every sum of several acts is different.
ACTS_S = {
    "cuDriverGetVersion": 1, "cuInit": 2, "find_device": 4, "cuDevicePrimaryCtxRetain": 8, "cuCtxSetCurrent": 16,
    "Context": 32, "compile_cubin": 64, "cuLibraryLoadData": 128, "cuLibraryGetKernel": 256, "cuStreamCreate": 512,
    "cuLaunchKernel": 1024, "cuStreamSynchronize": 2048, "synchronize": 4096, "kernel": 8192,
}  # fmt: skip


class Machine:
    """A clock that each act moves by its seconds in ACTS_S, and the list of acts."""

    def __init__(self, mode: int = LAZY) -> None:
        self.mode, self.now_s = mode, 0
        self.done: list[str] = []

    def act(self, name: str, result: Any = None) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            self.done.append(name)
            self.now_s += ACTS_S[name]
            return result

        return act

    def driver(self) -> SimpleNamespace:
        results = {"cuLibraryLoadData": (OK, "library"), "cuLibraryGetKernel": (OK, 77), "cuStreamCreate": (OK, 5)}
        calls = {name: self.act(name, results.get(name, (OK,))) for name in ACTS_S if name.startswith("cu")}
        return SimpleNamespace(
            **calls,
            cuModuleGetLoadingMode=lambda: (OK, self.mode),
            CUfunction=int,
            CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        )

    def context(self, uuid: str) -> SimpleNamespace:
        assert uuid == UUID
        self.act("Context")()
        return SimpleNamespace(architecture="90", device=3, synchronize=self.act("synchronize"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(cold, "driver", made.driver())
    monkeypatch.setattr(cold, "Context", made.context)
    monkeypatch.setattr(cold, "find_device", made.act("find_device", "device"))
    monkeypatch.setattr(cold, "compile_cubin", made.act("compile_cubin", b"cubin"))
    monkeypatch.setattr(cold, "LOADING_MODES", {"lazy": LAZY, "eager": EAGER})
    monkeypatch.setattr(cold.time, "monotonic_ns", lambda: made.now_s * 1_000_000_000)
    return made


@pytest.mark.parametrize(("what", "mode", "acts"), [
    ("context", LAZY, ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent")),
    ("nvrtc", LAZY, ("compile_cubin",)),
    ("module_load_lazy", LAZY, ("cuLibraryLoadData", "cuLibraryGetKernel")),
    ("module_load_eager", EAGER, ("cuLibraryLoadData", "cuLibraryGetKernel")),
    ("first_launch_lazy", LAZY, ("cuLaunchKernel", "cuStreamSynchronize")),
    ("first_launch_eager", EAGER, ("cuLaunchKernel", "cuStreamSynchronize")),
    ("second_launch", LAZY, ("cuLaunchKernel", "cuStreamSynchronize")),
])  # fmt: skip
def test_only_the_act_itself_is_timed(machine: Machine, what: str, mode: int, acts: tuple[str, ...]) -> None:
    machine.mode = mode
    seconds = cold.seconds(UUID, what)
    assert seconds == pytest.approx(sum(ACTS_S[act] for act in acts))
    assert machine.done.count("cuLaunchKernel") == {"first": 1, "secon": 2}.get(what[:5], 0)


def test_the_driver_library_is_loaded_before_the_clock_starts(machine: Machine) -> None:
    cold.seconds(UUID, "context")
    assert machine.done[0] == "cuDriverGetVersion"


@pytest.mark.parametrize("what", ["module_load_eager", "first_launch_eager"])
def test_a_process_in_the_other_loading_mode_is_a_failure(machine: Machine, what: str) -> None:
    with pytest.raises(MeasurementError, match="eager mode: CUDA_MODULE_LOADING"):
        cold.seconds(UUID, what)


def test_every_cold_start_has_a_name_and_any_other_is_skipped() -> None:
    assert tuple(cold.COLD_STARTS) == NAMES
    with pytest.raises(Skip, match="no cold start 'espresso'"):
        cold.seconds(UUID, "espresso")


def test_a_new_interpreter_times_an_import() -> None:
    seconds = cold.import_s("json.tool", "pip install json")
    assert 0 < seconds < cold.IMPORT_TIMEOUT_S


def test_a_missing_package_has_no_import_time() -> None:
    with pytest.raises(Skip, match=r"^needs no_such_package_here: pip install it$"):
        cold.import_s("no_such_package_here", "pip install it")


def test_a_broken_package_says_why_it_does_not_import(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise OSError('libcuda is not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Skip, match="broken_package does not import here: OSError: libcuda is not here"):
        cold.import_s("broken_package", "pip install it")


def cupy_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    launches = put_stand_ins(monkeypatch)
    cupy = cupy_stand_in(launches)
    monkeypatch.setattr(cupy, "RawKernel", lambda source, name: machine.act("kernel"), raising=False)
    monkeypatch.setattr(cold, "load_cupy", lambda: cupy)
    return cupy


def test_a_raw_kernels_first_call_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = cupy_machine(machine, monkeypatch)
    seconds = cold.seconds(UUID, "cupy_rawkernel")
    assert seconds == pytest.approx(ACTS_S["kernel"] + ACTS_S["synchronize"])
    assert cupy.current["device"] == 3


class Operand:
    """An array whose sum is an act of the machine."""

    def __init__(self, machine: Machine, total: float) -> None:
        self.machine, self.total = machine, total

    def __add__(self, other: int) -> list[float]:
        self.machine.act("kernel")()
        return [self.total]


@pytest.mark.parametrize("total", [2.0, 3.0])
def test_a_ufuncs_first_call_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch, total: float) -> None:
    cupy = cupy_machine(machine, monkeypatch)
    cupy.asarray = lambda values: Operand(machine, total)
    if total != 2.0:
        with pytest.raises(MeasurementError, match="1 \\+ 1"):
            cold.seconds(UUID, "cupy_ufunc")
        return
    seconds = cold.seconds(UUID, "cupy_ufunc")
    assert seconds == pytest.approx(ACTS_S["kernel"] + ACTS_S["synchronize"])


class NumbaArray:
    """A device array of Numba's."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def copy_to_host(self) -> Any:
        return self.values


@pytest.mark.parametrize("right", [True, False])
def test_numbas_first_call_is_waited_for_and_its_sum_checked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    put_stand_ins(monkeypatch)
    import microbench._kernels

    def touch(a: NumbaArray, b: NumbaArray, total: NumbaArray, n: int) -> None:
        machine.act("kernel")()
        total.values[: n if right else n - 1] = 2.0

    kernels = SimpleNamespace(touch={(1, 32): touch})
    numba = SimpleNamespace(current_context=lambda: None, to_device=NumbaArray)
    monkeypatch.setattr(microbench._kernels, "numba_kernels", kernels, raising=False)
    monkeypatch.setattr(cold, "load_numba_cuda", lambda: numba)
    if not right:
        with pytest.raises(MeasurementError, match="is not 2"):
            cold.seconds(UUID, "numba_jit")
        return
    seconds = cold.seconds(UUID, "numba_jit")
    assert seconds == pytest.approx(ACTS_S["kernel"] + ACTS_S["synchronize"])


def test_a_failing_call_of_the_driver_is_a_failure(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold.driver, "cuInit", lambda flags: (Code(100),))
    monkeypatch.setattr("microbench.gpu.cuda.context.error_name", lambda code: f"error {code}")
    with pytest.raises(MeasurementError, match="error 100"):
        cold.seconds(UUID, "context")
