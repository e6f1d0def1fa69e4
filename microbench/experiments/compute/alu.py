"""One ALU instruction: independent ones on every SM, a chain of them in one warp, results compared with exact ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from microbench.experiments.compute.instructions import Resident, SimulatedResident, prepare, simulated_resident
from microbench.gpu.cuda.timing import STAMPS, UnitPass, alone_on_its_sm, pass_of, stamped
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Parameters, experiment, launch

# Multiply-adds, integer multiply-add and addition, two special functions.
AluOperation = Literal[
    "fma_fp64", "fma_fp32", "fma_fp16x2", "fma_bf16x2", "mad_int32", "add_int32", "exp2_fp32", "rsqrt_fp32",
]  # fmt: skip
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]
Bits = npt.NDArray[Any]  # of the operation's own type

THREADS, CHAINS = 1024, 8
CHAIN_STEPS, WARP_THREADS = 512, 32
RESULT_WORDS = 2 * CHAINS * THREADS
CHECKED_REPEATS = (1, 3)
# KIND of kernels/alu.cu.
KINDS: dict[AluOperation, int] = {operation: kind for kind, operation in enumerate(get_args(AluOperation))}
FMA = ("fma_fp64", "fma_fp32", "fma_fp16x2", "fma_bf16x2")
INTEGER = ("mad_int32", "add_int32")
# The type of a register; of all other operations it is uint32.
REGISTERS: dict[AluOperation, npt.DTypeLike] = {
    "fma_fp64": np.float64, "fma_fp32": np.float32, "exp2_fp32": np.float32, "rsqrt_fp32": np.float32,
}  # fmt: skip
# x after one instruction of a special function.
FUNCTIONS: dict[AluOperation, Callable[[Floats], Floats]] = {
    "exp2_fp32": lambda x: np.exp2(-x),
    "rsqrt_fp32": lambda x: 1 / np.sqrt(x),
}
# An approximate instruction is right to 2**-22 (PTX ISA: ex2 2 units of the last place, rsqrt 2**-22.9), and at least
# halves the error of its input. A missing or extra step or repetition makes a larger difference than this.
FAR_OFF = 2.0**-18
BF16_CUT_BITS = 45  # of a float64's significand


def steps_of(operation: AluOperation) -> int:
    """Instructions of one repetition on one pair of numbers."""
    return 4 if operation in FUNCTIONS else 64


def operations_of(operation: AluOperation) -> int:
    """Operations of one SM in one repetition, counted as in Resident."""
    each = (2 if operation in FMA else 1) * (2 if operation.endswith("x2") else 1)
    return THREADS * CHAINS * steps_of(operation) * each


class _Kernel:
    """A kernel of kernels/alu.cu with fresh operands. Raises Skip if the GPU has no such instruction."""

    def __init__(self, case: Case, operation: AluOperation, kernel: str, op: Launch, *, alone: bool) -> None:
        if operation == "fma_bf16x2":
            case.require_capability(8, 0, "a multiply-add of bfloat16")
        self._case, self._operation = case, operation
        self.blocks = op.grid_blocks
        function = case.function("alu", kernel, KIND=KINDS[operation])
        shared_bytes = alone_on_its_sm(case, function) if alone else 0
        word_bytes = np.dtype(REGISTERS.get(operation, np.uint32)).itemsize
        self.operands = case.device_memory(RESULT_WORDS * word_bytes)
        self._out = case.device_memory(RESULT_WORDS * word_bytes * self.blocks)
        self._stamps = case.device_memory(STAMPS.itemsize * self.blocks)
        # Repetitions, k and other_k change: arguments 1, 4 and 5.
        self._row = Parameters([(self.operands, 0, self._out, self._stamps, 0, 0)])
        self._submit = launch(case, function, op, self._row, shared_bytes=shared_bytes)
        self.fresh()

    def fresh(self) -> Operands:
        operands = draw(self._operation, time.time_ns())
        self._case.upload(self.operands, np.ascontiguousarray(encode(self._operation, operands)))
        self._row[4], self._row[5] = encode_constants(self._operation, operands)
        self._case.synchronize()
        return operands

    def take(self, repeats: int) -> UnitPass:
        """Run ``repeats`` repetitions on each block's SM. Raises MeasurementError if two blocks shared an SM."""
        self._row[1] = repeats
        return pass_of(stamped(self._case, self._submit, self._stamps, self.blocks))

    def results(self) -> Bits:
        """Numbers of the last launch: x of all chains, then y, shape (blocks, 2 CHAINS, THREADS, parts)."""
        words = self._case.read(self._out, self.blocks * RESULT_WORDS, REGISTERS.get(self._operation, np.uint32))
        return decode(self._operation, words.reshape(self.blocks, 2 * CHAINS, THREADS))


class Arithmetic(_Kernel, Resident):
    """Independent ALU instructions: one block of 1024 threads on each SM, enough of them to fill it."""

    def __init__(self, case: Case, operation: AluOperation) -> None:
        self.sms = case.sms
        self.operations = operations_of(operation)
        op = Launch(grid_blocks=self.sms, block_threads=THREADS)
        super().__init__(case, operation, "independent", op, alone=True)

    def check(self) -> str:
        """Check launches of one and of three repetitions, each with new operands."""
        for repeats in CHECKED_REPEATS:
            operands = self.fresh()
            self.take(repeats)
            compare(self._operation, operands, repeats, self.results())
        if self._operation in FUNCTIONS:
            return f"every thread's results on every SM compared in float64, to {FAR_OFF:.0e}"
        return "every thread's results on every SM compared with exactly rounded ones, to the last bit"


def simulated_arithmetic(machine: Machine, operation: AluOperation) -> SimulatedResident:
    costs = machine.costs.compute
    prepare(machine, operation)
    return simulated_resident(machine, costs.alu_per_clock[operation], costs.alu_joules[operation], tensor=False)


class Chain(_Kernel):
    """One warp whose instructions each wait for the one before: ``instructions`` in one repetition."""

    instructions = CHAIN_STEPS

    def __init__(self, case: Case, operation: AluOperation) -> None:
        op = Launch(grid_blocks=1, block_threads=WARP_THREADS)
        super().__init__(case, operation, "dependent", op, alone=False)


class SimulatedChain(SimulatedResident, Chain):
    """The cycles of each instruction, one after the other."""

    instructions = 64

    def __init__(self, machine: Machine, operation: AluOperation) -> None:
        prepare(machine, operation)
        super().__init__(machine, machine.costs.compute.alu_cycles[operation] * self.instructions)


arithmetic = experiment(Arithmetic, simulated_arithmetic)
chain = experiment(Chain, SimulatedChain)


# What the kernels compute, on the host: fresh operands and exactly rounded results.


class Operands(NamedTuple):
    """Numbers of each thread: ``x``, ``y`` of shape (CHAINS, THREADS, parts); of all: ``k``, ``other_k`` (parts,).

    Integers are uint32, all other types float64; a packed type has two parts, the others one.
    """

    x: Bits
    y: Bits
    k: Bits
    other_k: Bits


def draw(operation: AluOperation, seed: int) -> Operands:
    """Random numbers of the operation's type; those of special functions are all positive."""
    generator = np.random.default_rng(seed)
    parts = 2 if operation.endswith("x2") else 1
    shapes = [(CHAINS, THREADS, parts)] * 2 + [(parts,)] * 2
    if operation in INTEGER:
        return Operands(*(generator.integers(0, 1 << 32, shape, dtype=np.uint32) for shape in shapes))
    sizes = [generator.uniform(0.5, 1.5, shape) for shape in shapes]
    if operation not in FMA:
        x, y, k, _ = (rounded(operation, numbers) for numbers in sizes)
        return Operands(x, y, k, k)
    x, y, k = (rounded(operation, numbers * generator.choice((-1, 1), numbers.shape)) for numbers in sizes[:3])
    return Operands(x, y, k, -k)


def encode(operation: AluOperation, operands: Operands) -> Bits:
    """x and y as the kernels read them: rows of THREADS words."""
    return np.stack([_words(operation, numbers) for numbers in (*operands.x, *operands.y)])


def encode_constants(operation: AluOperation, operands: Operands) -> npt.NDArray[np.uint64]:
    """k and other_k as arguments of a launch, in the low bytes of 64 bits."""
    words = np.stack([_words(operation, numbers[None])[0] for numbers in (operands.k, operands.other_k)])
    return words.view(np.uint64) if words.itemsize == 8 else words.view(np.uint32).astype(np.uint64)


def decode(operation: AluOperation, words: Bits) -> Bits:
    """Words of any shape as numbers, with a further axis of parts."""
    match operation:
        case "fma_fp16x2":
            return words[..., None].view(np.float16).astype(np.float64)
        case "fma_bf16x2":
            return (words[..., None].view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float)
        case "mad_int32" | "add_int32":
            return words[..., None]
        case _:
            return words.astype(np.float64)[..., None]


def _words(operation: AluOperation, numbers: Bits) -> Bits:
    """Numbers of shape (THREADS, parts) as one word each."""
    match operation:
        case "fma_fp16x2":
            halves: Words = np.ascontiguousarray(numbers.astype(np.float16)).view(np.uint32)
            return halves[..., 0]
        case "fma_bf16x2":
            upper = (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            return np.ascontiguousarray(upper).view(np.uint32)[..., 0]
        case _:
            return numbers[..., 0].astype(REGISTERS.get(operation, np.uint32))


def compare(operation: AluOperation, operands: Operands, repeats: int, results: Bits) -> None:
    """Raise MeasurementError unless ``results``, as Arithmetic.results returns them, follow from the operands."""
    wanted = np.concatenate(expected(operation, operands, repeats))
    if operation in FUNCTIONS:
        # A NaN counts as wrong.
        wrong: npt.NDArray[np.bool_] = ~(np.abs(results - wanted) <= FAR_OFF * np.abs(wanted))
    else:
        wrong = results != wanted
    if wrong.any():
        at = tuple(int(place) for place in np.argwhere(wrong)[0])
        raise MeasurementError(
            f"{operation}: {int(wrong.sum())} of {wrong.size} results are wrong, the first of them is "
            f"{results[at]} where {wanted[at[1:]]} should be"
        )


def expected(operation: AluOperation, operands: Operands, repeats: int) -> tuple[Bits, Bits]:
    """x and y after that many repetitions: exact, or within FAR_OFF for special functions."""
    x, y = operands.x, operands.y
    function = FUNCTIONS.get(operation)
    for _ in range(repeats):
        if function is not None:
            x = rounded(operation, x * operands.k + y)
        for _ in range(steps_of(operation) // 2):
            if function is not None:
                x = function(function(x))
            else:
                y = changed(operation, y, x, operands.k)
                x = changed(operation, x, y, operands.other_k)
    return x, y


def changed(operation: AluOperation, y: Bits, x: Bits, k: Bits) -> Bits:
    """y after one instruction, to the last bit."""
    if operation == "mad_int32":
        return x * k + y
    if operation == "add_int32":
        return x + k + y
    if operation == "fma_fp64":
        return fused(x, k, y)
    # Products of the smaller types are exact in float64; a sum rounded to odd is then rounded correctly.
    return rounded(operation, odd_sum(x * k, y))


def rounded(operation: AluOperation, numbers: Floats) -> Floats:
    """The nearest numbers of the operation's type, ties to even. Numbers lie within the type's range."""
    if operation == "fma_fp64":
        return numbers
    if operation == "fma_bf16x2":
        bits = np.ascontiguousarray(numbers).view(np.uint64)
        cut = np.uint64(BF16_CUT_BITS)
        last = bits >> cut & np.uint64(1)
        bits = bits + last + np.uint64((1 << (BF16_CUT_BITS - 1)) - 1) >> cut << cut
        nearest: Floats = bits.view(np.float64)
        return nearest
    return numbers.astype(np.float16 if operation == "fma_fp16x2" else np.float32).astype(np.float64)


def odd_sum(first: Floats, second: Floats) -> Floats:
    """first + second; if it is not exact, the neighbour whose last bit is odd.

    Rounding the result to a type of at most 50 bits equals rounding the exact sum once. Source: S. Boldo and
    G. Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers 57 (2008).
    """
    total, error = _two_sum(first, second)
    is_even = total.view(np.uint64) & np.uint64(1) == 0
    odd: Floats = np.where((error != 0) & is_even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd


def fused(first: Floats, second: Floats, third: Floats) -> Floats:
    """first * second + third, rounded once to float64. Source: as odd_sum, algorithm 5."""
    high, low = _two_product(first, second)
    inner, inner_error = _two_sum(third, low)
    total, error = _two_sum(high, inner)
    return total + odd_sum(inner_error, error)


def _two_sum(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """The rounded sum and its error. Source: D. E. Knuth, TAOCP 2, section 4.2.2, theorem B."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)


def _two_product(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """The rounded product and its error. Source: T. J. Dekker, Numerische Mathematik 18 (1971)."""
    product = first * second
    (high, low), (other_high, other_low) = _split(first), _split(second)
    return product, ((high * other_high - product) + high * other_low + low * other_high) + low * other_low


def _split(numbers: Floats) -> tuple[Floats, Floats]:
    scaled = numbers * (2.0**27 + 1)
    high = scaled - (scaled - numbers)
    return high, numbers - high
