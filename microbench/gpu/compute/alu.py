"""One instruction of the ALUs alone on a real GPU: independent ones on every SM, a chain of them in one warp."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.compute.alu_values import (
    CHAINS,
    FAR_OFF,
    FMA,
    FUNCTIONS,
    STEPS,
    THREADS,
    Bits,
    Operands,
    decode,
    draw,
    encode,
    encode_constants,
    expected,
    word_type,
)
from microbench.gpu.compute_api import AluOperation, UnitPass
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.stamps import STAMPS, alone_on_its_sm, pass_of
from microbench.gpu.submit import Parameters, launch
from microbench.ops import Launch

# KIND of kernels/alu.cu.
KINDS: dict[AluOperation, int] = {
    "fma_fp64": 0, "fma_fp32": 1, "fma_fp16x2": 2, "fma_bf16x2": 3, "mad_int32": 4, "add_int32": 5, "exp2_fp32": 6,
    "rsqrt_fp32": 7,
}  # fmt: skip
CHAIN_STEPS, WARP_THREADS = 512, 32
RESULT_WORDS = 2 * CHAINS * THREADS
CHECKED_REPEATS = (1, 3)


def arithmetic(case: Case, operation: AluOperation) -> CudaArithmetic:
    """See Compute. Raises Skip where the GPU has no such instruction."""
    _require(case, operation)
    return CudaArithmetic(case, operation)


def chain(case: Case, operation: AluOperation) -> CudaChain:
    """See Compute. Raises Skip where the GPU has no such instruction."""
    _require(case, operation)
    return CudaChain(case, operation)


def operations_of(operation: AluOperation) -> int:
    """Operations of one SM in one repetition, counted as Resident says."""
    each = (2 if operation in FMA else 1) * (2 if operation.endswith("x2") else 1)
    return THREADS * CHAINS * STEPS[operation] * each


def _require(case: Case, operation: AluOperation) -> None:
    if operation == "fma_bf16x2":
        case.require_capability(8, 0, "a multiply-add of bfloat16")


class _Kernel:
    """A kernel of kernels/alu.cu with fresh operands, results and stamps."""

    def __init__(self, case: Case, operation: AluOperation, kernel: str, shape: Launch, *, alone: bool) -> None:
        self._context, self._operation = case.context, operation
        self.blocks = shape.grid_blocks
        function = case.modules.function("alu", kernel, KIND=KINDS[operation])
        shared_bytes = alone_on_its_sm(case, function) if alone else 0
        word_bytes = np.dtype(word_type(operation)).itemsize
        self.operands = case.context.device_memory(RESULT_WORDS * word_bytes)
        self._out = case.context.device_memory(RESULT_WORDS * word_bytes * self.blocks)
        self._stamps = case.context.device_memory(STAMPS.itemsize * self.blocks)
        # Arguments that change: repetitions, k and the other one.
        self._changing = np.zeros(3, dtype=np.uint64)
        row = Parameters([(self.operands, 0, self._out, self._stamps, 0, 0)])
        for argument, place in ((1, 0), (4, 1), (5, 2)):
            row.point(argument, self._changing.ctypes.data + 8 * place)
        self._submit = launch(function, shape, case.stream(0), row, keep=(self._changing,), shared_bytes=shared_bytes)

    def fresh(self) -> Operands:
        """Other operands from now on."""
        operands = draw(self._operation, time.time_ns())
        words = np.ascontiguousarray(encode(self._operation, operands))
        check(driver.cuMemcpyHtoD(self.operands, words.ctypes.data, words.nbytes))
        self._changing[1:] = encode_constants(self._operation, operands)
        self._context.synchronize()
        return operands

    def run(self, repeats: int) -> UnitPass:
        """One launch to its end."""
        self._changing[0] = repeats
        self._submit(1)
        self._context.synchronize()
        return pass_of(self._context.read(self._stamps, self.blocks, STAMPS))

    def results(self) -> Bits:
        """Numbers of the last launch: x of all chains, then y, shape (blocks, 2 CHAINS, THREADS, parts)."""
        words = self._context.read(self._out, self.blocks * RESULT_WORDS, word_type(self._operation))
        return decode(self._operation, words.reshape(self.blocks, 2 * CHAINS, THREADS))


class CudaArithmetic:
    """See Resident of compute_api.py: one block of 1024 threads on each SM."""

    def __init__(self, case: Case, operation: AluOperation) -> None:
        self._operation = operation
        self.sms = case.context.attribute("MULTIPROCESSOR_COUNT")
        self.operations = operations_of(operation)
        shape = Launch(grid_blocks=self.sms, block_threads=THREADS)
        self._kernel = _Kernel(case, operation, "independent", shape, alone=True)
        self._kernel.fresh()

    def take(self, repeats: int) -> UnitPass:
        """See Resident."""
        return self._kernel.run(repeats)

    def check(self) -> str:
        """See Resident: launches of one and of three repetitions, each on operands of its own."""
        for repeats in CHECKED_REPEATS:
            operands = self._kernel.fresh()
            self._kernel.run(repeats)
            compare(self._operation, operands, repeats, self._kernel.results())
        if self._operation in FUNCTIONS:
            return f"every thread's results on every SM compared in float64, to {FAR_OFF:.0e}"
        return "every thread's results on every SM compared with exactly rounded ones, to the last bit"


class CudaChain:
    """See Chain of compute_api.py: one warp."""

    instructions = CHAIN_STEPS

    def __init__(self, case: Case, operation: AluOperation) -> None:
        shape = Launch(grid_blocks=1, block_threads=WARP_THREADS)
        self._kernel = _Kernel(case, operation, "dependent", shape, alone=False)
        self._kernel.fresh()

    def take(self, repeats: int) -> UnitPass:
        """See Chain."""
        return self._kernel.run(repeats)


def compare(operation: AluOperation, operands: Operands, repeats: int, found: Bits) -> None:
    """Raise MeasurementError unless ``found``, as _Kernel.results has it, is what the operands give."""
    wanted = np.concatenate(expected(operation, operands, repeats))
    if operation in FUNCTIONS:
        # Written so that a NaN is wrong.
        wrong: npt.NDArray[np.bool_] = ~(np.abs(found - wanted) <= FAR_OFF * np.abs(wanted))
    else:
        wrong = found != wanted
    if wrong.any():
        at = tuple(int(place) for place in np.argwhere(wrong)[0])
        raise MeasurementError(
            f"{operation}: {int(wrong.sum())} of {wrong.size} results are wrong, the first of them is "
            f"{found[at]} where {wanted[at[1:]]} should be"
        )
