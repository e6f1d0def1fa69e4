"""Nineteen real programs: true eager and graph times without a profiler, against the diagnosis of their traces.

By hand, on a machine with a GPU: ``python lab/real_programs.py measure FOLDER [SECONDS]``. Each program runs in a
process of its own for its times, and in another one for its traces. FOLDER gets programs.json with the true times, and
program_traces.tar. A program whose library is missing is skipped.

``python lab/real_programs.py compare FOLDER RUN`` needs no GPU. It diagnoses each trace by the costs of a run, with
and without ``--step``, adds the answers to programs.json, and writes programs.md and programs.csv.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from programs import BY_NAME, PROGRAMS, Program, judged, measured

from microbench.core.c_library import library
from microbench.recorder.program import SOURCE, WHOLE, variables

SECONDS = 280.0  # for measure as a whole
IMPORT_S, PROGRAM_S = 60.0, 45.0
MOST_BYTES = 14 << 20
LIBRARIES = ("torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "numba", "numba-cuda", "jax")
TRUTHS, TRACES = "programs.json", "program_traces.tar"


class Child(NamedTuple):
    """A process that waits for a line on its input before it uses the GPU.

    ``what`` is "times", "graph" (times of the library's own graph), "traces" or "watched".
    """

    program: Program
    what: str
    result: Path
    process: subprocess.Popen[bytes]


def measure(folder: Path, seconds: float = SECONDS, programs: tuple[Program, ...] = PROGRAMS) -> None:
    """Measures the programs. All processes import first; then they run one at a time."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    versions = {one.name: one.version for one in distributions() if one.name in LIBRARIES}
    truths: dict[str, Any] = {"versions": versions, "programs": {}}
    with tempfile.TemporaryDirectory() as name:
        children = [child for program in programs for child in started(program, Path(name))]
        try:
            while any(waits_for_import(child) for child in children) and time.monotonic() - began < IMPORT_S:
                time.sleep(0.1)
            for child in children:
                left_s = seconds - (time.monotonic() - began)
                found = finished(child, left_s) if left_s > 0 else {"error": "out of time"}
                truths["programs"].setdefault(child.program.name, {})[child.what] = found
                words = [f"{way} {judged.us(step_s)} us" for way, step_s in found.get("times_s", {}).items()]
                words += [f"{key}: {text}" for key, text in found.items() if key.endswith("error")]
                print(
                    f"{time.monotonic() - began:6.1f} s  {child.program.name} {child.what}: {', '.join(words)}",
                    flush=True,
                )
        finally:
            for child in children:
                child.process.kill()
                child.process.wait()
        packed(Path(name), folder / TRACES)
    truths["seconds"] = time.monotonic() - began
    (folder / TRUTHS).write_text(json.dumps(truths, indent=1))


def started(program: Program, parts: Path) -> Iterator[Child]:
    """The processes of one program, each importing what it needs."""
    ways = [(what, program.environment) for what in ("times", "traces", "watched")]
    if program.graph_environment is not None:
        ways.insert(1, ("graph", program.graph_environment))
    for what, environment in ways:
        place = parts / what
        place.mkdir(exist_ok=True)
        task = "times" if what == "graph" else what
        if what == "watched":
            environment = {**environment, **recorder_in(place)}
        with (place / f"{program.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, "--child", program.name, task, str(place)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, **environment},
            )  # fmt: skip
        yield Child(program, what, place / f"{program.name}.{task}.json", process)


def recorder_in(folder: Path) -> dict[str, str]:
    """The variables of a process that microbench watch records into this folder."""
    made = library(SOURCE)
    assert made is not None, "no C compiler works here"
    return variables(folder, folder, WHOLE, made, injected=False)


def waits_for_import(child: Child) -> bool:
    return child.process.poll() is None and not child.result.with_suffix(".ready").exists()


def finished(child: Child, left_s: float) -> dict[str, Any]:
    """Lets the process run and returns what it measured, or an "error"."""
    try:
        child.process.communicate(b"go\n", timeout=min(PROGRAM_S, left_s))
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
        return {"error": "took too long", "log": log_of(child)}
    if child.result.exists():
        if child.what == "watched":
            for path in child.result.parent.glob(f"*-{child.process.pid}.rows"):
                to = child.result.parents[1] / "traces" / f"{child.program.name}.{measured.WATCHED}.rows.gz"
                to.write_bytes(gzip.compress(path.read_bytes(), 6))
        return dict(json.loads(child.result.read_text()))
    return {"error": f"exit code {child.process.returncode}", "log": log_of(child)}


def log_of(child: Child) -> str:
    return (child.result.parent / f"{child.program.name}.log").read_text(errors="replace")[-1500:]


def packed(parts: Path, archive: Path) -> None:
    """All traces in one archive of at most MOST_BYTES; the largest ones with stacks are left out first."""
    files = sorted(parts.glob("traces/*.gz"), key=lambda path: (".stack." in path.name, path.stat().st_size))
    with tarfile.open(archive, "w") as tar:
        total = 0
        for path in files:
            total += path.stat().st_size + 1024
            if total > MOST_BYTES:
                print(f"left out: {path.name}, {path.stat().st_size} bytes")
                break
            tar.add(path, path.name)


def compare(folder: Path, run: str) -> None:
    """Diagnoses the traces and prints and writes the tables."""
    truths = json.loads((folder / TRUTHS).read_text())
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(folder / TRACES) as tar:
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since 3.11.4
            tar.extractall(name, **safely)
        jobs = [
            (program, kind, Path(name) / trace["file"], trace["steps"], times_of(found) | here(found[what]))
            for program, found in truths["programs"].items()
            for what in ("traces", "watched")
            for kind, trace in found.get(what, {}).get("traces", {}).items()
            if (Path(name) / trace["file"]).exists() and times_of(found)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            answers = list(pool.map(lambda job: answered(*job[2:], run), jobs))
    rows = []
    for (program, kind, _, steps, truth), (plain, given) in zip(jobs, answers, strict=True):
        truths["programs"][program].setdefault("answers", {})[kind] = {"plain": plain, "given": given}
        rows.append(judged.row(program, kind, truth, steps, plain, given))
    truths["run"] = Path(run).name
    (folder / TRUTHS).write_text(json.dumps(truths, indent=1))
    lines = list(report(rows, truths))
    (folder / "programs.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (folder / "programs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    print("\n".join(lines))


def times_of(found: Mapping[str, Any]) -> dict[str, float]:
    """The true times of a step by way, also where the library made its graph in another process."""
    times = dict(found["times"].get("times_s", {}))
    if times and "times_s" in found.get("graph", {}):
        times["graph"] = found["graph"]["times_s"]["eager"]
    return times


def here(traced: Mapping[str, Any]) -> dict[str, float]:
    """The true time of an eager step in the process that was recorded, where it was timed there."""
    return {"here": traced["eager_s"]} if "eager_s" in traced else {}


def answered(path: Path, steps: int, truth: Mapping[str, float], run: str) -> tuple[Any, Any]:
    """What `diagnose` says of a trace without and with the true time of the step that it found."""
    plain = diagnosed(path, run)
    if "error" in plain or plain["step"] is None:
        return plain, plain
    step_s = truth.get("here", truth["eager"]) / judged.parts(plain, steps)
    return plain, diagnosed(path, run, "--step", f"{step_s * 1e6:.3f}us")


def diagnosed(path: Path, run: str, *options: str) -> Any:
    command = [sys.executable, "-m", "microbench", "diagnose", str(path), "--run", run, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        last = " ".join(done.stderr.replace(str(path), path.name).split())[-300:]
        return {"error": last or f"exit code {done.returncode}"}
    answer = json.loads(done.stdout)
    answer["trace"]["source"] = path.name
    answer.pop("places", None)  # long, and no figure of the comparison
    return answer


def report(rows: list[judged.Row], truths: Mapping[str, Any]) -> Iterator[str]:
    """The Markdown of a comparison: a table and a summary for each kind of trace, and what was not measured."""
    yield f'Costs of {truths["run"]}; us a step. "given" is the speed-up with --step.'
    kinds = list(dict.fromkeys(kind for program in PROGRAMS for kind in (*program.kinds, measured.WATCHED)))
    for kind in kinds:
        chosen = [row for row in rows if row["trace"] == kind]
        if chosen:
            yield from ("", f"### Traces: {kind}", "", *judged.table(chosen), "", *judged.summary(chosen))
    both = [row for row in rows if row["trace"] in ("cuda", "cpu")]
    if both:
        yield from ("", "### CUDA only, and CPU and CUDA, together", "", *judged.summary(both))
    yield from ("", "### Not measured", "")
    for name, found in truths["programs"].items():
        for what in ("times", "graph", "traces", "watched"):
            for key, text in found.get(what, {}).items():
                if key.endswith("error"):
                    yield f"- {name}, {what}, {key}: {text}"
    yield from ("", "### Other true times, us a step", "")
    for name, found in truths["programs"].items():
        times = {way: value for way, value in times_of(found).items() if way not in ("eager", "graph")}
        if times:
            yield f"- {name} ({BY_NAME[name].about}): " + ", ".join(f"{way} {judged.us(s)}" for way, s in times.items())


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        measured.main(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    elif sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), *map(float, sys.argv[3:4]))
    else:
        compare(Path(sys.argv[2]), sys.argv[3])
