"""Judges what the diagnosis says of the recordings of watch_programs.py: ``python lab/judge_programs.py OUT [RUN]``.

A row of OUT/judged.csv is one recording: whether the step is the program's own iteration, its time without the recorder
against the same process's own clock in the pauses (where CUPTI takes some time of each call) and against a process that
nothing recorded, launches without a record, and the graph against the true one. RUN is a run file that has the costs of
the machine.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from microbench.core.errors import MicrobenchError
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.words import findings
from microbench.library.answers import costs_of
from microbench.traces.reading import read
from microbench.traces.trace import NONE, Trace

FAR = 3  # iterations without a stamp
NEAR = 0.02  # the share by which the number of steps may differ from that of iterations, besides one
COLUMNS = (
    "program", "style", "reading", "steps_per_iteration", "found", "loop", "launches", "without_record", "windows",
    "iteration_s", "said_s", "said_low_s", "said_high_s", "measured", "in_pauses_s", "plain_s", "graph_s",
    "said_graph_s", "said_graph_low_s", "said_graph_high_s", "nodes", "recorded_nodes", "bound", "advice", "why",
)  # fmt: skip


def truth_of(out: Path, stem: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / f"{stem}.truth.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def reading(diagnosis: Diagnosis, stamps_ns: np.ndarray, truth: dict[str, Any]) -> tuple[str, float]:
    """What a step is of the program's iteration, and how many steps an iteration has."""
    steps, trace = diagnosis.steps, diagnosis.trace
    if steps is None:
        return "none", 0.0
    first_ns, last_ns = (int(trace.calls["begin_ns"][steps.calls[place]]) for place in (0, -1))
    inside = stamps_ns[(stamps_ns >= first_ns) & (stamps_ns <= last_ns)]
    usual_ns = max(float(np.median(np.diff(stamps_ns))), 1.0)
    if len(inside) > 1 and inside[0] - first_ns < FAR * usual_ns:
        iterations = len(inside) - 1 + (inside[0] - first_ns + last_ns - inside[-1]) / usual_ns
    else:  # the program kept too few stamps
        iterations = steps.count * steps.step_s * 1e9 / usual_ns
    ratio = steps.count / iterations if iterations > 0 else 0.0
    known = {"iteration": 1.0, "part": float(truth.get("parts", 1)), "group": 1 / truth.get("group", 1)}
    for name, wanted in known.items():
        if abs(steps.count - wanted * iterations) <= max(1.0, NEAR * steps.count):
            return name, ratio
    return "several" if ratio < 1 else "sub-period", ratio


def without_record(whole: Trace) -> tuple[int, int]:
    """Kernel launches in windows, and how many of them have no record."""
    names = np.array(["LaunchKernel" in name or "LaunchCooperative" in name for name in (*whole.names, "")])
    launches = np.flatnonzero(names[whole.calls["name"]])
    has = np.zeros(len(whole.calls), bool)
    has[whole.work["call"][whole.work["call"] != NONE]] = True
    return len(launches), int(np.count_nonzero(~has[launches]))


def in_pauses(whole: Trace, stamps_ns: np.ndarray, style: str) -> float:
    """The program's own mean time of an iteration in the pauses, in s."""
    times: list[np.ndarray] = []
    at_once = 1 if style in ("each", "item") else 5
    for pause in whole.pauses:
        own = stamps_ns[(stamps_ns > pause.begin_ns) & (stamps_ns < pause.end_ns)]
        times.append(np.diff(own[::at_once]) / at_once)
    every = np.concatenate([*times, np.empty(0)])
    return float(every.mean()) * 1e-9 if len(every) >= 3 else float("nan")


def row(job: tuple[Path, Path, str | None]) -> dict[str, Any]:
    """One recording."""
    out, folder, run = job
    name, _, style = folder.name.rpartition("_")
    found: dict[str, Any] = {"program": name, "style": style}
    truth = truth_of(out, folder.name)
    try:
        whole = max((read(path) for path in folder.glob("*.rows")), key=lambda trace: len(trace.work))
        costs = costs_of(run)
        one = diagnose(whole, costs.fit, costs_of=costs.gpu, elsewhere=costs.elsewhere)
    except (MicrobenchError, ValueError) as error:
        return found | {"reading": "error", "why": str(error)}
    stamps_ns = np.array(truth.get("stamps_ns", []), np.int64) - (whole.epoch_ns or 0)
    launches, without = without_record(whole)
    found |= {"launches": launches, "without_record": without, "windows": len(whole.windows), "bound": one.bound}
    found["advice"] = next((each.advice for each in findings(one) if each.advice), "")
    if len(stamps_ns) < 3:
        return found | {"reading": "no truth", "why": truth.get("error", "")}
    found["reading"], found["steps_per_iteration"] = reading(one, stamps_ns, truth)
    found["iteration_s"] = float(np.mean(np.diff(stamps_ns))) * 1e-9
    if whole.windows:
        found["in_pauses_s"] = in_pauses(whole, stamps_ns, style)
    plain, graph = truth_of(out, f"{folder.name}_plain"), truth_of(out, f"{name}_graph")
    found |= {"plain_s": plain.get("mean_s"), "graph_s": graph.get("graph_seconds"), "nodes": graph.get("graph_nodes")}
    if one.steps is not None and one.step is not None:
        found |= {"found": one.steps.found, "loop": one.steps.name, "recorded_nodes": one.step.work}
        found |= {"said_s": one.step.unwatched_s, "said_low_s": one.step.low_s, "said_high_s": one.step.high_s}
        found["measured"] = one.step.measured
    found["why"] = one.why_no_graph or found.get("why", "")
    if one.graph is not None:
        found |= {"said_graph_s": one.graph.step_s, "said_graph_low_s": one.graph.low_s}
        found["said_graph_high_s"] = one.graph.high_s
    return found


def main() -> None:
    out, run = Path(sys.argv[1]), next(iter(sys.argv[2:]), None)
    folders = sorted(path for path in out.iterdir() if path.is_dir())
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(row, [(out, folder, run) for folder in folders]))
    with (out / "judged.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.5g}" if isinstance(value, float) else value for key, value in one.items()} for one in rows
        )
    print(dict(Counter(one["reading"] for one in rows)))
    for one in rows:
        if one["reading"] not in ("iteration",):
            print(*(one.get(key, "") for key in ("program", "style", "reading", "steps_per_iteration", "loop", "why")))


if __name__ == "__main__":
    main()
