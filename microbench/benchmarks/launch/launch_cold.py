"""What does the first time cost?

Question
    How long do a context, compilation, module loading, the first launch and the first call of each JIT take in a
    process that has done none of it?
Method
    One act, once, in a fresh process with empty compilation caches, some processes each; what the act needs before
    it is done untimed. Lazy and eager module loading are processes with that setting.
Reading
    These are paid once a process, and stay out of every other figure.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Case, Metric
from microbench.gpu.protocol.gpu import ColdStarts
from microbench.measure.timer import Meter

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
    """No compiler's cache answers, and modules load as the act's name says. "{scratch}" is a fresh folder."""
    loading = "EAGER" if str(case.params["what"]).endswith("eager") else "LAZY"
    return {
        "CUDA_MODULE_LOADING": loading,
        "CUDA_CACHE_DISABLE": "1",
        "CUPY_CACHE_DIR": "{scratch}/cupy",
        "NUMBA_CACHE_DIR": "{scratch}/numba",
    }


def measure(cold: ColdStarts, meter: Meter, what: str) -> Iterator[Measured]:
    yield meter.once("seconds", cold.seconds(what))


BENCHMARK = Benchmark(
    name="launch_cold",
    suite="launch",
    title="The first time",
    about=__doc__ or "",
    metrics=(Metric("seconds", "time", "s", "one act, once in a fresh process"),),
    measure=measure,
    axes={"what": Axis("the act", QUICK, DEFAULT, FULL)},
    cold=True,
    minimum_rounds=PROCESSES,
    fresh_process_by=("what",),
    process_environment=empty_caches,
)
