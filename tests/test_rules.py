"""Every rule on the bundled run with one thing changed: severity on both sides of its threshold, and its figures."""

from functools import partial

import pytest
from changed_run import bundled, changed, figures, in_one_round, scaled, with_facts, with_gpu, with_metrics, without
from make_link_run import measured_batches, with_batches
from msgspec.structs import replace
from read_findings import by_rule, check_shape

from microbench.core.model import Fact, LinkInfo, Measurement, Outcome, Run

WHOLE_LAUNCH = bundled("launch")
HOST, LAUNCH, GRAPH, LINK, MEMORY, COMPUTE = (
    in_one_round(bundled(*suites))
    for suites in (("host",), ("launch",), ("launch", "graph"), ("link",), ("memory",), ("compute",))
)
TWO = bundled(name="nvidia-h200-x2")
HIGHEST_HZ = MEMORY.sessions[-1].environment.gpus[0].memory_clock_max_hz or 0.0
ALONE = without(MEMORY, "memory_atomic", space="global")


def slow_call(old: Measurement, share: float, worst: float = 3.0) -> Measurement:
    """The measurement with its slowest calls at these multiples of the median call."""
    calls = old.per_call
    return old if calls is None else replace(old, per_call=replace(calls, p99=share * calls.p50, max=worst * calls.p50))


def halved(run: Run) -> Run:
    fact = Fact("shape", "64x64x64", "halved until it fits")
    return changed(run, lambda one: replace(one, facts=(fact,)) if one.case.benchmark == "gemm_search" else one)


def memory_clock(share: float) -> Run:
    """The run of memory with its clock lowered to that share of the highest."""

    def slower(one: Outcome) -> Outcome:
        telemetry = {device: replace(old, memory_clock_hz=share * HIGHEST_HZ) for device, old in one.telemetry.items()}
        return replace(one, telemetry=telemetry)

    return changed(MEMORY, slower)


def pairs(status: str) -> Run:
    """The run of two GPUs in which every pair ended with this status."""

    def ended(one: Outcome) -> Outcome:
        pair = one.case.benchmark == "link_peer"
        return replace(one, status=status, reason="byte 3 differs", measurements=()) if pair else one

    return changed(TWO, ended)


# Faults to the host that lose less than their threshold.
TO_HOST = scaled(LINK, "link_managed", "bandwidth", 1.4, way="fault_to_host")

# Many small copies as an H100 made them, and without the kernel that gathers 256 pieces.
MANY = with_batches(LINK, measured_batches("H100"))
CALLS = without(without(without(MANY, "link_batch", way="gather"), "link_batch", pieces_copied=16), "link_batch",
                pieces_copied=1024)  # fmt: skip


def launching(factor: float) -> Run:
    """The run of launches with all that measured the compiled loop's call scaled."""
    return scaled(scaled(LAUNCH, "launch_cost", "submit", factor), "launch_layers", "submit", factor, layer="loop")


CASES: list[tuple[str, Run, str, list[str]]] = [
    ("host.clock", HOST, "good", ["27.0 ns", "1.00 ns"]),
    ("host.clock", scaled(HOST, "host_timer", "call", 30), "good", ["810 ns", "1.00 ns"]),
    ("host.clock", scaled(HOST, "host_timer", "call", 45), "warning", ["1.22 µs", "1.00 ns"]),
    ("host.clock", scaled(HOST, "host_timer", "step", 1100), "warning", ["27.0 ns", "1.10 µs"]),
    ("host.wakeup", HOST, "advice", ["11.4 µs", "31×"]),
    ("host.wakeup", scaled(HOST, "host_wakeup", "round_trip", 10, how="spin"), "advice", ["11.4 µs", "3.1×"]),
    ("host.wakeup", scaled(HOST, "host_wakeup", "round_trip", 13, how="spin"), "note", ["11.4 µs", "2.4×"]),
    ("host.rounds", HOST, "note", ["10 %"]),
    ("launch.starving", LAUNCH, "advice", ["2.33 µs", "28.1 µs", "20.9 µs"]),
    ("launch.starving", without(LAUNCH, "launch_layers"), "advice", ["2.29 µs", "3.05 µs", "755 ns"]),
    ("launch.starving", launching(3), "warning", ["8.49 µs", "2.56 µs", "3.56 µs"]),
    ("launch.starving", launching(0.5), "warning", ["785 ns", "2.56 µs", "3.56 µs"]),
    ("launch.starving", scaled(LAUNCH, "launch_gap", "stream", 3), "good", ["3.08 µs", "3.87 µs"]),
    ("launch.layers", LAUNCH, "advice", ["5.29 µs", "3.14 µs", "9.5×"]),
    ("launch.layers", without(LAUNCH, "launch_layers", layer="cuda_core"), "advice", ["6.09 µs", "3.14 µs", "9.5×"]),
    ("launch.traffic", LAUNCH, "note", ["1.77 kB", "286 B", "0.77 %"]),
    ("launch.traffic", scaled(LAUNCH, "launch_traffic", "received", 6), "note", ["10.6 kB", "286 B", "4.6 %"]),
    ("launch.traffic", scaled(LAUNCH, "launch_traffic", "received", 7), "warning", ["12.4 kB", "286 B", "5.4 %"]),
    ("launch.traffic", with_gpu(LAUNCH, lambda gpu: replace(gpu, link=LinkInfo())), "note", ["1.77 kB", "286 B"]),
    ("launch.traffic_check", scaled(LAUNCH, "launch_traffic", "received_per_byte", 0.9), "warning", []),
    ("launch.traffic_check", scaled(LAUNCH, "launch_traffic", "sent_per_byte", 1.35), "warning", []),
    ("launch.wait", LAUNCH, "advice", ["36.7 µs", "92.0 µs", "2.76 µs"]),
    ("launch.wait", scaled(LAUNCH, "launch_sync", "from_kernel", 0.1, wait="blocking"), "advice",
     ["3.67 µs", "9.20 µs", "2.76 µs"]),
    ("launch.wait", scaled(LAUNCH, "launch_sync", "from_kernel", 0.04, wait="blocking"), "note",
     ["3.68 µs", "2.76 µs"]),
    ("launch.wait", without(LAUNCH, "launch_sync", duration_ns=30_000), "advice", ["92.0 µs", "255 µs", "4.71 µs"]),
    ("launch.calls", LAUNCH, "advice", ["893 ns", "3.08 µs", "133 ns"]),
    ("launch.calls", scaled(LAUNCH, "launch_sync", "record_untimed", 3.2, wait="spin"), "advice",
     ["893 ns", "3.08 µs", "425 ns"]),
    ("launch.calls", scaled(LAUNCH, "launch_sync", "record_untimed", 3.6, wait="spin"), "note",
     ["893 ns", "3.08 µs", "479 ns"]),
    ("launch.signals", LAUNCH, "advice", ["41.1 µs", "5.02 µs", "1.66 µs"]),
    ("launch.signals", scaled(LAUNCH, "launch_signals", "between", 0.26, way="host_function"), "advice",
     ["10.7 µs", "5.02 µs", "1.66 µs"]),
    ("launch.signals", scaled(LAUNCH, "launch_signals", "between", 0.22, way="host_function"), "note",
     ["9.04 µs", "5.02 µs", "1.66 µs"]),
    ("launch.signals", without(LAUNCH, "launch_signals", way="write_wait"), "advice", ["41.1 µs", "1.66 µs"]),
    ("launch.threads", LAUNCH, "note", ["2.2×", "53.8 %"]),
    ("launch.threads", scaled(LAUNCH, "launch_threads", "rate", 1.2, threads=1), "advice", ["1.79×", "44.8 %"]),
    ("launch.threads", scaled(LAUNCH, "launch_threads", "rate", 4, threads=1), "advice", []),
    ("launch.arguments", scaled(LAUNCH, "launch_arguments", "submit", 1.08, argument_bytes=4096), "advice",
     ["369 ns", "1.12×"]),
    ("launch.tail", LAUNCH, "good", ["1.98×", "7.1×"]),
    ("launch.tail", with_metrics(LAUNCH, "launch_cost", partial(slow_call, share=2.1)), "warning", ["2.1×", "3.0×"]),
    ("launch.tail", with_metrics(LAUNCH, "launch_cost", partial(slow_call, share=1.9, worst=11)), "note",
     ["1.87×", "11×"]),
    ("launch.tail", with_metrics(LAUNCH, "launch_cost", partial(slow_call, share=1.9, worst=9)), "good",
     ["1.87×", "8.9×"]),
    ("launch.rounds", LAUNCH, "note", ["10 %"]), ("launch.noise", WHOLE_LAUNCH, "warning", ["52.1 %"]),
    ("graph.crossover", GRAPH, "note", ["1.05×", "18.5 µs"]),
    ("graph.crossover", scaled(GRAPH, "graph_gain", "stream", 2), "note", ["1.05×", "201 µs"]),
    ("graph.crossover", scaled(GRAPH, "graph_gain", "stream", 0.1), "note", ["1.05×"]),
    ("graph.library", GRAPH, "note", ["1.20 ms", "368 µs", "1.49×"]),
    ("graph.library", scaled(GRAPH, "graph_library", "make", 8), "note", ["9.06 ms", "368 µs", "1.49×"]),
    ("graph.library", scaled(GRAPH, "graph_library", "make", 13), "advice", ["14.7 ms", "368 µs", "1.49×"]),
    ("graph.library", without(GRAPH, "graph_lifecycle"), "note", ["1.20 ms", "2.07 µs"]),
    ("graph.command_buffers", GRAPH, "advice", ["1.69×", "2.9×"]),
    ("graph.command_buffers", scaled(GRAPH, "graph_jax", "graph", 1.4, output="donated"), "advice", ["1.69×", "2.1×"]),
    ("graph.command_buffers", scaled(GRAPH, "graph_jax", "graph", 1.5, output="donated"), "note", ["1.69×", "1.94×"]),
    ("graph.command_buffers", scaled(GRAPH, "graph_jax", "graph", 5), "advice", ["3.0×", "0.58×"]),
    ("graph.command_buffers", without(GRAPH, "graph_jax", output="new"), "note", ["2.9×"]),
    ("graph.upload", GRAPH, "advice", ["182 µs", "1.90 µs", "164 µs"]),
    ("graph.upload", scaled(GRAPH, "graph_lifecycle", "uploaded_launch", 45), "advice",
     ["182 µs", "85.3 µs", "164 µs"]),
    ("graph.upload", scaled(GRAPH, "graph_lifecycle", "uploaded_launch", 50), "note", ["182 µs", "94.8 µs", "164 µs"]),
    ("graph.update", GRAPH, "advice", ["22.4 µs", "287 µs", "13×"]),
    ("graph.update", scaled(GRAPH, "graph_update", ("change", "record", "dispose", "next_replay"), 0.15, way="rebuild"),
     "note", ["22.4 µs", "27.3 µs", "1.22×"]),
    ("graph.one_by_one", GRAPH, "advice", ["402 µs", "1.44 µs"]),
    ("graph.one_by_one", scaled(GRAPH, "graph_nodes", "launch", 50, kind="kernel_empty"), "advice",
     ["402 µs", "72.2 µs"]),
    ("graph.pdl", GRAPH, "advice", ["1 µs", "3.2×", "3.5×"]),
    ("graph.pdl", scaled(GRAPH, "graph_nodes", ("stream", "node"), 0.25, kind="kernel_prologue"), "note", ["1 µs"]),
    ("graph.pdl", without(GRAPH, "graph_nodes", kind="kernel_prologue"), "advice", ["2.1×", "1.61×"]),
    ("graph.shape", GRAPH, "advice", ["36.6 µs", "8.4×", "5.57 µs"]),
    ("graph.shape", scaled(GRAPH, "graph_shape", "graph_submit", 0.1, shape="independent"), "note",
     ["36.6 µs", "8.4×", "5.57 µs"]),
    ("graph.shape", scaled(GRAPH, "graph_shape", "graph", 0.01, shape="chain"), "advice", ["5.57 µs"]),
    ("graph.memory", GRAPH, "advice", ["8.06 µs", "11.4 µs", "93.2 µs"]),
    ("graph.memory", without(GRAPH, "graph_memory", way="stream_released"), "note", ["8.06 µs", "11.4 µs"]),
    ("graph.model", GRAPH, "good", ["0.62 %", "9.2 %"]),
    ("graph.model", scaled(GRAPH, "step_time", "stream", 1.5), "note", ["17.5 %", "39.5 %"]),
    ("graph.rounds", GRAPH, "note", ["10 %"]),
    ("memory.verdict", MEMORY, "good", ["94.2 %", "4.81 TB/s", "91.6 %"]),
    ("memory.verdict", scaled(MEMORY, "memory_stream", "bandwidth", 0.94), "good", ["88.5 %", "4.81 TB/s", "86.1 %"]),
    ("memory.verdict", scaled(MEMORY, "memory_stream", "bandwidth", 0.91), "warning",
     ["83.3 %", "4.81 TB/s", "4.45 TB/s"]),
    ("memory.verdict", scaled(MEMORY, "memory_stream", "bandwidth", 0.5), "problem",
     ["45.8 %", "4.81 TB/s", "4.45 TB/s"]),
    ("memory.verdict", scaled(MEMORY, "memory_stream", "bandwidth", 0.8, kernel="triad"), "warning",
     ["73.3 %", "4.81 TB/s"]),
    ("memory.verdict", scaled(MEMORY, "memory_stream", "bandwidth", 1.2), "warning", ["113 %", "4.81 TB/s"]),
    ("memory.verdict", without(MEMORY, "memory_stream"), "good", ["95.3 %", "4.81 TB/s"]),
    ("memory.verdict", with_gpu(MEMORY, lambda gpu: replace(gpu, memory_clock_max_hz=None)), "note", ["4.67 TB/s"]),
    ("memory.over_limit", scaled(MEMORY, "memory_stream", "bandwidth", 1.2), "warning",
     ["116 %", "5.60 TB/s", "4.81 TB/s"]),
    ("memory.over_limit", scaled(MEMORY, "memory_levels", "per_clock", 2, space="shared"), "warning",
     ["196 %", "251 B", "128 B"]),
    ("memory.python", MEMORY, "advice", ["63.7 %", "7.9 %"]),
    ("memory.python", without(MEMORY, "memory_stream", implementation="cupy"), "note", ["7.9 %"]),
    ("memory.python", scaled(MEMORY, "memory_stream", "bandwidth", 0.97, implementation="numba"), "advice",
     ["63.7 %", "10.6 %"]),
    ("memory.levels", MEMORY, "note", ["32.5 TB/s", "9.56 TB/s", "4.59 TB/s"]),
    ("memory.atomic", MEMORY, "advice", ["1005×"]),
    ("memory.atomic", scaled(ALONE, "memory_atomic", "additions", 34, spread="same"), "advice", ["4.2×"]),
    ("memory.atomic", scaled(ALONE, "memory_atomic", "additions", 37, spread="same"), "note", ["3.9×"]),
    ("memory.copy", MEMORY, "note", ["99.2 %", "1.94 µs", "6.34 TB/s"]),
    ("memory.copy", scaled(MEMORY, "memory_copy", "bandwidth", 0.92, way="copy"), "note",
     ["91.3 %", "2.11 µs", "5.83 TB/s"]),
    ("memory.copy", scaled(MEMORY, "memory_copy", "bandwidth", 0.89, way="copy"), "advice",
     ["88.3 %", "2.18 µs", "5.64 TB/s"]),
    ("memory.copy_2d", MEMORY, "advice", ["39.7 %"]),
    ("memory.copy_2d", scaled(MEMORY, "memory_copy", "bandwidth", 2.2, way="copy_2d"), "advice", ["87.3 %"]),
    ("memory.allocate", MEMORY, "advice", ["113 µs", "810 ns", "139×"]),
    ("memory.allocate", scaled(MEMORY, "memory_allocate", ("allocate", "free"), 45, way="pool"), "advice",
     ["113 µs", "36.5 µs", "3.1×"]),
    ("memory.allocate", scaled(MEMORY, "memory_allocate", ("allocate", "free"), 48, way="pool"), "note",
     ["113 µs", "38.9 µs", "2.9×"]),
    ("memory.allocate", without(MEMORY, "memory_allocate", way="pool"), "advice", ["113 µs", "2.15 µs", "53×"]),
    ("memory.capacity", MEMORY, "note", ["99.6 %"]),
    ("memory.capacity", with_facts(MEMORY, "memory_capacity", largest_block_bytes=148_000_000_000), "note", ["99.6 %"]),
    ("memory.capacity", with_facts(MEMORY, "memory_capacity", largest_block_bytes=145_000_000_000), "advice",
     ["99.6 %"]),
    ("memory.capacity", with_facts(MEMORY, "memory_capacity", obtainable_bytes=None, largest_block_bytes=None), "note",
     []),
    ("memory.clock", memory_clock(0.98), "warning", ["2.0 %"]),
    ("memory.rounds", MEMORY, "note", ["10 %"]),
    ("compute.verdict", COMPUTE, "good", ["72.6 %", "94.7 %"]),
    ("compute.verdict", scaled(COMPUTE, "gemm_throughput", "rate", 0.85), "good", ["61.7 %", "80.5 %"]),
    ("compute.verdict", scaled(COMPUTE, "gemm_throughput", "rate", 0.8), "warning", ["58.1 %", "75.7 %"]),
    ("compute.verdict", scaled(COMPUTE, "gemm_throughput", "rate", 0.5), "problem", ["36.3 %", "47.3 %"]),
    ("compute.verdict", scaled(COMPUTE, "gemm_throughput", "rate", 2), "warning", ["145 %", "189 %"]),
    ("compute.verdict", with_gpu(COMPUTE, lambda gpu: replace(gpu, compute_capability=(6, 0))), "note", []),
    ("compute.over_limit", scaled(COMPUTE, "gemm_throughput", "rate", 2), "warning", ["168 %"]),
    ("compute.limited", COMPUTE, "note", ["35.4 %", "98.2 %"]),
    ("compute.limited", with_gpu(COMPUTE, lambda gpu: replace(gpu, power_limit_w=1500.0)), "note",
     ["35.4 %", "45.8 %"]),
    ("compute.limited", with_facts(COMPUTE, "gemm_sustained", throttle_reasons="software thermal slowdown from 1 s on"),
     "warning", ["35.4 %", "98.2 %"]),
    ("compute.sustained", COMPUTE, "note", ["83.6 %"]),
    ("compute.sustained", scaled(COMPUTE, "gemm_sustained", "burst", 0.7), "note", ["119 %"]),
    ("compute.data", COMPUTE, "advice", ["27.1 %"]),
    ("compute.data", scaled(COMPUTE, "gemm_data", "rate", 0.785, data="zeros"), "note", ["0.21 %"]),
    ("compute.data", scaled(COMPUTE, "gemm_data", "rate", 0.81, data="zeros"), "advice", ["3.0 %"]),
    ("compute.data", scaled(COMPUTE, "gemm_data", "rate", 0.77, data="zeros"), "advice", ["2.1 %"]),
    ("compute.libraries", COMPUTE, "advice", ["94.4 %", "56.9 %"]),
    ("compute.libraries", without(COMPUTE, "gemm_throughput", library="torch"), "advice", ["94.4 %"]),
    ("compute.libraries",
     without(scaled(COMPUTE, "gemm_throughput", "against_per_clock", 1.02), "gemm_throughput", library="torch"), "note",
     ["96.3 %"]),
    ("compute.shapes", COMPUTE, "note", []),
    ("compute.launches", scaled(COMPUTE, "gemm_shapes", "call", 3, rows=1), "advice", ["3.2×", "41.9 µs", "14.1 µs"]),
    ("compute.grouped", COMPUTE, "advice", ["1.23 ms", "310 µs", "8.96 µs"]),
    ("compute.grouped", scaled(COMPUTE, "gemm_grouped", "batch", 200), "note", ["1.23 ms", "310 µs", "1.79 ms"]),
    ("compute.ceiling", COMPUTE, "good", ["100 %", "83.6 %"]),
    ("compute.ceiling", scaled(COMPUTE, "tensor_ceiling", ("rate", "per_clock"), 0.96, path="wgmma"), "note",
     ["96.0 %", "87.1 %"]),
    ("compute.path", COMPUTE, "advice", ["66.3 %"]),
    ("compute.path", scaled(COMPUTE, "tensor_ceiling", "per_clock", 1.34, path="mma"), "advice", ["88.8 %"]),
    ("compute.path", scaled(COMPUTE, "tensor_ceiling", "per_clock", 1.38, path="mma"), "note", ["91.5 %"]),
    ("compute.path", without(COMPUTE, "tensor_ceiling", path="wgmma"), "advice", ["66.3 %"]),
    ("compute.accumulate", scaled(COMPUTE, "gemm_throughput", "rate", 1.65, dtype="fp16_acc16"), "note", ["1.66×"]),
    ("compute.accumulate", scaled(COMPUTE, "gemm_throughput", "rate", 1.8, dtype="fp16_acc16"), "advice", ["1.81×"]),
    ("compute.halved", halved(COMPUTE), "warning", []), ("compute.rounds", COMPUTE, "note", ["10 %"]),
    ("link.verdict", LINK, "good", ["55.2 GB/s", "94.5 %", "55.2 GB/s"]),
    ("link.verdict", scaled(LINK, "link_copy", "bandwidth", 0.8, direction="d2h"), "warning", ["76.6 %"]),
    ("link.verdict", scaled(LINK, "link_copy", "bandwidth", 0.5), "problem", ["47.2 %"]),
    ("link.over_limit", scaled(LINK, "link_copy", "bandwidth", 1.1), "warning", ["105 %", "60.7 GB/s", "57.6 GB/s"]),
    ("link.copy_size", LINK, "note", ["90 %"]), ("link.pin", LINK, "advice", ["13.3 %"]),
    ("link.pin", scaled(LINK, "link_copy", "bandwidth_host", 6.8, memory="pageable"), "note", ["90.7 %"]),
    ("link.both", LINK, "good", ["101 GB/s", "91.8 %"]),
    ("link.both", scaled(LINK, "link_bidirectional", "sum_bandwidth", 0.72), "good", ["73.0 GB/s", "66.1 %"]),
    ("link.both", scaled(LINK, "link_bidirectional", "sum_bandwidth", 0.69), "warning", ["69.9 GB/s", "63.4 %"]),
    ("link.zero_copy", LINK, "advice", ["51.3 GB/s", "52.6 GB/s", "128 B"]),
    ("link.zero_copy", without(LINK, "link_zero_copy", offset_bytes=32), "note", ["51.3 GB/s", "52.6 GB/s", "128 B"]),
    ("link.zero_copy",
     scaled(without(LINK, "link_zero_copy", offset_bytes=32), "link_zero_copy", "bandwidth", 0.94, width_bytes=4),
     "advice", ["51.3 GB/s", "52.6 GB/s", "128 B"]),
    ("link.chunks", LINK, "advice", ["42.4 %", "50 %"]),
    ("link.chunks", without(LINK, "link_chunks", streams=2), "note", []),
    ("link.batch", MANY, "advice", ["32.2 GB/s", "87×", "55.1 %"]),
    ("link.batch", CALLS, "advice", ["19.7 GB/s", "2.4×", "33.8 %"]),
    ("link.batch", scaled(CALLS, "link_batch", "bandwidth", 0.47, way="batched"), "advice",
     ["9.28 GB/s", "1.14×", "15.9 %"]),
    ("link.batch", scaled(CALLS, "link_batch", "bandwidth", 0.45, way="batched"), "note",
     ["8.89 GB/s", "1.09×", "15.2 %"]),
    ("link.managed", LINK, "advice", ["7.4×", "6.80 GB/s", "50.4 GB/s"]),
    ("link.managed", scaled(TO_HOST, "link_managed", "bandwidth", 5.8, way="fault_to_device"), "advice",
     ["1.28×", "39.5 GB/s", "50.4 GB/s"]),
    ("link.managed", scaled(TO_HOST, "link_managed", "bandwidth", 6, way="fault_to_device"), "note",
     ["40.8 GB/s", "50.4 GB/s"]),
    ("link.settings", with_facts(LINK, "link_state", max_payload_bytes=128), "advice", ["128 B"]),
    ("link.settings", with_facts(LINK, "link_state", resizable_bar=False), "note", []),
    ("link.errors", with_facts(LINK, "link_state", pcie_replays_risen=7), "problem", []),
    ("link.errors", with_facts(LINK, "link_state", pcie_replays_risen=1), "note", []),
    ("link.concurrent", TWO, "good", ["99.9 %", "55.1 GB/s", "55.2 GB/s"]),
    ("link.concurrent", scaled(TWO, "link_concurrent", "together", 0.5), "warning",
     ["49.9 %", "27.6 GB/s", "55.2 GB/s"]),
    ("link.peers", TWO, "good", ["394 GB/s", "82.3 %", "10×"]),
    ("link.peers", scaled(TWO, "link_peer", "bandwidth", 0.8, first=0), "advice", ["394 GB/s", "315 GB/s", "10×"]),
    ("link.peers", pairs("failed"), "problem", []), ("link.peers", pairs("skipped"), "note", []),
    ("link.rounds", LINK, "note", ["10 %"]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "run", "severity", "named"), CASES)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, named: list[str]) -> None:
    finding = by_rule(run, rule.partition(".")[0])[rule]
    assert finding.severity == severity
    assert figures(finding) == named
    check_shape(finding)


@pytest.mark.parametrize(("rule", "run"), [
    ("launch.traffic_check", LAUNCH),
    ("launch.traffic_check", scaled(LAUNCH, "launch_traffic", "sent_per_byte", 1.25)),
    ("launch.arguments", scaled(LAUNCH, "launch_arguments", "submit", 1.05, argument_bytes=4096)),
    ("launch.rounds", WHOLE_LAUNCH), ("launch.noise", LAUNCH), ("graph.crossover", without(GRAPH, "graph_gain")),
    ("graph.one_by_one", scaled(GRAPH, "graph_nodes", "launch", 400, kind="kernel_empty")),
    ("graph.one_by_one", without(GRAPH, "graph_nodes", kind="kernel_empty")),
    ("graph.model", without(GRAPH, "step_time")), ("memory.over_limit", MEMORY), ("memory.clock", MEMORY),
    ("memory.clock", memory_clock(0.995)),
    ("memory.copy_2d", scaled(MEMORY, "memory_copy", "bandwidth", 2.4, way="copy_2d")),
    ("memory.atomic", without(MEMORY, "memory_atomic", spread="same")),
    ("memory.allocate", without(MEMORY, "memory_allocate", way="malloc")),
    ("memory.python", without(MEMORY, "memory_stream", implementation="cuda")),
    ("compute.over_limit", COMPUTE), ("compute.halved", COMPUTE),
    ("compute.accumulate", scaled(COMPUTE, "gemm_throughput", "rate", 1.25, dtype="fp16_acc16")),
    ("compute.launches", COMPUTE),
    ("compute.launches", scaled(scaled(COMPUTE, "gemm_shapes", "call", 3, rows=1), "gemm_shapes", "graph", 3, rows=1)),
    ("compute.libraries",
     without(without(COMPUTE, "gemm_throughput", library="torch"), "gemm_throughput", library="cupy")),
    ("compute.path", without(COMPUTE, "tensor_ceiling")), ("link.errors", LINK), ("link.over_limit", LINK),
    ("link.settings", LINK), ("link.batch", LINK), ("link.batch", without(MANY, "link_batch", way="loop")),
])  # fmt: skip
def test_a_rule_without_cause_is_silent(rule: str, run: Run) -> None:
    assert rule not in by_rule(run, rule.partition(".")[0])
