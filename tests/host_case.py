"""A Case in host memory, for tests without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from microbench.gpu.cuda.case import Case

STREAM, DEVICE, SMS = 7, 3, 2


def at(address: int, count: int, dtype: Any) -> Any:
    """Host memory as a NumPy array."""
    size_bytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size_bytes).from_address(address), dtype=dtype)


class HostCase(Case):
    """``memory`` are the arrays that were allocated, ``waits`` counts synchronisations."""

    sms = SMS

    def __init__(self, capability: tuple[int, int] = (9, 0), **attributes: int) -> None:
        context: Any = SimpleNamespace(
            device=DEVICE, capability=capability, attribute=attributes.__getitem__, make_current=lambda: None
        )
        super().__init__(context)
        self.memory: list[Any] = []
        self.waits = 0

    def stream(self, index: int) -> int:
        return STREAM + index

    def synchronize(self) -> None:
        self.waits += 1

    def device_memory(self, size_bytes: int) -> int:
        self.memory.append(np.zeros(size_bytes, np.uint8))
        return int(self.memory[-1].ctypes.data)

    def upload(self, address: int, values: Any) -> None:
        at(address, values.nbytes, np.uint8)[:] = values.view(np.uint8).ravel()

    def read(self, pointer: int, count: int, dtype: Any) -> Any:
        return at(pointer, count, dtype).copy()
