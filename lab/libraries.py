"""What thresholds of libraries cost on this card, beside our constants: python lab/libraries.py MACHINE.toml OUT.csv.

MACHINE.toml is of `microbench constants`, from a run of this card: ``microbench run launch_cost launch_layers
launch_gap graph_gain graph_lifecycle graph_transitions link_copy link_latency link_batch --rounds 3 --set
layer=loop,torch_eager --set submitter=loop,torch_eager --set kernels=1,10,100 --set duration=0,2us,10us --set
pieces_copied=4,16,64,256,1024``. Each library has its rule and ours:
- vllm: pieces of pinned memory go to the GPU by a gathering kernel if each is smaller than 28 KiB and there are 16 or
  more, else by one batched call. Ours may also make a call for each piece.
- aotinductor: a partition of 8 kernels or more becomes a graph. Its kernels are launched from compiled code.
- torch_compile: every partition becomes one. Its kernels are launched from Python by PyTorch.
Inputs of a partition are copied into the graph's own memory before each replay. Both rules choose between the same
ways, those of link_batch and graph_gain, so that only the choice counts: vLLM's own kernel, of 12 blocks, is not here,
nor is the time that a rule takes. Ours differs only where the constants leave no doubt at either end of their
intervals: a host that is slow for one call is slow for the others too, so all constants are taken at the same end.

Published cases are those for which the library, or an issue about it, has figures or a threshold. All ways of a case
are timed in turn, a millisecond each; every byte of a copy is compared. OUT.csv has the columns of the tables in
measurements/: the time by our choice, by theirs, and ours over theirs. A choice is right within 1 % of the best way. A
minute a library, some more with PyTorch; ``--only`` names some of them.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import microbench as mb
from microbench.analysis.stats import Interval, median_interval
from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import LayerCall
from microbench.experiments.link.pipeline import BatchWay, batched_copy
from microbench.experiments.memory.engines import engine
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Program
from microbench.gpu.open import open_gpu, probe_environment
from microbench.gpu.protocol.gpu import Checked, Gpu
from microbench.library.constants import MachineConstant
from microbench.meter.alternating import InOrder, steps
from microbench.meter.sampling import SamplingLimits
from microbench.meter.timer import Meter
from microbench.session.session import commit

KIB, US = 1 << 10, 1e-6
SEED, RANDOM = 57555, 110
LIMITS = SamplingLimits(seconds=0.3, half_width=0.002, minimum=15)
MOST_BYTES, VECTOR_BYTES, INPUT_BYTES = 64 << 20, 16, 64 << 10
ALIKE, DOUBT = 0.01, 0.05  # times that count as equal, and what the law of kernels may miss
ANY_ORDER = 3  # CU_MEMCPY_SRC_ACCESS_ORDER_ANY
TABLE = Path(__file__).parent / "measurements" / "batches.csv"
Constants = Mapping[str, MachineConstant]
Ways = tuple[Mapping[str, Any], Sequence[Checked]]  # what submits each way of a case, and what they move


class Pieces(NamedTuple):
    """So many pieces of pinned memory for the GPU. ``published`` says where; empty for a random case."""

    size_bytes: int
    pieces: int
    published: str = ""

    def __str__(self) -> str:
        return f"{self.pieces} pieces of {self.size_bytes / KIB:g} KiB"


class Partition(NamedTuple):
    """Kernels of one length, and how many inputs a graph of them copies."""

    kernels: int
    duration_ns: int
    inputs: int
    published: str = ""

    def __str__(self) -> str:
        return f"{self.kernels} kernels of {self.duration_ns / 1e3:g} us and {self.inputs} inputs"


# vLLM's vllm/v1/kv_offload/cpu/swap_blocks_triton.py, and _select_swap_blocks_fn of gpu_worker.py. #42212 and #38460
# have figures of an H100, #57343 of an H100 and an A30, #57555 of a GB10.
THRESHOLD_BYTES, MIN_N, ALIGNED_BYTES = 28 * KIB, 16, 8


def vllm_choice(case: Pieces) -> str:
    small = case.size_bytes < THRESHOLD_BYTES and case.size_bytes % ALIGNED_BYTES == 0
    return "gather" if small and case.pieces >= MIN_N else "batched"


def our_copy(case: Pieces, constants: Constants) -> str:
    """Of measured numbers of pieces the next smaller one counts: the more pieces, the better for the kernel."""
    gathered = "link.h2d_gathered_up_to."
    known = [int(name.removeprefix(gathered)) for name in constants if name.startswith(gathered)]
    count = max((one for one in known if one <= case.pieces), default=None)
    if count is None:
        return vllm_choice(case)
    up_to = constants[f"{gathered}{count}"]
    if case.size_bytes <= up_to.high:
        return "gather" if case.size_bytes <= up_to.low else vllm_choice(case)
    below, above = (constants.get(f"link.h2d_batched_{end}.{count}") for end in ("up_to", "from"))
    return "loop" if below and above and below.high < case.size_bytes < above.low else "batched"


def copy_cases(numbers: random.Random) -> list[Pieces]:
    sizes = (1, 2, 4, 8, 12, 16, 24, 28, 32, 64, 128, 256)
    cases = [Pieces(size * KIB, count, "vllm#57555") for size in sizes for count in (16, 64, 256, 1024)]
    cases += [Pieces(size * KIB, 160 * blocks, "vllm#38460") for size in (8, 32) for blocks in (1, 4)]
    cases += [Pieces(4 * KIB, 10_000, "vllm#42212"), Pieces(28 * KIB, 128, "vllm#57343")]
    cases = [case for case in cases if case.size_bytes * case.pieces <= MOST_BYTES]
    while sum(not case.published for case in cases) < RANDOM:
        case = Pieces(VECTOR_BYTES * round(2 ** numbers.uniform(4, 14)), round(2 ** numbers.uniform(0, 12)))
        cases += [case] if case.size_bytes * case.pieces <= MOST_BYTES else []
    return cases


def copy_ways(gpu: Gpu, case: Pieces) -> Ways:
    """A batched call may read the pieces in any order, as vLLM's does; in_order is the one that link_batch measures."""
    measured: dict[str, BatchWay] = {"loop": "loop", "batched": "batched", "in_order": "batched", "gather": "gather"}
    ways = {name: batched_copy(gpu, way, case.size_bytes, case.pieces) for name, way in measured.items()}
    if isinstance(call := ways["batched"].submit, DriverSubmit):
        ctypes.c_uint32.from_address(int(call.arguments[4])).value = ANY_ORDER  # the first of CUmemcpyAttributes
    return {way: one.submit for way, one in ways.items()}, list(ways.values())


# AOTInductor's aot_inductor.cudagraph_min_partition_size (pytorch#196835), and triton.cudagraph_min_partition_size of
# torch.compile, which is 0 (#175271); #160168 skips one kernel, #184092 asks for 2 or 5 to 7.
MIN_KERNELS = {"aotinductor": 8, "torch_compile": 0}
LAYERS = {"aotinductor": ("loop", "launch.loop.0"), "torch_compile": ("torch_eager", "launch.torch_eager.1")}


def partition_choice(library: str, case: Partition) -> str:
    return "graph" if case.kernels >= MIN_KERNELS[library] else "stream"


def our_partition(library: str, case: Partition, constants: Constants) -> str:
    """A graph, or none, where that is faster at both ends of the intervals and between them. A library whose replay is
    not known replays no faster than compiled code: then only that no graph is faster can be told."""
    layer, launch = LAYERS[library]
    needed = [launch, "graph.replay.loop", "launch.gap", "graph.gap_graph"]
    needed += ["link.h2d_call", "graph.transition.copy_d2d.stream"] if case.inputs else []
    ways = [("stream", "graph")] + [("graph", "stream")] * (f"graph.replay.{layer}" in constants)
    if all(name in constants for name in needed):
        times = [step_s(library, case, constants, end) for end in ("low", "value", "high")]
        for way, other in ways:
            if all(one[way] * (1 + DOUBT) < one[other] for one in times):
                return way
    return partition_choice(library, case)


def step_s(library: str, case: Partition, constants: Constants, end: str) -> dict[str, float]:
    """The time until the last kernel ends, launched and replayed, at an end of each interval.

    A launched kernel takes its call, or its length and a gap; a spin kernel is longer by an empty one. A replay waits
    for its call, and for the copies of the inputs, one after another.
    """
    layer, launch = LAYERS[library]
    known = {name: max(float(getattr(one, end)), 0.0) for name, one in constants.items()}
    replay_s = known.get(f"graph.replay.{layer}", known["graph.replay.loop"])
    call_s, way_s = known[launch], known.get("launch.latency", 0.0)
    gap_s, inner_s = known["launch.gap"], known["graph.gap_graph"]
    length_s, more = case.duration_ns * 1e-9 + known.get("launch.empty", 0.0), case.kernels - 1
    stream_s = call_s + way_s + length_s + more * max(call_s, length_s + gap_s)
    begin_s = replay_s + known.get("graph.replay_way", way_s)
    if case.inputs:
        copy_s, around_s = known["link.h2d_call"], known["graph.transition.copy_d2d.stream"]
        copied_s = copy_s + way_s + case.inputs * max(around_s - gap_s, copy_s)
        begin_s = max(begin_s + case.inputs * copy_s, copied_s)
    return {"stream": stream_s, "graph": begin_s + case.kernels * length_s + more * inner_s}


def partition_cases(numbers: random.Random) -> list[Partition]:
    where = {1: "pytorch#160168", 2: "pytorch#184092", 5: "pytorch#184092", 7: "pytorch#184092", 8: "pytorch#196835"}
    kinds = [(us, inputs) for us in (2, 5) for inputs in (0, 1, 2)]
    cases = [Partition(count, us * 1000, inputs, source) for count, source in where.items() for us, inputs in kinds]
    for _ in range(RANDOM):
        count, duration_ns = round(2 ** numbers.uniform(0, 5)), 100 * round(numbers.uniform(10, 200))
        cases.append(Partition(count, duration_ns, numbers.randrange(5)))
    return cases


def partition_ways(gpu: Gpu, case: Partition, library: str) -> Ways:
    call = LayerCall(LAYERS[library][0], duration_ns=case.duration_ns)
    launched, graph = gpu.bind(call), gpu.graph([call] * case.kernels)
    if graph.nodes != case.kernels:
        raise MeasurementError(f"{case.kernels} calls became a graph of {graph.nodes} nodes")
    copies = [engine(gpu, "copy", INPUT_BYTES) for _ in range(case.inputs)]
    replayed = [*((one.submit, 1) for one in copies), (gpu.bind(graph), 1)]
    return {"stream": together(gpu, [(launched, case.kernels)]), "graph": together(gpu, replayed)}, copies


def together(gpu: Gpu, parts: Sequence[tuple[Any, int]]) -> Program | InOrder:
    """Calls in turn: the driver's from compiled code, then a library's from Python, of which a replay is the last."""
    rows = [CallRow.of(submit) for submit, count in parts if isinstance(submit, DriverSubmit) for _ in range(count)]
    others = [part for part in parts if not isinstance(part[0], DriverSubmit)]
    return InOrder(gpu, [*([(Program(rows), 1)] if rows else []), *others]) if others else Program(rows)


class Library(NamedTuple):
    """One library: its rule, ours, and the cases that are timed."""

    title: str
    theirs: Callable[[Any], str]
    ours: Callable[[Any, Constants], str]
    cases: Callable[[random.Random], Sequence[Any]]
    ways: Callable[[Gpu, Any], Ways]


LIBRARIES = {"vllm": Library("vLLM", vllm_choice, our_copy, copy_cases, copy_ways)}
for name, title in (("aotinductor", "AOTInductor"), ("torch_compile", "torch.compile")):
    rules = partial(partition_choice, name), partial(our_partition, name)
    LIBRARIES[name] = Library(title, *rules, partition_cases, partial(partition_ways, library=name))


class Timed(NamedTuple):
    """A case: both choices, seconds by each way, and ours over theirs, which is 1 for equal choices."""

    case: Any
    ours: str
    theirs: str
    seconds: Mapping[str, float]
    ratio: Interval
    n: int

    def right(self, choice: str) -> bool:
        return self.seconds[choice] <= (1 + ALIKE) * min(self.seconds.values())


def timed(gpu: Gpu, library: Library, case: Any, constants: Constants) -> Timed:
    ours, theirs = library.ours(case, constants), library.theirs(case)
    with gpu.case():
        ways, moved = library.ways(gpu, case)
        for one in moved:
            one.fresh()
        measured = steps(Meter(gpu.clock, gpu, limits=LIMITS), {way: (submit, 1) for way, submit in ways.items()})
        for one in moved:
            one.check()
    values = {one.metric: np.array(one.values) for one in measured}
    ratio = Interval(1.0, 1.0, 1.0) if ours == theirs else median_interval(values[ours] / values[theirs])
    return Timed(case, ours, theirs, {way: float(np.median(one)) for way, one in values.items()}, ratio, measured[0].n)


def row(name: str, one: Timed, machine: str, made: str) -> list[str]:
    """A line of the table."""
    ways = ", ".join(f"{way} {seconds / US:.4g}" for way, seconds in one.seconds.items())
    note = f"{one.case.published or 'random'}; ours {one.ours}; {ways}"
    times = [f"{one.seconds[way] / US:.4g}" for way in (one.ours, one.theirs)]
    ratios = [f"{value:.4f}" for value in (one.ratio.median, one.ratio.low, one.ratio.high)]
    theirs = f"{LIBRARIES[name].title}: {one.theirs}"
    return [name, str(one.case), "time", "us", *times, theirs, *ratios, f"{one.n} in turn", machine, made, note]


def summary(title: str, found: Sequence[Timed]) -> list[str]:
    """How often the choices differ and are right, the worst loss and the best gains."""
    differ = sorted((one for one in found if one.ours != one.theirs), key=lambda one: one.ratio.median)
    slower = sum(one.ratio.low > 1 + ALIKE for one in differ)
    rights = [(one.right(one.ours), one.right(one.theirs)) for one in found]
    ours, theirs = (sum(flags) / len(found) for flags in zip(*rights, strict=True))
    told = f"{len(found)} cases, {len(differ)} choices differ, {slower} of them surely over 1 % slower"
    lines = [f"{title}: {told}; right within 1 %: ours {ours:.1%}, theirs {theirs:.1%}"]
    published = [one for one in differ if one.case.published]
    for what, ones in (("worst", differ[-1:]), ("best", differ[:1]), ("best published", published[:1])):
        for one in ones:
            ratio = f"{one.ratio.median:.3f} of their time ({one.ratio.low:.3f} to {one.ratio.high:.3f})"
            lines.append(f"  {what}: {ratio}, {one.ours} for {one.theirs}: {one.case} {one.case.published}".rstrip())
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", help="a file of microbench constants")
    parser.add_argument("out", type=Path, help="the new table")
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--device", help="a GPU's UUID, or fake; default: the first GPU")
    asked = parser.parse_args()
    constants = mb.constants(asked.machine)
    gpu = open_gpu(asked.device or probe_environment(None).gpus[0].uuid)
    card, made = gpu.info.name.split()[-1] if not gpu.simulated else "SIMULATED", (commit() or "")[:8]
    print(f"{gpu.info.name}, constants of {constants.source}, {constants.machine.get('card', 'an unknown card')}")
    with asked.out.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(TABLE.read_text().partition("\n")[0].split(","))
        for name in asked.only:
            library, found = LIBRARIES[name], list[Timed]()
            try:
                for case in library.cases(random.Random(SEED)):
                    found.append(timed(gpu, library, case, constants))
                    table.writerow(row(name, found[-1], card, made))
                    file.flush()
            except Skip as skip:
                print(f"{library.title} skipped: {skip}")
            if found:
                print("\n".join(summary(library.title, found)), flush=True)
    gpu.close()


if __name__ == "__main__":
    main()
