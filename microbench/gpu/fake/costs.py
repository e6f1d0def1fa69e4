"""Every constant of the simulated machine, in frozen structs. A measurement on the simulated machine must recover them.

The values are invented: round numbers of the order of a data-centre GPU on PCIe 5.0 x16, not measured on any. Times are
in nanoseconds unless the last word of a name says otherwise.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar, get_args

import msgspec

from microbench.core.model import MemoryErrors
from microbench.gpu.layers.base import LayerCosts, submitters
from microbench.gpu.layers.torch import REFUSED
from microbench.gpu.protocol.gpu import WaitMode
from microbench.gpu.protocol.matrices import GemmType

Key = TypeVar("Key")
Value = TypeVar("Value")


def _table(values: dict[Key, Value]) -> dict[Key, Value]:
    """A dict as default value; every struct gets a copy of its own."""
    return msgspec.field(default_factory=values.copy)


class Line(msgspec.Struct, frozen=True):
    """A cost with a constant and a slope for each node, page or step."""

    constant: float
    slope: float

    def at(self, count: int) -> float:
        return self.constant + count * self.slope


class CallCosts(msgspec.Struct, frozen=True):
    """A call into a stream: host time, time on the GPU, and a rate for the bytes that it reads and writes there."""

    submit_ns: float
    duration_ns: float
    bytes_per_s: float = math.inf


class AllocationCosts(msgspec.Struct, frozen=True):
    """Host time to allocate memory and to release it; the slopes are per page or per step.

    ``pooled_take_ns`` and ``pooled_release_ns`` apply if a pool already has the memory, or keeps it; None without a
    pool.
    """

    take: Line
    release: Line
    pooled_take_ns: float | None = None
    pooled_release_ns: float = 0.0


class ProductLibrary(msgspec.Struct, frozen=True):
    """A library of matrix products: host time of a call, the share of the peak rate of each of its kernels (best guess
    of its heuristics first), and its types. ``energy_share`` is the energy of its kernels over that of other kernels of
    equal speed."""

    submit_ns: float
    kernels: dict[str, float]
    dtypes: tuple[str, ...]
    energy_share: float = 1.0


GUESSES = {
    "algo66_tile20_stages36_cluster2": 0.97,
    "algo66_tile18_stages35_cluster5": 1.0,
    "algo66_tile15_stages36_cluster1": 0.9,
    "algo23_tile20_stages10_splitk2": 0.7,
}
PRODUCT_LIBRARIES: dict[str, ProductLibrary] = {
    "cublaslt": ProductLibrary(18_000, GUESSES, get_args(GemmType)),
    "cupy": ProductLibrary(24_000, {"cupy": 0.96}, ("fp64", "fp32", "fp16")),
    "torch": ProductLibrary(
        10_000, {"torch": 0.98}, tuple(dtype for dtype in get_args(GemmType) if dtype not in REFUSED)
    ),
}


class ComputeCosts(msgspec.Struct, frozen=True):
    """Rates are operations of one SM in a clock cycle, counted as in ``Resident.operations``. Energies are joules an
    operation above idle, of normal random data."""

    tensor_per_clock: dict[str, float] = _table({
        "fp64": 255.0, "tf32": 2040.0, "fp16": 4080.0, "fp16_acc16": 4080.0, "bf16": 4080.0, "fp8_e4m3": 8160.0,
        "fp8_e5m2": 8160.0, "int8": 8160.0, "mxfp8": 8160.0, "nvfp4": 16320.0,
    })  # fmt: skip
    tensor_joules: dict[str, float] = _table({
        "fp64": 7e-12, "tf32": 1.35e-12, "fp16": 0.72e-12, "fp16_acc16": 0.6e-12, "bf16": 0.7e-12,
        "fp8_e4m3": 0.36e-12, "fp8_e5m2": 0.35e-12, "int8": 0.33e-12, "mxfp8": 0.36e-12, "nvfp4": 0.2e-12,
    })  # fmt: skip
    mma_share: float = 0.65  # share of the peak rate that mma reaches, for types with wgmma
    sparse_gain: float = 1.94  # sparse rate over dense rate, with skipped operations counted
    sparse_energy_share: float = 0.6  # of a dense operation's energy, with skipped operations counted
    alu_per_clock: dict[str, float] = _table({
        "fma_fp64": 127.0, "fma_fp32": 254.0, "fma_fp16x2": 506.0, "fma_bf16x2": 500.0, "mad_int32": 63.0,
        "add_int32": 62.0, "exp2_fp32": 15.8, "rsqrt_fp32": 15.6,
    })  # fmt: skip
    alu_joules: dict[str, float] = _table({
        "fma_fp64": 13e-12, "fma_fp32": 4.5e-12, "fma_fp16x2": 1.8e-12, "fma_bf16x2": 1.9e-12, "mad_int32": 9e-12,
        "add_int32": 7e-12, "exp2_fp32": 20e-12, "rsqrt_fp32": 22e-12,
    })  # fmt: skip
    alu_cycles: dict[str, float] = _table({  # until a result can be used
        "fma_fp64": 8.0, "fma_fp32": 4.0, "fma_fp16x2": 5.0, "fma_bf16x2": 5.5, "mad_int32": 4.5, "add_int32": 6.0,
        "exp2_fp32": 18.0, "rsqrt_fp32": 40.0,
    })  # fmt: skip
    # Products.
    libraries: dict[str, ProductLibrary] = _table(PRODUCT_LIBRARIES)
    promoted_share: float = 0.94  # of fp8's rate, if partial sums are added up in fp32
    moving_energy_share: float = 1.15  # energy with operands from caches over that with operands in registers
    product_fixed_ns: float = 1500.0  # time of a product's kernel on top of an empty kernel
    workspace_bytes: int = 64 << 20
    release_ns: float = 60e6  # to free a case's operands and libraries when it ends
    data_energy_share: dict[str, float] = _table(
        {"normal": 1.0, "uniform": 0.97, "sparse": 0.88, "constant": 0.84, "ones": 0.8, "zeros": 0.75}
    )
    # Power: work above the limit keeps the highest clock for boost_s after a rest of at least rest_s.
    power_limit_w: float = 700.0
    boost_s: float = 0.04
    rest_s: float = 0.01
    tensor_offset_hz: float = 0.15e9  # tensor work runs this much below the highest clock
    nvml_excess_hz: float = 0.15e9  # NVML overstates the clock by this much during tensor work
    state_ns: float = 5000.0  # a query of NVML
    idle_temperature_c: float = 40.0
    kelvin_per_watt: float = 0.05


PAGE_BYTES = 2 << 20
PROLOGUE = "_prologue"  # name suffix of kernels that do some work before they wait for the preceding kernel


class NodeCosts(msgspec.Struct, frozen=True):
    """The costs of a node of one kind on top of those of an empty kernel node.

    ``gap_ns`` is added to the gap before a kernel node; ``launch_ns``, ``instantiate_ns`` and ``update_ns`` are added
    to what each kernel node adds to those calls (``launch_ns`` is large if the host submits the node itself at each
    replay). ``update_ns`` is None if the driver refuses the update. ``duration_ns`` is for nodes other than kernels,
    copies of host memory and memsets: those run as long as in a stream.
    """

    gap_ns: float = 0.0
    duration_ns: float = 0.0
    launch_ns: float = 0.0
    instantiate_ns: float = 0.0
    update_ns: float | None = 0.0


class GraphCosts(msgspec.Struct, frozen=True):
    """Costs of graphs; those of the launch call are in FakeCosts."""

    # Making and destroying a graph: host time of each call.
    capture: Line = Line(3000, 400)
    build: Line = Line(2000, 450)
    instantiate: Line = Line(5000, 1300)
    upload: Line = Line(3000, 750)  # a call of its own, or part of the first launch
    upload_on_gpu: Line = Line(1500, 120)  # before the graph may start
    destroy: Line = Line(3500, 450)  # the executable graph and its source
    destroy_captured: Line = Line(1200, 150)  # the source alone
    device_memory: Line = Line(65536, 120)  # bytes
    host_memory: Line = Line(9000, 2500)  # bytes
    # Changes: the slope is per changed node; in exec_update it is per node of the graph.
    set_params: Line = Line(3000, 200)
    set_grid: Line = Line(3200, 240)
    exec_update: Line = Line(2500, 190)
    changed_launch_ns: float = 40.0  # added to the next launch call for each changed node
    # Nodes other than kernels, and stream calls for which there is no op.
    nodes: dict[str, NodeCosts] = _table({
        "pdl": NodeCosts(gap_ns=-40, instantiate_ns=100),
        "pdl_trigger": NodeCosts(gap_ns=-250, instantiate_ns=100),
        "memset": NodeCosts(gap_ns=200, launch_ns=400, instantiate_ns=-300, update_ns=50),
        "copy_h2d": NodeCosts(gap_ns=400, launch_ns=500, instantiate_ns=500, update_ns=100),
        "copy_d2h": NodeCosts(gap_ns=350, launch_ns=500, instantiate_ns=500, update_ns=100),
        "copy_d2d": NodeCosts(gap_ns=100, duration_ns=900, launch_ns=500, instantiate_ns=400, update_ns=100),
        "host": NodeCosts(gap_ns=2000, duration_ns=6000, launch_ns=600, instantiate_ns=300, update_ns=30),
        "event_record": NodeCosts(gap_ns=100, duration_ns=300, launch_ns=350, instantiate_ns=-600, update_ns=20),
        "event_wait": NodeCosts(gap_ns=50, duration_ns=200, launch_ns=300, instantiate_ns=-600, update_ns=20),
        "child": NodeCosts(gap_ns=20, duration_ns=100, instantiate_ns=700, update_ns=300),
        "empty": NodeCosts(gap_ns=-300, instantiate_ns=-800, update_ns=-90),
        "if_taken": NodeCosts(gap_ns=1500, duration_ns=2500, instantiate_ns=4000, update_ns=None),
        "if_skipped": NodeCosts(gap_ns=1500, duration_ns=1000, instantiate_ns=4000, update_ns=None),
    })  # fmt: skip
    calls: dict[str, CallCosts] = _table({"copy_d2d": CallCosts(1500, 1100), "host": CallCosts(1900, 9000)})
    dependent_kernel_ns: int = 400  # a kernel that adds 1 to what the one before it wrote
    prologue_ns: int = 1000  # work of such a kernel before it waits for the preceding one
    trigger_gap_ns: float = -250.0  # what an early trigger adds to the gap of a pdl launch in a stream
    # Iterations.
    look_ns: float = 40.0  # the host looks at mapped memory
    while_iteration_ns: float = 4500.0
    tail_iteration_ns: float = 4800.0
    # Allocation: in a stream (host and GPU time), as graph nodes, and mapping of the pages of a block.
    allocate: CallCosts = CallCosts(700, 150)
    free: CallCosts = CallCosts(500, 100)
    allocate_node_ns: float = 800.0
    free_node_ns: float = 600.0
    map_page_ns: float = 6000.0  # the host maps a page of PAGE_BYTES into a pool
    release_page_ns: float = 3000.0  # and releases it

    def node(self, kind: str) -> NodeCosts:
        """Kernels cost nothing extra; a prologue only changes how long a node runs."""
        return self.nodes.get(kind.removesuffix(PROLOGUE), NodeCosts())


# The link. The costs of copies by a copy engine are in FakeCosts, because other suites copy too.


HOST_PAGE_BYTES = 4096


class LinkCosts(msgspec.Struct, frozen=True):
    """Costs of the links to the host and to other GPUs."""

    # Fault injection: "lost" omits every movement and computation, "damaged" changes the last byte of its result.
    arrives: Literal["right", "lost", "damaged"] = "right"
    # Host memory.
    host_memory_limit_bytes: int = 64 << 30
    numa_nodes: int = 1  # node 0 is near
    far_node_bytes_per_s: float = 40e9
    pinning: dict[str, AllocationCosts] = _table({  # slopes for each HOST_PAGE_BYTES
        "allocate": AllocationCosts(Line(30_000, 500), Line(20_000, 250)),
        "register": AllocationCosts(Line(20_000, 150), Line(15_000, 80)),
        "touch": AllocationCosts(Line(3000, 250), Line(2000, 50)),
    })  # fmt: skip
    # Copies of pageable memory go through a staging buffer, piece by piece.
    staging_bytes_per_s: float = 16e9  # the host's own copy
    staging_piece_bytes: int = 512 << 10
    # Kernels on host memory: packets of at most a line, and the highest rate of the SMs by bytes per thread and access.
    sm_packet_bytes: int = 128
    sm_bytes_per_s: dict[int, float] = _table({4: 48e9, 8: 50e9, 16: 70e9})
    # One batched call copies its pieces in turn, small ones at a lower rate (as on an H100 and an H200).
    batched_piece_ns: float = 900.0
    batched_small_bytes: int = 16 << 10
    batched_small_bytes_per_s: float = 8e9
    # Dependent reads of host memory in random order take longer beyond this footprint.
    translation_reach_bytes: int = 32 << 20
    translation_miss_ns: float = 300.0
    # Managed memory: faults are handled in batches, and the data of a batch are moved before the next batch is handled.
    managed_memory: bool = True
    fault_batch_bytes: int = 512 << 10
    fault_batch_ns: float = 20_000.0
    read_mostly_batch_ns: float = 15_000.0  # the pages of the host stay valid
    host_fault_bytes: int = 64 << 10
    host_fault_ns: float = 12_000.0
    device_read_bytes_per_s: float = 3e12
    # Other GPUs: each pair has a link of its own, and all hang below one switch, whose uplink carries uplink_factor
    # (1 or more) times what the link of one GPU carries.
    peer_denied: tuple[tuple[int, int], ...] = ()  # (first, second): no peer access of first to second
    nvlinks: int = 18  # where there are several GPUs
    nvlink_bytes_per_s: float = 25e9  # one link, one direction
    peer_bytes_per_s: float = 400e9  # by a copy engine, each direction
    peer_sm_bytes_per_s: float = 350e9
    peer_fixed_ns: float = 1500.0
    peer_read_ns: float = 850.0
    uplink_factor: float = 1.5
    # NCCL: host time of one rank's call, what nccl4py adds to it, and the fixed time of each operation on the device.
    # Rings of several GPUs move them at peer_sm_bytes_per_s; a ring of one copies within its own memory.
    collective_submit_ns: float = 3000.0
    collective_python_ns: float = 12_000.0
    collective_fixed_ns: float = 9000.0
    collective_alone_ns: float = 1800.0
    collective_copy_bytes_per_s: float = 2e12


class Rates(msgspec.Struct, frozen=True):
    """A figure for reads alone, for writes alone, and for reads and writes together."""

    read: float
    write: float
    mixed: float

    def of(self, arrays_read: int, arrays_written: int) -> float:
        if not arrays_written:
            return self.read
        return self.mixed if arrays_read else self.write


class ShapeCosts(msgspec.Struct, frozen=True):
    """A way to run a streaming kernel: bytes in flight on each SM, and the share of DRAM's rate that it gets.

    ``submit_ns`` is the host time of a library's call; None for a plain launch.
    """

    in_flight_bytes: int
    share: Rates
    compute_capability: tuple[int, int] = (7, 0)  # the first that has it
    submit_ns: float | None = None


class MemoryCosts(msgspec.Struct, frozen=True):
    """Rates of L1, L2 and shared memory are bytes a clock cycle of one SM; latencies are in its cycles."""

    # DRAM, in bytes a second of the whole GPU.
    dram_bytes_per_s: Rates = Rates(4.2e12, 4.3e12, 4.0e12)
    dram_fetch_bytes: int = 64  # the smallest transfer
    sector_bytes: int = 32  # the smallest transfer between the L2 and an SM
    shapes: dict[str, ShapeCosts] = _table({
        "grid_16B_x4_t256": ShapeCosts(128 << 10, Rates(0.95, 1.0, 0.97)),
        "grid_16B_x1_t256": ShapeCosts(12 << 10, Rates(0.95, 0.98, 0.97)),
        "steps_16B_x4_b4_t512": ShapeCosts(96 << 10, Rates(0.97, 0.96, 0.96)),
        "bulk_16384B_x4_b2_t256": ShapeCosts(128 << 10, Rates(1.0, 0.97, 1.0), compute_capability=(9, 0)),
    })  # fmt: skip
    libraries: dict[str, ShapeCosts] = _table({
        "cupy": ShapeCosts(32 << 10, Rates(0.8, 0.96, 0.9), submit_ns=9000),
        "numba": ShapeCosts(24 << 10, Rates(0.85, 0.92, 0.9), submit_ns=12_000),
    })  # fmt: skip
    # Levels: a working set that fits a cache is always read from it, a larger one never.
    shared_bytes: int = 227 << 10
    l1_bytes: int = 224 << 10
    l2_bytes: int = 48 << 20
    shared_bytes_per_clock: float = 126.0
    l1_bytes_per_clock: float = 120.0
    l2_bytes_per_clock: float = 44.0
    l2_written_per_clock: float = 36.0
    # Shared memory of the other blocks of a cluster, by cluster size: bytes per clock cycle of one SM, and latency.
    cluster_bytes_per_clock: dict[int, float] = _table({2: 60.0, 4: 45.0, 8: 36.0, 16: 30.0})
    cluster_cycles: dict[int, float] = _table({2: 190.0, 4: 200.0, 8: 210.0, 16: 225.0})
    # Filling shared memory: the share of the level's rate, and the shortest time of a bulk copy on an SM.
    fill_share: dict[str, float] = _table({"load": 0.9, "async": 0.95, "bulk": 1.0})
    bulk_cycles: float = 60.0
    shared_cycles: float = 30.0
    bank_cycles: float = 1.02  # for a load of a warp without bank conflicts, and for each further word of one bank
    conflict_cycles: float = 2.0  # what such a word adds to the latency of a load
    l1_cycles: float = 36.0
    l2_near_cycles: float = 230.0
    l2_far_cycles: float = 290.0
    l2_near_share: float = 0.5  # of all lines
    dram_cycles: float = 900.0
    stamp_cycles: float = 14.0  # what a stamp adds to a single read
    most_load: float = 0.95  # of a level's limit, by all SMs but one
    queue_share: float = 0.05  # share of its latency by which a read takes longer at a load of half the limit
    # Reads in random order take longer beyond this footprint: the addresses must be translated anew.
    translation_reach_bytes: int = 8 << 30
    translation_miss_cycles: float = 350.0
    # Atomic additions: how many threads of a warp are merged if they add to one word; a unit makes one addition at a
    # time.
    merged_threads: dict[str, int] = _table({"int32": 32, "fp32": 4})
    atomic_units: int = 96  # in the L2; each word belongs to one unit
    atomic_cycles: float = 2.0  # for the words of one sector
    shared_merged_threads: dict[str, int] = _table({"int32": 32, "fp32": 1})
    shared_atomic_cycles: float = 4.0  # for words in different banks
    # Calls to the driver; a memset is that of FakeCosts. The slopes of blocks are for each block_step_bytes.
    engines: dict[str, CallCosts] = _table(
        {"copy": CallCosts(1500, 1100, 3.6e12), "copy_2d": CallCosts(1900, 2100, 3.2e12)}
    )
    blocks: dict[str, AllocationCosts] = _table({
        "malloc": AllocationCosts(Line(60_000, 4000), Line(90_000, 2000)),
        "pool": AllocationCosts(Line(65_000, 4000), Line(0, 0), pooled_take_ns=600, pooled_release_ns=500),
        "cupy_pool": AllocationCosts(Line(70_000, 4000), Line(0, 0), pooled_take_ns=1200, pooled_release_ns=900),
        "host_pinned": AllocationCosts(Line(30_000, 256_000), Line(20_000, 128_000)),
    })  # fmt: skip
    # Size of the memory.
    total_bytes: int = 96 << 30
    context_bytes: int = 512 << 20
    block_step_bytes: int = 2 << 20  # block sizes are multiples of this
    largest_share: float = 0.99  # share of the free memory that one block can take
    held_by_others_bytes: int = 0
    # Energy: the counter moves in steps.
    idle_power_w: float = 80.0
    joules_per_byte: float = 40e-12
    energy_step_s: float = 0.1


class Traffic(msgspec.Struct, frozen=True):
    """PCIe bytes that the GPU receives and sends, packet headers included."""

    received: float = 0.0
    sent: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.received + other.received, self.sent + other.sent)


class SignalCosts(msgspec.Struct, frozen=True):
    """Signals between two kernels, in ns: what each adds to the gap in the stream, and the time to and from the host.

    The defaults are near the figures of an H200.
    """

    call_ns: float = 1100.0  # the host's call of a host function or memory operation
    event_ns: float = 50.0
    event_timed_ns: float = 1570.0
    host_function_to_ns: float = 34_000.0  # kernel end -> the function begins
    host_function_from_ns: float = 5400.0  # the function ends -> the stream goes on
    write_ns: float = 1800.0
    write_to_host_ns: float = 1900.0  # kernel end -> the host sees the word
    wait_ready_ns: float = 2050.0
    wait_from_host_ns: float = 1600.0  # the host's store -> the stream goes on


class ModelCosts(msgspec.Struct, frozen=True):
    """A step of a model: its launches, the host time of each (its call included) and how long each runs, in ns.

    ``operators`` and ``functions`` are how many of the framework's operators and of Python's functions it calls.
    """

    launches: int
    launch_ns: float
    kernel_ns: int
    operators: int
    functions: int


class RecorderCosts(msgspec.Struct, frozen=True):
    """What a profiler adds to each thing that it records: host time of a launch with CUPTI's kernel records alone, of a
    call, an operator and a Python function with torch.profiler, and of a call with microbench watch (``watch_ns``); and
    GPU time of a graph's node.

    ``left_node_ns`` is added to a node for the rest of the process, ``node_ns`` on top of it during a recording.
    """

    kernel_ns: float = 1100.0
    call_ns: float = 2600.0
    operator_ns: float = 1900.0
    function_ns: float = 350.0
    node_ns: float = 220.0
    left_node_ns: float = 180.0
    watch_ns: float = 1500.0


class FakeCosts(msgspec.Struct, frozen=True):
    """All costs of one simulated machine."""

    gpus: int = 1  # GPUs that this process sees, all alike
    # GPU and driver. Benchmarks of features that they lack are skipped.
    compute_capability: tuple[int, int] = (9, 0)
    cuda_driver_version: int = 13000  # as cuDriverGetVersion counts: 12040 is CUDA 12.4
    refuses_updates: bool = False  # updates of a whole executable graph
    memory_errors: MemoryErrors = MemoryErrors(0, 0, 0, 0, 0, 0, False, False)  # from Ampere on no page is retired
    graphs: GraphCosts = GraphCosts()
    links: LinkCosts = LinkCosts()
    memory: MemoryCosts = MemoryCosts()
    compute: ComputeCosts = ComputeCosts()
    signals: SignalCosts = SignalCosts()
    # The host: how long each call keeps the submitting thread busy.
    timer_call_ns: float = 25.0
    timer_step_ns: int = 1
    submit_ns: float = 3200.0
    submit_argument_ns: float = 0.1  # per byte of arguments
    kind_submit_ns: dict[str, float] = _table(
        {"launch": 0.0, "launch_ex": 100.0, "cooperative": 600.0, "cluster": 300.0, "pdl": 200.0}
    )
    legacy_stream_submit_ns: float = 150.0  # on top of submit_ns
    thread_contention_ns: float = 700.0  # added to a call for each other thread that submits
    layers: dict[str, LayerCosts] = msgspec.field(
        default_factory=lambda: {layer.name: layer.simulated for layer in submitters() if layer.simulated is not None}
    )
    models: dict[str, ModelCosts] = _table(
        {
            "linear_gelu": ModelCosts(32, 12_000.0, 2000, 80, 160),
            "transformer_block": ModelCosts(56, 16_000.0, 3000, 320, 410),
            "adamw_step": ModelCosts(24, 25_000.0, 5000, 60, 300),
        }
    )
    recorder: RecorderCosts = RecorderCosts()
    graph_submit_ns: float = 1250.0
    graph_node_submit_ns: float = 1.2
    copy_h2d_submit_ns: float = 1700.0
    copy_d2h_submit_ns: float = 1200.0
    memset_submit_ns: float = 1000.0
    timed_record_ns: float = 160.0
    untimed_record_ns: float = 130.0
    wait_event_ns: float = 180.0
    query_ns: float = 90.0
    second_process_ns: float = 400.0  # added to each launch call while another process launches kernels too
    preempted_share: float = 0.0  # share of late host calls due to preemption; the others are due to interrupts
    idle_stream_ns: float = 270.0
    idle_event_ns: float = 210.0
    gate_open_ns: float = 20.0
    # The launch queue of each stream: slots, and one buffer for the records and arguments of all queued launches.
    queue_slots: int = 1021
    queue_buffer_bytes: float = 4.0e6
    launch_record_bytes: float = 1574.0
    # Between host and GPU.
    launch_to_start_ns: float = 2900.0  # call returned -> first instruction on an idle GPU
    flag_to_host_ns: float = 550.0  # the GPU's store -> the host sees it
    host_read_ns: float = 1150.0  # the GPU reads host memory; so also the host's store -> a polling kernel sees it
    completion_ns: dict[WaitMode, float] = _table(  # kernel end -> synchronised
        {"auto": 2600.0, "spin": 2600.0, "yield": 3000.0, "blocking": 26000.0}
    )
    # A blocking wait takes longer the longer the host slept: this times the square root of the sleep in ns.
    wake_growth: float = 50.0
    # The front end and the SMs.
    gap_stream_ns: float = 1400.0  # end of a kernel -> start of the next in its stream
    gap_graph_ns: float = 500.0  # the same between nodes of a graph
    kind_gap_ns: dict[str, float] = _table(  # on top; pdl overlaps most of the gap
        {"launch": 0.0, "launch_ex": 0.0, "cooperative": 400.0, "cluster": 200.0, "pdl": -900.0}
    )
    gap_event_ns: float = 1250.0  # before a timing event
    gap_wait_ns: float = 300.0  # before a wait for an event that has happened already
    front_end_ns: float = 250.0  # between starts of kernels of different streams, or branches of a graph
    one_stream_gap_ns: float = 180.0  # both gaps are shorter by this while all kernels go into one stream
    empty_kernel_ns: float = 64.0  # least duration of a kernel
    add_ns: float = 160.0  # added to the duration of a kernel that adds to memory
    profiler_ns: float = 512.0  # a profiler's kernel duration less the time from first to last instruction
    globaltimer_step_ns: int = 32
    resident_kernels: int = 128
    sm_count: int = 132
    blocks_per_sm: int = 32
    threads_per_sm: int = 2048
    sm_clock_hz: float = 1.98e9
    # Copy engines (one a direction) and the link.
    copy_fixed_ns: float = 1200.0
    link_bytes_per_s: float = 60e9  # each direction, headers included
    packet_payload_bytes: int = 256
    packet_header_h2d_bytes: int = 20
    packet_header_d2h_bytes: int = 24
    read_request_bytes: int = 24  # sent by the GPU for each packet it receives
    memset_bytes_per_s: float = 3e12
    # PCIe traffic of each call; copies add their payload and its headers.
    traffic: dict[str, Traffic] = _table({
        "launch": Traffic(1800, 300),
        "graph": Traffic(250, 150),
        "graph_node": Traffic(1.0, 0.05),
        "copy_h2d": Traffic(250, 115),
        "copy_d2h": Traffic(200, 110),
        "memset": Traffic(200, 95),
        "timed_event": Traffic(180, 155),
    })  # fmt: skip
    argument_byte_traffic: float = 1.1
    idle_traffic_per_s: Traffic = Traffic(90e3, 280e3)
    counter_read_traffic: Traffic = Traffic(16e3, 21e3)
    counter_read_ns: float = 175e3
    telemetry_ns: float = 60e3
    # First uses in a process.
    cold_s: dict[str, float] = _table({
        "context": 0.16, "nvrtc": 0.022, "module_load_lazy": 0.00012, "module_load_eager": 0.00035,
        "first_launch_lazy": 0.00028, "first_launch_eager": 0.000035, "second_launch": 0.000009, "numba_import": 0.55,
        "numba_jit": 0.42, "cupy_import": 0.48, "cupy_rawkernel": 0.033, "cupy_ufunc": 0.062,
    })  # fmt: skip
    # The host suite.
    host_cores: int = 8
    host_call_ns: dict[str, float] = _table(
        {"compiled": 2.0, "compiled_from_python": 320.0, "ctypes": 210.0, "python": 45.0}
    )
    host_wakeup_ns: dict[str, float] = _table({"spin": 150.0, "event": 12000.0, "pipe": 9000.0})  # there and back
    host_copy_fixed_ns: float = 100.0
    host_cache_bytes: int = 1 << 20  # a core's share: smaller copies stay in it
    host_cache_bytes_per_s: float = 40e9  # one core, bytes counted once
    host_core_bytes_per_s: float = 12e9  # one core, beyond the cache
    host_memory_bytes_per_s: float = 60e9  # all cores together, beyond the cache

    def kernel_ns(self, duration_ns: float, grid_blocks: int = 1, block_threads: int = 32) -> float:
        """How long a kernel runs, in as many waves as its blocks need."""
        blocks_at_once = self.sm_count * max(min(self.blocks_per_sm, self.threads_per_sm // block_threads), 1)
        return max(duration_ns, self.empty_kernel_ns) * math.ceil(grid_blocks / blocks_at_once)

    def cycles_ns(self, cycles: float) -> float:
        """How long the SMs take for this many cycles at their highest clock."""
        return cycles / self.sm_clock_hz * 1e9

    def queue_depth(self, buffer_bytes: float) -> int:
        """How many items of ``buffer_bytes`` each a stream's queue holds before a call blocks."""
        return min(self.queue_slots, int(self.queue_buffer_bytes // buffer_bytes)) if buffer_bytes else self.queue_slots

    def on_the_link_bytes(self, direction: str, size_bytes: float) -> float:
        """Bytes of the data packets of a copy, headers included."""
        header_bytes = self.packet_header_h2d_bytes if direction == "h2d" else self.packet_header_d2h_bytes
        return size_bytes * (self.packet_payload_bytes + header_bytes) / self.packet_payload_bytes

    def copy_traffic(self, direction: str, size_bytes: float) -> Traffic:
        """A copy's data packets; the GPU sends a request for each packet that it reads from host memory."""
        data_bytes = self.on_the_link_bytes(direction, size_bytes)
        if direction == "d2h":
            return Traffic(sent=data_bytes)
        return Traffic(data_bytes, size_bytes * self.read_request_bytes / self.packet_payload_bytes)
