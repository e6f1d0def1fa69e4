"""Other GPUs beside the one under test: their contexts, streams and kernels, for the length of one case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.context import Context, check, device_uuid
from microbench.gpu.gates import SpinGate
from microbench.gpu.graphs.base import Case
from microbench.gpu.links.patterns import Patterns
from microbench.gpu.modules import Modules
from microbench.gpu.pci import numa_node

BUS_ID_BYTES = 32
ALREADY_ENABLED = int(driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)


class Board:
    """One GPU with a stream, a gate and patterns of its own. Its context is current inside ``current()`` only.

    ``node`` is the NUMA node that it hangs on, None where the firmware does not say.
    """

    def __init__(self, context: Context, modules: Modules, home: Context) -> None:
        self.context = context
        self.modules = modules
        self.node = numa_node(check(driver.cuDeviceGetPCIBusId(BUS_ID_BYTES, context.device)).split(b"\0")[0].decode())
        self._home = home
        with self.current():
            self.stream = context.stream()
            self.patterns = Patterns(context, modules)
            self.gate = SpinGate(context, modules, lambda _: self.stream)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context current, and afterwards that of the GPU under test."""
        self.context.make_current()
        try:
            yield
        finally:
            self._home.make_current()

    def synchronize(self) -> None:
        """Wait until this GPU is idle."""
        with self.current():
            self.context.synchronize()


class Boards:
    """The GPUs of one case by CUDA index, opened when first asked for and given back at the case's end."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._boards: dict[int, Board] = {}
        self._peers: set[tuple[int, int]] = set()

    def count(self) -> int:
        """GPUs that this process sees."""
        return int(check(driver.cuDeviceGetCount()))

    def board(self, index: int) -> Board:
        """The GPU of that index. Raises Skip where there is none."""
        if not 0 <= index < self.count():
            raise Skip(f"needs a GPU {index}: {self.count()} here")
        if index not in self._boards:
            self._boards[index] = self._open(index)
        return self._boards[index]

    def _open(self, index: int) -> Board:
        home = self._case.context
        device = check(driver.cuDeviceGet(index))
        if int(device) == int(home.device):
            return Board(home, self._case.modules, home)
        try:
            context = Context(device_uuid(device))
        except MeasurementError as error:
            raise Skip(f"GPU {index} cannot be opened: {error}") from None
        finally:
            home.make_current()

        def close() -> None:
            context.make_current()
            try:
                context.close()
            finally:
                home.make_current()

        home.own(close)
        return Board(context, Modules(context), home)

    def enable_peers(self, first: int, second: int) -> None:
        """Let ``first`` reach the memory of ``second`` until the case ends. Raises Skip with why it cannot."""
        if (first, second) in self._peers:
            return
        one, other = self.board(first), self.board(second)
        if not int(check(driver.cuDeviceCanAccessPeer(one.context.device, other.context.device))):
            raise Skip(
                f"GPU {first} has no peer access to GPU {second}: the driver refuses it (no NVLink or common bridge, "
                "ACS, a virtual machine or MIG may be why)"
            )
        with one.current():
            (code,) = driver.cuCtxEnablePeerAccess(other.context.handle, 0)
            if int(code) not in (0, ALREADY_ENABLED):
                check((code,))
        self._peers.add((first, second))

        def disable() -> None:
            with one.current(), suppress(MeasurementError):
                check(driver.cuCtxDisablePeerAccess(other.context.handle))

        self._case.context.own(disable)
