"""Measures steps on a real GPU, some that the model is fitted to and some that it is not, and compares its predictions
with the latter.

``python lab/held_out.py measure FILE [SECONDS [DEVICE]]`` measures everything in one worker process, three rounds,
each in an order of its own. ``python lab/held_out.py compare FILE [OTHER …]`` fits the model to FILE and prints how
far its predictions lie from the steps of FILE, and from those of each other file, which the fit never saw at all.
``python lab/held_out.py table FILE`` prints every step with its prediction as CSV, in seconds.
"""

from __future__ import annotations

import csv
import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.archive import store
from microbench.core.bench import discover
from microbench.core.model import Environment, Settings
from microbench.core.units import as_time, percent
from microbench.session import session
from microbench.session.plan import Plan, Process, Selected, make_plan

if TYPE_CHECKING:
    from microbench.model.forecast import Check, Point

Values = Mapping[str, tuple[int | str, ...]]
ROUNDS = 3
AXES = ("layer", "kernels", "duration_ns", "waits", "copy_bytes")
PYTHON = ("cuda_core", "cupy_raw", "numba_configured")
# What the model is fitted to, and the steps that it must predict. The fit contains none of the grid's seven lengths,
# neither size of its copies and no step with a copy. It contains steps with one wait at the end, also of 10 kernels,
# which is the number between two waits in a step of 60 kernels and 6 waits. It contains no steps of 20, 40, 60, 240,
# 600 or 1100 kernels, and none with several waits.
FITTED: tuple[tuple[str, Values], ...] = (
    ("launch_cost", {}),
    ("launch_duration", {"duration_ns": (0, 500, 1000, 2000, 5000, 20_000, 50_000)}),
    ("launch_layers", {"family": ("same_kernel",), "layer": ("loop", *PYTHON)}),
    ("launch_queue", {"argument_bytes": (0,)}),
    ("graph_lifecycle", {"nodes": (1, 10, 100, 1000)}),
    (
        "graph_gain",
        {"submitter": ("loop",), "kernels": (1, 10, 100, 1000), "duration_ns": (0, 1000, 2000, 5000, 20_000)},
    ),
    ("graph_gain", {"submitter": PYTHON, "kernels": (10, 100), "duration_ns": (0, 1000, 5000, 20_000)}),
    ("link_copy", {"memory": ("pinned",), "size_bytes": (1, 4096, 65_536, 1 << 20, 1 << 24)}),
    ("link_latency", {"what": ("copy_h2d", "copy_d2h"), "footprint_bytes": (0,), "order": ("sequential",)}),
)
HELD_OUT: tuple[tuple[str, Values], ...] = (
    (
        "step_time",
        {"layer": ("loop", *PYTHON), "kernels": (60, 240), "duration_ns": (700, 1500, 4000, 15_000), "waits": (1, 6),
         "copy_bytes": (0,)},
    ),
    ("step_time", {"layer": ("loop", "cupy_raw"), "kernels": (600,), "duration_ns": (3500,), "waits": (1, 30),
                   "copy_bytes": (0,)}),
    ("step_time", {"layer": ("loop", *PYTHON), "kernels": (1100,), "duration_ns": (1500, 6000), "waits": (1,),
                   "copy_bytes": (0,)}),
    ("step_time", {"layer": ("loop",), "kernels": (60, 240), "duration_ns": (1500, 8000), "waits": (1,),
                   "copy_bytes": (200_000, 3 << 20)}),
)  # fmt: skip

LONG_NS = 6000


def _streamed(layer_is_loop: bool, host: bool) -> Callable[[Point], bool]:
    def asked(point: Point) -> bool:
        by_host = point.predicted.limit == "host"
        return point.way == "stream" and (point.row.params["layer"] == "loop") == layer_is_loop and by_host == host

    return asked


# Kinds of points: the intervals must hold each kind, not only all points together.
CLASSES: Mapping[str, Callable[[Point], bool]] = {
    "graphs": lambda point: point.way == "graph",
    "streams from Python, the host slower": _streamed(False, True),
    "streams from Python, the GPU slower": _streamed(False, False),
    "streams from the compiled loop, the host slower": _streamed(True, True),
    "streams from the compiled loop, the GPU slower": _streamed(True, False),
    "several waits": lambda point: point.pieces > 1,
    "kernels of 6 us and more": lambda point: int(point.row.params["duration_ns"]) >= LONG_NS,
    "copies": lambda point: int(point.row.params["copy_bytes"]) > 0,
}


def one_worker(_: object, environment: Environment, **settings: Any) -> Plan:
    """Fitted and held-out cases in one process, each round in another order."""
    catalogue = discover()
    chosen = [
        Selected(catalogue[name], tuple(catalogue[name].cases("full", values)), named=True)
        for name, values in (*FITTED, *HELD_OUT)
    ]
    plan = make_plan(chosen, environment, **{**settings, "rounds": 1})
    process = Process("gpu", plan.cases[0].process.device, 0)
    cases = []
    for number in range(ROUNDS):
        order = [dataclasses.replace(case, round=number, process=process) for case in plan.cases]
        random.Random(number).shuffle(order)
        cases += order
    return Plan(tuple(cases), plan.skipped)


def measure(path: Path, seconds: float, device: str | None = None) -> None:
    """Measures everything into a new run file."""
    session.make_plan = one_worker
    names = tuple(dict.fromkeys(name for name, _ in (*FITTED, *HELD_OUT)))
    settings = Settings("full", names, device=device, rounds=ROUNDS, time_limit_s=seconds)
    request = session.RunRequest(settings, out=path)
    result = session.execute(request, lambda event: None)
    print(path, dict(Counter(one.status for one in result.run.outcomes)))
    for one in result.run.outcomes:
        if one.status not in ("ok", "skipped"):
            print(one.case.id, one.round, one.status, one.reason)


def evidence_of(path: Path) -> Evidence:
    """The evidence of the only GPU of a file."""
    return evidence_by_device(store.read(path))[0]


def print_check(name: str, checked: Check) -> None:
    """Prints the figures, by way and layer and by class, and the worst five."""
    print(
        f"{name}: {len(checked.points)} points, median error {percent(checked.median)}, 95th percentile "
        f"{percent(checked.most)}, {percent(checked.coverage)} within intervals of "
        f"±{percent(checked.half_width)} (median)"
    )
    for way in ("stream", "graph"):
        for layer in ("loop", *PYTHON):
            errors = sorted(abs(p.error) for p in checked.points if p.way == way and p.row.params["layer"] == layer)
            if errors:
                print(f"  {way:6} {layer:17} {len(errors):3} points, median {percent(errors[len(errors) // 2])}, "
                      f"worst {percent(errors[-1])}")  # fmt: skip
    for kind, asked in CLASSES.items():
        points = [point for point in checked.points if asked(point)]
        if points:
            covered = sum(point.covered for point in points)
            width = median(point.predicted.half_width for point in points)
            print(f"  {kind}: {covered} of {len(points)} covered, half width {percent(width)} (median)")
    for point in sorted(checked.points, key=lambda point: -abs(point.error))[:5]:
        half = percent(point.predicted.half_width)
        print(f"  {point.row.case_id} {point.way}: measured {as_time(point.row.value)} ({point.row.trust}), "
              f"predicted {as_time(point.step_s)} ±{half}, {percent(point.error)}")  # fmt: skip


def compare(paths: list[Path]) -> None:
    """Compares the first file's fit with its own held-out steps, then with those of the others."""
    from microbench.model.fit import fit
    from microbench.model.forecast import check

    fitted = fit(evidence_of(paths[0]))
    for path in paths:
        checked = check(evidence_of(path), fitted)
        if checked is not None:
            print_check(path.name, checked)


def table(path: Path) -> None:
    """Prints every step of the file, measured and predicted, as CSV."""
    from microbench.model.fit import fit
    from microbench.model.forecast import check

    evidence = evidence_of(path)
    checked = check(evidence, fit(evidence))
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow([*AXES, "way", "trust", "measured_s", "predicted_s", "low_s", "high_s", "error"])
    for point in checked.points if checked is not None else ():
        known, pieces = point.predicted, point.pieces
        seconds = [point.row.value, point.step_s, pieces * known.low_s, pieces * known.high_s]
        axes = [point.row.params[name] for name in AXES]
        lines.writerow([*axes, point.way, point.row.trust, *(f"{one:.5g}" for one in seconds), f"{point.error:.4f}"])


if __name__ == "__main__":
    if sys.argv[1] == "table":
        table(Path(sys.argv[2]))
    elif sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 200.0, *sys.argv[4:5])
    else:
        compare([Path(argument) for argument in sys.argv[2:]])
