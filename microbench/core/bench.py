"""A Benchmark is one file that declares axes and metrics and yields raw measurements; discover() finds them all."""

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
    """Values of one parameter, one grid for each preset. Values are absolute and the same on every machine.

    An axis of names accepts only the names it lists; an axis of numbers accepts any integer from ``minimum`` to
    ``maximum``. ``labels`` are titles for values that reports should call by another name than their own.
    """

    about: str
    quick: tuple[Param, ...]
    default: tuple[Param, ...]
    full: tuple[Param, ...]
    minimum: int = 0
    maximum: int = 1 << 40
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def same(cls, about: str, values: tuple[Param, ...], maximum: int = 1 << 40, minimum: int = 0) -> Axis:
        """An axis with one grid for every preset."""
        return cls(about, values, values, values, minimum, maximum)

    def values(self, preset: Preset) -> tuple[Param, ...]:
        """The grid of a preset."""
        return {"quick": self.quick, "default": self.default, "full": self.full}[preset]

    @property
    def numeric(self) -> bool:
        """True if the values are integers."""
        return all(isinstance(value, int) for value in self.full)


def always(params: Mapping[str, Param]) -> bool:
    """True for every combination of axis values."""
    return True


@dataclass(frozen=True)
class Benchmark:
    """One question that one file answers.

    ``measure(gpu, meter, **params)`` yields measurements, facts and series. With ``gpus=0`` its first argument is the
    Host, with ``cold=True`` a ColdStarts that has not touched the GPU yet. ``combines`` is False for combinations that
    make no sense. ``here`` returns why a case makes no sense on this machine (it lacks the NUMA node or GPU), else
    None. Each value of the axes in ``fresh_process_by`` gets a process of its own; ``process_environment`` returns that
    process's extra variables. ``minimum_rounds`` is for values that can be read only once a process. An ``essential``
    benchmark runs before the rest of its suite, because others are judged by it. ``late`` cases run after all others
    of the suite, so that a short budget drops them first.
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
    process_environment: Callable[[Case], dict[str, str]] = lambda case: {}
    combines: Callable[[Mapping[str, Param]], bool] = always
    here: Callable[[Environment, Mapping[str, Param]], str | None] = lambda environment, params: None
    essential: bool = False
    late: Callable[[Mapping[str, Param]], bool] = lambda params: False

    def cases(self, preset: Preset, overrides: Mapping[str, tuple[Param, ...]] | None = None) -> list[Case]:
        """The cases of a preset in axis order; ``overrides`` replace the values of the axes they name."""
        axes = {name: axis.values(preset) for name, axis in self.axes.items()} | dict(overrides or {})
        grid = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
        return [Case(self.name, dict(sorted(params.items()))) for params in grid if self.combines(params)]

    def info(self, cases: list[Case]) -> BenchmarkInfo:
        """The description of this benchmark that a run file stores, with the axis values that were planned."""
        axes = tuple(
            AxisInfo(name, axis.about, tuple(dict.fromkeys(case.params[name] for case in cases)), dict(axis.labels))
            for name, axis in self.axes.items()
        )
        return BenchmarkInfo(self.name, self.suite, self.title, self.about, self.version, axes, self.metrics)


@cache
def discover(package: str = "microbench.benchmarks") -> Mapping[str, Benchmark]:
    """Every benchmark of the package by name, in the order of SUITES and then of file names.

    Raises UsageError for a file without a BENCHMARK or with one of another name than the file's.
    """
    folder = importlib.import_module(package)
    benchmarks: list[Benchmark] = []
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
        benchmarks.append(benchmark)
    benchmarks.sort(key=lambda benchmark: (SUITES.index(benchmark.suite), benchmark.name))
    return {benchmark.name: benchmark for benchmark in benchmarks}
