"""A user's kernel: compiled by NVRTC, its arguments checked and filled, its launch, and the resources that it uses."""

import math
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.targets import FORMATS, Argument, source_of
from microbench.gpu.cuda.context import check, compiled
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, allow_shared_memory, safe_slots
from microbench.gpu.experiment import Case, IntArray, Item, MeasurementError, Skip, Submit, driver, experiment
from microbench.gpu.fake.machine import Call, FakeSubmit, Machine

SEED = 20261123
# Where packages and toolkits have the headers that kernels include.
PACKAGE_FOLDERS = ("nvidia/cu13/include", "nvidia/cuda_runtime/include")
SPILLS = re.compile(r"entry function '([^']+)'.*?(\d+) bytes spill stores", re.DOTALL)
OCCUPANCY_STEP_REGISTERS = 256  # registers of a warp are allocated in units of this many
WARP = 32
MOST_COMPILER_BYTES = 8 << 30
MOST_ERRORS, LONGEST_ERROR = 2, 400
REGISTERS = 32  # of every simulated kernel: invented


class KernelSpec(NamedTuple):
    """A kernel of a user's file and how it is launched. ``work_bytes`` and ``work_flops`` are 0 if they are unknown."""

    file: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...] = ()
    shared_bytes: int = 0
    cooperative: bool = False
    options: tuple[str, ...] = ()
    work_bytes: int = 0
    work_flops: int = 0


class KernelResources(NamedTuple):
    """The resources of an SM that a kernel uses, and how many of its blocks fit.

    ``local_bytes`` is local memory of a thread (arrays and spills), ``spill_bytes`` what the compiler spilled.
    ``held_by`` names what limits the number of resident blocks.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_bytes: int
    blocks_per_sm: int
    most_threads_per_sm: int
    sms: int
    held_by: str


def include_folders() -> list[Path]:
    """The installed folders of CUDA's headers and of CCCL's headers, which cooperative_groups.h needs.

    If packages have the first but not the second, the toolkit's CCCL is used.
    """
    toolkits = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    places = [*(Path(entry) / folder for entry in sys.path for folder in PACKAGE_FOLDERS), *toolkits]
    found = [folder for folder in places if (folder / "cuda_runtime.h").is_file()][:1]
    cccl = [folder for place in places for folder in (place / "cccl", place) if (folder / "nv/target").is_file()]
    return found + cccl[:1]


def compile_file(spec: KernelSpec, architecture: str) -> tuple[bytes, bytes, int]:
    """Compile a user's file for an architecture such as ``90``: its machine code, the kernel's name in it, and the
    bytes that the compiler spilled.

    Raises MeasurementError with the compiler's first errors, and if the file does not have the kernel; UsageError if
    it is no text.
    """
    path, folders = Path(spec.file), include_folders()
    source = source_of(spec.file).encode()
    options = ["--ptxas-options=-v", f"-I{path.resolve().parent}", *(f"-I{folder}" for folder in folders)]
    if not any(option.startswith(("--gpu-architecture", "-arch")) for option in spec.options):
        options.append(f"--gpu-architecture=sm_{architecture}")
    if not any(option.startswith(("--std", "-std")) for option in spec.options):
        options.append("--std=c++17")
    options += spec.options
    with _bounded_memory():
        code, log, cubin, symbol = compiled(source, path.name, options, spec.name)
    folders += [path.resolve().parent, *(Path(option[2:]).resolve() for option in spec.options if option[:2] == "-I")]
    if code == driver.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
        raise MeasurementError(f"NVRTC refuses an option: {' '.join(spec.options)}: {_first_errors(log, folders)}")
    if int(code) != 0:
        raise MeasurementError(f"{path.name} does not compile for sm_{architecture}: {_first_errors(log, folders)}")
    spilled = {name: int(count) for name, count in SPILLS.findall(log)}
    return cubin, symbol, spilled.get(symbol.decode(), 0)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """NVRTC says that memory is out before templates or macros without end take all of the machine's."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    taken_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    limits = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([taken_bytes + MOST_COMPILER_BYTES, *limits]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _first_errors(log: str, folders: Sequence[Path]) -> str:
    """The first errors of a compiler's log, or that the kernel is missing.

    Files of these folders are source. Of any other file only the place is told: a message quotes what the file holds.
    """
    told: list[str] = []
    for line in log.splitlines():  # what is quoted is indented
        if not re.match(r"(?!\d+ (?:catastrophic )?errors? detected)\S.*\b(?:error|fatal)\b", line):
            continue
        missing = re.match(r'__nv_name_map\(\d+\): error: identifier "([^"]+)" is undefined', line)
        if missing is not None:
            return "; ".join(told) or f"it has no kernel {missing[1]}"
        place = re.match(r"(.+?)\((\d+)\): ", line)
        if place is not None and not any((folders[-1] / place[1]).resolve().is_relative_to(each) for each in folders):
            line = f"an error in line {place[2]} of {place[1]}"
        told = list(dict.fromkeys([*told, line.strip()[:LONGEST_ERROR]]))
        if len(told) == MOST_ERRORS:
            break
    return "; ".join(told) or " ".join(log.split())[:LONGEST_ERROR]


class OwnKernel:
    """A user's kernel, compiled and launched once; it is usable until the case ends."""

    resources: KernelResources
    submit: Submit

    def __init__(self, case: Case, spec: KernelSpec) -> None:
        """Compile it, fill its arrays and launch it once.

        Raises MeasurementError for a file that does not compile, arguments of the wrong number or size, a launch that
        does not fit the GPU and a kernel that fails, and Skip if the arrays do not fit its memory.
        """
        self._case = case
        cubin, symbol, spill_bytes = compile_file(spec, case.context.architecture)
        library = check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
        case.own(lambda: driver.cuLibraryUnload(library))
        kernel = check(driver.cuLibraryGetKernel(library, symbol))
        function = int(check(driver.cuKernelGetFunction(kernel)))
        check_sizes(spec, lambda place: driver.cuKernelGetParamInfo(kernel, place))
        self.resources = _resources(case, function, spec, spill_bytes)
        # Each argument as 64 bits: the bits of a number, or the address of a filled array.
        row = tuple(case.array(filled(one)) if one.elements else one.word() for one in spec.arguments)
        parameters = Parameters([row]) if row else None
        address = parameters.address if parameters else 0
        launch = [function, *spec.grid, *spec.block, spec.shared_bytes, case.stream(0), address]
        name, arguments = "cuLaunchKernel", [*launch, 0]
        if spec.cooperative:
            name, arguments = "cuLaunchCooperativeKernel", launch
        slots, keep = safe_slots(8 * len(row)), (parameters, library)
        self.submit = DriverSubmit(name, arguments, stream=case.stream(0), queue_slots=slots, keep=keep)
        self.submit(1)
        case.synchronize()

    def profiled_ns(self, count: int) -> IntArray:
        """Duration of each of ``count`` launches, as profilers report it (CUPTI), in ns. Raises Skip without CUPTI."""

        def run() -> None:
            self.submit(count)
            self._case.synchronize()

        return self._case.context.kernel_records.durations_ns(run)


def filled(one: Argument) -> npt.NDArray[Any]:
    """An array's content: random floats in [0, 1), because zeros take less power; zeros for integers, which may be
    indices."""
    if not one.type.startswith(("f", "bf")):
        return np.zeros(one.elements, dtype=f"{one.type[0]}{one.size_bytes}")
    values = np.random.default_rng(SEED).random(one.elements, dtype=np.float32)
    if one.type == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.dtype(FORMATS[one.type]))


def check_sizes(spec: KernelSpec, info: Callable[[int], Any]) -> None:
    """Raise MeasurementError unless the arguments have the number and sizes of the kernel's parameters.

    ``info`` calls cuKernelGetParamInfo, which drivers before CUDA 12.4 lack; then nothing is compared.
    """
    sizes: list[int] = []
    while len(sizes) <= len(spec.arguments):
        code, *found = info(len(sizes))
        if code == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED:
            return
        if int(code) != 0:
            break
        sizes.append(int(found[1]))
    if len(sizes) != len(spec.arguments):
        takes = f"more than {len(spec.arguments)}" if len(sizes) > len(spec.arguments) else str(len(sizes))
        raise MeasurementError(f"{spec.name} takes {takes} arguments, {len(spec.arguments)} are given")
    for place, (size_bytes, one) in enumerate(zip(sizes, spec.arguments, strict=True), 1):
        given = 8 if one.elements else one.size_bytes
        if given != size_bytes:
            what = "an address" if one.elements else f"a number of type {one.type}"
            raise MeasurementError(
                f"argument {place} of {spec.name} has {size_bytes} bytes, but {what} was given, which has {given}"
            )


def _resources(case: Case, function: int, spec: KernelSpec, spill_bytes: int) -> KernelResources:
    """The resources of a kernel, and how many of its blocks an SM holds. Raises MeasurementError if none."""
    attributes, attribute = driver.CUfunction_attribute, case.context.attribute

    def of(name: str) -> int:
        which = getattr(attributes, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(driver.cuFuncGetAttribute(which, function)))

    threads = spec.block[0] * spec.block[1] * spec.block[2]
    shared_bytes = of("SHARED_SIZE_BYTES") + spec.shared_bytes
    most_shared = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    if threads > of("MAX_THREADS_PER_BLOCK"):
        raise MeasurementError(f"{spec.name} runs with at most {of('MAX_THREADS_PER_BLOCK')} threads a block")
    if shared_bytes > most_shared:
        raise MeasurementError(f"a block has at most {most_shared} bytes of shared memory here, not {shared_bytes}")
    allow_shared_memory(function, spec.shared_bytes)
    blocks = int(check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, spec.shared_bytes)))
    if blocks == 0:
        raise MeasurementError(f"no block of {spec.name} fits an SM")
    if spec.cooperative and spec.grid[0] * spec.grid[1] * spec.grid[2] > blocks * case.sms:
        raise Skip(f"a cooperative grid has at most {blocks * case.sms} blocks of this kernel here")
    warps = -(-threads // WARP)
    registers = of("NUM_REGS")
    a_warp = -(-registers * WARP // OCCUPANCY_STEP_REGISTERS) * OCCUPANCY_STEP_REGISTERS
    room = {
        "threads": attribute("MAX_THREADS_PER_MULTIPROCESSOR") // (warps * WARP),
        "registers": attribute("MAX_REGISTERS_PER_MULTIPROCESSOR") // max(a_warp * warps, 1),
        "blocks": attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
    }
    if shared_bytes:
        reserved = attribute("RESERVED_SHARED_MEMORY_PER_BLOCK")
        room["shared memory"] = attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR") // (shared_bytes + reserved)
    return KernelResources(
        registers=registers,
        shared_bytes=shared_bytes,
        local_bytes=of("LOCAL_SIZE_BYTES"),
        spill_bytes=spill_bytes,
        blocks_per_sm=blocks,
        most_threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        sms=case.sms,
        held_by=min(room, key=lambda name: room[name]),
    )


class SimulatedOwnKernel(OwnKernel):
    """It takes as long as its bytes and operations need, in whole waves; no code is compiled or run."""

    def __init__(self, machine: Machine, spec: KernelSpec) -> None:
        costs = machine.costs
        self._machine = machine
        threads = spec.block[0] * spec.block[1] * spec.block[2]
        blocks = spec.grid[0] * spec.grid[1] * spec.grid[2]
        if threads > costs.threads_per_sm:
            raise MeasurementError(f"SIMULATED: {spec.name} runs with at most {costs.threads_per_sm} threads a block")
        per_sm = max(min(costs.blocks_per_sm, costs.threads_per_sm // threads), 1)
        self.resources = KernelResources(
            REGISTERS, spec.shared_bytes, 0, 0, per_sm, costs.threads_per_sm, costs.sm_count,
            "blocks" if per_sm == costs.blocks_per_sm else "threads",
        )  # fmt: skip
        clock_hz = machine.device.governor.at(machine.clock.time_ns).clock_hz
        flops_per_s = costs.compute.alu_per_clock["fma_fp32"] * costs.sm_count * clock_hz
        moved_s = spec.work_bytes / (costs.memory.dram_bytes_per_s.mixed)
        wave = blocks / (per_sm * costs.sm_count)
        tail = math.ceil(wave) / wave if wave > 1 else 1.0
        busy_ns = max(moved_s, spec.work_flops / flops_per_s) * tail * 1e9
        self._duration_ns = max(busy_ns, costs.empty_kernel_ns)
        item = Item(gap_ns=costs.gap_stream_ns, duration_ns=self._duration_ns, buffer_bytes=costs.launch_record_bytes)
        self.submit = FakeSubmit(machine, Call(costs.submit_ns, item))
        machine.ran("", self.submit)

    def profiled_ns(self, count: int) -> IntArray:
        return self._machine.profiled_ns(self._duration_ns, count)


own_kernel = experiment(OwnKernel, SimulatedOwnKernel)
