"""Fits the model to one GPU of a run: each constant by the benchmark that shows it, then all by the run's own steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from microbench.explain import fit_direct, fit_link
from microbench.explain.evidence import Evidence, whole
from microbench.explain.fit_calibration import Calibrated, calibrated
from microbench.explain.fit_constant import around, half_width, stand_in
from microbench.explain.fit_direct import own_s
from microbench.explain.fit_misfit import misfits
from microbench.explain.fit_steps import Step, steps
from microbench.fitted import Constant, Fit, Reach
from microbench.ops import ARRAY_LAYERS, LOOP_LAYER
from microbench.submission import Way, call_name, needed, replay_name
from microbench.workload import Kernels, Workload

__all__ = ["call_constant", "fit", "missing", "own_s", "with_calls"]

CALL, REPLAY = "call.", "replay."
# Which benchmark shows a constant. Calls and replays have one for all layers; the others are link_copy's.
SHOWN_BY = {
    "way": "launch_cost", "empty": "launch_cost", "complete": "launch_cost", "sync": "launch_sync",
    "gap_stream": "launch_duration", "queue": "launch_queue", "gap_graph": "graph_lifecycle",
    "replay_node": "graph_lifecycle", "replay_way": "graph_gain", "make": "graph_lifecycle",
    "make_node": "graph_lifecycle", "front_end": "graph_shape", "memory": "memory_stream",
    "h2d_call": "link_latency", "d2h_call": "link_latency", "h2d_way": "link_latency", "d2h_way": "link_latency",
}  # fmt: skip
# A call with a count of arguments of which nothing near was measured is known no better than this.
UNLIKE = 0.1
# Steps settle a constant that something else stood in for when they narrow it to this share.
SETTLED = 0.5
# By so much a stand-in's interval is widened before it is held against steps: they decide, where there are any.
LOOSELY = 100.0


def fit(evidence: Evidence) -> Fit:
    """Every constant of ``submission.CONSTANTS`` that the run shows, and its launch and replay calls by layer.

    What was not measured is absent; what stands in for a measurement says so (``Constant.assumed``).
    """
    direct = dict(
        itertools.chain(
            fit_direct.calls(evidence),
            fit_direct.around_a_kernel(evidence),
            fit_direct.waiting(evidence),
            fit_direct.gaps(evidence),
            fit_direct.queue(evidence),
            fit_direct.lives(evidence),
        )
    )
    measured = steps(evidence)
    direct |= _calls_between(direct, measured)
    others = _stand_ins(direct, measured)
    found = calibrated(measured, direct | {name: _loosely(one) for name, one in others.items()})
    constants = direct | others
    constants |= _settled(constants, measured, found)
    constants |= dict(fit_direct.front_end(evidence, constants))
    constants |= dict(fit_link.copies(evidence, constants)) | dict(fit_link.memory(evidence))
    return Fit(
        constants=constants,
        layers=tuple(dict.fromkeys(layer for layer, _ in map(_called, constants) if layer)),
        misfit=misfits(measured, found, constants),
        reach=_reach(evidence, measured, constants),
        device=evidence.device,
        run_id=evidence.run.run_id,
    )


def missing(found: Fit, workload: Workload, ways: Iterable[Way]) -> list[str]:
    """Benchmarks that would give the constants that this workload needs and the fit lacks, each once."""
    known = with_calls(found, workload).constants
    names = dict.fromkeys(name for way in ways for name in needed(workload, way))
    return list(dict.fromkeys(_shown_by(name) for name in names if name not in known))


def _shown_by(name: str) -> str:
    if name.startswith(CALL):
        return "launch_layers"
    return "graph_lifecycle" if name.startswith(REPLAY) else SHOWN_BY.get(name, "link_copy")


def with_calls(found: Fit, workload: Workload) -> Fit:
    """The fit with the calls of this workload's kernels, those with a count of arguments not measured among them."""
    wanted = [(part.layer or workload.layer, part.arguments) for part in workload.parts if isinstance(part, Kernels)]
    more = {call_name(*one): call_constant(found, *one) for one in wanted}
    replay = replay_name(workload.layer)
    if replay not in found.constants and (loop := found.constants.get(replay_name(LOOP_LAYER))) is not None:
        more[replay] = _as_the_loop_replays(loop, workload.layer)
    added = {name: one for name, one in more.items() if one is not None and name not in found.constants}
    return msgspec.structs.replace(found, constants={**found.constants, **added}) if added else found


def call_constant(found: Fit, layer: str, arguments: int) -> Constant | None:
    """The launch call of a layer with so many arguments: measured, or on the straight line through those that were.

    None for a layer that was not measured at all.
    """
    return _call(found.constants, layer, arguments)


def _call(constants: Mapping[str, Constant], layer: str, arguments: int) -> Constant | None:
    known = {count: one for name, one in constants.items() for who, count in [_called(name)] if who == layer}
    if layer in ARRAY_LAYERS and known:
        return next(iter(known.values()))
    if not known or arguments in known:
        return known.get(arguments)
    counts = sorted(known)
    near = [max((one for one in counts if one < arguments), default=counts[0])]
    near += [min((one for one in counts if one > arguments), default=counts[-1])]
    if near[0] == near[1]:  # beyond all of them
        near = counts[:2] if arguments < counts[0] else counts[-2:]
    if len(set(near)) < 2:
        words = f"a call with {_arguments(arguments)} takes as long as one with {near[0]}"
        return stand_in(known[near[0]], words, UNLIKE)
    (low, first), (high, second) = ((count, known[count]) for count in near)
    share = (arguments - low) / (high - low)
    value = first.value + share * (second.value - first.value)
    bent = min(abs(share), abs(1 - share)) * abs(second.value - first.value)
    words = f"a call with {_arguments(arguments)} lies on the line through those with {low} and {high}"
    half = max(half_width(first), half_width(second)) + bent
    return around(value, half, (*first.rests_on, *second.rests_on), words)


def _arguments(count: int) -> str:
    return f"{count} argument{'' if count == 1 else 's'}"


def _called(name: str) -> tuple[str, int]:
    """Layer and arguments of a launch call's constant; ("", 0) for another one."""
    kind, _, rest = name.partition(".")
    layer, _, arguments = rest.rpartition(".")
    return (layer, int(arguments)) if kind == "call" else ("", 0)


def _as_the_loop_replays(loop: Constant, layer: str) -> Constant:
    """A layer's replay call before steps show it: Python adds up to as much again."""
    return stand_in(loop, f"the replay call of {layer} is that of the compiled loop", 1.0)


def _calls_between(direct: Mapping[str, Constant], measured: Iterable[Step]) -> dict[str, Constant]:
    """Launch calls of steps, with a count of arguments that nothing measured by itself."""
    found = {step.call: _call(direct, step.layer, step.arguments) for step in measured if step.way == "stream"}
    return {name: one for name, one in found.items() if one is not None and name not in direct}


def _stand_ins(direct: Mapping[str, Constant], measured: Iterable[Step]) -> dict[str, Constant]:
    """What stands in for constants that only steps show: a launch's way, the compiled loop's replay call."""
    found = {}
    if "way" in direct:
        found["replay_way"] = stand_in(direct["way"], "a replay's way to the GPU is a launch's")
    if (loop := direct.get(replay_name(LOOP_LAYER))) is not None:
        replays = {replay_name(step.layer): step.layer for step in measured}
        found |= {name: _as_the_loop_replays(loop, layer) for name, layer in replays.items() if name not in direct}
    return found


def _loosely(constant: Constant) -> Constant:
    """A stand-in that holds only what steps leave open."""
    return around(constant.value, LOOSELY * half_width(constant), constant.rests_on, constant.assumed)


def _settled(priors: Mapping[str, Constant], measured: list[Step], found: Calibrated) -> dict[str, Constant]:
    """Constants as the steps leave them, each with the wider of two intervals: its own rows', and what steps leave.

    One that something else stood in for is measured by the steps if they narrow it enough.
    """
    rows: dict[str, list[str]] = {}
    for step, fast in zip(measured, found.pace, strict=True):
        for name in step.terms(fast):
            rows.setdefault(name, []).append(step.row)
    settled = {}
    for name, value in found.values.items():
        half, prior = found.half_widths[name], priors.get(name)
        if prior is None:
            settled[name] = around(value, half, rows[name])
        elif not prior.assumed:
            settled[name] = around(value, max(half, half_width(prior)), (*prior.rests_on, *rows[name]))
        elif half < SETTLED * half_width(prior):
            settled[name] = around(value, half, rows[name])
        else:
            half = min(half, half_width(prior))
            settled[name] = around(value, half, (*prior.rests_on, *rows[name]), prior.assumed)
    return settled


def _reach(evidence: Evidence, measured: list[Step], constants: Mapping[str, Constant]) -> Reach:
    """The largest of what was measured."""
    copies = [whole(row, "size_bytes") for row in evidence.rows("link_copy")]
    forks = [whole(row, "branches") for row in evidence.rows("graph_shape", "graph")]
    streams = [*evidence.rows("launch_cost", "throughput"), *evidence.rows("launch_duration", "period")]
    launches = [row.measurement.calls_per_sample for row in streams]
    return Reach(
        kernels=max([step.kernels for step in measured] + launches, default=1),
        copy_bytes=max(copies, default=0),
        streams=max(forks, default=1) if "front_end" in constants else 1,
    )
