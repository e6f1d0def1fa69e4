"""A Benchmark is one file that declares axes and metrics and yields raw measurements; discover() finds them all."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from microbench.core.errors import UsageError
from microbench.core.model import AxisInfo, BenchmarkInfo, Case, Environment, Fact, Measurement, Metric, Param, Series
from microbench.core.units import typed_size

Preset = Literal["quick", "default", "full"]
PRESETS: tuple[Preset, ...] = ("quick", "default", "full")
Measured = Measurement | Fact | Series
Results = Iterator[Measured]  # what measure yields
Params = Mapping[str, Param]  # a case's value on each axis
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NUMBERS_AND_UNIT = re.compile(r"([\d ]+) ([KMG]?i?B)")
SUITES = ("host", "launch", "graph", "link", "memory", "compute", "own")


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
    def same(cls, about: str, values: tuple[Param, ...], **other: Any) -> Axis:
        """An axis with one grid for every preset; ``other`` are its further fields."""
        return cls(about, values, values, values, **other)

    @classmethod
    def sizes(cls, about: str, *grids: str, least: str = "0 B", most: str = "1024 GiB") -> Axis:
        """An axis of bytes: the quick, the default and the full grid as "512 B 4 64 KiB 1 GiB"."""
        quick, default, full = map(_sizes, grids)
        return cls(about, quick, default, full, typed_size(least), typed_size(most))

    @classmethod
    def numbers(cls, about: str, *grids: str, least: int = 0, most: int = 1 << 40) -> Axis:
        """An axis of whole numbers. ``grids`` are its quick, default and full values, each like "1 10 100"."""
        quick, default, full = (tuple(map(int, grid.split())) for grid in grids)
        return cls(about, quick, default, full, least, most)

    def values(self, preset: Preset) -> tuple[Param, ...]:
        return {"quick": self.quick, "default": self.default, "full": self.full}[preset]

    @property
    def numeric(self) -> bool:
        return all(isinstance(value, int) for value in self.full)


def _sizes(text: str) -> tuple[int, ...]:
    """The sizes of a grid; a unit belongs to all numbers before it."""
    numbers = NUMBERS_AND_UNIT.findall(text)
    return tuple(typed_size(f"{number} {unit}") for several, unit in numbers for number in several.split())


def always(params: Params) -> bool:
    """True for every combination of axis values."""
    return True


class Package(NamedTuple):
    """A Python package: its import name, and the pip line that installs it."""

    name: str
    install: str


@dataclass(frozen=True)
class Benchmark:
    """One question that one file answers.

    ``discover`` takes ``name``, ``suite``, ``about`` and ``measure`` from the file: its name, folder, docstring and
    function. ``measure(gpu, meter, **params)`` yields measurements, facts and series. With ``gpus=0`` its first
    argument is the Host, with ``cold=True`` a function that times first uses of the GPU. ``combines`` is False for
    combinations that make no sense. ``here`` returns why a case makes no sense on this machine (it lacks the NUMA node
    or GPU), else None; such a case is left out. ``needs`` returns the package without which a case is skipped.

    ``own_process`` names the process that a case needs: cases of equal name share one, even those of different
    benchmarks, and "" is the main process. ``process_environment`` returns that process's extra variables.
    ``minimum_rounds`` is for values that can be read only once a process.

    The quick grid of a ``core`` benchmark is never left out for lack of time. With a time limit each round begins with
    it and ends with the ``late`` cases, which a short limit drops first.
    """

    title: str
    metrics: tuple[Metric, ...]
    axes: Mapping[str, Axis] = field(default_factory=dict)
    version: int = 1
    gpus: int | Literal["all"] = 1
    cold: bool = False
    minimum_rounds: int = 1
    needs: Callable[[Params], Package | None] = lambda params: None
    own_process: Callable[[Params], str] = lambda params: ""
    process_environment: Callable[[Case], dict[str, str]] = lambda case: {}
    combines: Callable[[Params], bool] = always
    here: Callable[[Environment, Params], str | None] = lambda environment, params: None
    core: bool = False
    late: Callable[[Params], bool] = lambda params: False
    name: str = ""
    suite: str = ""
    about: str = ""
    measure: Callable[..., Results] = lambda *_, **__: iter(())

    def cases(self, preset: Preset, overrides: Mapping[str, tuple[Param, ...]] | None = None) -> list[Case]:
        """The cases of a preset in axis order; ``overrides`` replace the values of the axes they name."""
        axes = {name: axis.values(preset) for name, axis in self.axes.items()} | dict(overrides or {})
        grid = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
        return [Case(self.name, dict(sorted(params.items()))) for params in grid if self.combines(params)]

    @cached_property
    def core_ids(self) -> frozenset[str]:
        """Ids of the cases that are never left out for lack of time."""
        return frozenset(case.id for case in self.cases("quick")) if self.core else frozenset()

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

    Raises UsageError for a file without a BENCHMARK and for a file in a folder that is not a suite.
    """
    folder = importlib.import_module(package)
    benchmarks: list[Benchmark] = []
    for found in pkgutil.walk_packages(folder.__path__, f"{package}."):
        if found.ispkg:
            continue
        module: Any = importlib.import_module(found.name)
        benchmark, file = getattr(module, "BENCHMARK", None), f"{found.name.replace('.', '/')}.py"
        measure = getattr(module, "measure", None)
        if not isinstance(benchmark, Benchmark) or measure is None:
            lacks = "function measure" if isinstance(benchmark, Benchmark) else "BENCHMARK = Benchmark(…)"
            raise UsageError(f"{file} declares no {lacks}", "declare it, or remove the file")
        parent, _, name = found.name.rpartition(".")
        suite = benchmark.suite or parent.rpartition(".")[2]
        if suite not in SUITES:
            raise UsageError(f"{file} is in no suite", f"move it to the folder of one: {', '.join(SUITES)}")
        benchmarks.append(replace(benchmark, name=name, suite=suite, about=module.__doc__ or "", measure=measure))
    benchmarks.sort(key=lambda benchmark: (SUITES.index(benchmark.suite), benchmark.name))
    return {benchmark.name: benchmark for benchmark in benchmarks}
