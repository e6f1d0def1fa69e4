"""Steps that allocate, use and free device memory: by nodes of a graph, in a stream, or not at all."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver

from microbench.errors import Skip
from microbench.gpu.api import SAFE_QUEUE_SLOTS, IntArray, Submit
from microbench.gpu.binding import bind_graph
from microbench.gpu.context import check
from microbench.gpu.graph_api import AllocationWay
from microbench.gpu.graphs.base import Case, Words, expect_words
from microbench.gpu.graphs.program import CallRow, Program
from microbench.gpu.recording import capture
from microbench.gpu.submit import Parameters, launch
from microbench.ops import Launch

KEEP_ALL = (1 << 64) - 1
HOW = "a fresh value went through the first and last word of each block"


class CudaStep:
    """See Step of graph_api.py."""

    def __init__(self, case: Case, way: AllocationWay, size_bytes: int, pairs: int) -> None:
        self._outside = way.endswith("_outside")
        if not self._outside and not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
            raise Skip("this GPU or driver has no memory pools")
        self._case = case
        self._way = way
        self._size_bytes = size_bytes
        self._stream = case.stream(0)
        self._pointer: IntArray = np.zeros(1, dtype=np.int64)
        self._source: Words = case.words(1)
        self._out: Words = case.words(pairs)
        self._random = np.random.default_rng()
        self._pool = None if self._outside or way == "graph_nodes" else self._own_pool(keeps=way == "stream_kept")
        if self._outside:
            self._pointer[0] = case.context.device_memory(size_bytes)
        rows = [row for pair in range(pairs) for row in self._pair(pair)]
        # stream_released: each step behind a synchronise, which has given the pages back.
        slots = 1 if way == "stream_released" else None
        self._program = program = Program(rows, scratch=self._pointer, waits_for=self._stream, queue_slots=slots)
        if way == "graph_nodes":
            self._load()
        else:
            program(1)
            case.context.synchronize()
        self.submit: Submit = self._as_graph() if way.startswith("graph") else program

    def _own_pool(self, *, keeps: bool) -> driver.CUmemoryPool:
        props = driver.CUmemPoolProps()
        props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = int(self._case.context.device)
        pool = check(driver.cuMemPoolCreate(props))
        self._case.context.own(lambda: driver.cuMemPoolDestroy(pool))
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        check(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(KEEP_ALL if keeps else 0)))
        return pool

    def _use(self, pair: int) -> CallRow:
        """The kernel takes the block's address from where the allocation has put it."""
        function = self._case.modules.function("graph", "pass_through")
        parameters = Parameters([(0, self._source.address, self._out.at(pair), self._size_bytes // 4 - 1)])
        parameters.point(0, int(self._pointer.ctypes.data))
        return CallRow.of(launch(function, Launch(block_threads=1), self._stream, parameters))

    def _pair(self, pair: int) -> list[CallRow]:
        use = self._use(pair)
        if self._outside:
            return [use]
        place = int(self._pointer.ctypes.data)
        if self._pool is None:
            allocate = CallRow.named("cuMemAllocAsync", [place, self._size_bytes, self._stream])
        else:
            allocate = CallRow.named(
                "cuMemAllocFromPoolAsync", [place, self._size_bytes, int(self._pool), self._stream]
            )
        return [allocate, use, CallRow.named("cuMemFreeAsync", [0, self._stream], takes=0)]

    def _load(self) -> None:
        """Load the kernel, which a capture would not: once on a block of its own."""
        self._pointer[0] = self._case.context.device_memory(self._size_bytes)
        Program([self._use(0)])(1)
        self._case.context.synchronize()

    def _as_graph(self) -> Submit:
        graph = capture(self._stream, lambda: self._program(1))
        self._case.context.own(lambda: driver.cuDeviceGraphMemTrim(self._case.context.device))
        executable = self._case.executable(graph)
        check(driver.cuGraphDestroy(graph))
        nodes = len(self._program)
        return bind_graph(executable, self._stream, max(SAFE_QUEUE_SLOTS // nodes, 1))

    def held_bytes(self) -> int:
        """See Step."""
        self.submit(1)
        self._case.context.synchronize()
        if self._outside:
            return self._size_bytes
        if self._pool is not None:
            held = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
            return int(check(driver.cuMemPoolGetAttribute(self._pool, held)))
        reserved = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
        return int(check(driver.cuDeviceGetGraphMemAttribute(self._case.context.device, reserved)))

    def check(self) -> str:
        """See Step."""
        value = int(self._random.integers(1, 1 << 30))
        self._source.write([value])
        self._out.write([])
        self.submit(1)
        self._case.context.synchronize()
        expect_words(self._out, [value + 1] * self._out.count)
        return HOW
