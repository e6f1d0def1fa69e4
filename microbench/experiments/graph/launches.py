"""Kernel nodes as the compiled loops of host/graph_loops.py make them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.gpu.cuda.context import check, entry_point
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.experiment import IntArray, driver, loops

# CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h: 72 bytes on 64-bit hosts.
KERNEL_NODE_PARAMS = np.dtype(
    {
        "names": ["function", "grid", "block", "shared_bytes", "parameters", "extra", "kernel", "context"],
        "formats": ["u8", ("u4", 3), ("u4", 3), "u4", "u8", "u8", "u8", "u8"],
        "offsets": [0, 8, 20, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)


def entries() -> IntArray:
    """The addresses that host/graph_loops.py calls."""
    return np.array([entry_point(name) for name in loops.ENTRY_NAMES], dtype=np.uint64).astype(np.int64)


def launch_row(submit: DriverSubmit) -> IntArray:
    """The arguments of a launch and the address of its call, as host/graph_loops.py captures it."""
    return np.append(submit.arguments, np.uint64(submit.address).astype(np.int64))


def kernel_params(function: int, count: int) -> npt.NDArray[Any]:
    """Parameters of ``count`` kernel nodes of one block."""
    params = np.zeros(count, dtype=KERNEL_NODE_PARAMS)
    params["function"], params["grid"], params["block"] = function, (1, 1, 1), (32, 1, 1)
    return params


def nodes_of(graph: Any) -> list[Any]:
    """The type of each node of a graph."""
    count = int(check(driver.cuGraphGetNodes(graph))[1])
    nodes = check(driver.cuGraphGetNodes(graph, count))[0] if count else []
    return [check(driver.cuGraphNodeGetType(node)) for node in nodes[:count]]
