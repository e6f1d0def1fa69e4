"""The nodes of a captured graph: what a step launches, with names, shapes and arguments."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from microbench.gpu.experiment import check, driver

MOST_ARGUMENTS = 1024


class GraphNode(NamedTuple):
    """A node of a captured graph: its kind (kernel, memcpy, memset, …), and a kernel's name, grid, block and the bytes
    of its arguments, addresses included."""

    kind: str
    name: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    arguments: bytes = b""


def read_nodes(graph: Any) -> tuple[GraphNode, ...]:
    """The nodes of a graph in the driver's order; a child graph is replaced by its nodes."""
    count = int(check(driver.cuGraphGetNodes(graph))[-1])
    found = check(driver.cuGraphGetNodes(graph, count))[0][:count] if count else []
    nodes: list[GraphNode] = []
    for node in found:
        kind = check(driver.cuGraphNodeGetType(node))
        if kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH:
            nodes += read_nodes(check(driver.cuGraphChildGraphNodeGetGraph(node)))
        elif kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            nodes.append(_kernel_node(check(driver.cuGraphKernelNodeGetParams(node))))
        else:
            nodes.append(GraphNode(kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()))
    return tuple(nodes)


def _kernel_node(given: Any) -> GraphNode:
    function, kernel = int(given.func or 0), int(given.kern or 0)
    name_of, size_of, handle = (
        (driver.cuFuncGetName, driver.cuFuncGetParamInfo, driver.CUfunction(function))
        if function
        else (driver.cuKernelGetName, driver.cuKernelGetParamInfo, driver.CUkernel(kernel))
    )
    code, name = name_of(handle)
    return GraphNode(
        "kernel",
        demangled(name.decode(errors="replace")) if int(code) == 0 and name else "a kernel",
        (given.gridDimX, given.gridDimY, given.gridDimZ),
        (given.blockDimX, given.blockDimY, given.blockDimZ),
        _argument_bytes(int(given.kernelParams or 0), lambda place: size_of(handle, place)),
    )


def _argument_bytes(parameters: int, info: Callable[[int], Any]) -> bytes:
    """The bytes of a kernel's arguments; b"" if they are passed by ``extra`` or the driver is too old."""
    values = b""
    for place in range(MOST_ARGUMENTS if parameters else 0):
        code, *found = info(place)
        if int(code) != 0:
            break
        address = ctypes.c_void_p.from_address(parameters + place * ctypes.sizeof(ctypes.c_void_p)).value
        if address is None:
            break
        values += ctypes.string_at(address, int(found[1]))
    return values


@cache
def demangled(name: str) -> str:
    """A C++ name demangled and without its arguments; any other name unchanged."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and place and not text.startswith("(anonymous namespace)", place):
            text = text[:place]
            break
    return text.removeprefix("void ").strip()
