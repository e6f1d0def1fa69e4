"""What most benchmarks are written with, under one name."""

from microbench.core.bench import GIB, KIB, MIB, Axis, Benchmark, Measured, Params, Results, always
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Measurement, Metric, Param, Work
from microbench.core.ops import LOOP_LAYER, IntArray, Launch, LayerCall
from microbench.gpu.protocol.gpu import Gpu, Host, Submit
from microbench.meter.sampling import NANOSECOND_S, Between, Sample
from microbench.meter.timer import Meter
from microbench.meter.transfers import moved, verified

__all__ = [
    "GIB", "KIB", "LOOP_LAYER", "MIB", "NANOSECOND_S", "Axis", "Benchmark", "Between", "Fact", "Gpu", "Host",
    "IntArray", "Launch", "LayerCall", "Measured", "Measurement", "MeasurementError", "Meter", "Metric", "Param",
    "Params", "Results", "Sample", "Skip", "Submit", "Work", "always", "moved", "verified",
]  # fmt: skip
