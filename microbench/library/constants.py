"""The constants of a machine for other libraries: made of a run, written to a file, and read from it.

To read a file nothing but its parser is imported, so that a library can ask for a constant while it is loaded.
"""

import importlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SCHEMA = 1
HEAD = 40  # bytes of a JSON file in which its schema stands
WRITE = "microbench constants -o machine.toml writes one"


class MachineConstant(NamedTuple):
    """A constant in an SI base unit, with its 95 % interval from ``low`` to ``high``; infinite for what is never so.

    ``what`` says what it is. ``rounds`` are the fewest and ``grade`` is the worst of the rows behind it, the first of
    which is of ``benchmark``; in ``busy`` of the rounds, which do not count, the host was busy.
    """

    value: float
    low: float
    high: float
    unit: str
    what: str
    benchmark: str
    rounds: int
    grade: str
    busy: int = 0


class MachineConstants(Mapping[str, MachineConstant]):
    """The constants of a machine by name: ``constants["launch.loop.0"].value``. An unknown name raises KeyError.

    ``source`` says whose they are: "run 20261124T023018Z-6d7d1ec6", "bundled nvidia-h200, another machine".
    ``machine`` has card, compute_capability, driver, cuda, processor, date and run. ``missing`` has patterns of names
    that the run has no constants of, with the commands that measure them. ``microbench`` is the version that made them.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.microbench, self.source = str(content["microbench"]), str(content["source"])
        self.machine = {key: str(value) for key, value in content["machine"].items()}
        self.missing = {key: str(value) for key, value in content["missing"].items()}
        self._constants = {name: _read(entry) for name, entry in content["constants"].items()}

    def __getitem__(self, name: str) -> MachineConstant:
        if name not in self._constants:
            from difflib import get_close_matches
            from fnmatch import fnmatchcase

            for names, command in self.missing.items():
                if any(fnmatchcase(name, pattern) for pattern in names.split()):
                    raise KeyError(f"{name} was not measured: {command}")
            near = ", ".join(get_close_matches(name, self, cutoff=0.5))
            raise KeyError(f"there is no {name}{f', near it are {near}' if near else ''}")
        return self._constants[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)

    def __repr__(self) -> str:
        return f"<microbench.MachineConstants: {len(self)} of {self.source}>"

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        entries = {name: {k: v for k, v in one._asdict().items() if k != "busy" or v} for name, one in self.items()}
        head = {"schema": SCHEMA, "microbench": self.microbench, "source": self.source}
        return {**head, "machine": self.machine, "missing": self.missing, "constants": entries}

    def to_toml(self) -> str:
        """The file that `microbench constants -o machine.toml` writes."""
        content, lines = self.to_dict(), ["# The constants of a machine, in SI base units, with their 95 % intervals."]
        lines += [f"{key} = {_toml(value)}" for key, value in content.items() if not isinstance(value, dict)]
        for name in ("machine", "missing", "constants"):
            lines += ["", f"[{name}]", *(f"{_toml(key)} = {_toml(value)}" for key, value in content[name].items())]
        return "\n".join(lines) + "\n"

    def to_header(self) -> str:
        """A header for C and C++: ``#define MICROBENCH_LAUNCH_LOOP_0_S 3.2e-06``."""
        import re

        from microbench.core.units import plain

        lines = ["#pragma once", "#include <math.h>"]
        for name, one in self.items():
            unit = "" if one.unit == "1" else f" {one.unit.replace('/', ' per ')}"
            macro = re.sub(r"[^A-Z0-9]+", "_", f"microbench {name}{unit}".upper())
            value = "INFINITY" if math.isinf(one.value) else repr(one.value)
            about = plain(f"{one.what}; {one.low!r} to {one.high!r}").replace("*", "")
            lines.append(f"#define {macro} {value} /* {about} */")
        about = plain(", ".join([self.source, *self.machine.values()])).replace("*", "")
        return "\n".join([f"/* {about}. In SI base units. */", *lines]) + "\n"


def _read(entry: Mapping[str, Any]) -> MachineConstant:
    """An entry of a file; JSON has null for infinity."""
    value, low, high = (math.inf if entry[key] is None else float(entry[key]) for key in ("value", "low", "high"))
    unit, what, benchmark, grade = (str(entry[key]) for key in ("unit", "what", "benchmark", "grade"))
    rounds, busy = int(entry["rounds"]), int(entry.get("busy", 0))
    return MachineConstant(value, low, high, unit, what, benchmark, rounds, grade, busy)


def _rounded(value: float) -> float:
    """Seven digits, as a run's file has them; sizes and counts stay exact."""
    return value if value.is_integer() else float(f"{value:.7g}")


def _toml(value: Any) -> str:
    """A value, or a key in quotes, as TOML: its strings are those of JSON."""
    import json

    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{value:.0f}" if float(value).is_integer() else repr(value)


def read(name: str) -> MachineConstants | None:
    """The constants of a file; None if the name is not that of one. Raises RunUnreadableError."""
    if not name.endswith((".toml", ".json")):
        return None
    try:
        with open(name, "rb") as file:
            head = file.read(HEAD)
            if name.endswith(".json") and b'"schema":' not in head:
                return None  # a run
            text = (head + file.read()).decode()
        content = importlib.import_module("tomllib" if name.endswith(".toml") else "json").loads(text)
        if content["schema"] == SCHEMA:
            return MachineConstants(content)
        cause, step = f"{name} has schema {content['schema']}, not {SCHEMA}", "use the microbench that wrote it"
    except OSError as error:
        cause, step = f"{name} cannot be read: {error.strerror}", WRITE
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        cause, step = f"{name} is no file of constants", WRITE
    from microbench.core.errors import RunUnreadableError
    from microbench.core.units import plain

    raise RunUnreadableError(plain(cause), step)


def made(name: str | None, *, nearest: bool) -> MachineConstants:
    """The constants of the named run, or of the newest that predictions take. Raises RunUnreadableError."""
    from microbench.analysis.evidence import DOUBTS, evidence_by_device, row_name
    from microbench.core.bench import SUITES
    from microbench.core.errors import RunUnreadableError, run_command
    from microbench.core.units import plain
    from microbench.core.version import __version__
    from microbench.explain.constants import constants, lacking
    from microbench.library.answers import USUAL, recorded
    from microbench.library.runs import adding_to, consistent, is_reference
    from microbench.model.fit import fit
    from microbench.model.fit import missing as unfitted
    from microbench.model.model import WAYS
    from microbench.model.words import benchmarks
    from microbench.session.session import commit

    path, run = recorded(name)
    reference = is_reference(path)
    if reference and name is None and not nearest:
        raise RunUnreadableError("no run of this machine has the costs of launches", "measure one: microbench run")
    with consistent(run):
        gpus = evidence_by_device(run)
        evidence = next((one for one in gpus if not unfitted(fit(one), USUAL, WAYS)), gpus[0])
        named = sorted(constants(evidence), key=lambda one: SUITES.index(one.name.split(".")[0]))
    if not named:
        raise RunUnreadableError(f"run {plain(run.run_id, 60)} has no constants", "microbench run measures them")
    rows = {row_name(row): row for row in evidence.all_rows()}
    entries = {}
    for one in named:
        constant, behind = one.constant, [rows[row] for row in one.constant.rests_on]
        grades = {row.trust for row in behind}
        entries[one.name] = {
            **{end: _rounded(getattr(constant, end)) for end in ("value", "low", "high")},
            "unit": one.unit, "what": one.what, "benchmark": benchmarks(constant.rests_on)[0],
            "rounds": min(len(row.summaries) for row in behind), "busy": max(sum(row.busy) for row in behind),
            "grade": next(grade for grade in (*DOUBTS, "steady", "stable") if grade in grades),
        }  # fmt: skip
    session, environment, gpu = run.sessions[-1], evidence.environment, evidence.gpu
    machine = {
        "card": gpu.name if gpu is not None else None,
        "compute_capability": ".".join(map(str, gpu.compute_capability or ())) if gpu is not None else None,
        "driver": environment.driver_version, "cuda": environment.cuda_driver_version,
        "processor": environment.fact("cpu_model"), "date": session.started_at[:10], "run": run.run_id,
    }  # fmt: skip
    adding = adding_to(None, path, run)  # the run's id: a file of constants has no paths
    whose = f"bundled {path.name.partition('.')[0]}, another machine" if reference else f"run {run.run_id}"
    return MachineConstants(
        {
            "microbench": f"{__version__} ({checkout})" if (checkout := commit()) else __version__,
            "source": f"{'SIMULATED ' if run.simulated else ''}{whose}",
            "machine": {key: plain(value) for key, value in machine.items() if value},
            "constants": entries,
            "missing": {names: run_command([benchmark], adding) for benchmark, names in lacking(evidence).items()},
        }
    )
