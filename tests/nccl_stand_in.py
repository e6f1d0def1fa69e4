"""A stand-in for libnccl on host memory: calls arrive by address as in the real one, and run when their group ends."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from microbench.core.errors import MeasurementError
from microbench.experiments.link import collectives

SIZE, INT, POINTER = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
INVALID_USAGE = 5
NO_WAIT = ctypes.CFUNCTYPE(INT, POINTER)(lambda stream: 0)  # cuStreamSynchronize
# The arguments of each function in nccl.h.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGroupStart": (), "ncclGroupEnd": (), "ncclAllReduce": (POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER),
    "ncclAllGather": (POINTER, POINTER, SIZE, INT, POINTER, POINTER),
    "ncclSend": (POINTER, SIZE, INT, INT, POINTER, POINTER), "ncclRecv": (POINTER, SIZE, INT, INT, POINTER, POINTER),
}  # fmt: skip


def floats(address: int, count: int) -> npt.NDArray[np.float32]:
    return np.frombuffer((ctypes.c_float * count).from_address(address), dtype=np.float32)


class StandIn:
    """A collectives.Library. Rank r has the communicator 100 + r and the stream 200 + r; ``damages`` spoils results."""

    def __init__(self, *, damages: bool = False) -> None:
        self.damages = damages
        self.calls: list[str] = []
        self._depth, self._ranks = 0, 0
        self._pending: list[tuple[Any, ...]] = []
        self._functions = {
            name: ctypes.CFUNCTYPE(INT, *arguments)(self._receiver(name)) for name, arguments in SIGNATURES.items()
        }

    def _receiver(self, name: str) -> Callable[..., int]:
        def receive(*arguments: int) -> int:
            self.calls.append(name)
            if name == "ncclGroupStart":
                self._depth += 1
                return 0
            if name == "ncclGroupEnd":
                self._depth -= 1
            else:
                communicator, stream = arguments[-2:]
                if stream - 200 != communicator - 100:
                    return INVALID_USAGE
                self._pending.append((name, communicator - 100, *arguments[:-2]))
            return 0 if self._depth else self._run()

        return receive

    def _run(self) -> int:
        """Runs a group. All ranks must take part; only float32 and sums are accepted."""
        pending, self._pending = self._pending, []
        sent: dict[tuple[int, int], npt.NDArray[np.float32]] = {}
        for name, rank, *arguments in pending:
            if arguments[{"ncclSend": 2, "ncclRecv": 2}.get(name, 3)] != collectives.FLOAT32:
                return INVALID_USAGE
            if name == "ncclSend":
                address, count, _, peer = arguments
                sent[rank, peer] = floats(address, count).copy()
        whole = [one for one in pending if one[0] in ("ncclAllReduce", "ncclAllGather")]
        if whole and sorted(one[1] for one in whole) != list(range(self._ranks)):
            return INVALID_USAGE
        parts = [floats(one[2], one[4]).copy() for one in sorted(whole, key=lambda one: one[1])]
        for name, rank, *arguments in pending:
            if name == "ncclRecv":
                address, count, _, peer = arguments
                floats(address, count)[:] = sent[peer, rank]
            elif name == "ncclAllReduce":
                if arguments[4] != collectives.SUM:
                    return INVALID_USAGE
                floats(arguments[1], arguments[2])[:] = sum(parts)
            elif name == "ncclAllGather":
                floats(arguments[1], arguments[2] * self._ranks)[:] = np.concatenate(parts)
            if self.damages and name == "ncclRecv":
                floats(arguments[0], arguments[1])[-1] += 1
            elif self.damages and name != "ncclSend":
                floats(arguments[1], arguments[2])[-1] += 1
        return 0

    def address(self, name: str) -> int:
        return ctypes.cast(self._functions[name], POINTER).value or 0

    def check(self, code: int, what: str) -> None:
        if code != 0:
            raise MeasurementError(f"{what}: code {code}")

    def version(self) -> str:
        return "2.0.0"

    def communicators(self, case: Any, devices: Sequence[int]) -> Sequence[int]:
        self._ranks = len(devices)
        self.devices = list(devices)
        return [100 + rank for rank in range(len(devices))]


def machine(monkeypatch: pytest.MonkeyPatch, library: StandIn, gpus: int, own: int) -> Any:
    """A case on GPU ``own`` of several whose memory is the host's."""
    kept: list[Any] = []

    def device_memory(size_bytes: int) -> int:
        kept.append(np.zeros(size_bytes, dtype=np.uint8))
        return int(kept[-1].ctypes.data)

    def upload(address: int, values: npt.NDArray[np.float32]) -> None:
        floats(address, values.size)[:] = values

    memory = SimpleNamespace(
        device_memory=device_memory,
        upload=upload,
        read=lambda address, count, dtype: floats(address, count).copy(),
        synchronize=lambda: None,
    )
    order = [own, *(index for index in range(gpus) if index != own)]
    boards = SimpleNamespace(
        board=lambda index: SimpleNamespace(case=memory, stream=200 + order.index(index), current=nullcontext)
    )
    monkeypatch.setattr(collectives, "Library", lambda: library)
    monkeypatch.setattr(collectives, "gpus", lambda case: range(gpus))
    monkeypatch.setattr(collectives, "entry_point", lambda name: ctypes.cast(NO_WAIT, POINTER).value)
    monkeypatch.setattr(
        collectives.driver,
        "cuMemsetD8",
        lambda address, value, size_bytes: (ctypes.memset(address, value, size_bytes) * 0,),
    )
    context = SimpleNamespace(device=own, make_current=lambda: None)
    return SimpleNamespace(context=context, once=lambda make: boards, own=kept.append)
