"""A fit by hand, whose predictions can be worked out on paper."""

from microbench.gpu.layers.base import layer_titles
from microbench.model.constants import Constant, Fit, Misfit, Reach
from microbench.model.model import WAYS

CALL_S, GAP_S, GRAPH_GAP_S = 2e-6, 1e-6, 0.5e-6
TORCH_S = 8e-6
VALUES = {
    "call.loop.0": CALL_S, "call.loop.4": 3e-6, "call.torch_eager.1": TORCH_S, "call.cupy_raw.0": 4e-6,
    "replay.loop": 1e-6, "way": 3e-6, "empty": 0.0, "complete": 2e-6, "sync": 0.2e-6, "gap_stream": GAP_S,
    "gap_graph": GRAPH_GAP_S, "write_stream": 0.0, "write_graph": 0.0, "code_graph": 0.0, "one_stream_stream": 0.0,
    "one_stream_graph": 0.0, "memset_graph": 0.0, "h2d_graph": 0.0, "h2d_small_graph": 0.0, "d2h_graph": 0.0,
    "branch_graph": 0.0,
    "wide_graph": 0.0, "wide_blocks": 1056.0, "replay_node": 0.0,
    "replay_way": 3e-6, "replay_root": 0.0, "make": 10e-6, "make_node": 2e-6, "queue": 1000.0, "front_end": 0.2e-6,
    "memory": 4e12, "h2d_call": 2e-6, "h2d_way": 1e-6, "h2d_latency": 2e-6, "h2d_rate": 50e9, "d2h_call": 2e-6,
    "d2h_way": 1e-6, "d2h_latency": 2e-6, "d2h_rate": 50e9, "h2d_pageable_latency": 6e-6, "h2d_pageable_rate": 16e9,
    "d2h_pageable_latency": 6e-6, "d2h_pageable_rate": 16e9,
}  # fmt: skip


def make_fit(*, half: float = 0.02, most: float = 0.02, steps: int = 40, **values: float) -> Fit:
    """The fit with some constants changed; a name's dots are written as __.

    Each constant is known within the share ``half`` of itself, and steps lie within ``most`` of the law.
    """
    known = VALUES | {name.replace("__", "."): value for name, value in values.items()}
    make, node = known["make"], known.pop("make_node")
    constants = {
        name: Constant(value, value * (1 - half), value * (1 + half), (f"bench_{name.split('.')[0]}[a=1] metric",))
        for name, value in known.items()
    }
    made = [
        (nodes, Constant(taken, taken * (1 - half), taken * (1 + half), ("bench_make[a=1] metric",)))
        for nodes in (1, 1000)
        for taken in [make + nodes * node]
    ]
    return Fit(
        constants=constants, layers=("loop", "torch_eager", "cupy_raw"),
        misfit={(way, pace): Misfit(most / 2, most, steps) for way in WAYS for pace in ("host", "gpu")},
        reach=Reach(kernels=1000, copy_bytes=1 << 26, streams=64), device="GPU-made", run_id="made",
        titles=layer_titles(), made=tuple(made),
    )  # fmt: skip
