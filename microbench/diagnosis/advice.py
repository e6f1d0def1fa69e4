"""Says what to change in a program of a given library, so that its step is submitted in fewer calls or faster ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from microbench.core.units import as_time, plain, times
from microbench.diagnosis.diagnosis import Bound, Diagnosis
from microbench.diagnosis.recorded import COPY_IN, Blocker, layer_of, values_read
from microbench.diagnosis.steps import runs_python, to_host
from microbench.diagnosis.turns import function_of, parts_of
from microbench.traces.trace import NONE, Trace

Program = Literal["generate", "graphs", "training", "torch", "jax", "numba", "cupy", "other"]

# What names a program: a part of the place of a loop or of a range of host code, the first that is there.
MARKS: tuple[tuple[Program, tuple[str, ...]], ...] = (
    ("generate", ("generation/utils.py",)),
    ("training", ("torch/optim/", "Optimizer.step#")),
)
PACKAGES: tuple[tuple[str, Program], ...] = (("torch", "torch"), ("jax", "jax"), ("cupy", "cupy"), ("numba", "numba"))
COMPILE = "torch.compile(mode='reduce-overhead')"
HOW: Mapping[Program, str] = {
    "generate": "Give generate() a static cache (cache_implementation='static'), and compile the model's forward: "
    "model.forward = torch.compile(model.forward, mode='reduce-overhead')",
    "graphs": "Compute what depends on the edges alone once, before the loop (GCNConv(cached=True), self-loops, sorted "
    "edges); then capture the step by torch.cuda.graph",
    "training": "Capture forward, backward and optimizer by torch.cuda.graph (Adam and its like need capturable=True), "
    f"or compile the model by {COMPILE}",
    "torch": f"Capture the step by torch.cuda.graph, or compile it by {COMPILE}",
    "jax": "Do several steps in one jitted function, by jax.lax.scan over their batches, and fetch no value in each",
    "numba": "Capture the step, or launch its compiled kernels by cuda.core",
    "cupy": "Capture the step in a cupy.cuda.Stream(non_blocking=True): stream.begin_capture(), the step, graph = "
    "stream.end_capture(), then graph.launch(stream). Arrays that the step makes must come from a pool of its own",
    "other": "Capture the step",
}
SUBMITTING: tuple[Bound, ...] = ("launch-bound", "host-bound", "wait-bound", "mixed")
# A step that waits so often that it would need more graphs than this is no graph until the waits are gone.
MOST_GRAPHS = 3
METHODS = ("forward", "__call__", "training_step")  # which `microbench graph` cannot take from a file
OF_TORCH: tuple[Program, ...] = ("torch", "training", "graphs", "generate")
CAPTURED: tuple[Program, ...] = ("torch", "training", "graphs", "cupy", "numba")
UNKNOWN = "FILE.py::STEP"  # the step of a program whose loop is not known
FREES = ("cudaFree", "cuMemUnmap", "cuMemFree", "cuMemFree_v2")
PINS = "Pin memory once, before the loop, and copy into it"  # cudaHostAlloc, cudaHostRegister, cudaFreeHost
MOST_NAMED = 3  # calls that a graph cannot hold, in a sentence
CHECKED = "torch/distributions/distribution.py Distribution."  # in the names of its methods
CHECKS = "torch.distributions reads values to check them: validate_args=False"
ARGUMENTS = (4, 1, 0)  # of the launches whose costs are compared, in this order

FIRST = {
    "waits for the GPU": "Keep results on the GPU and wait once, after the step",
    COPY_IN: "Copy in from pinned memory and do not wait: .to(device, non_blocking=True)",
    "copies pageable memory": "Copy from and to pinned memory",
    "allocates": "Allocate before the step, or from a memory pool",
    "loads code": "Run each kernel once before the capture",
}
UPLOADS = "Make small tensors on the GPU (torch.full, torch.arange, device=), or copy one tensor for all of them"
SEVERAL = 4  # small copies of a place in a step
OF_NUMBA = (
    "Pass arrays of the GPU, made once before the loop (cuda.to_device), and copy back what is read: a launch copies "
    "NumPy's arrays to the GPU and back"
)
# How PyTorch's allocator calls the driver less, by whether it gives memory back.
SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
ALLOCATING: Mapping[bool, str] = {
    True: "PyTorch gives memory back and gets it anew: the GPU's memory is full, or torch.cuda.empty_cache() is "
    f"called. Take smaller batches, or set {SEGMENTS}",
    False: f"PyTorch gets more memory in these steps: record later ones. Where sizes change in each, set {SEGMENTS}",
}
CUPY_FREES = "CuPy gives memory back and gets it anew: leave free_all_blocks() out of the loop, if it is called there"
READING: Mapping[bool, str] = {
    True: ".item(), float(), `if tensor:`, nonzero() and boolean masks wait for the GPU. Keep tensors, and read "
    "numbers once in many steps",
    False: "Read numbers once in several steps, because the host waits for each",
}


def program_of(trace: Trace) -> Program:
    """What kind of program was recorded, by its library and what it does."""
    packages = {name.split(".")[0] for name in trace.versions}
    layer = layer_of(trace)
    is_torch = layer == "torch_eager" or ("torch" in packages and layer != "jax_jit")
    if is_torch:
        # Samples also find modules that are only imported, outside of what is diagnosed.
        called = (trace.names[name] for name in np.unique(trace.ranges["name"]).tolist() if name != NONE)
        texts = [loop.place for loop in trace.loops] + [name for name in called if not name.endswith("<module>")]
        if "torch_geometric" in packages:
            return "graphs"
        for program, parts in MARKS:
            if any(part in text for text in texts for part in parts):
                return program
    if layer == "jax_jit":
        return "jax"
    return next((program for package, program in PACKAGES if package in packages), "torch" if is_torch else "other")


def allocating(trace: Trace, calls: Sequence[str]) -> str:
    """What to do about the first of these calls, which allocate memory or free it."""
    program, frees = program_of(trace), any(call.partition(" in ")[0] in FREES for call in calls)
    if calls and "Host" in calls[0].partition(" in ")[0]:
        return PINS + (": torch.empty(size, pin_memory=True)" if program in OF_TORCH else "")
    if program in OF_TORCH:
        return ALLOCATING[frees]
    return CUPY_FREES if program == "cupy" and frees else FIRST["allocates"]


def how(diagnosis: Diagnosis) -> str:
    """How a program of this library submits its step in fewer calls, with the line of its loop."""
    steps, program = diagnosis.steps, program_of(diagnosis.trace)
    place = f" the loop at {plain(steps.name)}" if steps is not None and steps.found == "loop" else " the loop"
    if diagnosis.recorded is not None and diagnosis.recorded.refused:
        return "Fuse elementwise code by cupy.fuse or an ElementwiseKernel, and read numbers once in many steps"
    if program in ("generate", "jax"):
        return HOW[program] + (f", in place of{place}" if program == "jax" else "")
    if of := target(diagnosis):
        said = HOW[program] if program in OF_TORCH or of == UNKNOWN else ""
        by_hand = said and f". By hand: {said[0].lower()}{said[1:]}"
        first = f"Put the body of{place} into a function STEP: " if of.endswith("::STEP") and of != UNKNOWN else ""
        return f"{first}`microbench graph {of}` makes the graph and proves it equal{by_hand}"
    return f"{HOW[program]}. Do it once, before{place}; inside, copy inputs in and replay"


def target(diagnosis: Diagnosis) -> str:
    """The step of a program for `microbench graph`: "train.py::step"; "" for a program of which it makes no graph."""
    steps, trace = diagnosis.steps, diagnosis.trace
    place = plain(steps.name) if steps is not None and steps.found == "loop" else ""
    library = any(loop.place == place and not loop.own for loop in trace.loops)  # such as a trainer's loop
    if library or program_of(trace) not in CAPTURED:
        return ""
    file, _, rest = place.partition(":")
    name = rest if rest.isidentifier() else "STEP"  # of --step FILE:FUNCTION; a loop has a line
    within, begins = function_of(place), parts_of(place)[1]
    inside = {
        by
        for lines in trace.callers.values()
        for by in lines
        if function_of(by) == within and parts_of(by)[1] >= begins
    }
    called = {function_of(one) for one, by in trace.callers.items() if by & inside} - {within}
    if name == "STEP" and len(called) == 1 and (only := called.pop())[1].isidentifier() and only[1] not in METHODS:
        file, name = only
    return f"{file}::{name}" if file.endswith(".py") else UNKNOWN.replace("STEP", name)


def of_target(diagnosis: Diagnosis, place: str) -> bool:
    """Whether the function that `microbench graph` is advised for calls this line, itself or through others."""
    waiting, seen, of = [place], set[str](), target(diagnosis)
    while waiting:
        line = waiting.pop()
        if "::".join(function_of(line)) == of:
            return True
        if line not in seen:
            seen.add(line)
            waiting += diagnosis.trace.callers.get(line, ())
    return False


def first(diagnosis: Diagnosis, blockers: tuple[Blocker, ...]) -> str:
    """What to do about the most frequent of the calls that a graph cannot hold, those that are named."""
    trace, recorded = diagnosis.trace, diagnosis.recorded
    calls = [one.call for one in recorded.blockers if one.why == "allocates"] if recorded is not None else []
    return ". ".join(
        dict.fromkeys(
            allocating(trace, [one.call, *calls]) if one.why == "allocates" else _remedy(trace, one)
            for one in blockers[:MOST_NAMED]
        )
    )


def _remedy(trace: Trace, blocker: Blocker) -> str:
    if blocker.why in (COPY_IN, "copies pageable memory") and program_of(trace) == "numba":
        return OF_NUMBA
    brings = blocker.brings if blocker.why == "copies pageable memory" and blocker.count >= SEVERAL else ""
    if brings == "a value to the GPU" and program_of(trace) in OF_TORCH:
        return UPLOADS
    waits = blocker.why == "waits for the GPU" and _reads_values(trace)
    if not waits and brings != "a value to the host":
        return FIRST[blocker.why] if runs_python(trace) else FIRST[blocker.why].partition(": .to(")[0]
    recording = trace.format == "microbench recording"
    names = "a recording without --no-stacks" if recording else "`microbench watch`"
    named = "" if blocker.place else f". {names[0].upper()}{names[1:]} names the lines"
    checks = f". {CHECKS}" if any(CHECKED in name for name in trace.names) else ""
    return READING[program_of(trace) not in ("jax", "numba", "cupy", "other")] + named + checks


def _reads_values(trace: Trace) -> bool:
    """Whether at least half of the copies to the host are of a value each."""
    copies = np.count_nonzero(to_host(trace.work))
    return bool(np.count_nonzero(values_read(trace.work)) * 2 >= copies > 0)


class Ladder(NamedTuple):
    """The step with its launches through another layer: its time in s, by how many times it is faster, and the time of
    a launch in s before and then."""

    step_s: float
    speedup: float
    before_s: float
    then_s: float


def ladder(diagnosis: Diagnosis) -> Ladder | None:
    """The step of a Numba program launched by cuda.core, by the costs that the run measured; None without them."""
    step, recorded, costs = diagnosis.step, diagnosis.recorded, diagnosis.launch_costs
    if step is None or recorded is None or program_of(diagnosis.trace) != "numba":
        return None
    for arguments in ARGUMENTS:
        both = [costs.get(f"call.{layer}.{arguments}") for layer in ("numba_each_call", "cuda_core")]
        if both[0] is not None and both[1] is not None and both[0] > both[1]:
            busy_s = diagnosis.idle.busy_s / diagnosis.steps.count if diagnosis.idle and diagnosis.steps else 0.0
            less_s = recorded.launches * (both[0] - both[1])
            step_s = max(step.unwatched_s - less_s, recorded.launches * both[1], busy_s)
            return Ladder(step_s, step.unwatched_s / step_s if step_s > 0 else 1.0, both[0], both[1])
    return None


def ladder_words(found: Ladder) -> tuple[str, str]:
    """A title and an advice."""
    return (
        f"Launched by cuda.core a step takes about {as_time(found.step_s)}, {times(found.speedup)} as fast",
        f"A launch takes {as_time(found.then_s)} instead of {as_time(found.before_s)} on the machine of the costs",
    )
