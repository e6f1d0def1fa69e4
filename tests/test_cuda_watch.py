"""Programs on a real GPU that are watched: no kernel is lost, each has its call, and the end is the program's own."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_traces_nsys import names, sound

from microbench.diagnosis.health import launches_of
from microbench.diagnosis.idle import idle
from microbench.diagnosis.utilisation import compare
from microbench.gpu.machine.utilisation import Process, Sampler
from microbench.recorder import cells, program
from microbench.traces.reading import read
from microbench.traces.trace import NONE, WORK_KINDS, Trace

pytestmark = pytest.mark.gpu

NUMBA = """
import os, signal, sys
import numpy as np
from numba import cuda

@cuda.jit
def add_one(values):
    values[cuda.grid(1)] += 1

values = cuda.to_device(np.zeros(1024, np.float32))
for step in range(200):
    for _ in range(50):
        add_one[4, 256](values)
    cuda.synchronize()
assert (values.copy_to_host() == 10_000).all()
"""
TORCH = """
import torch
values = torch.zeros(1024, device="cuda")
for step in range(300):
    for _ in range(50):
        values.add_(1)
    torch.cuda.synchronize()
assert (values == 15_000).all()
"""
CAPTURED = """
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph, stream=stream):
    for _ in range(50):
        values.add_(1)
for step in range(100):
    graph.replay()
torch.cuda.synchronize()
"""
# Sums over all of a tensor and `unique` make memsets, also in the thread of the backward pass.
MOVES = """
import time, torch
ones = torch.ones(1 << 20, device="cuda", requires_grad=True)
other, host = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 10).pin_memory()
until = time.monotonic() + 8
while time.monotonic() < until:
    for _ in range(20):
        (ones * other).square().sum().backward()
        other.copy_(ones.detach() + ones.grad.sum())
        ones.grad.zero_()
        torch.unique((other[:1000] * 8).long())
        host.copy_(other[: 1 << 10], non_blocking=True)
torch.cuda.synchronize()
"""
PROFILED = """
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CUDA]):
    values.add_(1)
    torch.cuda.synchronize()
"""
RUNTIME = """
#include <cstdio>

__global__ void add_one(float *values) { values[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

int main() {
    const int count = 1024;
    static float host[count];
    float *values;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replayed;
    cudaMalloc(&values, sizeof host);
    cudaMemset(values, 0, sizeof host);
    cudaStreamCreate(&stream);
    for (int step = 0; step < 200; step++) {
        for (int launch = 0; launch < 50; launch++) add_one<<<4, 256, 0, stream>>>(values);
        cudaStreamSynchronize(stream);
    }
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int launch = 0; launch < 50; launch++) add_one<<<4, 256, 0, stream>>>(values);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&replayed, graph, 0);
    for (int step = 0; step < 100; step++) cudaGraphLaunch(replayed, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost);
    for (int place = 0; place < count; place++)
        if (host[place] != 15000) return 1;
    puts("as ever");
    return cudaGetLastError() ? 2 : 7;
}
"""
DRIVER = """
import ctypes
cuda, device, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
for _ in range(500):
    assert cuda.cuMemsetD8Async(memory, ctypes.c_ubyte(1), ctypes.c_size_t(4096), None) == 0
assert cuda.cuCtxSynchronize() == 0
"""


WINDOWS = """
import statistics, time, torch
from pathlib import Path
values, times = torch.zeros(1024, device="cuda"), []
began = time.perf_counter()
while time.perf_counter() - began < 8:
    begin = time.perf_counter_ns()
    for _ in range(50):
        values.add_(1)
    torch.cuda.synchronize()
    times.append(time.perf_counter_ns() - begin)
Path(__file__).with_name("step").write_text(str(statistics.median(times)))
"""
SLOW = """
import time
def slow():
    time.sleep(0.02)
for step in range(50):
    for _ in range(20):
        values.add_(1)
    slow()
torch.cuda.synchronize()
"""
BACKWARD = """
weights = [torch.rand(256, 256, device="cuda", requires_grad=True) for _ in range(50)]
for step in range(100):
    out = torch.rand(256, 256, device="cuda")
    for one in weights:
        out = out @ one
    out.sum().backward()
torch.cuda.synchronize()
"""
CUPY = """
import cupy
source = 'extern "C" __global__ void add_one(float* values) { values[threadIdx.x] += 1; }'
add_one = cupy.RawKernel(source, "add_one")
values = cupy.zeros(256, dtype=cupy.float32)
for step in range(200):
    for _ in range(50):
        add_one((1,), (256,), (values,))
    cupy.cuda.get_current_stream().synchronize()
assert (values == 10_000).all()
"""
TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def add_one(values):
    place = values + tl.arange(0, 256)
    tl.store(place, tl.load(place) + 1)

values = torch.zeros(256, device="cuda")
for step in range(200):
    for _ in range(50):
        add_one[(1,)](values)
    torch.cuda.synchronize()
assert (values == 10_000).all()
"""
COMPILED = """
import torch

@torch.compile(mode="reduce-overhead")
def step(values):
    return torch.tanh(values @ values).sum(dim=0).sin()

values = torch.rand(256, 256, device="cuda")
for _ in range(100):
    step(values)
torch.cuda.synchronize()
"""
JAX = """
import jax, jax.numpy as jnp

@jax.jit
def step(values):
    return jnp.tanh(values @ values).sum(axis=0)[None, :] + values

values = jnp.ones((256, 256))
for _ in range(200):
    values = step(values)
values.block_until_ready()
"""
SPAWNED = (
    TORCH.replace("import torch", "import multiprocessing, torch")
    + """
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=print) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
"""
)
REDUCED = """
import os, torch
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl")
values = torch.ones(1024, device="cuda")
for step in range(200):
    for _ in range(50):
        values.mul_(1)
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
torch.cuda.synchronize()
torch.distributed.destroy_process_group()
"""
NODES, REPLAYS = 1000, 10_000
REPLAYED = f"""
import torch
values, stream = torch.zeros(256, device="cuda"), torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    for _ in range({NODES}):
        values.add_(1)
for step in range({REPLAYS}):
    graph.replay()
    if step % 10 == 0:
        torch.cuda.synchronize()
torch.cuda.synchronize()
assert (values == {NODES * REPLAYS}).all()
"""


def watched(folder: Path, text: str, *options: str, stacks: bool = False) -> tuple[int, Trace]:
    (folder / "program.py").write_text(text)
    return recorded(
        folder, [sys.executable, *options, str(folder / "program.py")], program.How(stacks=stacks, whole=True)
    )


def recorded(folder: Path, command: list[str], how: program.How = program.WHOLE) -> tuple[int, Trace]:
    """The exit code of a command, and its only recording."""
    status, (trace,) = every_recording(folder, command, how)
    return status, trace


def every_recording(folder: Path, command: list[str], how: program.How = program.WHOLE) -> tuple[int, list[Trace]]:
    """The exit code of a command, and the recordings of its processes that used the GPU."""
    (folder / "recordings").mkdir()
    ended = program.watch(command, folder / "recordings", how)
    assert ended.reasons == ()
    traces = [read(path) for path in sorted((folder / "recordings").iterdir())]
    for trace in traces:
        sound(trace)
        assert (trace.lost, trace.unread) == ({}, {})
    return ended.status, [trace for trace in traces if len(trace.work)]


def kernels(trace: Trace, name: str) -> int:
    """How many kernels have this in their name; each must have its call."""
    own = trace.work[[WORK_KINDS[kind] == "kernel" for kind in trace.work["kind"]]]
    assert (own["call"] != NONE).all()
    assert (own["begin_ns"] >= trace.calls["begin_ns"][own["call"]]).all()
    return sum(name in one for one in names(trace, own))


def test_a_watched_program_of_numba_loses_no_kernel(tmp_path: Path) -> None:
    status, trace = watched(tmp_path, NUMBA)
    assert status == 0
    assert kernels(trace, "add_one") == 10_000
    assert any(trace.gpus.values())
    assert "cuLaunchKernel" in "".join(trace.names)


def test_a_watched_program_of_torch_loses_no_kernel_inside_or_outside_of_a_graph(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + CAPTURED)
    assert status == 0
    assert kernels(trace, "elementwise") >= 20_000
    assert (trace.work["node"] != NONE).sum() >= 5000
    assert trace.versions["torch"] != "unknown"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("package", "text", "name", "count"), [
    ("cupy", CUPY, "add_one", 10_000), ("triton", TRITON, "add_one", 10_000), ("triton", COMPILED, "triton", 100),
    ("jax", JAX, "fusion", 200),
], ids=["cupy", "triton", "compiled", "jax"])  # fmt: skip
def test_a_watched_program_of_other_libraries_loses_no_kernel(
    tmp_path: Path, package: str, text: str, name: str, count: int
) -> None:
    pytest.importorskip(package)
    status, trace = watched(tmp_path, text)
    assert status == 0
    found = kernels(trace, name)
    assert found == count if name == "add_one" else found >= count, sorted(set(names(trace, trace.work)))


@pytest.mark.timeout(300)
def test_spawned_processes_are_recorded_each_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(SPAWNED)
    status, traces = every_recording(tmp_path, [sys.executable, str(tmp_path / "program.py")])
    assert status == 0
    assert [kernels(trace, "elementwise") >= 15_000 for trace in traces] == [True] * 3


@pytest.mark.timeout(300)
def test_each_rank_of_torchrun_is_recorded_in_a_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    count = torch.cuda.device_count()
    (tmp_path / "program.py").write_text(REDUCED)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    status, traces = every_recording(tmp_path, [sys.executable, *launcher, str(tmp_path / "program.py")])
    assert status == 0
    assert [kernels(trace, "elementwise") >= 10_000 for trace in traces] == [True] * count
    if count > 1:
        assert [kernels(trace, "nccl") >= 200 for trace in traces] == [True] * count
        assert len({tuple(trace.gpus.values()) for trace in traces}) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_kernel_of_ten_million_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(REPLAYED)
    (tmp_path / "recordings").mkdir()
    ended = program.watch([sys.executable, str(tmp_path / "program.py")], tmp_path / "recordings", program.WHOLE)
    assert (ended.status, ended.reasons) == (0, ())
    (path,) = (tmp_path / "recordings").iterdir()
    rows = np.fromfile(path, np.dtype(list(cells.ROW)))
    assert ((rows["kind"] == cells.KERNEL) & (rows["node"] > 0)).sum() == NODES * REPLAYS
    trace = read(path)  # of so many rows only those in the middle
    sound(trace)
    assert trace.lost == {}


def test_the_step_between_windows_is_that_of_an_unwatched_program(tmp_path: Path) -> None:
    """The program says itself how long its steps take; between windows it is hardly recorded."""
    pytest.importorskip("torch", reason="needs PyTorch")
    (tmp_path / "program.py").write_text(WINDOWS)
    _, trace = recorded(tmp_path, [sys.executable, str(tmp_path / "program.py")], program.How(None, 0.5, 2.0))
    assert len(trace.windows) >= 2
    assert len(trace.other_waits_ns) > 1000
    every_ns = np.median(np.diff(trace.other_waits_ns))
    own_ns = float((tmp_path / "step").read_text())
    assert every_ns == pytest.approx(own_ns, rel=0.05)


def test_a_profiler_within_a_watched_program_harms_neither(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + PROFILED + TORCH)
    assert status == 0
    assert kernels(trace, "elementwise") >= 30_000


def test_with_stacks_the_line_is_named_in_which_the_gpu_waits(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + SLOW, stacks=True)
    assert status == 0
    found = idle(trace, int(trace.work["begin_ns"][0]), int(trace.work["end_ns"].max()), 0)
    line = f"time.sleep at program.py:{(TORCH + SLOW).splitlines().index('    time.sleep(0.02)') + 1} slow"
    assert line in [place.name for place in found.places[:3]], "CUPTI numbers threads as Python does, on this clock"
    assert sum(place.seconds for place in found.places if place.name == line) == pytest.approx(50 * 0.02, rel=0.2)


def test_while_pytorchs_backward_pass_submits_the_line_that_began_it_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + BACKWARD, stacks=True)
    assert status == 0
    line = (TORCH + BACKWARD).splitlines().index("    out.sum().backward()") + 1
    assert f"backward pass of program.py:{line} <module>" in names(trace, trace.ranges)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_of_a_killed_program_nearly_all_is_there(tmp_path: Path, number: signal.Signals) -> None:
    status, trace = watched(tmp_path, f"{NUMBA}\nimport time\ntime.sleep(1)\nos.kill(os.getpid(), {number:d})")
    assert status == -number
    assert 0 < kernels(trace, "add_one") <= 10_000


def compiled(folder: Path, text: str) -> str:
    """A program of CUDA C++. Skips the test without a compiler."""
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    source, made = folder / "program.cu", folder / "program"
    source.write_text(text)
    subprocess.run(["nvcc", "-O2", "-o", made, source], check=True)
    return str(made)


def test_a_watched_program_of_cpp_loses_no_kernel_inside_or_outside_of_a_graph(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status, trace = recorded(tmp_path, [compiled(tmp_path, RUNTIME)])
    assert status == 7
    assert capfd.readouterr() == ("as ever\n", "")
    assert kernels(trace, "add_one") == 15_000
    assert (trace.work["node"] != NONE).sum() == 5000
    assert any(trace.gpus.values())
    assert {"cudaGraphLaunch", "cudaStreamSynchronize"} <= set(trace.names)


def test_a_python_that_imports_nothing_is_watched(tmp_path: Path) -> None:
    status, trace = watched(tmp_path, DRIVER, "-I", "-S")
    assert status == 0
    assert [WORK_KINDS[kind] for kind in trace.work["kind"]].count("memset") == 500


def test_a_library_that_is_gone_harms_no_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DRIVER)
    variables = {**os.environ, "CUDA_INJECTION64_PATH": str(tmp_path / "gone.so")}
    subprocess.run([sys.executable, str(tmp_path / "program.py")], check=True, env=variables)


BLOCKS = """
import microbench
def launch(count):
    for _ in range(count):
        add_one[4, 256](values)
for count in (100, 200):  # the last kernels are still running as the block ends
    with microbench.watch(f"{count}.rows") as recording:
        launch(count)
    assert recording.diagnosis().to_dicts()[0]["trace"]["gpus"]
launch(50)
cuda.synchronize()
"""
TORCH_BLOCKS = """
import microbench
for count in (100, 200):
    with microbench.watch(f"{count}.rows"):
        for _ in range(count):
            values.add_(1)
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CUDA]) as profiler:
    for _ in range(10):
        values.add_(1)
    torch.cuda.synchronize()
assert sum(event.count for event in profiler.key_averages() if "elementwise" in event.key) == 10
try:
    with microbench.watch():
        values.add_(1)
except microbench.UsageError as error:
    assert "another profiler" in str(error)
"""


@pytest.mark.parametrize(("text", "kernel"), [(NUMBA + BLOCKS, "add_one"), (TORCH + TORCH_BLOCKS, "elementwise")])
def test_each_block_of_a_process_that_uses_cuda_already_is_recorded_whole(
    tmp_path: Path, text: str, kernel: str
) -> None:
    if text.startswith(TORCH):
        pytest.importorskip("torch", reason="needs PyTorch")
    (tmp_path / "program.py").write_text(text)
    root = str(Path(program.__file__).parents[2])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, env=variables)
    for count in (100, 200):
        trace = read(tmp_path / f"{count}.rows")
        sound(trace)
        assert (trace.lost, trace.unread) == ({}, {})
        assert kernels(trace, kernel) == count


ALTERNATING = """
import time
import numpy as np
from numba import cuda

@cuda.jit
def spin(values, count):
    for _ in range(count):
        values[cuda.grid(1)] = values[cuda.grid(1)] * 1.000001 + 0.5

values = cuda.to_device(np.ones(132 * 256, np.float32))
spin[132, 256](values, 1)
cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + 6
while time.monotonic() < end:
    spin[132, 256](values, 2000)
    cuda.synchronize()
"""


def test_programs_of_copies_and_memsets_outlive_many_windows(tmp_path: Path) -> None:
    """CUPTI 13.0.85 crashed such programs when recording of copies or memsets was turned off while they ran."""
    (tmp_path / "program.py").write_text(MOVES)
    command = [sys.executable, "-m", "microbench", "watch", "--window", "100ms", "--every", "200ms", "-o"]
    started = [
        subprocess.Popen(
            [*command, str(tmp_path / str(number)), "--", sys.executable, str(tmp_path / "program.py")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(6)
    ]  # fmt: skip
    ended = [(one.communicate(timeout=120), one.returncode) for one in started]
    assert [code for _, code in ended] == [0] * len(started), [errors[-500:] for (_, errors), _ in ended]
    for number in range(len(started)):
        (file,) = (tmp_path / str(number)).iterdir()
        trace = read(file)
        assert len(trace.windows) > 10
        launches, _, submits = launches_of(trace)
        assert np.count_nonzero(launches & ~submits) < launches.sum() / 100


def test_nvml_and_gpm_give_figures_of_the_recorded_time(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ALTERNATING)
    (tmp_path / "recordings").mkdir()
    with Sampler() as sampler:
        ended = program.watch(
            [sys.executable, str(tmp_path / "program.py")],
            tmp_path / "recordings",
            program.WHOLE,
            lambda reasons: sampler.begin(),
        )
    assert (ended.status, sampler.reason) == (0, "")
    trace = read(next((tmp_path / "recordings").iterdir()))
    (gpu,) = (gpu for gpu in sampler.readings if gpu.bus_id == trace.bus_ids[0])
    assert gpu.apart_s is not None, gpu.why_not
    assert 0.01 <= gpu.apart_s <= 1.0
    found = compare(gpu, [(trace, 0)])
    assert found is not None
    assert found.span_s > 3
    assert found.sms is not None, gpu.why_not
    assert 0 < found.ran <= found.said + 0.1
    assert 0 < found.sms <= 1


def test_a_running_process_is_found_and_followed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ALTERNATING)
    line = [sys.executable, str(tmp_path / "program.py")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        followed = Process(running.pid).follow(2.0)
    used = max(followed.gpus, key=lambda gpu: sum(one.share for one in gpu.busy.values))
    assert max(one.share for one in used.busy.values) > 0.1
    assert len(used.states.values) > 5
    assert all(state.telemetry.nvml_sm_clock_hz for state in used.states.values)
