"""What bandwidth does device memory give to kernels, from CUDA C++ and from Python?

Question
    How many bytes a second do the kernels of STREAM move, in CUDA C++ and as a CuPy or Numba user would write them?
Method
    Each array has size_bytes. Kernels are queued behind a gate, between two events. For CUDA C++ several shapes are
    tried first (accesses of 16 or 32 bytes, bulk copies through shared memory, more or fewer blocks), and the fastest
    is measured. Sources are patterns that depend on their place; outputs are poisoned before and compared after.
Reading
    The rate counts bytes read plus bytes written, as STREAM does; its limit is memory clock x 2 x bus width. Arrays
    that fit the L2 show the L2. The difference between CUDA C++ and a library is what the library costs on large
    arrays.
"""

from microbench.experiments.memory.levels import answering_level
from microbench.experiments.memory.stream_libraries import ROLES, DataType, Implementation, StreamKernel
from microbench.experiments.memory.streams import fastest
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, moved

KERNELS = ("read", "write", "copy", "scale", "add", "triad", "dot")
IMPLEMENTATIONS = ("cuda", "cupy", "numba")


def measure(
    gpu: Gpu, meter: Meter, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int
) -> Results:
    best, shape = fastest(gpu, meter, kernel, dtype, implementation, size_bytes)
    yield shape
    touched_bytes = size_bytes * (ROLES[kernel].read + ROLES[kernel].written)
    yield from moved(meter, best, device="bandwidth", bound=answering_level(gpu, touched_bytes))


BENCHMARK = Benchmark(
    title="Streaming kernels",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes read plus bytes written, over the time on the device"),),
    axes={
        "size_bytes": Axis.sizes(
            "bytes of each array", "1 GiB", "256 MiB 1 GiB", "4 16 64 256 MiB 1 4 GiB", least="64 B", most="64 GiB"
        ),
        "dtype": Axis("type of the elements", ("fp64",), ("fp64",), ("fp64", "fp32", "fp16", "int8")),
        "kernel": Axis("operation of STREAM", ("read", "write", "copy", "triad"), KERNELS, KERNELS),
        "implementation": Axis.same("language or library of the kernel", IMPLEMENTATIONS),
    },
    core=True,
)
