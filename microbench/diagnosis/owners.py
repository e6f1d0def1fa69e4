"""Names the owner of host code that runs while a GPU is idle: the program, a package, or a part of PyTorch."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from microbench.diagnosis.host_time import BACKWARD, DOINGS, LINE_OF_CODE, MANAGED, ON_MANAGED, Slices, slices
from microbench.traces.trace import BACKWARD_OF, MAIN_AT, Trace

OWN, LIBRARY, BUILT_IN = "your own code", "Python's library", "built-in functions"
NAMELESS, IMPORTS, PYTHONS, WAITING = "host code without a name", "imports", "Python's ", "waiting "
LOADER = "the data loader"
AWAITS = f"{WAITING}for {LOADER}"  # whose workers are other processes
REQUESTS = f"{WAITING}for a request"
LOCK = f"{WAITING}for Python's lock"  # in our recordings with the place of its holder behind it
OPERATORS, ELSEWHERE, GARBAGE = "PyTorch's operators", "the framework's other threads", "Python's garbage collection"
COMPILED, PRINTS = "torch.compile", "printing tensors"
# "torch/nn/functional.py linear" in our recordings, "torch/nn/functional.py(88): linear" in traces of PyTorch.
FUNCTION = re.compile(r"(?<![^() ])(?P<path>[^() ]+\.py)(?P<line>\(\d+\):)? \S+$")
PACKAGES = re.compile(r"^(?:.*/)?(?:(?:site|dist)-packages|python3\.\d+)/")
FROZEN = re.compile(r"<frozen (\w+)")
INPUT = ("<stdin>", "<ipython-input")  # what a person types
# Functions that are made at run time, as that of a dataclass.
MADE = re.compile(r"<(?!frozen |stdin>|ipython|built-in )[^<>]+>[.\w]*(?: from .+? in \w+)?(?:\(\d+\):)? \S+$")
OPERATOR = re.compile(r"(aten|autograd|torch|c10|prims)::|\w+Backward\d*$")
NUMBERS = re.compile(r"(?<![^\W_])\d+(?![^\W_])")  # "ensure_layer_3_weights", but not "conv2d"
# Parts of packages by how their paths and their ranges begin.
PARTS = (
    ("torch/nn/", "torch.nn modules"), ("nn.Module: ", "torch.nn modules"), ("torch/optim/", "torch.optim"),
    ("Optimizer.", "torch.optim"), ("torch/autograd/", "torch.autograd"), ("torch/_tensor_str", PRINTS),
    ("torch/utils/data/", LOADER), ("torch/_dynamo/", COMPILED),
    ("torch/_inductor/", COMPILED), ("torch/_functorch/", COMPILED), ("Torch-Compiled Region", COMPILED),
    ("CompiledF", COMPILED), ("## Call CompiledFxGraph", COMPILED), ("TorchDynamo Cache Lookup", COMPILED),
    ("enumerate(DataLoader)#_Multi", AWAITS), ("enumerate(DataLoader)", LOADER), (MAIN_AT, ELSEWHERE),
    (BACKWARD_OF, BACKWARD),
)  # fmt: skip


PRINTING = (PRINTS, OPERATORS, "torch", "torch.autograd")  # what belongs to a print within it


# Functions in which a library compiles or tries kernels, whatever these call, and what helps where that is in each
# step.
COMPILERS = tuple(
    (re.compile(path), name, helps)
    for name, path, helps in (
        (
            "jax's compiler", r"jax/_src/(?:compiler|interpreters/mlir|interpreters/pxla)\.py(?:\(\d+\):)? "
            r"(?!ExecuteReplicated)\S*(?:[cC]ompil|lower)",
            "pass the same shapes and static arguments: each new one is compiled",
        ),
        (
            "torch.compile's compiler", r"torch/(?:_dynamo/(?:convert_frame|output_graph)\.py"
            r"|_inductor/(?:compile_fx|graph|codecache|scheduler)\.py(?:\(\d+\):)? "
            r"(?!(?:.*\.)?(?:__call__|run|wrapper)$))",
            "pass the same shapes and types, or dynamic=True; TORCH_LOGS=recompiles names what is compiled again",
        ),
        (
            "Triton's compiler", r"triton/compiler/compiler\.py(?:\(\d+\):)? "
            r"(?!(?:.*\.)?(?:launch_metadata|_init_handles|run|runner)$)|triton/runtime/build\.py",
            "pass the same constexpr arguments: each new one is compiled",
        ),
        (
            "Triton's autotuner", r"triton/runtime/autotuner\.py(?:\(\d+\):)? .*\b_?bench",
            "leave sizes that change out of key=: each new one measures all configurations",
        ),
        (
            "Numba's compiler", r"numba(?:_cuda/numba)?/(?:core|cuda)/(?:core/)?compiler\w*\.py(?:\(\d+\):)? "
            r"(?!(?:.*\.)?(?:launch|__call__)$)",
            "define the kernel once, and pass the same types: each new one is compiled",
        ),
        (
            "CuPy's compiler", r"cupy/cuda/compiler\.py",
            "make the kernel once, before the loop, and pass what changes as an argument",
        ),
    )
)  # fmt: skip

PROCESSES_OF = re.compile(r"subprocess\.py|_inductor/async_compile\.py")  # a compiler's own, for which it waits
COMPILES = frozenset(name for _, name, _ in COMPILERS)

# What usually helps, by owner. A framework's host code prepares work of the GPU, unless it computes itself.
SUBMITTERS = (
    OPERATORS, ELSEWHERE, BACKWARD, "torch.nn modules", "torch.autograd", "torch", "transformers", "diffusers", "timm",
    "torchvision", "torch_geometric",
)  # fmt: skip
LOOPS = ("lightning", "pytorch_lightning", "accelerate", "deepspeed", "ignite", "fastai")  # have the program's loop
JAX = ("jax", "jaxlib", "flax", "optax")
FRAMEWORK = {*SUBMITTERS, "torch.optim", COMPILED, "cupy", *JAX}
HELPS = {
    **{name: helps for _, name, helps in COMPILERS},
    **dict.fromkeys(SUBMITTERS, "a graph or torch.compile saves it"),
    "torch.optim": "a graph of the whole step",
    COMPILED: "mode='reduce-overhead' replays graphs",
    PRINTS: "print less often: a print launches kernels, waits for the GPU, and formats values one by one",
    LOADER: "workers (num_workers=), so that other processes do it ahead",
    REQUESTS: "more requests at once; nothing here is slow",
    AWAITS: "more workers (num_workers=) that stay (persistent_workers=True), or less work for each item",
    GARBAGE: "no gc.collect() in the loop; gc.freeze() after the warm-up, or fewer objects",
    **dict.fromkeys(JAX, "several steps in one jitted function"),
    "cupy": "a graph saves it: stream.begin_capture()",
    OWN: "do it once, or ahead",
    LIBRARY: "do it once, or ahead in another process",
    LOCK: "do the other thread's work in another process, or in native code",
    f"{WAITING}for a processor": "allow more processors, or use fewer threads: OMP_NUM_THREADS, num_workers",
    IMPORTS: "import before the loop",
    ON_MANAGED: "do it on the GPU, or with several threads",
    MANAGED: "prefetch it to the host (cudaMemPrefetchAsync), or copy only what is read",
    f"{PYTHONS}logging": "log less, or from another thread",
    f"{PYTHONS}warnings": "mend what warns",
}


# Functions in which a thread waits, as our recordings and traces of PyTorch name them, and for what.
PLACE = r"(?:.*/)?{}\.py(?:\(\d+\):)? (?:.*\.)?"
BUILT = r"<built-in (?:method|function) "
WAITS = tuple(
    (re.compile("|".join(patterns)), f"{WAITING}in {what}", helps)
    for what, helps, patterns in (
        (
            "a sleep", "no sleep in the loop",
            (r"(time\.)?sleep at ", rf"{BUILT}sleep", r"(?:u|nano|clock_nano)?sleep \(libc\)$"),
        ),
        (
            "a lock or a queue", "make who holds or fills it faster, or ask it ahead; a server needs more requests",
            (
                r"(?:[\w.]*\.)?acquire at ", rf"{BUILT}(?:acquire|__enter__) of _thread\.",
                PLACE.format("threading") + r"(?:wait|wait_for|acquire|join|_wait_for_tstate_lock|__enter__)$",
                PLACE.format("queue") + r"get$", rf"{BUILT}get of _queue\.SimpleQueue",
                PLACE.format("futures/thread") + r"_worker$",
                r"(?:pthread_(?:cond_\w*wait|mutex_lock|rwlock_\w*lock|\w*join\w*|barrier_wait)|sem_\w*wait) \(libc\)$",
            ),
        ),
        (
            "a socket or a pipe", "ask for it ahead, from another thread; a server needs more requests",
            (
                r"(?:[\w.]*\.)?(?:recv|recv_into|recvfrom|send|sendall|accept|connect|poll|select) at ",
                r"[\w.]+\.(?:std(?:out|err)\.(?:read|readinto|readline|readlines)|stdin\.write) at ",  # of a child
                rf"{BUILT}(?:recv|recv_into|recvfrom|send|sendall|accept|connect|poll|select)\b",
                PLACE.format("selectors") + r"select$", PLACE.format("ssl") + r"(?:read|recv|recv_into)$",
                PLACE.format("socket") + r"(?:readinto|accept|create_connection)$",
                PLACE.format("multiprocessing/connection") + r"(?:wait|_poll|_recv|_send|recv_bytes)$",
                r"(?:p?poll|p?select|epoll_p?wait|recv(?:from|msg)?|send(?:to|msg)?|accept4?|connect) \(libc\)$",
            ),
        ),
        (
            "asyncio's event loop", "its tasks sleep, or await sockets, processes or threads: shorten that",
            (PLACE.format("asyncio/runners") + r"run$",),  # the loop below it is in C: uvloop
        ),
        (
            "a file", "read it ahead, or keep it in memory; write from another thread",
            (r"(?:print|(?:[\w.]*\.)?(?:read|readinto|readline|readlines|write|fsync)) at ",
             rf"{BUILT}(?:read|readinto|readline|write|fsync)\b",
             r"(?:p?(?:read|write)v?|f?(?:read|write|[gp]\w+|open)|f(?:sync|flush|close))(?:64)? \(libc\)$"),
        ),
        (
            "a process", "start it ahead",
            (PLACE.format("subprocess") + r"\w+$", r"(?:wait(?:id|pid|[34])?|v?fork|system|popen) \(libc\)$"),
        ),
        (
            "MPI", "share the work evenly, and exchange data while the GPU works: MPI_Isend, MPI_Irecv",
            (r"MPI_\w+$",),
        ),
    )
)  # fmt: skip


DEEPEST = 256
# A thread that waits in these waits for what others give it.
EVENT_LOOP, TURNS_IT = (
    f"{WAITING}in asyncio's event loop",
    re.compile(PLACE.format("asyncio/base_events") + "_run_once$"),
)
FOR_OTHERS = f"{WAITING}in a lock or a queue"
HANDED = (REQUESTS, EVENT_LOOP, FOR_OTHERS, f"{WAITING}in a socket or a pipe")
# A server waits for a request in these, unless it has called the program's own code since.
SERVERS = re.compile(
    r"(?:.*/)?(?:http/server|socketserver|grpc/_server|werkzeug/serving|wsgiref/\w+|aiohttp/web\w*"
    r"|(?:uvicorn|hypercorn|gunicorn|waitress|tornado|granian|cheroot)/.*|anyio/_backends/.*)\.py\b"
)
FUSED = re.compile(r"^torch/optim/(adam|adamw|sgd|adagrad)\.py")  # optimizers that have such kernels


class Owner(NamedTuple):
    """Who owns idle time, how many s of it, and the function or the line that has most of it, with its s."""

    name: str
    seconds: float
    most: str
    most_s: float

    @property
    def helps(self) -> str:
        """What usually helps, in a few words; "" where nothing is known."""
        if FUSED.search(self.most):
            return f"fused=True, or {HELPS[self.name]}" if self.name in HELPS else ""
        name = LIBRARY if self.name.startswith(PYTHONS) and self.name not in HELPS else self.name
        return next((helps for _, waits, helps in WAITS if waits == name), HELPS.get(name, ""))


def owner_of(names: Sequence[str]) -> tuple[str, str]:
    """Whose a piece of host code is, and the function or line of it, by the names of its ranges, the outermost first.

    A built-in function, and one made at run time, belongs to who calls it. Python's library goes by the part of it that
    others call. What PyTorch does within a data loader is the loader's.
    """
    if len(names) > DEEPEST:  # such as ranges that nobody ends: the middle is left out
        names = [*names[: DEEPEST // 2], *names[-DEEPEST // 2 :]]
    importing = next((place for place, name in enumerate(names) if name.startswith("<frozen importlib")), None)
    if importing is not None:
        return IMPORTS, names[max(importing - 1, 0)]
    works = not names or not _waits(names[-1]) or any(PROCESSES_OF.search(name) for name in names)
    if works and (compiler := next(filter(None, map(compiler_of, names)), "")):
        return compiler, next(name for name in names if compiler_of(name))
    found: tuple[str, str] | None = None
    for place, name in reversed(list(enumerate(names))):
        if found is None and (waits := _waits(name)):
            if any("_MultiProcessingDataLoaderIter" in outer for outer in names[:place]):
                return AWAITS, name.partition(" at ")[2] or name
            within = [place for place, outer in enumerate(names[:place]) if SERVERS.match(outer)]
            if within and OWN not in map(_of_name, names[within[-1] : place]):
                return REQUESTS, name
            if any(TURNS_IT.match(outer) for outer in names[max(place - 2, 0) : place]):  # around its selector
                return EVENT_LOOP, name
            return (place and _waits(names[place - 1])) or waits, name  # a read of a connection is of a pipe
        if name.startswith("<built-in ") or MADE.match(name):
            continue
        owner = _of_name(name)
        library = owner.startswith(PYTHONS) and owner != GARBAGE
        if found is None or library:
            found = owner, found[1] if found is not None else name.removeprefix(f"{LOCK} ")
        if not library:
            break
    if found is not None and found[0] in (OPERATORS, "torch") and any(_of_name(name) == LOADER for name in names):
        return LOADER, found[1]
    if found is not None and found[0] == OPERATORS:  # by the operator that the program calls
        return OPERATORS, next((name for name in names if name.startswith("aten::")), found[1])
    if found is not None and found[0] in PRINTING and any(_of_name(name) == PRINTS for name in names):
        return PRINTS, next(name for name in names if _of_name(name) == PRINTS)
    made = any(map(MADE.match, names))  # by itself that of `python -c`
    return found or ((OWN if made else BUILT_IN, names[-1]) if names else (NAMELESS, ""))


def own_line(owner: str, names: Sequence[str]) -> str:
    """Which line of the user's program calls this owner. "" where no line is known, where the name of a wait has it
    already, and for frameworks other than JAX and CuPy."""
    known = owner in FRAMEWORK or owner in HELPS or owner in LOOPS or owner.startswith((WAITING, "code in "))
    unplaced = awaits(owner) and " at " not in names[-1]
    if known and not unplaced and owner not in COMPILES | {PRINTS, "cupy", *JAX}:
        return ""
    line = next((name for name in reversed(names) if LINE_OF_CODE.search(name) and _of_name(name) == OWN), "")
    return line if line.partition("/")[0].partition(".py:")[0] != owner.removeprefix(PYTHONS) else ""


def awaits(owner: str) -> bool:
    """Whether an owner is a wait for something else than the GPU, a processor or Python's lock."""
    return owner.startswith(f"{WAITING}in ") or owner in (AWAITS, REQUESTS)


def meanwhile(trace: Trace, owner: str, begin_ns: int, end_ns: int) -> tuple[str, float]:
    """Where another thread works while threads that submit wait for a lock or a queue: its line, and for what share of
    that wait, between two times in ns. The line is "" where samples find none, or the owner is no such wait."""
    if owner != FOR_OTHERS or trace.samples is None or not trace.samples.beside:
        return "", 0.0
    waiting = np.array([_waits(name) == owner for name in trace.names] + [False])[trace.ranges["name"]]
    waits = trace.ranges[waiting & (trace.ranges["end_ns"] > begin_ns) & (trace.ranges["begin_ns"] < end_ns)]
    if not len(waits):
        return "", 0.0
    edges = np.concatenate([waits["begin_ns"], waits["end_ns"]]).clip(begin_ns, end_ns).astype(np.int64)
    order = np.argsort(edges, kind="stable")
    depth = np.cumsum(np.repeat([1, -1], len(waits))[order])
    waited_ns = np.append(0, np.cumsum(np.diff(edges[order]) * (depth[:-1] > 0)))  # by each edge
    begins_ns, ends_ns, names = np.array(trace.samples.beside, np.int64).T
    during_ns = np.interp(ends_ns, edges[order], waited_ns) - np.interp(begins_ns, edges[order], waited_ns)
    most = int(np.argmax(each_ns := np.bincount(names, during_ns)))
    return trace.names[most], float(each_ns[most] / max(waited_ns[-1], 1))


@lru_cache(maxsize=100_000)
def compiler_of(name: str) -> str:
    """The compiler that a function belongs to; "" if it belongs to none."""
    path = PACKAGES.sub("", name)
    return next((compiler for pattern, compiler, _ in COMPILERS if pattern.match(path)), "")


def _waits(name: str) -> str:
    """What a thread waits in that is in this function; "" if it does not wait."""
    return next((waits for pattern, waits, _ in WAITS if pattern.match(name)), "")


def _of_name(name: str) -> str:
    """Whose a function, an operator or a line is; the name itself where that says nothing."""
    if name.startswith(LOCK):
        return LOCK
    if frozen := FROZEN.match(name):
        return PYTHONS + frozen[1]
    function = FUNCTION.search(name)
    path = PACKAGES.sub("", function["path"]) if function is not None else name
    if part := next((words for begin, words in PARTS if path.startswith(begin)), ""):
        return part
    if "/torchinductor_" in path:  # the code that it wrote
        return COMPILED
    if function is None and (OPERATOR.match(name) or LINE_OF_CODE.search(name) or name.startswith(INPUT)):
        return OPERATORS if OPERATOR.match(name) else OWN
    if function is None:
        return name if name in HELPS else f"code in {NUMBERS.sub('#', name)}"  # of an annotation, all layers together
    first, *rest = path.split("/")
    package = first.removesuffix(".py")
    if package in sys.stdlib_module_names:
        return PYTHONS + package
    # A trace of PyTorch names the program's own file alone, or by its whole path; our recordings name its line.
    return OWN if function["line"] and not (first and rest) else package


@lru_cache(maxsize=100_000)
def _gives(stack: tuple[str, ...]) -> bool | None:
    """Whether a thread with this stack works, so that others may wait for it. None if it waits for others itself."""
    if owner_of(stack)[0] in HANDED:
        return None
    return bool(stack) and stack[0] != BACKWARD and not stack[0].startswith((MAIN_AT, BACKWARD_OF))


def handed_on(trace: Trace, thread: int, known: dict[int, Slices]) -> Slices:
    """A thread's whole time. While it waits for what another thread gives it, it has what the thread does that called
    CUDA last, unless that one waits so too or nothing says what it does. ``known`` keeps the threads' own slices."""
    calls = trace.calls
    firsts = np.flatnonzero(np.append(True, np.diff(calls["thread"]) != 0)[: len(calls)])
    turns_ns, callers = calls["begin_ns"][firsts], calls["thread"][firsts]
    of = known.get(thread) or known.setdefault(thread, slices(trace, thread))
    waiting = np.array([_gives(stack) is None for stack in of.stacks])
    if not (waiting[of.path] & (of.doing == DOINGS.index("between"))).any():
        return of
    for other in np.setdiff1d(callers, thread).tolist():
        theirs = known.get(other) or known.setdefault(other, slices(trace, other))
        gives = np.array([bool(_gives(stack)) for stack in theirs.stacks])
        if not gives.any():
            continue
        theirs_ns = theirs.edges_ns[:-1]
        theirs_ns = theirs_ns[callers[np.maximum(np.searchsorted(turns_ns, theirs_ns, "right") - 1, 0)] == other]
        edges_ns = np.unique(np.concatenate([of.edges_ns[:-1], theirs_ns, turns_ns]))
        own, there = (np.searchsorted(one.edges_ns, edges_ns, "right") - 1 for one in (of, theirs))
        last = np.searchsorted(turns_ns, edges_ns, "right") - 1
        waits = waiting[of.path] & (of.doing == DOINGS.index("between"))
        taken = waits[own] & gives[theirs.path][there] & (last >= 0) & (callers[last] == other)
        if not taken.any():
            continue
        paths = of.path % len(of.stacks), len(of.stacks) + theirs.path % len(theirs.stacks)  # NONE is the last one
        doing, call, name, path = (
            np.where(taken, two[there], one[own])
            for one, two in ((of.doing, theirs.doing), (of.call, theirs.call), (of.name, theirs.name), paths)
        )
        stacks = (*of.stacks, *theirs.stacks, of.stacks[-1])
        waiting = np.append(waiting, [*(_gives(stack) is None for stack in theirs.stacks), waiting[-1]])
        of = Slices(np.append(edges_ns, of.edges_ns[-1]), doing, call, name, path, stacks)
    return of
