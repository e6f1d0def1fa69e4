"""The GPUs that this process sees, each with a case of its own when several work at the same time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from microbench.gpu.cuda.buffers import Patterns
from microbench.gpu.cuda.context import Context, check, device_uuid
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.experiment import Case, Machine, MeasurementError, Skip, driver, experiment
from microbench.gpu.machine.pci import numa_node

BUS_ID_BYTES = 32
ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


def gpus(case: Case) -> Sequence[int]:
    """CUDA indices of all GPUs that this process sees."""
    return range(int(check(driver.cuDeviceGetCount())))


class LinkedGpu:
    """One GPU with a case of its own, or the GPU under test with its case; current inside ``current()`` only.

    ``node`` is the NUMA node that the GPU is on, None if the firmware does not say.
    """

    def __init__(self, case: Case, home: Case) -> None:
        self.case = case
        bus_id = check(driver.cuDeviceGetPCIBusId(BUS_ID_BYTES, case.context.device))
        self.node = numa_node(bus_id.split(b"\0")[0].decode())
        self._home = home
        with self.current():
            self.stream = case.stream(0)
            self.patterns = Patterns(case)
            self.gate = SpinGate(case)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context current, and afterwards the context of the GPU under test."""
        self.case.context.make_current()
        try:
            yield
        finally:
            self._home.context.make_current()

    def synchronize(self) -> None:
        with self.current():
            self.case.synchronize()


def board(case: Case, index: int) -> LinkedGpu:
    """The GPU with that CUDA index, opened when it is first needed and closed when the case ends. Raises Skip if there
    is none."""
    count = len(gpus(case))
    if not 0 <= index < count:
        raise Skip(f"needs a GPU {index}: {count} here")
    return case.once(_open, index)


def _open(home: Case, index: int) -> LinkedGpu:
    device = check(driver.cuDeviceGet(index))
    if int(device) == int(home.context.device):
        return LinkedGpu(home, home)
    try:
        case = Case(Context(device_uuid(device)))
    except MeasurementError as error:
        raise Skip(f"GPU {index} cannot be opened: {error}") from None
    finally:
        home.context.make_current()

    def close() -> None:
        case.context.make_current()
        try:
            case.end()
            case.context.close()
        finally:
            home.context.make_current()

    home.own(close)
    return LinkedGpu(case, home)


def enable_peers(case: Case, first: int, second: int) -> None:
    """Let ``first`` access the memory of ``second`` until the case ends. Raises Skip if it cannot, saying why.

    Call it by ``case.once``.
    """
    here, other = board(case, first), board(case, second).case.context
    if not int(check(driver.cuDeviceCanAccessPeer(here.case.context.device, other.device))):
        raise Skip(
            f"GPU {first} has no peer access to GPU {second}: the driver refuses it (no NVLink or common bridge, "
            "ACS, a virtual machine or MIG may be why)"
        )
    with here.current():
        (code,) = driver.cuCtxEnablePeerAccess(other.handle, 0)
        if int(code) not in (0, ALREADY_ENABLED):
            check((code,))

    def disable() -> None:
        with here.current(), suppress(MeasurementError):
            check(driver.cuCtxDisablePeerAccess(other.handle))

    case.own(disable)


def require_gpus(machine: Machine, gpus: Sequence[int]) -> None:
    """Raise Skip for an index that no simulated GPU has."""
    for gpu in gpus:
        if not 0 <= gpu < machine.costs.gpus:
            raise Skip(f"needs a GPU {gpu}: {machine.costs.gpus} here")


def require_pair(machine: Machine, first: int, second: int, *, access: bool = True) -> None:
    """Raise Skip for a pair that does not exist, or lacks the peer access that is asked for."""
    require_gpus(machine, (first, second))
    if access and (first, second) in machine.costs.links.peer_denied:
        raise Skip(f"GPU {first} has no peer access to GPU {second}: the simulated driver refuses it")


visible_gpus = experiment(gpus, lambda machine: range(machine.costs.gpus))
