"""Fills in what a step's description leaves out: host time for each launch, and the share of the SMs a kernel fills.

Only the program determines them. Where the host time is not given, the step is predicted in two cases: of bare
operations and of typical model code. Where the share is not, it is predicted at both ends of its range.
"""

import statistics
from typing import Literal

import msgspec
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, rests_on
from microbench.core.ops import ARRAY_LAYERS, LOOP_LAYER
from microbench.model.constants import Constant, Fit, ModelCode, in_quiet_rounds
from microbench.model.model import call_name
from microbench.model.workload import Kernels, Part, Workload

# Layers whose call is one operation of an array library. Programs put modules, dispatch and Python between two
# operations, so their launches cost more than the call alone. A layer that launches kernels of one's own is called as
# the program calls it: what lies between its launches is the program's own code, which no example can stand for.
FRAMEWORKS = ARRAY_LAYERS
# The framework whose model code is measured (launch_model), and the one whose call may launch many kernels at once.
MEASURED, COMPILING = "torch_eager", "jax_jit"
MODEL_CODE = "launch_model"
# Host time for each launch of PyTorch programs where no run has an example, as observed on H200s with PyTorch 2.11.
ASSUMED_TYPICAL_S = 12e-6, 25e-6
ASSUMED = "no run has measured model code: 12 to 25 µs a launch are typical of PyTorch"

End = Literal["low", "typical", "high"]


class HostTime(msgspec.Struct, frozen=True):
    """Host time for one launch through a layer, its call included, in seconds.

    ``bare_s`` is a program of bare operations, ``typical_s`` is model code. ``call_s`` is the layer's own call;
    ``in_steps``: it is fitted to measured steps too, so it can differ from the call measured by itself. ``source`` says
    in words what model code rests on; ``assumed`` is True without any measured example.
    """

    layer: str
    call_s: float
    bare_s: float
    typical_s: float
    source: str
    assumed: bool = False
    rests_on: tuple[str, ...] = ()
    in_steps: bool = False


def unknown_host(workload: Workload) -> list[Kernels]:
    """The kernels of frameworks whose host time nobody gave."""
    return [part for part in workload.parts if isinstance(part, Kernels) and _lacks_host(part, workload)]


def _lacks_host(part: Kernels, workload: Workload) -> bool:
    return part.host_s is None and (part.layer or workload.layer) in FRAMEWORKS


def unknown_shares(workload: Workload, sms: int | None) -> bool:
    """Whether kernels of several streams may run side by side, and nobody said how much of the GPU they fill."""
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    dealt = any(part.stream is None for part in kernels)  # to all streams in turn
    if not dealt and len({part.stream for part in kernels}) < 2:
        return False
    return any(_lacks_share(part, workload, sms) for part in kernels)


def _lacks_share(part: Part, workload: Workload, sms: int | None) -> bool:
    """Whether the share of the SMs is needed and unknown: not for kernels bounded by memory or without a length."""
    if not isinstance(part, Kernels) or workload.streams < 2 or part.sm_share is not None:
        return False
    return not (part.blocks is not None and sms) and not part.bytes and any(part.durations_s)


def filled(workload: Workload, fit: Fit, host: End | float = "typical", share: End = "typical") -> Workload:
    """The workload with host time and share of the SMs given for all its kernels, at these ends where they are unknown.

    ``host`` can also be the host time of each launch beyond its layer's call, in seconds. It is negative where a launch
    takes less than the measured call. At the low end of the share and at the typical one kernels of several streams run
    side by side, at the high end one after another. A kernel with as many blocks as SMs, or more, fills the GPU.
    """

    def known(part: Kernels) -> Kernels:
        host_s, sm_share = part.host_s or 0.0, part.sm_share or 0.0
        if _lacks_host(part, workload):
            host_s = _beyond_s(fit, part.layer or workload.layer, part.arguments, host)
        if part.sm_share is None and part.blocks is not None and fit.sms:
            sm_share = min(part.blocks / fit.sms, 1.0)
        elif _lacks_share(part, workload, fit.sms):
            sm_share = 1.0 if share == "high" else 0.0
        return replace(part, host_s=host_s, sm_share=sm_share)

    return workload.with_kernels(known)


def relaunched(workload: Workload, fit: Fit, layer: str) -> Workload:
    """The workload with all kernels launched through another layer, between which the program does what it did before.

    A launch that took less than its layer's call takes the same share of the new call.
    """

    def through(part: Kernels) -> Kernels:
        host_s = part.host_s
        if host_s is not None and host_s < 0:
            calls = [fit.values[call_name(name, part.arguments)] for name in (part.layer or workload.layer, layer)]
            host_s *= calls[1] / calls[0]
        return replace(part, layer=None, host_s=host_s)

    return replace(workload.with_kernels(through), layer=layer)


def host_time(fit: Fit, layer: str, arguments: int) -> HostTime:
    """Host time for a launch through a framework: of bare operations, and of the median example of model code.

    What the examples take beyond PyTorch's own call is added to the layer's call.
    """
    call_s = _call_s(fit, layer, arguments)
    bare_s = min(call_s, _call_s(fit, LOOP_LAYER, 0)) if layer == COMPILING else call_s
    call = fit.constants.get(call_name(layer, arguments))
    in_steps = call is not None and len({row.split("[")[0] for row in call.rests_on}) > 1
    examples = fit.model_code
    if not examples:
        return HostTime(layer, call_s, bare_s, max(sum(ASSUMED_TYPICAL_S) / 2, call_s), ASSUMED, True, (), in_steps)
    typical_s = max(call_s + statistics.median(one.launch_s - one.call_s for one in examples), bare_s)
    names = tuple(dict.fromkeys(row for example in examples for row in example.rests_on))
    where = f" on the {fit.model_code_of} of the bundled reference" if fit.model_code_of else ""
    source = f"{len(examples)} measured examples of PyTorch's{where}"
    return HostTime(layer, call_s, bare_s, typical_s, source, False, names, in_steps)


def _beyond_s(fit: Fit, layer: str, arguments: int, host: End | float) -> float:
    """Host time beyond the call. Where a what-if changes the call, that time stays, and a launch that takes less than
    the call stays the same share of it."""
    known = host_time(fit, layer, arguments)
    beyond_s = host if isinstance(host, float) else (known.bare_s if host == "low" else known.typical_s) - known.call_s
    if beyond_s < 0 < known.call_s:
        return fit.values.get(call_name(layer, arguments), 0.0) * beyond_s / known.call_s
    return beyond_s


def _call_s(fit: Fit, layer: str, arguments: int) -> float:
    """A layer's own call, as it was measured."""
    name = call_name(layer, arguments)
    return fit.measured_calls.get(name, fit.values.get(name, 0.0))


def model_code(evidence: Evidence, call: Constant | None) -> tuple[ModelCode, ...]:
    """The examples of model code that a run measured, eager, in its order; none without PyTorch's own ``call``."""
    found = []
    for each in evidence.rows(MODEL_CODE, "launch_submit", compiled="eager") if call is not None else ():
        (row,), model = in_quiet_rounds([each]), str(each.params.get("model"))
        step, capture = (
            evidence.row(MODEL_CODE, name, compiled="eager", model=model) for name in ("submit", "capture")
        )
        if call is not None and row.value > 0:
            share = capture.value / step.value if step is not None and capture is not None else None
            found.append(ModelCode(model, row.value, call.value, share, rests_on(row)))
    return tuple(found)
