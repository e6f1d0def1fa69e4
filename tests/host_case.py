"""A Case in host memory, and CuPy on it, for tests without a GPU."""

import ctypes
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
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


def cupy_on_host(acts: list[str]) -> ModuleType:
    """NumPy's functions under CuPy's names, on arrays made of host addresses; ``acts`` records streams and pools."""

    def memory(address: int, size_bytes: int, owner: object, device: int) -> Any:
        assert (device, owner is not None) == (DEVICE, True)
        return SimpleNamespace(address=address, size_bytes=size_bytes)

    def array(shape: tuple[int, ...], dtype: Any, pointer: Any) -> Any:
        count = int(np.prod(shape))
        assert count * np.dtype(dtype).itemsize == pointer.size_bytes
        return at(pointer.address, count, dtype).reshape(shape)

    def elementwise(inputs: str, output: str, body: str, name: str) -> Any:
        assert (inputs, output, body) == ("T b, T c, T s", "T a", "a = b + s * c")
        return lambda b, c, s, a: np.copyto(a, b + a.dtype.type(s) * c)

    def use(act: str) -> Any:
        return SimpleNamespace(use=lambda: acts.append(act))

    module = ModuleType("cupy")
    vars(module).update(
        __version__="14.0", is_available=lambda: True, ndarray=array, ElementwiseKernel=elementwise,
        copyto=np.copyto, multiply=np.multiply, add=np.add, dot=np.dot, float32=np.float32,
        matmul=lambda a, b, out: np.matmul(a.astype(np.float64), b.astype(np.float64), out=out, casting="unsafe"),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: acts.append("pool emptied")),
        cuda=SimpleNamespace(
            UnownedMemory=memory,
            MemoryPointer=lambda memory, offset: memory,
            Device=lambda index: use(f"device {index}"),
            get_current_stream=lambda: use("stream restored"),
            Stream=SimpleNamespace(from_external=lambda foreign: use(f"stream {foreign.__cuda_stream__()[1]}")),
        ),
    )  # fmt: skip
    return module


def passes_on_numbas_simulator(script: str) -> None:
    """A process in which Numba simulates its kernels runs the script to its end, without a word on standard error."""
    variables = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    result = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
