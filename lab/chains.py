"""Periods of chains of kernels in C++, CuPy, PyTorch and microbench, in turn: python lab/chains.py FOLDER [ROUNDS].

Each program runs in processes that launch kernels into one stream only, and in processes that have launched into a
second stream. The table has the median over the rounds in us, and how far the four programs are apart. Needs nvcc,
CuPy and PyTorch. FOLDER gets the samples as chains.json.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

KINDS = {
    "empty 1x32": ("empty", 1, 32, "one"), "empty 132x256": ("empty", 132, 256, "an_sm"),
    "add 1x32": ("add_1", 1, 32, "one"), "add 132x256": ("add_1", 132, 256, "an_sm"),
    "add 1056x128": ("add_1", 1056, 128, "eight_an_sm"),
}  # fmt: skip
SOURCE = """
extern "C" __global__ void empty() {}
extern "C" __global__ void add_1(unsigned *words) { words[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
"""
HOLD = """
extern "C" __global__ void hold(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}
"""
LENGTHS = {"stream": (400, 100), "graph": (1000, 200)}
# How long the stream is held while Python queues what is timed: hundreds of launches (60 ms), or one replay (1 ms).
HELD_CYCLES = {"stream": 120_000_000, "graph": 2_000_000}
REPEATS = 9
# A single block adds to a line of the L2 in 0.75 to 0.87 us, by the line's place: those kernels add at 64 in turn.
PLACES, PLACE_WORDS = 64, 16640
SECOND_STREAM_LAUNCHES = 32


def periods(
    kinds: Sequence[str],
    launch: Callable[[str], None],
    capture: Callable[..., Callable[[], None]],
    elapsed_ms: Callable[..., float],
) -> dict:
    """us a kernel, in the stream and as a graph, by kind."""
    found = {}
    for kind in kinds:
        by_way = []
        for way, lengths in LENGTHS.items():
            medians = []
            for length in lengths:

                def submit(length: int = length, kind: str = kind) -> None:
                    for _ in range(length):
                        launch(kind)

                act = capture(submit) if way == "graph" else submit
                act()
                medians.append(statistics.median(elapsed_ms(act, HELD_CYCLES[way]) for _ in range(REPEATS)))
            by_way.append((medians[0] - medians[1]) * 1e3 / (lengths[0] - lengths[1]))
        found[kind] = by_way
    return found


def cupy_periods(streams: str, kinds: Sequence[str]) -> dict:
    """RawModule kernels; everything is launched, captured and replayed in one stream."""
    import cupy

    module = cupy.RawModule(code=SOURCE + HOLD)
    functions = {name: module.get_function(name) for name in ("empty", "add_1", "hold")}
    with cupy.cuda.Stream(non_blocking=True) as stream:
        words = cupy.zeros(2 << 20, dtype=cupy.uint32)
    places = itertools.cycle([words[PLACE_WORDS * place :] for place in range(PLACES)])
    stream.synchronize()
    if streams == "two":
        with cupy.cuda.Stream(non_blocking=True) as second:
            for _ in range(SECOND_STREAM_LAUNCHES):
                functions["empty"]((1,), (32,), ())
        second.synchronize()
    first, last = cupy.cuda.Event(), cupy.cuda.Event()

    def launch(kind: str) -> None:
        name, blocks, threads, _ = KINDS[kind]
        target = next(places) if blocks == 1 else words
        functions[name]((blocks,), (threads,), (target,) if name == "add_1" else ())

    def capture(submit: Callable[[], None]) -> Callable[[], None]:
        stream.begin_capture()
        submit()
        return stream.end_capture().launch

    def elapsed_ms(act: Callable[[], None], held_cycles: int) -> float:
        functions["hold"]((1,), (1,), (held_cycles,))
        first.record()
        act()
        last.record()
        stream.synchronize()
        return float(cupy.cuda.get_elapsed_time(first, last))

    with stream:
        return periods(kinds, launch, capture, elapsed_ms)


def torch_periods(streams: str, kinds: Sequence[str]) -> dict:
    """Kernels compiled by torch.cuda; launched and replayed in the current stream, captured by torch.cuda.graph.

    A process's fourth capture switches it to the state of two streams, so a process measures one kind.
    """
    import torch

    functions = {name: torch.cuda._compile_kernel(SOURCE, name) for name in ("empty", "add_1")}
    words = torch.zeros(2 << 20, dtype=torch.int32, device="cuda")
    places = itertools.cycle([words[PLACE_WORDS * place :] for place in range(PLACES)])
    torch.cuda.synchronize()
    if streams == "two":
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(SECOND_STREAM_LAUNCHES):
                words.add_(1)
        torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def launch(kind: str) -> None:
        name, blocks, threads, _ = KINDS[kind]
        target = next(places) if blocks == 1 else words
        functions[name]((blocks, 1, 1), (threads, 1, 1), (target,) if name == "add_1" else ())

    def capture(submit: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            submit()
        return graph.replay

    def elapsed_ms(act: Callable[[], None], held_cycles: int) -> float:
        torch.cuda._sleep(held_cycles)
        first.record()
        act()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    return periods(kinds, launch, capture, elapsed_ms)


def microbench_periods(streams: str) -> dict:
    """launch_gap, in a worker of its own."""
    from microbench.analysis.stats import rows
    from microbench.archive import store

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        chosen = [f"launch_streams={streams}", "kernel=empty,add", "functions=same"]
        options = [word for each in chosen for word in ("--set", each)]
        command = [sys.executable, "-m", "microbench", "run", "launch_gap", *options, "--out", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        values = {
            (row.params["kernel"], row.params["blocks"], row.metric.name): row.value for row in rows(store.read(path))
        }
    return {
        kind: [values[name.partition("_")[0], blocks, way] * 1e6 for way in LENGTHS]
        for kind, (name, _, _, blocks) in KINDS.items()
    }


IN_PROCESS = {"CuPy": cupy_periods, "PyTorch": torch_periods}
PROGRAMS = ("C++", *IN_PROCESS, "microbench")


def measured(program: str, streams: str, native: Path) -> dict:
    """One program's periods, in processes of its own."""
    if program == "microbench":
        return microbench_periods(streams)
    if program == "C++":
        return json.loads(subprocess.check_output([str(native), streams], text=True))
    command = [sys.executable, __file__, "--in-process", program, streams]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found: dict = {}
    for kinds in [[kind] for kind in KINDS] if program == "PyTorch" and streams == "one" else [list(KINDS)]:
        found |= json.loads(subprocess.check_output([*command, *kinds], text=True, env=environment))
    return found


def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    native = folder / "chains"
    source = Path(__file__).parent / "chains.cu"
    subprocess.run(["nvcc", "-O3", "-arch=native", "-o", str(native), str(source)], check=True)
    samples: dict[str, list[dict]] = {}
    for _ in range(rounds):
        for streams in ("one", "two"):
            for program in PROGRAMS:
                samples.setdefault(f"{program} {streams}", []).append(measured(program, streams, native))
    native.unlink()
    (folder / "chains.json").write_text(json.dumps(samples, indent=1))
    lines = [f"us a kernel, median of {rounds} processes"]
    lines.append(
        f"{'kernel':15}{'way':8}{'streams':9}" + "".join(f"{program:>12}" for program in PROGRAMS) + "   apart"
    )
    for kind in KINDS:
        for index, way in enumerate(LENGTHS):
            for streams in ("one", "two"):
                each = [statistics.median(one[kind][index] for one in samples[f"{who} {streams}"]) for who in PROGRAMS]
                values = "".join(f"{value:12.3f}" for value in each)
                lines.append(f"{kind:15}{way:8}{streams:9}{values}{max(each) / min(each) - 1:8.1%}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--in-process":
        sys.stdout.write(json.dumps(IN_PROCESS[sys.argv[2]](sys.argv[3], sys.argv[4:])))
    else:
        main()
