"""doctor's checks: one state and one next step for each thing looked at, judged by the rules that explain a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import snapshots
from test_explain_environment import QUIET_FACTS, QUIET_GPU

from microbench.core.errors import Skip
from microbench.core.model import Environment, Fact, LinkInfo, MemoryErrors
from microbench.gpu.protocol.gpu import PcieBytes
from microbench.session import doctor

CUDA, TORCH, OUT, WARP = (
    SimpleNamespace(name=name, package=package, install=f"pip install {install}")
    for name, package, install in (
        ("cuda_bindings", "cuda", ""), ("torch_eager", "torch", "torch"), ("torch_out", "torch", "torch"),
        ("warp", "warp", "warp-lang"),
    )
)  # fmt: skip
# What the doctor looks at besides the environment, on a machine on which all is well.
AROUND: dict[str, Any] = {
    "data_folder": lambda: Path("/data"), "free_bytes": lambda folder: (10**12, None),
    "loop_cache_folder": lambda: "/cache", "counting": lambda gpu: "exact", "layers": lambda: [CUDA],
    "importable": lambda package: package == "cuda",
}  # fmt: skip
GPU = msgspec.structs.replace(QUIET_GPU, compute_capability=(9, 0), link=LinkInfo(max_payload_bytes=256))
PACKAGES = {"cuda-bindings": "13.0.3", "numba": "0.68.1", "nvidia-cuda-nvrtc": "13.0.88", "nvidia-ml-py": "13.580"}


def environment(facts: dict[str, Any] | None = None, **fields: Any) -> Environment:
    known = tuple(Fact(name, value, "test") for name, value in {**QUIET_FACTS, **(facts or {})}.items())
    usual: dict[str, Any] = {
        "gpus": (GPU,), "driver_version": "580.95.05", "cuda_driver_version": "13.0", "cuda_toolkit_version": "13.1",
        "packages": PACKAGES, "facts": known,
    }  # fmt: skip
    return Environment(**{**usual, **fields})


def named(report: list[doctor.Check], name: str) -> doctor.Check:
    return next(check for check in report if check.name == name)


HOPELESS = msgspec.structs.replace(GPU, index=1, uuid="GPU-2", persistence=False, ecc=None)
ERRORS = tuple(
    msgspec.structs.replace(GPU, index=index, memory_errors=errors)
    for index, errors in enumerate((MemoryErrors(3, 0, 3, 0, 0, 0, False, False), MemoryErrors(remap_pending=True)))
)
STATES: dict[str, tuple[Environment, dict[str, Any]]] = {
    "no GPU": (
        environment(gpus=(), no_gpu_reason="no driver", no_gpu_next_step="install it", driver_version=None), {},
    ),
    "a toolkit newer than the driver": (environment(cuda_toolkit_version="14.0"), {}),
    "no NVML": (environment(driver_version=None), {}),
    "no packages": (environment(packages={}), {}),
    "coarse counters": (environment(), {"counting": lambda gpu: "coarse"}),
    "no counters": (environment(), {"counting": lambda gpu: "no permission"}),
    "a full disk": (environment(), {"free_bytes": lambda folder: (5, None)}),
    "a folder that cannot be written": (
        environment(), {"free_bytes": lambda folder: (None, "permission denied")},
    ),
    "no cache of loops": (environment(), {"loop_cache_folder": lambda: None}),
    **{
        f"{name} is {value}": (environment({name: value}), {})
        for name, value in (
            ("clock_source", "hpet"), ("governor", "powersave"), ("governor", None), ("physical_core_count", 2),
            ("profiler", "ncu"), ("CUDA_LAUNCH_BLOCKING", "1"), ("submit_core_numa_node", 0),
        )
    },
    "missing layers are grouped by what installs them": (environment(), {"layers": lambda: [CUDA, TORCH, OUT, WARP]}),
    "each GPU is judged by its own state": (
        msgspec.structs.replace(
            environment(gpus=(GPU, HOPELESS)),
            facts=(*environment().facts, Fact("gpu1_ecc", None, "NVML", "Not Supported")),
        ),
        {},
    ),
    "memory errors are judged where they are known": (environment(gpus=ERRORS), {}),
    "packet sizes need root": (environment(gpus=(msgspec.structs.replace(GPU, link=LinkInfo()),)), {}),
}  # fmt: skip


def told(check: doctor.Check) -> str:
    return f"{check.state} {check.name}: {check.found}" + (f" -> {check.next_step}" if check.next_step else "")


def test_what_each_state_is_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each machine what is not said of one on which all is well."""

    def found(machine: Environment, **around: Any) -> list[str]:
        for name, look in {**AROUND, **around}.items():
            monkeypatch.setattr(doctor, name, look)
        return [told(check) for check in doctor.examine(machine)]

    well = found(environment())
    assert all(words.startswith("ok ") and "->" not in words for words in well)
    texts = ["\n".join(("== all is well", *well))]
    for name, (machine, around) in STATES.items():
        texts.append("\n".join((f"== {name}", *(words for words in found(machine, **around) if words not in well))))
    snapshots.same("doctor", "\n\n".join(texts))


def test_looking_around_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "not" / "made" / "yet"))
    checks = doctor.examine(Environment())
    assert named(checks, "result folder").found.startswith(str(tmp_path / "not" / "made" / "yet"))
    assert not (tmp_path / "not").exists()
    layers = [check for check in checks if check.name == "Python layers"]
    assert all("pip install" in (check.next_step or "") for check in layers if check.state == "note")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    free, reason = doctor.free_bytes(tmp_path / "file")
    assert free is None
    assert reason == "not a directory"


def test_the_chosen_cache_folder_is_the_only_one_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert doctor.loop_cache_folder() == str(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert doctor.loop_cache_folder() is None


def test_importable() -> None:
    assert doctor.importable("json.decoder")
    assert not doctor.importable("nobody_has_this")
    assert not doctor.importable("nobody_has_this.inside")


class StandInNvml:
    def __init__(self, answer: PcieBytes | Skip) -> None:
        self.answer, self.closed = answer, False

    def pcie_bytes(self) -> PcieBytes:
        if isinstance(self.answer, Skip):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("answer", "words"),
    [(PcieBytes(0, 0, False), "exact"), (PcieBytes(0, 0, True), "coarse"), (Skip("not allowed"), "not allowed")],
)
def test_counting(answer: PcieBytes | Skip, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandInNvml(answer)
    monkeypatch.setattr(doctor, "NvmlGpu", lambda uuid: stand_in)
    assert doctor.counting(GPU) == words
    assert stand_in.closed
