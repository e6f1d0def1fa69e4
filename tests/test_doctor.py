"""doctor's checks: one state and one next step for each thing looked at, judged by the rules that explain a run."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
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
PACKAGES = {"cuda-bindings": "13.0.3", "nvidia-cuda-nvrtc": "13.0.88", "nvidia-ml-py": "13.580"}


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


def test_all_is_well() -> None:
    report = doctor.examine(environment(), AROUND)
    assert [check for check in report if check.state != "ok"] == []
    assert all(check.found for check in report)
    assert all(check.next_step is None for check in report)
    assert named(report, "GPU 0").found == "GPU, compute capability 9.0, GPU-1"


def test_no_gpu_is_the_first_thing_said() -> None:
    absent = environment(gpus=(), no_gpu_reason="no driver", no_gpu_next_step="install it", driver_version=None)
    report = doctor.examine(absent, AROUND)
    assert report[0] == doctor.Check("GPU", "problem", "no driver", "install it")


@pytest.mark.parametrize(("changes", "surroundings", "name", "state", "words"), [
    ({"cuda_toolkit_version": "14.0"}, {}, "driver and toolkit", "problem", "CUDA 14.0"),
    ({"driver_version": None}, {}, "driver version", "unknown", "NVML"),
    ({"packages": {}}, {}, "NVRTC", "warning", "not installed"),
    ({}, {"counters": {"GPU-1": "coarse"}}, "GPU 0 PCIe counters", "note", "sampled"),
    ({}, {"counters": {"GPU-1": "no permission"}}, "GPU 0 PCIe counters", "warning", "no permission"),
    ({}, {"data_free_bytes": 5}, "result folder", "warning", "5.00 B free"),
    ({}, {"data_free_bytes": None, "data_reason": "permission denied"}, "result folder", "problem",
     "permission denied"),
    ({}, {"loop_cache": None}, "compiled loops", "warning", "again"),
    ({"facts": {"clock_source": "hpet"}}, {}, "clock source", "problem", "hpet"),
    ({"facts": {"governor": "powersave"}}, {}, "CPU governor", "warning", "powersave"),
    ({"facts": {"governor": None}}, {}, "CPU governor", "unknown", "not looked at"),
    ({"facts": {"physical_core_count": 2}}, {}, "CPU cores", "note", "2 physical cores"),
    ({"facts": {"profiler": "ncu"}}, {}, "profiler", "problem", "ncu"),
    ({"facts": {"CUDA_LAUNCH_BLOCKING": "1"}}, {}, "cuda launch blocking", "problem", "CUDA_LAUNCH_BLOCKING"),
    ({"facts": {"submit_core_numa_node": 0}}, {}, "numa", "warning", "NUMA node 0"),
])  # fmt: skip
def test_states(changes: dict[str, Any], surroundings: dict[str, Any], name: str, state: str, words: str) -> None:
    check = named(doctor.examine(environment(**changes), around(**surroundings)), name)
    assert check.state == state
    assert words in check.found
    assert check.next_step or state in ("unknown", "ok")


def test_missing_layers_are_grouped_by_what_installs_them() -> None:
    missing = {"torch_eager": "pip install torch", "torch_out": "pip install torch", "warp": "pip install warp-lang"}
    notes = [check for check in doctor.examine(environment(), around(missing_layers=missing)) if check.state == "note"]
    assert [(check.found, check.next_step) for check in notes] == [
        ("not installed, so skipped: torch_eager, torch_out", "pip install torch"),
        ("not installed, so skipped: warp", "pip install warp-lang"),
    ]


def test_each_gpu_is_judged_by_its_own_state() -> None:
    second = msgspec.structs.replace(GPU, index=1, uuid="GPU-2", persistence=False, ecc=None)
    base = environment(gpus=(GPU, second))
    facts = (*base.facts, Fact("gpu1_ecc", None, "NVML", "Not Supported"))
    report = doctor.examine(msgspec.structs.replace(base, facts=facts), AROUND)
    assert named(report, "GPU 0 persistence mode").state == "ok"
    assert named(report, "GPU 1 persistence mode").state == "note"
    assert "off" in named(report, "GPU 1 persistence mode").found
    assert named(report, "GPU 1").found.endswith("GPU-2")
    assert named(report, "GPU 1 ECC") == doctor.Check("GPU 1 ECC", "unknown", "Not Supported")


def test_memory_errors_are_judged_where_they_are_known() -> None:
    fine = msgspec.structs.replace(GPU, memory_errors=MemoryErrors(3, 0, 3, 0, 0, 0, False, False))
    bad = msgspec.structs.replace(GPU, index=1, memory_errors=MemoryErrors(remap_pending=True))
    report = doctor.examine(environment(gpus=(fine, bad)), AROUND)
    words = "3 corrected ECC errors (3 since the driver was loaded)"
    assert named(report, "GPU 0 memory errors") == doctor.Check("GPU 0 memory errors", "ok", words)
    (check,) = [check for check in report if "row remap pending" in check.found]
    assert (check.name, check.state) == ("GPU 1 memory errors", "warning")
    assert "reset the GPU" in str(check.next_step)
    assert not any("memory errors" in check.name for check in doctor.examine(environment(), AROUND))


def test_packet_sizes_that_need_root_are_a_note() -> None:
    hidden = msgspec.structs.replace(GPU, link=LinkInfo())
    check = named(doctor.examine(environment(gpus=(hidden,)), AROUND), "GPU 0 PCIe packet sizes")
    assert (check.state, "sudo" in str(check.next_step)) == ("note", True)


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
