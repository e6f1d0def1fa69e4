"""Makes what the commands of the docs need: programs, traces, runs, and stand-ins for packages that need a GPU."""

import shutil
import sys
from pathlib import Path

import make_recording
import msgspec
import nsys_export
from make_trace import Recorder, kineto, steps_of
from test_traces_xplane import newer
from watched import NotPython

from microbench.archive import store
from microbench.fleet import campaign
from microbench.fleet.windows import LOG, Window

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
def setup(batch=8): return (batch,)
def step(batch): return sum(range(batch))
if __name__ == "__main__":
    import torch
    torch.steps(30)
"""
KERNEL = """
extern "C" __global__ void saxpy(const float* x, float* y, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] += a * x[i];
}
"""
# What the blocks of Python call; the GPU is the simulated one.
BEFORE = """
import functools, types, lightning, torch, transformers
import microbench as mb
for name in ("run", "measure"):
    setattr(mb, name, functools.partial(getattr(mb, name), device="fake"))
torch.profiler = types.SimpleNamespace(profile=lambda on_trace_ready, schedule: on_trace_ready)
def step(): torch.steps(1)
"""
TRAINER = "class Trainer:\n def __init__(self, *_, callbacks): assert callbacks\nclass {0}: pass\n"
IN_PYTEST = """
import pytest
from microbench.core.ops import Launch
batch = 3
@pytest.fixture(autouse=True)
def kernel(microbench_gpu):
    global bound
    bound = microbench_gpu.bind(Launch(duration_ns=2000))
def step(times=3):
    for _ in range(times):
        bound(1)
"""


def decoder() -> Recorder:
    """Steps of PyTorch's operators with code of the program around them, and a copy that the host waits for."""
    made = Recorder()
    for _ in made.steps(12):
        for kernel in range(45):
            made.runs(15_000)
            for operator in ("aten::bmm", "aten::addmm", "aten::add"):
                with made.range(operator):
                    made.runs(22_000)
                    made.submit(made.call("cuLaunchKernelEx", 5000), f"kernel_{kernel}", 2000)
        made.submit(made.call("cudaMemcpyAsync", 4000), "Memcpy DtoH", 1000, kind="copy", size=8)
        made.wait()
    return made


def fill(here: Path, other: NotPython) -> None:
    """Write every file that the pages name; those of ``bin`` are programs."""
    libraries = " ".join(f'{name}="{value}"' for name, value in other.variables.items())
    texts = {
        "train.py": PROGRAM, "serve.py": PROGRAM, "short.py": PROGRAM, "mypackage/__init__.py": "",
        "mypackage/steps.py": f"{PROGRAM}\ndef decode_step(): return step(8)\n", "kernels.cu": KERNEL, "input.cfg": "",
        "copying.py": "def setup(n): return (n,)\ndef copy(n): return n\n",
        "lightning/__init__.py": TRAINER.format("Callback"), "lightning/pytorch.py": TRAINER.format("Callback"),
        "transformers/__init__.py": TRAINER.format("TrainerCallback"), "conftest.py": "",
        "bin/python": f'exec "{sys.executable}" "$@"', "bin/microbench": f'exec "{sys.executable}" -m microbench "$@"',
        "bin/torchrun": 'shift 2; python "$@" & python "$@"; wait',
        "simulation": f'{libraries} exec "{other.program}" load "{other.cupti}" init steps 30',
    }  # fmt: skip
    for name, text in texts.items():
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n" if path.suffix == "" and text else text)
        path.chmod(0o755)
    trace = kineto(steps_of(600, kernels=3, between_ns=1_750_000, waits=True).trace())  # 3 s, in steps of 5.3 ms
    for name in ("trace.json", "trace.json.gz", "old.json.gz", "new.json.gz", "traces/rank-0.json"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(trace)
    (here / "traces" / "rank-1.json").write_bytes(kineto(steps_of(between_ns=25_000, waits=True).trace()))
    for name in ("decode.json.gz", "decode.cpu.json.gz"):
        (here / name).write_bytes(kineto(decoder().trace()))
    nsys_export.write(here / "report.sqlite", nsys_export.small())
    (here / "host.xplane.pb").write_bytes(newer(12))
    (here / "recording-1").mkdir()
    (here / "recording-1" / "train.py-4242.rows").write_bytes(make_recording.recording(make_recording.steps(30)))
    window = Window(
        "serve.py-42", "serve.py-42-000001.rows", 1e9, 1e9, 1.0, 0.4, {"waits": 0.6}, {}, {}, (), None, 0.0, 0
    )
    (here / "recording-1" / LOG).write_bytes(msgspec.json.encode(window) + b"\n")
    night = campaign.make_folder(here / "DIR", "night-1")
    for run in (here / "RUN...", night / "run.json.xz"):
        shutil.copy(store.bundled()["nvidia-h200"], run)
    made = campaign.new_campaign("night-1", [], campaign.Options(), "")
    made.tasks = [campaign.Task("host1", run="run.json.xz", status="ok")]
    campaign.write(night, made)
    (here / "docs").symlink_to(ROOT / "docs")
