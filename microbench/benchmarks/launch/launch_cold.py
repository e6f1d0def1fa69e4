"""What does each first use in a process cost: context, compilation, module loading?

Question
    How long do the context, compilation, module loading, the first launch and the first call of each JIT take in a new
    process?
Method
    A fresh process with compilation caches off or empty does one first use once, and several processes repeat it. Its
    preparation is not timed. Lazy and eager are processes with that setting of CUDA_MODULE_LOADING.
Reading
    A process pays these costs once. No other figure includes them.
"""

from microbench.core.model import Case, Metric
from microbench.gpu.protocol.gpu import ColdStarts
from microbench.meter.benchmark import Axis, Benchmark, Meter, Results

QUICK = ("context",)
DEFAULT = (
    "context",
    "nvrtc",
    "module_load_lazy",
    "module_load_eager",
    "first_launch_lazy",
    "first_launch_eager",
    "second_launch",
    "numba_jit",
    "cupy_rawkernel",
)
FULL = (*DEFAULT, "numba_import", "cupy_import", "cupy_ufunc")
PROCESSES = 5


def empty_caches(case: Case) -> dict[str, str]:
    """Disables the compilers' caches or moves them to a fresh folder ("{scratch}"); ``what`` sets module loading."""
    loading = "EAGER" if str(case.params["what"]).endswith("eager") else "LAZY"
    return {
        "CUDA_MODULE_LOADING": loading,
        "CUDA_CACHE_DISABLE": "1",
        "CUPY_CACHE_DIR": "{scratch}/cupy",
        "NUMBA_CACHE_DIR": "{scratch}/numba",
    }


def measure(cold: ColdStarts, meter: Meter, what: str) -> Results:
    yield meter.once("seconds", cold(what))


BENCHMARK = Benchmark(
    title="First-use costs",
    metrics=(Metric("seconds", "time", "s", "one first use, in a fresh process"),),
    axes={"what": Axis("what is done for the first time", QUICK, DEFAULT, FULL)},
    cold=True,
    minimum_rounds=PROCESSES,
    process_environment=empty_caches,
)
