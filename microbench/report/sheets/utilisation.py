"""Lays out what NVML said about a running process: one screen, with what such figures cannot show."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from microbench.analysis.clocks import THROTTLE_WORDS
from microbench.core.readings import Followed, GpuReadings, Share
from microbench.core.units import about_size, as_time, percent, plain, quantity
from microbench.diagnosis.utilisation import apart_s, limits
from microbench.report.document import AnswerLine, Block, Screen, answer_line

TENTHS = (0.1, 0.5, 0.9)
NEXT = "next: microbench watch -- the same command · records each kernel and says why the GPU waits"


def screen(followed: Followed) -> Screen:
    """One screen of a process that was followed."""
    blocks = tuple(
        Block(
            f"GPU {gpu.number}",
            (gpu.name, f"process {followed.pid}", plain(followed.name)),
            tuple(_lines(gpu, followed)),
        )
        for gpu in followed.gpus
    )
    between_s = min(apart_s(gpu) for gpu in followed.gpus)
    known = all(gpu.apart_s is not None for gpu in followed.gpus)
    notes = [limits(between_s, known=known)]
    if not followed.listed:
        notes.append("NVML does not list this process: these are all GPUs whose device files it has open")
    return Screen(run=f"sampled for {as_time(followed.span_s)}", blocks=blocks, left_out=" · ".join(notes), footer=NEXT)


def _lines(gpu: GpuReadings, followed: Followed) -> list[AnswerLine]:
    states = gpu.states.values
    why_not = gpu.why_not.get("process", "") if followed.listed else "NVML knows it by another number"
    lines = [
        _shares("NVML", gpu.busy.values, "of the time any kernel ran", gpu.why_not.get("busy", "")),
        _shares("GPM", gpu.sms.values, "of the SMs busy", gpu.why_not.get("sms", "")),
        _shares("the process", gpu.process.values, "of the time its kernels ran", why_not),
        _measured("SM clock", (state.telemetry.nvml_sm_clock_hz for state in states), "Hz"),
        _measured("memory clock", (state.telemetry.memory_clock_hz for state in states), "Hz"),
        _measured("power", (state.telemetry.power_w for state in states), "W"),
    ]
    used = max((state.used_bytes for state in states if state.used_bytes is not None), default=None)
    if used is not None:
        whole = f" of {about_size(gpu.memory_bytes)}" if gpu.memory_bytes else ""
        lines.append(answer_line("memory", f"at most {about_size(used)}{whole}, by all processes"))
    if states:
        # For which share of the time each reason held that lowers the clock.
        reasons = [reason for state in states for reason in state.telemetry.throttle_reasons if reason != "idle"]
        found = sorted(set(reasons), key=lambda reason: -reasons.count(reason))
        words = [f"{reason} {percent(reasons.count(reason) / len(states))} of the time" for reason in found]
        slow = any(word in reason for reason in found for word in THROTTLE_WORDS)
        lines.append(answer_line("slowed by", *(words or ["nothing"]), verdict="warning" if slow else None))
    return lines


def _shares(name: str, shares: Sequence[Share], what: str, why: str) -> AnswerLine:
    return _range(name, [one.share for one in shares], percent, f" {what}", f": {why or 'there was no sample yet'}")


def _measured(name: str, found: Iterable[float | None], unit: str) -> AnswerLine:
    return _range(name, [value for value in found if value is not None], partial(quantity, unit=unit))


def _range(name: str, values: list[float], words: Callable[[float], str], what: str = "", why: str = "") -> AnswerLine:
    if not values:
        return answer_line(name, f"not given{why}")
    low, median, high = (words(float(value)) for value in np.quantile(values, TENTHS))
    return answer_line(name, f"{median}{what}", f"p10 to p90: {low} to {high}")
