"""What a benchmark is: one file that declares axes and metrics and yields raw measurements. No registry: discover()."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from microbench.core.errors import UsageError
from microbench.core.model import AxisInfo, BenchmarkInfo, Case, Environment, Fact, Measurement, Metric, Param, Series

Preset = Literal["quick", "default", "full"]
PRESETS: tuple[Preset, ...] = ("quick", "default", "full")
Measured = Measurement | Fact | Series
SUITES = ("host", "launch", "graph", "link", "memory", "compute")


@dataclass(frozen=True)
class Axis:
    """Values of one parameter, in nested grids that are absolute and the same on every machine.

    An axis of names accepts only the names it lists; an axis of numbers accepts any whole number from ``minimum`` to
    ``maximum``.
    """

    about: str
    quick: tuple[Param, ...]
    default: tuple[Param, ...]
    full: tuple[Param, ...]
    minimum: int = 0
    maximum: int = 1 << 40

    @classmethod
    def same(cls, about: str, values: tuple[Param, ...], maximum: int = 1 << 40, minimum: int = 0) -> Axis:
        """An axis with one grid for every preset."""
        return cls(about, values, values, values, minimum, maximum)

    def values(self, preset: Preset) -> tuple[Param, ...]:
        """The grid of that preset."""
        grids: dict[Preset, tuple[Param, ...]] = {"quick": self.quick, "default": self.default, "full": self.full}
        return grids[preset]

    @property
    def numeric(self) -> bool:
        """True if the values are whole numbers."""
        return all(isinstance(value, int) for value in self.full)


def always(params: Mapping[str, Param]) -> bool:
    """Every combination of axis values is a case."""
    return True


def never(params: Mapping[str, Param]) -> bool:
    """No case can wait."""
    return False


def everywhere(environment: Environment, params: Mapping[str, Param]) -> str | None:
    """Every case means something on every machine."""
    return None


def no_environment(case: Case) -> dict[str, str]:
    """A worker process needs no variables of its own."""
    return {}


@dataclass(frozen=True)
class Benchmark:
    """One question, one file.

    ``measure(gpu, meter, **params)`` yields measurements, and facts and series beside them; with ``gpus=0`` its first
    argument is the Host instead, with ``cold=True`` a ColdStarts that has not touched the GPU yet. ``combines`` drops
    combinations that mean nothing, ``here`` those that mean nothing on this machine (a NUMA node, a GPU that it does
    not have), for the reason that it returns. ``fresh_process_by`` names axes each value of which needs a process of
    its own; ``process_environment`` gives that process its variables. ``minimum_rounds`` is for what is seen once a
    process. An ``essential`` one is measured before the rest of its suite: others are read by it. Cases that are
    ``late`` come after all others of the suite: a short budget can do without them.
    """

    name: str
    suite: str
    title: str
    about: str
    metrics: tuple[Metric, ...]
    measure: Callable[..., Iterator[Measured]]
    axes: Mapping[str, Axis] = field(default_factory=dict)
    version: int = 1
    gpus: int | Literal["all"] = 1
    cold: bool = False
    minimum_rounds: int = 1
    fresh_process_by: tuple[str, ...] = ()
    process_environment: Callable[[Case], dict[str, str]] = no_environment
    combines: Callable[[Mapping[str, Param]], bool] = always
    here: Callable[[Environment, Mapping[str, Param]], str | None] = everywhere
    essential: bool = False
    late: Callable[[Mapping[str, Param]], bool] = never

    def cases(self, preset: Preset, overrides: Mapping[str, tuple[Param, ...]] | None = None) -> list[Case]:
        """The grid of a preset as cases in axis order, with the values of ``overrides`` in place of an axis's own."""
        chosen = overrides or {}
        names = sorted(self.axes)
        order = list(self.axes)
        grids = [chosen.get(name, self.axes[name].values(preset)) for name in order]
        cases = []
        for values in itertools.product(*grids):
            params = dict(zip(order, values, strict=True))
            if self.combines(params):
                cases.append(Case(self.name, {name: params[name] for name in names}))
        return cases

    def info(self, cases: list[Case]) -> BenchmarkInfo:
        """What the run file keeps of this benchmark, with the axis values that were planned."""
        axes = tuple(
            AxisInfo(name, axis.about, tuple(dict.fromkeys(case.params[name] for case in cases)))
            for name, axis in self.axes.items()
        )
        return BenchmarkInfo(self.name, self.suite, self.title, self.about, self.version, axes, self.metrics)


@cache
def discover(package: str = "microbench.benchmarks") -> Mapping[str, Benchmark]:
    """Every benchmark of the package by name, suites in the order of SUITES, then by file name.

    Raises UsageError for a file without a BENCHMARK, or whose name is not its file's.
    """
    folder = importlib.import_module(package)
    found: list[Benchmark] = []
    for module in pkgutil.walk_packages(folder.__path__, f"{package}."):
        if module.ispkg:
            continue
        loaded: Any = importlib.import_module(module.name)
        benchmark = getattr(loaded, "BENCHMARK", None)
        if not isinstance(benchmark, Benchmark) or benchmark.name != module.name.rpartition(".")[2]:
            raise UsageError(
                f"{module.name.replace('.', '/')}.py declares no BENCHMARK of that name",
                "add BENCHMARK = Benchmark(name=…) with the file's name, or remove the file",
            )
        found.append(benchmark)
    found.sort(key=lambda benchmark: (SUITES.index(benchmark.suite), benchmark.name))
    return {benchmark.name: benchmark for benchmark in found}
