"""Which GPUs the probe lists, and which of those a run measures."""

import subprocess
import sys

import msgspec
import pytest
from make_run import make_run

from microbench.core.errors import DeviceAbsentError
from microbench.core.model import Environment, GpuInfo, Run, Settings
from microbench.gpu.cuda.probe import ordinals
from microbench.report.heading import head

GPUS = (
    GpuInfo("SIMULATED GPU", "GPU-0"),
    GpuInfo("SIMULATED GPU", "GPU-1", index=1),
    GpuInfo("SIMULATED [b]other", "GPU-2", index=2),
)


def test_all_gpus_are_listed_unless_one_is_named() -> None:
    assert list(ordinals(None, 3)) == [0, 1, 2]
    assert list(ordinals("all", 3)) == [0, 1, 2]
    assert list(ordinals("cuda:1", 3)) == [1]
    with pytest.raises(DeviceAbsentError, match="CUDA shows 1 GPU"):
        ordinals("cuda:1", 1)


def test_without_gpu_packages_the_reason_is_the_machine_and_not_an_import() -> None:
    """A fresh install on a machine without a driver has none of these packages."""
    hidden = "cuda", "cupy", "pynvml", "numba.cuda", "nvmath"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden!r})); from microbench.gpu.open import probe_environment"
    )
    code += "; found = probe_environment(None); print(len(found.gpus), found.no_gpu_reason, found.no_gpu_next_step)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ModuleNotFoundError" not in done.stdout + done.stderr
    assert done.stdout.startswith("0 ")


def test_only_the_first_gpu_is_measured_by_default() -> None:
    environment = Environment(gpus=GPUS)
    assert environment.under_test(None) == GPUS[:1]
    assert environment.under_test("all") == GPUS
    assert Environment(gpus=GPUS[1:2]).under_test("cuda:1") == GPUS[1:2]
    assert Environment().under_test(None) == ()


def test_only_the_first_simulated_gpu_is_measured() -> None:
    simulated = tuple(msgspec.structs.replace(gpu, simulated=True) for gpu in GPUS)
    assert Environment(gpus=simulated).under_test("fake") == simulated[:1]


def of_gpus(device: str | None) -> Run:
    run = make_run()
    session = run.sessions[0]
    where = msgspec.structs.replace(session.environment, gpus=GPUS)
    session = msgspec.structs.replace(session, environment=where, settings=Settings(device=device))
    return msgspec.structs.replace(run, sessions=(session,))


def test_the_heading_shows_what_was_measured_and_names_the_rest() -> None:
    facts = dict(head(of_gpus(None)).facts)
    assert facts["GPU"].startswith("SIMULATED GPU")
    assert facts["other GPUs"] == "SIMULATED GPU, SIMULATED [b]other"
    assert head(of_gpus(None)).title == "SIMULATED GPU"
    facts = dict(head(of_gpus("all")).facts)
    assert {"GPU 0", "GPU 1", "GPU 2"} <= set(facts)
    assert "other GPUs" not in facts
    assert head(of_gpus("all")).title == "SIMULATED GPU, SIMULATED [b]other"
