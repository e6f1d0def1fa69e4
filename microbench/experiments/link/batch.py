"""Many small pieces of pinned memory to the device: a loop of copies, one batched call, or one kernel that gathers."""

from typing import Literal

import numpy as np

from microbench.core.ops import Copy, Launch
from microbench.gpu.cuda.buffers import Copied, HostBuffer
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Parameters, Program, launch
from microbench.gpu.experiment import Case, Skip, Submit, check, driver, experiment
from microbench.gpu.fake.machine import FakeProgram, FakeSubmit, Machine, call_of
from microbench.gpu.fake.transfers import FakeTransfer

BatchWay = Literal["loop", "batched", "gather"]
BATCH_VERSION = 12080  # CUDA 12.8 has cuMemcpyBatchAsync
GATHER_THREADS, VECTOR_BYTES = 256, 16


class BatchedCopy(Copied):
    """A Transfer of ``count`` pieces, each half of its row on both sides, so that no two pieces touch."""

    submit: Submit

    def __init__(self, case: Case, way: BatchWay, piece_bytes: int, count: int) -> None:
        require_vectors(piece_bytes)
        self.size_bytes, self._piece = piece_bytes * count, piece_bytes
        self._host, stream = HostBuffer(case, "pinned", 2 * self.size_bytes), case.stream(0)
        mapped, target = int(self._host.device_address or 0), case.device_memory(2 * self.size_bytes)
        super().__init__(case, mapped, target, 2 * self.size_bytes)
        rows = 2 * piece_bytes * np.arange(count, dtype=np.uint64)
        sources, targets = (rows + np.uint64(start) for start in (self._host.address, target))
        if way == "loop":
            copies = zip(targets.tolist(), sources.tolist(), strict=True)
            calls = [CallRow.named("cuMemcpyHtoDAsync", [to, start, piece_bytes, stream]) for to, start in copies]
            self.submit = Program(calls, waits_for=stream)
        elif way == "gather":
            row = Parameters([(mapped, target, piece_bytes, 2 * piece_bytes)])
            op = Launch(grid_blocks=count, block_threads=GATHER_THREADS)
            self.submit = launch(case, case.function("link_batch", "gather"), op, row)
        else:
            case.require_driver(BATCH_VERSION, "batched copies")
            address = check(driver.cuGetProcAddress(b"cuMemcpyBatchAsync", BATCH_VERSION, 0))[0]
            sizes, attributes = np.full(count, piece_bytes, dtype=np.uint64), np.zeros(6, dtype=np.uint32)
            attributes[0] = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; the hints of both locations stay empty
            keep = targets, sources, sizes, attributes, np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64)
            to, start, size, attribute, index, fails = (int(array.ctypes.data) for array in keep)
            arguments = [to, start, size, count, attribute, index, 1, fails, stream]
            self.submit = DriverSubmit("cuMemcpyBatchAsync", arguments, stream=stream, keep=keep, address=int(address))

    def check(self) -> str:
        """Compare each piece, and what lies between. Raises MeasurementError for the first wrong byte."""
        pitch, destination = 2 * self._piece, self._destination
        self._patterns.verify_rows(destination, self._buffer_bytes, self._seed, self._piece, pitch)
        return "every byte of the pieces and between them compared on the GPU"


class SimulatedBatch(FakeTransfer, BatchedCopy):
    """A batched call is one copy; the gathering kernel reads as fast as the SMs can."""

    def __init__(self, machine: Machine, way: BatchWay, piece_bytes: int, count: int) -> None:
        require_vectors(piece_bytes)
        costs, call = machine.costs, call_of(Copy("h2d", piece_bytes * count), machine.costs)
        if way == "gather":
            rate = min(costs.links.sm_bytes_per_s[VECTOR_BYTES], costs.link_bytes_per_s)
            call = call_of(Launch(), costs).with_item(duration_ns=piece_bytes * count / rate * 1e9)
        super().__init__(machine, call, piece_bytes * count)
        if way == "loop":
            copies = FakeSubmit(machine, call_of(Copy("h2d", piece_bytes), costs), self.move)
            self.submit = FakeProgram(machine, lambda: copies(count), 1, stream=0)


def require_vectors(piece_bytes: int) -> None:
    """Raise Skip for pieces that are no whole number of vectors."""
    if piece_bytes % VECTOR_BYTES:
        raise Skip(f"pieces of {piece_bytes} B are not made of {VECTOR_BYTES} B")


batched_copy = experiment(BatchedCopy, SimulatedBatch)
