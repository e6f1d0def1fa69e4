"""doctor's checks: one state and one next step for each thing looked at, judged by the rules that explain a run."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import snapshots
from test_explain_environment import QUIET_FACTS, QUIET_GPU

from microbench.core.errors import Skip
from microbench.core.model import Environment, Fact, LinkInfo, MemoryErrors
from microbench.gpu.protocol.gpu import PcieBytes
from microbench.session import doctor

AROUND = doctor.Surroundings(
    data_folder="/data", data_free_bytes=10**12, data_reason=None, loop_cache="/cache", layers=("cuda_bindings",),
    counters={QUIET_GPU.uuid: "exact"},
)  # fmt: skip
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


def around(**fields: Any) -> doctor.Surroundings:
    return msgspec.structs.replace(AROUND, **fields)


HOPELESS = msgspec.structs.replace(GPU, index=1, uuid="GPU-2", persistence=False, ecc=None)
ERRORS = tuple(
    msgspec.structs.replace(GPU, index=index, memory_errors=errors)
    for index, errors in enumerate((MemoryErrors(3, 0, 3, 0, 0, 0, False, False), MemoryErrors(remap_pending=True)))
)
MISSING = {"torch_eager": "pip install torch", "torch_out": "pip install torch", "warp": "pip install warp-lang"}
STATES: dict[str, tuple[Environment, doctor.Surroundings]] = {
    "no GPU": (
        environment(gpus=(), no_gpu_reason="no driver", no_gpu_next_step="install it", driver_version=None), AROUND,
    ),
    "a toolkit newer than the driver": (environment(cuda_toolkit_version="14.0"), AROUND),
    "no NVML": (environment(driver_version=None), AROUND),
    "no packages": (environment(packages={}), AROUND),
    "coarse counters": (environment(), around(counters={"GPU-1": "coarse"})),
    "no counters": (environment(), around(counters={"GPU-1": "no permission"})),
    "a full disk": (environment(), around(data_free_bytes=5)),
    "a folder that cannot be written": (
        environment(), around(data_free_bytes=None, data_reason="permission denied"),
    ),
    "no cache of loops": (environment(), around(loop_cache=None)),
    **{
        f"{name} is {value}": (environment({name: value}), AROUND)
        for name, value in (
            ("clock_source", "hpet"), ("governor", "powersave"), ("governor", None), ("physical_core_count", 2),
            ("profiler", "ncu"), ("CUDA_LAUNCH_BLOCKING", "1"), ("submit_core_numa_node", 0),
        )
    },
    "missing layers are grouped by what installs them": (environment(), around(missing_layers=MISSING)),
    "each GPU is judged by its own state": (
        msgspec.structs.replace(
            environment(gpus=(GPU, HOPELESS)),
            facts=(*environment().facts, Fact("gpu1_ecc", None, "NVML", "Not Supported")),
        ),
        AROUND,
    ),
    "memory errors are judged where they are known": (environment(gpus=ERRORS), AROUND),
    "packet sizes need root": (environment(gpus=(msgspec.structs.replace(GPU, link=LinkInfo()),)), AROUND),
}  # fmt: skip


def told(check: doctor.Check) -> str:
    return f"{check.state} {check.name}: {check.found}" + (f" -> {check.next_step}" if check.next_step else "")


def test_what_each_state_is_and_what_to_do() -> None:
    """Of each machine what is not said of one on which all is well."""
    well = [told(check) for check in doctor.examine(environment(), AROUND)]
    assert all(words.startswith("ok ") and "->" not in words for words in well)
    texts = ["\n".join(("== all is well", *well))]
    for name, (machine, surroundings) in STATES.items():
        found = [told(check) for check in doctor.examine(machine, surroundings)]
        texts.append("\n".join((f"== {name}", *(words for words in found if words not in well))))
    snapshots.same("doctor", "\n\n".join(texts))


def test_looking_around_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "not" / "made" / "yet"))
    found = doctor.look_around(Environment())
    assert found.data_folder.endswith("yet")
    assert (found.data_free_bytes or 0) > 0
    assert not (tmp_path / "not").exists()
    assert not set(found.layers) & set(found.missing_layers)
    assert all("pip install" in line for line in found.missing_layers.values())


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
def test_counting(answer: PcieBytes | Skip, words: str) -> None:
    stand_in = StandInNvml(answer)
    made: Any = lambda uuid: stand_in  # noqa: E731
    assert doctor.counting(GPU, made) == words
    assert stand_in.closed
