"""nvmath-python's bindings without a GPU: cuBLASLt's products of matrices in host memory, as its descriptors say."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_case import at

from microbench.experiments.compute import cublaslt

NUMPY_TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 10: np.int32}
RESULT = np.dtype([("algo", "<u8", (8,)), ("workspace_size", "<u8"), ("state", "<i4"), ("waves", "<f4")])
# ID and SPLITK_NUM of the candidates that are given: the last two differ in what is not in their names.
ALGORITHMS = ((66, 1), (21, 4), (21, 4))


class Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


class CublasLtError(Exception):
    """Like the error of the bindings, not a RuntimeError."""


class Bindings:
    """Handles are places in a list; what is destroyed is None there."""

    matmul_heuristic_result_dtype = RESULT
    cuBLASLtError = CublasLtError  # noqa: N815 - as the bindings call it
    MatmulDescAttribute = MatmulPreferenceAttribute = MatmulAlgoConfigAttribute = MatmulMatrixScale = Names()
    MatrixLayoutAttribute = Names()

    def __init__(self, given: int = len(ALGORITHMS)) -> None:
        self.given = given
        self.made: list[Any] = []
        self.used: list[int] = []
        self.refused: set[int] = set()
        for kind in ("matmul_desc", "matrix_layout", "matmul_preference"):
            setattr(self, f"{kind}_create", self._create(kind))
            setattr(self, f"{kind}_destroy", self.destroy)
            setattr(self, f"get_{kind}_attribute_dtype", lambda attribute: np.int64)
            setattr(self, f"{kind}_set_attribute", self._set)
        self.create = self._create("handle")

    def _create(self, kind: str) -> Callable[..., int]:
        def create(*arguments: Any) -> int:
            self.made.append(SimpleNamespace(kind=kind, arguments=arguments, attributes={}))
            return len(self.made) - 1

        return create

    def destroy(self, handle: int) -> None:
        assert self.made[handle] is not None
        self.made[handle] = None

    def _set(self, handle: int, attribute: str, address: int, size_bytes: int) -> None:
        assert size_bytes == 8
        self.made[handle].attributes[attribute] = int(at(address, 1, np.int64)[0])

    def matmul_algo_get_heuristic(self, handle: int, *rest: Any) -> None:
        asked, results, count = rest[-3:]
        found = at(results, asked, RESULT)
        for index, (number, splits) in enumerate(ALGORITHMS[: self.given]):
            found["algo"][index][:2] = number, splits
        found["state"][self.given] = 1  # one that the library does not have after all
        at(count, 1, np.int32)[0] = self.given + 1

    def get_matmul_algo_config_attribute_dtype(self, attribute: str) -> Any:
        return np.int32

    def matmul_algo_config_get_attribute(self, algo: int, attribute: str, held: int, size: int, written: int) -> None:
        number, splits = (int(one) for one in at(algo, 2, np.uint64))
        at(held, 1, np.int32)[0] = {"ID": number, "SPLITK_NUM": splits}.get(attribute, 0)

    def matmul(
        self, handle: int, description: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int,
        c: int, c_layout: int, d: int, d_layout: int, algo: int, workspace: int, workspace_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        """D = alpha op(A) op(B), every matrix with its columns contiguous; a batch of them if the layouts say so."""
        if int(at(algo, 1, np.uint64)[0]) in self.refused:
            raise self.cuBLASLtError("CUBLAS_STATUS_INTERNAL_ERROR")
        described = self.made[description]
        scalar = NUMPY_TYPES[described.arguments[1]]
        assert at(beta, 1, scalar)[0] == 0
        pairs = ((a, a_layout), (b, b_layout), (d, d_layout))
        (batch,) = {self.made[layout].attributes.get("BATCH_COUNT", 1) for _, layout in pairs}
        for number in range(batch):
            first, second, result = (self._matrix(*pair, number) for pair in pairs)
            first = first.T if described.attributes.get("TRANSA") else first
            second = second.T if described.attributes.get("TRANSB") else second
            wide = np.int64 if result.dtype.kind == "i" else np.float64
            result[:] = at(alpha, 1, scalar)[0] * (first.astype(wide) @ second.astype(wide))
        self.used.append(int(at(algo, 1, np.uint64)[0]))

    def _matrix(self, address: int, layout: int, number: int) -> Any:
        element, rows, columns, leading = self.made[layout].arguments
        offset = number * self.made[layout].attributes.get("STRIDED_BATCH_OFFSET", 0)
        address += offset * np.dtype(NUMPY_TYPES[element]).itemsize
        return at(address, columns * leading, NUMPY_TYPES[element]).reshape(columns, leading)[:, :rows].T


def install(monkeypatch: pytest.MonkeyPatch, bindings: Bindings) -> None:
    """Have ``import nvmath.bindings.cublasLt`` give these bindings."""
    package = ModuleType("nvmath")
    for name, module in (
        ("nvmath", package),
        ("nvmath.bindings", package),
        ("nvmath.bindings.cublasLt", bindings),
        ("nvmath.bindings.cublas", SimpleNamespace(ComputeType=Names())),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(cublaslt, "WORKSPACE_BYTES", 64)
