"""What one recording of a watched process shows, as figures that can be added up over hours."""

import numpy as np

from microbench.diagnosis.changed import side
from microbench.diagnosis.diagnosis import Diagnosis
from microbench.diagnosis.idle import owners
from microbench.diagnosis.unwatched import CALLED_S
from microbench.fleet.windows import Window
from microbench.traces.collector import MAX_TIME_NS

# Steps that are found in less of a window are no steps of the program: its own do not fit.
COVERED = 0.4
# Of these counts of a step the metrics have the sums.
COUNTED = ("launches", "replays", "kernels", "kernels_in_graphs", "waits", "copies", "pageable", "allocations")


def shown(process: str, file: str, began_s: float, unix_s: float, found: Diagnosis) -> Window | None:
    """What a diagnosis shows; None if it has no idle time, or if its steps are a small part of the window."""
    if found.idle is None:
        return None
    begin_ns, end_ns = next(iter(found.trace.windows), (0, MAX_TIME_NS))
    own = [number for number, loop in enumerate(found.trace.loops) if found.steps and loop.place == found.steps.name]
    turns = found.trace.turns
    some = bool(turns["last"][np.isin(turns["loop"], own)].any())  # of a fast loop only some turns are noted
    little = found.idle.span_s < COVERED * (end_ns - begin_ns) * 1e-9
    if found.steps is not None and end_ns < MAX_TIME_NS and little and not some:
        return None
    counts, step, steps = side(file, found).counts, found.step, found.steps
    measured = step is not None and step.measured
    share = step.unwatched_s / step.watched_s if step is not None and measured else 1.0
    times_s = np.diff(steps.begins_ns) * 1e-9 * share if steps is not None else np.empty(0)
    calls = found.recorded.calls if found.recorded is not None else 0.0
    called_s = calls * CALLED_S * max(1 - found.idle.busy_s / found.idle.span_s / share, 0.0)  # as far as the GPU idles
    return Window(
        process,
        file,
        began_s,
        unix_s,
        found.idle.span_s,
        found.idle.busy_s,
        {cause: seconds for cause, seconds in found.idle.causes.items() if seconds > 0},
        {owner.name: owner.seconds for owner in owners(found.idle)},
        {name: counts.figures.get(name, 0) * max(counts.steps, 1) for name in COUNTED},
        tuple(times_s.tolist()),
        max(1 - share, 0.0) if measured else None,
        called_s / (step.unwatched_s + called_s) if step is not None and measured else 0.0,
        sum(found.trace.lost.values()),
    )
