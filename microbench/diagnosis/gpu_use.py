"""Finds managed memory that moves when it is touched, kernels that use a small part of a GPU, and the largest ones."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.evidence import Finding
from microbench.core.units import as_time, counted, percent, plain, quantity, round_percent
from microbench.diagnosis.advice import SUBMITTING
from microbench.diagnosis.communication import kinds_of_work
from microbench.diagnosis.diagnosis import Diagnosis, each, window_of
from microbench.diagnosis.host_time import BETWEEN, ON_MANAGED
from microbench.diagnosis.idle import FAULT_NS, busiest, gaps_of, said
from microbench.diagnosis.kernel_names import ELEMENTWISE, OWN, family
from microbench.diagnosis.recorded import is_pageable, layer_of
from microbench.traces.trace import NONE, WORK_KINDS, Table, migrates, name_of

BoolArray = npt.NDArray[np.bool_]

WORTH_A_LINE, MOSTLY = 0.1, 0.75  # of the time: for a line, and for kernels to be looked at whatever the verdict is
# Nearly every GPU has more multiprocessors. A block of fewer threads leaves lanes of its warp idle. A kernel as long is
# paced by its work, not by its start.
FEW_BLOCKS, WARP, LONG_NS = 8, 32, 20_000
LONGEST_NAME = 60
# If more than this share of the kernels' time runs side by side, so many families are looked at for it.
BESIDE, MOST_BESIDE = 0.01, 30
# Products of libraries that compute in FP32 without tensor cores, and GPUs whose tensor cores have no TF32.
IN_FP32 = re.compile(
    r"(?:ampere|volta|turing)_sgemm_|_simt_sgemm_|xmma_\w+_f32f32_f32f32_f32_|_ffma_|fmha_cutlass[FB]_f32_"
)
UNFUSED = 0.2  # of the time is worth fusing
WITHOUT_TF32 = re.compile(r"V100|T4\b|TITAN|RTX 20\d0\b|Quadro RTX")
WITHOUT_TENSOR_CORES = re.compile(r"GTX|P100|P40|T[4-9]00\b|T1000|MX\d")
LOWER = {
    "torch": "Accept TF32 (torch.set_float32_matmul_precision('high')), or compute in BF16 (torch.autocast)",
    "jax": "Accept TF32 (jax.default_matmul_precision='tensorfloat32'), or compute in BF16",
    "other": "Accept TF32 (CUBLAS_TF32_TENSOR_OP_MATH; NVIDIA_TF32_OVERRIDE=1 tries it), or compute in BF16",
}


def gpu_use(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Say that the driver moves managed memory, or that kernels use a small part of the GPU, if it takes long."""
    if diagnosis.idle is None:
        yield from _of_few(diagnosis)
    else:
        yield from _in_turn(diagnosis)
        yield from _on_managed(diagnosis, WORTH_A_LINE * diagnosis.idle.span_s)
        yield from _migrations(diagnosis, WORTH_A_LINE * diagnosis.idle.span_s)
        yield from _unfilled(diagnosis, WORTH_A_LINE * diagnosis.idle.span_s)
        yield from _in_fp32(diagnosis, WORTH_A_LINE * diagnosis.idle.span_s)
        yield from _unfused(diagnosis, UNFUSED * diagnosis.idle.span_s)
        yield from _largest(diagnosis, diagnosis.idle.span_s)


def _of_few(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Say what most of the GPU's work is, where the trace is too short for a verdict and no kernels are lost."""
    if any(check.name == "launches without work" and check.forbids for check in diagnosis.health):
        return
    work, small = diagnosis.trace.work, _unfilling(diagnosis)
    pageable = is_pageable(work) & (work["kind"] == WORK_KINDS.index("copy"))
    works_s, copies_s = _covered_s(work), _covered_s(work[pageable])
    if 2 * copies_s > works_s:
        yield Finding(
            rule="diagnose.copies_alone",
            severity="advice",
            title=f"Copies from and to pageable memory are {percent(copies_s / works_s)} of the GPU's work",
            text="",
            threshold="more than half of it, in a trace that is too short for a verdict",
            advice="Pin the memory (cudaMallocHost, cudaHostRegister), or keep the data on the GPU",
        )
    elif 2 * _covered_s(work[small]) > works_s:
        yield _alone(diagnosis, work[small], f"{percent(_covered_s(work[small]) / works_s)} of the GPU's work")


def in_turn_s(diagnosis: Diagnosis) -> float:
    """The time in s that several GPUs of a trace without steps would save if they worked at once; 0 if they do."""
    work = diagnosis.trace.work
    each_s = sorted(_covered_s(work[work["device"] == one]) for one in np.unique(work["device"]))
    if len(each_s) < 2 or diagnosis.steps is not None or each_s[-2] <= WORTH_A_LINE * sum(each_s):
        return 0.0
    any_s, span_s = _covered_s(work), diagnosis.idle.span_s if diagnosis.idle is not None else math.inf
    saves_s = any_s - each_s[-1]
    return saves_s if any_s > (1 - WORTH_A_LINE) * sum(each_s) and saves_s > WORTH_A_LINE * span_s else 0.0


def _in_turn(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Say that several GPUs work one after another."""
    if saves_s := in_turn_s(diagnosis):
        count = len(np.unique(diagnosis.trace.work["device"]))
        yield Finding(
            rule="diagnose.in_turn",
            severity="advice",
            title=f"The {count} GPUs work one after another: at once, that takes {as_time(saves_s)} less",
            text="",
            threshold=f"two have {round_percent(WORTH_A_LINE)} of the work, less of it is at the same time, and at "
            "once it would take that share less",
            advice="Submit to each from a thread of its own, or without waiting for the one before",
        )


def _in_window(diagnosis: Diagnosis) -> BoolArray:
    """Which work begins in whole steps (anywhere if there are none), on the GPU with most work."""
    work = diagnosis.trace.work
    begin_ns, end_ns = window_of(diagnosis.trace, diagnosis.steps)
    inside = (work["begin_ns"] >= begin_ns) & (work["begin_ns"] < end_ns)
    found: BoolArray = inside & (work["device"] == busiest(diagnosis.trace))
    return found


def pages_s(diagnosis: Diagnosis) -> float:
    """The time in s in which the driver moves pages of managed memory, and in which the GPU idles before it does."""
    trace, idle, pages = diagnosis.trace, diagnosis.idle, migrates(diagnosis.trace, "Memcpy")
    if idle is None or not pages.any():
        return 0.0
    window = window_of(trace, diagnosis.steps)
    gaps, without = (gaps_of(work, idle.device, *window) for work in (trace.work, trace.work[pages]))
    before, to_host = (gaps.end_ns - gaps.begin_ns), np.append(migrates(trace, "Memcpy DtoH"), False)[gaps.work]
    before[to_host] = np.minimum(before[to_host], FAULT_NS)  # what is longer is the program's own work
    before_ns = int(before[np.append(pages, False)[gaps.work]].sum())
    return (window[1] - window[0] - int((without.end_ns - without.begin_ns).sum()) + before_ns) * 1e-9


def on_managed_s(diagnosis: Diagnosis) -> float:
    """The time in s in which the host works on pages that have come, while the GPU idles."""
    places = diagnosis.idle.places if diagnosis.idle is not None else ()
    return sum(where.seconds for where in places if where.name == ON_MANAGED)


def _on_managed(diagnosis: Diagnosis, least_s: float) -> Iterator[Finding]:
    """Say how long the host works on managed memory, if that is longer than ``least_s``."""
    if (takes_s := on_managed_s(diagnosis)) > least_s:
        yield Finding(
            rule="diagnose.on_managed",
            severity="advice",
            title=f"The host works on managed memory for {_takes(diagnosis, takes_s)}, while the GPU idles",
            text="",
            threshold=f"the time between two pages that it touches, beyond {as_time(FAULT_NS * 1e-9)} for the driver, "
            f"is more than {round_percent(WORTH_A_LINE)} of the time",
            advice="Do that work on the GPU, with several threads, or beside the GPU's next work",
        )


def _migrations(diagnosis: Diagnosis, least_s: float) -> Iterator[Finding]:
    """Say how much managed memory the driver moves, and how long it takes, if that is longer than ``least_s``."""
    if (takes_s := pages_s(diagnosis)) <= least_s:
        return
    trace, steps = diagnosis.trace, diagnosis.steps.count if diagnosis.steps is not None else 1
    moved = trace.work[migrates(trace, "Memcpy") & _in_window(diagnosis)]
    length = moved["bytes"][moved["bytes"] > 0].sum() / steps
    of = f" of {quantity(length, 'B')}" if length else ""
    yield Finding(
        rule="diagnose.migrations",
        severity="advice",
        title=f"The driver moves pages{of} of managed memory {round(len(moved) / steps)} times"
        f"{' a step' if diagnosis.steps is not None else ''}, when they are touched: {_takes(diagnosis, takes_s)}",
        text="",
        threshold=f"such copies and the idle time before them take more than {round_percent(WORTH_A_LINE)} of the time",
        advice="Prefetch the memory before it is used (cudaMemPrefetchAsync), or allocate it on the GPU",
    )


def _unfilling(diagnosis: Diagnosis) -> BoolArray:
    """Long kernels of few blocks, or of blocks smaller than a warp. Communication needs no more."""
    work = diagnosis.trace.work
    few, small = (work["blocks"] > 0) & (work["blocks"] <= FEW_BLOCKS), (work["threads"] > 0) & (work["threads"] < WARP)
    long = work["end_ns"] - work["begin_ns"] >= LONG_NS
    found: BoolArray = (work["kind"] == WORK_KINDS.index("kernel")) & (few | small) & long
    return found & (kinds_of_work(diagnosis.trace)[1] == NONE) if found.any() else found


def unfilled_s(diagnosis: Diagnosis) -> float:
    """The time in s in which such kernels run, and nothing else but copies."""
    trace, idle, small = diagnosis.trace, diagnosis.idle, _unfilling(diagnosis)
    if idle is None or not small.any():
        return 0.0
    copies, window = trace.work["kind"] == WORK_KINDS.index("copy"), window_of(trace, diagnosis.steps)
    without, beside = (gaps_of(trace.work[chosen], idle.device, *window) for chosen in (~small & ~copies, ~copies))
    return (int((without.end_ns - without.begin_ns).sum()) - int((beside.end_ns - beside.begin_ns).sum())) * 1e-9


def _unfilled(diagnosis: Diagnosis, least_s: float) -> Iterator[Finding]:
    """Name the kernel that takes most of that time, if it is longer than ``least_s``."""
    work = diagnosis.trace.work[_unfilling(diagnosis) & _in_window(diagnosis)]
    if not len(work) or (alone_s := unfilled_s(diagnosis)) <= least_s:  # all may have begun before the window
        return
    yield _alone(diagnosis, work, _takes(diagnosis, alone_s))


def _alone(diagnosis: Diagnosis, work: Table, takes: str) -> Finding:
    """Name the kernel that takes most of this work, which uses a small part of the GPU."""
    names, which = np.unique(work["name"], return_inverse=True)
    most = np.argmax(np.bincount(which, weights=work["end_ns"] - work["begin_ns"]))
    first, name = work[which == most][0], name_of(diagnosis.trace, int(names[most]))
    blocks, threads = (counted(int(first[field]), one) for field, one in (("blocks", "block"), ("threads", "thread")))
    advice = "Launch more blocks, at least one for each multiprocessor"
    if first["blocks"] > FEW_BLOCKS:
        advice = f"Make blocks of whole warps: {WARP} threads or a multiple, better 128 or more"
    elif family(name).library != OWN:
        advice = "Give it more work at once: a larger batch, or several calls in one"
    return Finding(
        rule="diagnose.unfilled",
        severity="advice",
        title=f"{plain(name, LONGEST_NAME)} runs as {blocks} of {threads}: kernels that use a small part of the GPU "
        f"are alone on it for {takes}",
        text=f"A block runs on one multiprocessor, and most GPUs have tens of them. A warp has {WARP} threads.",
        threshold=f"kernels of at most {FEW_BLOCKS} blocks, or of less than a warp in a block, that last "
        f"{as_time(LONG_NS * 1e-9)} or more take {round_percent(WORTH_A_LINE)} of the time",
        advice=advice,
    )


def _covered_s(work: Table) -> float:
    """The time in s in which at least one of these pieces of work runs. They are sorted by their begin."""
    until_ns = np.maximum.accumulate(work["end_ns"])
    from_ns = np.maximum(work["begin_ns"], np.append(work["begin_ns"][:1], until_ns[:-1]))
    return float(np.maximum(until_ns - from_ns, 0).sum()) * 1e-9


def fp32_s(diagnosis: Diagnosis) -> tuple[float, str]:
    """The time in s of products in FP32 without tensor cores, and the kernel that has most of it."""
    work = diagnosis.trace.work[_in_window(diagnosis)]
    names, place = np.unique(work["name"], return_inverse=True)
    slow = np.array([bool(IN_FP32.search(name_of(diagnosis.trace, int(name)))) for name in names], bool)
    took_ns = np.bincount(place, work["end_ns"] - work["begin_ns"], len(names)) * slow
    most = name_of(diagnosis.trace, int(names[np.argmax(took_ns)])) if slow.any() else ""
    return _covered_s(work[slow[place]]), most


def _in_fp32(diagnosis: Diagnosis, least_s: float) -> Iterator[Finding]:
    """Say how long products run without tensor cores, if that is longer than ``least_s`` and the GPU is mostly busy."""
    takes_s, most = fp32_s(diagnosis)
    idle, trace = diagnosis.idle, diagnosis.trace
    if idle is None or takes_s <= least_s or 2 * idle.busy_s < idle.span_s:
        return
    if WITHOUT_TENSOR_CORES.search(trace.gpus.get(idle.device, "")):
        return
    library = {"torch_eager": "torch", "jax_jit": "jax"}.get(layer_of(trace), "other")
    advice = LOWER[library]
    if WITHOUT_TF32.search(trace.gpus.get(idle.device, "")):
        advice = "Compute in FP16 (torch.autocast), because this GPU's tensor cores know no TF32"
    yield Finding(
        rule="diagnose.fp32",
        severity="advice",
        title=f"Products in FP32 without tensor cores take {_takes(diagnosis, takes_s)}, most in "
        f"{plain(most, LONGEST_NAME)}",
        text="",
        threshold=f"kernels of that name take more than {round_percent(WORTH_A_LINE)} of the time",
        advice=f"{advice}, and compare the results",
    )


def unfused_s(diagnosis: Diagnosis) -> tuple[float, int]:
    """The time in s of PyTorch's own kernels for each element, and their number."""
    work = diagnosis.trace.work[_in_window(diagnosis)]
    names, place = np.unique(work["name"], return_inverse=True)
    of = [family(name_of(diagnosis.trace, int(name))).name for name in names]
    chosen = np.array([bool(ELEMENTWISE.match(name)) and not name.startswith("triton_") for name in of], bool)[place]
    return _covered_s(work[chosen]), int(chosen.sum())


def _unfused(diagnosis: Diagnosis, least_s: float) -> Iterator[Finding]:
    """Say how long kernels for each element take, if that is longer than ``least_s`` and the GPU is mostly busy."""
    takes_s, count = unfused_s(diagnosis)
    idle, number = diagnosis.idle, round(each(diagnosis, count))
    if idle is not None and number > 1 and takes_s > least_s and 2 * idle.busy_s > idle.span_s:
        yield Finding(
            rule="diagnose.unfused",
            severity="advice",
            title=f"{number} elementwise kernels take {_takes(diagnosis, takes_s)}, each for a single operation",
            text="Each reads its inputs from memory and writes its result there.",
            threshold=f"such kernels of PyTorch take more than {round_percent(UNFUSED)} of the time",
            advice="torch.compile fuses them. Where layouts and types stay the same, copies and casts go, too",
        )


class KernelTime(NamedTuple):
    """The kernels of one family in a step: their time in s, their number, and the name of the one that takes most.

    Elementwise kernels are one family, memsets another. Without steps they are those of the whole trace. Kernels of one
    family that run side by side have that time once.
    """

    name: str
    seconds: float
    number: float
    most: str


def largest(diagnosis: Diagnosis) -> list[KernelTime]:
    """The kernels by family, and memsets, those that take most time first."""
    work = diagnosis.trace.work[_in_window(diagnosis)]
    work = work[np.isin(work["kind"], [WORK_KINDS.index(kind) for kind in ("kernel", "memset")])]
    names, place, counts = np.unique(work["name"], return_inverse=True, return_counts=True)
    took_ns, found = np.bincount(place, work["end_ns"] - work["begin_ns"], len(names)), dict[str, KernelTime]()
    beside, of = took_ns.sum() * 1e-9 > (1 + BESIDE) * _covered_s(work), defaultdict[str, list[int]](list)
    for at in np.argsort(-took_ns, kind="stable").tolist():
        own = name_of(diagnosis.trace, int(names[at]))
        name = "elementwise kernels" if ELEMENTWISE.match(name := family(own).name) else name
        one = found.setdefault(name, KernelTime(name, 0.0, 0.0, own))
        seconds, number = each(diagnosis, float(took_ns[at]) * 1e-9), each(diagnosis, int(counts[at]))
        found[one.name] = one._replace(seconds=one.seconds + seconds, number=one.number + number)
        of[one.name].append(at)
    for name in sorted(found, key=lambda one: -found[one].seconds)[: MOST_BESIDE * beside]:
        covered_s = _covered_s(work[np.isin(place, of[name])])
        found[name] = found[name]._replace(seconds=each(diagnosis, covered_s))
    return sorted(found.values(), key=lambda one: -one.seconds)


def _largest(diagnosis: Diagnosis, span_s: float) -> Iterator[Finding]:
    """Name the kernels that take most of a GPU-bound step, or graphs whose kernels were not recorded."""
    long = [one for one in largest(diagnosis)[:3] if one.seconds > WORTH_A_LINE * each(diagnosis, span_s)]
    works = diagnosis.idle.busy_s / span_s if diagnosis.idle is not None else 1.0
    busy = diagnosis.bound == "GPU-bound" or (works >= MOSTLY and diagnosis.bound in SUBMITTING)
    if busy and long and unfilled_s(diagnosis) <= WORTH_A_LINE * span_s:
        named = (f"{plain(one.name, LONGEST_NAME)} {as_time(one.seconds)}" for one in long)
        share = sum(one.seconds for one in long) / each(diagnosis, span_s)
        own = said(diagnosis.trace, BETWEEN) != BETWEEN
        yield Finding(
            rule="diagnose.kernels",
            severity="advice",
            title=f"The largest kernels take {percent(min(share, works))} of the "
            f"{'step' if diagnosis.steps else 'time'}: {'; '.join(named)}",
            text="",
            threshold=f"GPU-bound or busy for {round_percent(MOSTLY)} of the time, and kernels of a family take more "
            f"than {round_percent(WORTH_A_LINE)} of it",
            advice=f"`microbench measure {'FILE.cu:KERNEL' if own else 'FILE.py::STEP'}` says what limits them",
        )
    graphs = diagnosis.trace.work[_in_window(diagnosis) & (diagnosis.trace.work["kind"] == WORK_KINDS.index("graph"))]
    takes_s = float((graphs["end_ns"] - graphs["begin_ns"]).sum()) * 1e-9
    if diagnosis.bound == "GPU-bound" and not long and takes_s > WORTH_A_LINE * span_s:
        yield Finding(
            rule="diagnose.kernels",
            severity="advice",
            title=f"Graphs whose kernels were not recorded take {_takes(diagnosis, takes_s)}",
            text="",
            threshold=f"GPU-bound, and such graphs take more than {round_percent(WORTH_A_LINE)} of the time",
            advice="Record with `nsys profile --cuda-graph-trace=node COMMAND`, to see which kernels take longest",
        )


def _takes(diagnosis: Diagnosis, seconds: float) -> str:
    """ "14 ms, 82 % of the step", or "of the time" without steps."""
    share = percent(seconds / diagnosis.idle.span_s) if diagnosis.idle is not None else ""
    return f"{as_time(each(diagnosis, seconds))}, {share} of the {'step' if diagnosis.steps else 'time'}"
