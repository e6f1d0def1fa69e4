"""Makes rows of the graph suite by hand, every figure invented (in the manner of one GPU) and marked SIMULATED.

Cases, metrics and titles are those of the benchmarks themselves, so that words are tested against what is measured.
"""

from collections.abc import Callable

import numpy as np
from make_run import CHAINS, PROFILED_LONGER, make_run, measurement, outcome, with_suite
from msgspec.structs import replace

from microbench.core.bench import Preset, discover
from microbench.core.model import Fact, Measurement, Outcome, Param, Run

SUBMIT = {"loop": 3.3e-6, "cuda_core": 3.8e-6, "cupy_raw": 5.5e-6, "numba_configured": 11.8e-6, "torch_eager": 9e-6}
GAP_STREAM, GAP_GRAPH, EMPTY = 1.36e-6, 0.53e-6, 0.1e-6
WRITES = 0.1e-6
LAUNCH, REPLAY = 8.4e-6, 7.5e-6
# A phase of a graph's life: for each graph, for each node.
LIFE = {
    "capture": (4.4e-6, 0.4e-6), "build": (3.0e-6, 0.3e-6), "instantiate": (5e-6, 1.27e-6), "upload": (4e-6, 0.8e-6),
    "ready": (9e-6, 0.85e-6), "destroy": (3e-6, 0.45e-6), "first_launch": (6e-6, 0.8e-6),
    "uploaded_launch": (1.4e-6, 1.5e-9), "first_replay": (11e-6, 1.3e-6), "relaunch": (1.2e-6, 1.4e-9),
}  # fmt: skip
NODES = {
    "kernel_empty": (0.5e-6, 1.36e-6), "kernel": (0.86e-6, 1.76e-6), "pdl": (0.73e-6, 0.83e-6),
    "pdl_trigger": (0.53e-6, 0.56e-6), "kernel_prologue": (1.86e-6, 2.76e-6), "pdl_prologue": (1.73e-6, 1.83e-6),
    "pdl_trigger_prologue": (0.55e-6, 0.6e-6), "memset": (1.5e-6, 1.6e-6), "copy_h2d": (1.9e-6, 2.1e-6),
    "copy_d2h": (1.7e-6, 1.9e-6), "copy_d2d": (1.4e-6, 1.5e-6), "host": (9e-6, 7e-6), "event_record": (0.6e-6, 0.6e-6),
    "event_wait": (0.4e-6, 0.5e-6), "child": (0.9e-6, None), "empty": (0.1e-6, None), "if_taken": (4.1e-6, None),
    "if_skipped": (2.2e-6, None),
}  # fmt: skip
# The launch call of a long chain, where it differs from that of kernels.
USUAL_LAUNCH = 1.5e-6
NODE_LAUNCH = {
    "memset": 96e-6, "copy_h2d": 112e-6, "copy_d2h": 110e-6, "copy_d2d": 108e-6, "host": 130e-6,
    "event_record": 90e-6, "event_wait": 84e-6, "child": 1.9e-6, "empty": 1.3e-6, "if_taken": 2.6e-6,
    "if_skipped": 2.6e-6,
}  # fmt: skip
ITERATIONS = {"host_sync": 7.9e-6, "host_poll": 3.4e-6, "while": 4.5e-6, "tail_launch": 4.7e-6}
REFUSED = "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: not supported for conditional nodes"


def gain(params: dict[str, Param]) -> list[Measurement]:
    count, own_s = int(params["kernels"]), max(int(params["duration_ns"]) * 1e-9, EMPTY)
    submit_s = SUBMIT[str(params["submitter"])]
    if params["submitter"] == "torch_eager":  # its kernel writes, and takes as long as launch_gap's
        own_s = max(own_s, CHAINS["add", "one"][2] - PROFILED_LONGER) + WRITES
    stream_s = LAUNCH + submit_s - SUBMIT["loop"] + own_s + (count - 1) * max(submit_s, own_s + GAP_STREAM)
    graph_s = REPLAY + own_s + (count - 1) * (own_s + GAP_GRAPH)
    return [
        measurement("stream", stream_s / count, calls=count, spread=0.002),
        measurement("graph", graph_s / count, calls=count, spread=0.002),
    ]


def step(params: dict[str, Param]) -> list[Measurement]:
    """A piece as graph_gain measures it, repeated for each wait; a step takes half a microsecond more."""
    waits, copy_s = int(params["waits"]), int(params["copy_bytes"]) / 25e9
    piece = {**params, "kernels": int(params["kernels"]) // waits, "submitter": params["layer"]}
    stream_s, graph_s = (0.5e-6 + float(np.median(each.values)) * waits for each in gain(piece))
    figures = {"stream": stream_s + copy_s} if copy_s else {"stream": stream_s, "graph": graph_s}
    return [measurement(name, value, spread=0.002) for name, value in figures.items()]


def lifecycle(params: dict[str, Param]) -> list[Measurement]:
    nodes = int(params["nodes"])
    memory = {"device_memory": 1100.0 * nodes if nodes >= 100 else 0.0, "host_memory": 4096 + 2300.0 * nodes}
    return [
        *(measurement(name, constant + slope * nodes) for name, (constant, slope) in LIFE.items()),
        measurement("node", (1.3e-6 + 0.5e-6 * nodes) / nodes, calls=nodes, clock="device"),
        *(measurement(name, value, spread=0, n=3, clock="counter") for name, value in memory.items()),
    ]


def nodes(params: dict[str, Param]) -> list[Measurement]:
    kind = str(params["kind"])
    if kind in ITERATIONS:
        return [measurement("iteration", ITERATIONS[kind])]
    node_s, stream_s = NODES[kind]
    made = [measurement("node", node_s, clock="device", calls=200)]
    if stream_s is not None:
        made.append(measurement("stream", stream_s, clock="device", calls=200))
    made.append(measurement("launch", NODE_LAUNCH.get(kind, USUAL_LAUNCH)))
    made.append(measurement("instantiate", 0.9e-6, calls=220))
    return made if kind.startswith("if") else [*made, measurement("update", 0.2e-6, calls=220)]


def shape(params: dict[str, Param]) -> list[Measurement]:
    branches, own_s = int(params["branches"]), max(int(params["duration_ns"]) * 1e-9, EMPTY)
    side_by_side = min(branches, 16)
    graph_s = REPLAY + 64 / side_by_side * (own_s + GAP_GRAPH)
    streams_s = LAUNCH + max(64 * 3.3e-6 + branches * 0.6e-6, 64 / side_by_side * (own_s + GAP_STREAM))
    figures = {"graph": graph_s, "streams": streams_s, "graph_submit": 2e-6, "streams_submit": 64 * 3.3e-6}
    return [measurement(name, value, spread=0.002) for name, value in figures.items()]


MADE: dict[str, Callable[[dict[str, Param]], list[Measurement]]] = {
    "graph_gain": gain, "graph_lifecycle": lifecycle, "graph_nodes": nodes, "graph_shape": shape, "step_time": step,
}  # fmt: skip


def graph_outcomes(preset: Preset = "default", round: int = 0) -> list[Outcome]:
    outcomes = []
    for name, figures in MADE.items():
        for case in discover()[name].cases(preset):
            made = outcome(name, figures(dict(case.params)), round=round, **case.params)
            if str(case.params.get("kind", "")).startswith("if"):
                made = replace(made, facts=(Fact("update", None, "cuGraphExecUpdate", reason=REFUSED),))
            outcomes.append(made)
    return outcomes


def make_graph_run(*, preset: Preset = "default", rounds: int = 1) -> Run:
    outcomes = [made for round in range(rounds) for made in graph_outcomes(preset, round)]
    return with_suite(make_run(rounds=rounds), MADE, preset, outcomes)
