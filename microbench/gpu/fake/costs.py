"""Every constant of the simulated machine in one frozen struct: what a measurement on the fake must give back.

The values are made up: round numbers of the order of a data-centre GPU, never a measurement of one.
"""

from __future__ import annotations

import math

import msgspec

from microbench.gpu.api import WaitMode
from microbench.gpu.fake.compute_costs import ComputeCosts
from microbench.gpu.fake.graph_costs import GraphCosts
from microbench.gpu.fake.link_costs import LinkCosts
from microbench.gpu.fake.memory_costs import MemoryCosts


class Traffic(msgspec.Struct, frozen=True):
    """PCIe bytes of one act, packet headers included: ``received`` and ``sent`` by the GPU."""

    received: float
    sent: float


class LayerCosts(msgspec.Struct, frozen=True):
    """Host time of one call through a Python layer, and what each kernel argument adds to it.

    ``replay_ns`` is what a graph's launch call takes more through the layer than from the compiled loop.
    """

    call_ns: float
    argument_ns: float = 0.0
    replay_ns: float = 1000.0


def _kinds() -> dict[str, float]:
    return {"launch": 0.0, "launch_ex": 100.0, "cooperative": 600.0, "cluster": 300.0, "pdl": 200.0}


def _kind_gaps() -> dict[str, float]:
    return {"launch": 0.0, "launch_ex": 0.0, "cooperative": 400.0, "cluster": 200.0, "pdl": -900.0}


def _completions() -> dict[WaitMode, float]:
    return {"auto": 2600.0, "spin": 2600.0, "yield": 3000.0, "blocking": 35000.0}


def _layers() -> dict[str, LayerCosts]:
    return {
        "loop": LayerCosts(3200, 10, replay_ns=0),
        "cuda_bindings": LayerCosts(4000, 600, replay_ns=700),
        "cuda_core": LayerCosts(3800, 150, replay_ns=600),
        "cupy_raw": LayerCosts(5500, 650, replay_ns=1500),
        "numba_configured": LayerCosts(11500, 4000),
        "numba_each_call": LayerCosts(12500, 4000),
        "triton": LayerCosts(16000, 500),
        "cupy_ufunc": LayerCosts(10000),
        "torch_eager": LayerCosts(9000),
        "torch_out": LayerCosts(8000),
        "jax_jit": LayerCosts(40000),
    }


def _traffic() -> dict[str, Traffic]:
    return {
        "launch": Traffic(1800, 300),
        "graph": Traffic(250, 150),
        "graph_node": Traffic(1.0, 0.05),
        "copy_h2d": Traffic(250, 115),
        "copy_d2h": Traffic(200, 110),
        "memset": Traffic(200, 95),
        "timed_event": Traffic(180, 155),
    }


def _cold() -> dict[str, float]:
    return {
        "context": 0.16,
        "nvrtc": 0.022,
        "module_load_lazy": 0.00012,
        "module_load_eager": 0.00035,
        "first_launch_lazy": 0.00028,
        "first_launch_eager": 0.000035,
        "second_launch": 0.000009,
        "numba_import": 0.55,
        "numba_jit": 0.42,
        "cupy_import": 0.48,
        "cupy_rawkernel": 0.033,
        "cupy_ufunc": 0.062,
    }


def _host_calls() -> dict[str, float]:
    return {"compiled": 2.0, "compiled_from_python": 320.0, "ctypes": 210.0, "python": 45.0}


def _host_wakeups() -> dict[str, float]:
    return {"spin": 150.0, "event": 12000.0, "pipe": 9000.0}


class FakeCosts(msgspec.Struct, frozen=True):
    """One cost for each thing the simulation does.

    Times are nanoseconds unless the last word says otherwise. What a field adds to is said beside it; the properties
    at the end say which sum a measurement sees.
    """

    gpus: int = 1  # that this process sees, all alike
    # What GPU and driver are: what they lack is skipped.
    compute_capability: tuple[int, int] = (9, 0)
    cuda_driver_version: int = 13000  # as cuDriverGetVersion counts: 12040 is CUDA 12.4
    refuses_updates: bool = False  # of a whole executable graph
    graphs: GraphCosts = msgspec.field(default_factory=GraphCosts)
    links: LinkCosts = msgspec.field(default_factory=LinkCosts)
    memory: MemoryCosts = msgspec.field(default_factory=MemoryCosts)
    compute: ComputeCosts = msgspec.field(default_factory=ComputeCosts)
    # The host: what each call keeps the submitting thread.
    timer_call_ns: float = 25.0
    timer_step_ns: int = 1
    submit_ns: float = 3200.0
    submit_argument_ns: float = 0.1  # a byte of arguments
    kind_submit_ns: dict[str, float] = msgspec.field(default_factory=_kinds)
    legacy_stream_submit_ns: float = 150.0  # on top of submit_ns
    thread_contention_ns: float = 700.0  # a call, for each other thread that submits
    layers: dict[str, LayerCosts] = msgspec.field(default_factory=_layers)
    graph_submit_ns: float = 1250.0
    graph_node_submit_ns: float = 1.2
    copy_h2d_submit_ns: float = 1700.0
    copy_d2h_submit_ns: float = 1200.0
    memset_submit_ns: float = 1000.0
    timed_record_ns: float = 160.0
    untimed_record_ns: float = 130.0
    wait_event_ns: float = 180.0
    query_ns: float = 90.0
    idle_stream_ns: float = 270.0
    idle_event_ns: float = 210.0
    gate_open_ns: float = 20.0
    # The launch queue of each stream: slots, and one buffer for the records and arguments of what stands in it.
    queue_slots: int = 1021
    queue_buffer_bytes: float = 4.0e6
    launch_record_bytes: float = 1574.0
    # Between host and GPU.
    launch_to_start_ns: float = 2900.0  # call returned -> first instruction on an idle GPU
    flag_to_host_ns: float = 550.0  # the GPU's store -> the host sees it
    host_read_ns: float = 1150.0  # the GPU reads host memory; so also the host's store -> a polling kernel sees it
    completion_ns: dict[WaitMode, float] = msgspec.field(default_factory=_completions)  # kernel end -> synchronised
    # The front end and the SMs.
    gap_stream_ns: float = 1400.0  # end of a kernel -> start of the next in its stream
    gap_graph_ns: float = 500.0  # the same between nodes of a graph
    kind_gap_ns: dict[str, float] = msgspec.field(default_factory=_kind_gaps)  # on top; pdl overlaps most of the gap
    gap_event_ns: float = 1250.0  # before a timing event
    gap_wait_ns: float = 300.0  # before a wait for an event that has happened already
    front_end_ns: float = 250.0  # between starts of kernels of different streams, or branches of a graph
    empty_kernel_ns: float = 64.0  # least duration of a kernel
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
    # PCIe traffic by act, in bytes; copies add their payload and its headers.
    traffic: dict[str, Traffic] = msgspec.field(default_factory=_traffic)
    argument_byte_traffic: float = 1.1
    idle_traffic_per_s: Traffic = Traffic(90e3, 280e3)
    counter_read_traffic: Traffic = Traffic(16e3, 21e3)
    counter_read_ns: float = 175e3
    telemetry_ns: float = 60e3
    # First acts of a process.
    cold_s: dict[str, float] = msgspec.field(default_factory=_cold)
    # The host suite.
    host_cores: int = 8
    host_call_ns: dict[str, float] = msgspec.field(default_factory=_host_calls)
    host_wakeup_ns: dict[str, float] = msgspec.field(default_factory=_host_wakeups)  # there and back
    host_copy_fixed_ns: float = 100.0
    host_cache_bytes: int = 1 << 20  # a core's share: smaller copies stay in it
    host_cache_bytes_per_s: float = 40e9  # one core, bytes counted once
    host_core_bytes_per_s: float = 12e9  # one core, beyond the cache
    host_memory_bytes_per_s: float = 60e9  # all cores together, beyond the cache

    @property
    def start_s(self) -> float:
        """Before the call -> the host sees the kernel's first act."""
        return (self.submit_ns + self.launch_to_start_ns + self.flag_to_host_ns) * 1e-9

    @property
    def start_estimate_s(self) -> float:
        """Before the call -> the kernel's first instruction."""
        return (self.submit_ns + self.launch_to_start_ns) * 1e-9

    def complete_s(self, wait: WaitMode) -> float:
        """The host sees an empty kernel's first act -> the synchronise returns."""
        return (self.empty_kernel_ns + self.completion_ns[wait] - self.flag_to_host_ns) * 1e-9

    @property
    def flag_round_trip_s(self) -> float:
        """Host writes, the GPU answers, the host sees it."""
        return (self.host_read_ns + self.flag_to_host_ns) * 1e-9

    def kernel_ns(self, duration_ns: float, grid_blocks: int = 1, block_threads: int = 32) -> float:
        """How long a kernel runs: as many waves as its blocks need."""
        blocks_at_once = self.sm_count * max(min(self.blocks_per_sm, self.threads_per_sm // block_threads), 1)
        return max(duration_ns, self.empty_kernel_ns) * math.ceil(grid_blocks / blocks_at_once)

    def queue_depth(self, argument_bytes: int) -> int:
        """Launches with that many bytes of arguments that may be outstanding in a stream before a call blocks."""
        return min(self.queue_slots, int(self.queue_buffer_bytes // (argument_bytes + self.launch_record_bytes)))

    def on_the_link_bytes(self, direction: str, size_bytes: float) -> float:
        """Bytes of the data packets of a copy, headers included."""
        header_bytes = self.packet_header_h2d_bytes if direction == "h2d" else self.packet_header_d2h_bytes
        return size_bytes * (self.packet_payload_bytes + header_bytes) / self.packet_payload_bytes

    def read_requests_bytes(self, size_bytes: float) -> float:
        """Bytes of the requests that the GPU sends to read that much host memory."""
        return size_bytes * self.read_request_bytes / self.packet_payload_bytes
