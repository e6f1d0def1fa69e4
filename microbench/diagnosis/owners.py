"""Names the owner of host code that runs while a GPU is idle: the program, a package, or a part of PyTorch."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from microbench.diagnosis.host_time import LINE_OF_CODE
from microbench.diagnosis.idle import BETWEEN, Idle

OWN, LIBRARY, BUILT_IN = "your own code", "Python's library", "built-in functions"
OPERATORS, ELSEWHERE = "PyTorch's operators", "PyTorch's other threads"
# "torch/nn/functional.py linear" in our recordings, "torch/nn/functional.py(88): linear" in traces of PyTorch.
FUNCTION = re.compile(r"(?P<path>[^() ]+\.py)(?P<line>\(\d+\):)? \S+$")
PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
OPERATOR = re.compile(r"(aten|autograd|torch|c10|prims)::|\w+Backward\d*$")
# Parts of packages by how their paths and their ranges begin.
PARTS = (
    ("torch/nn/", "torch.nn modules"), ("nn.Module: ", "torch.nn modules"), ("torch/optim/", "torch.optim"),
    ("Optimizer.", "torch.optim"), ("torch/autograd/", "torch.autograd"), ("torch/_tensor", "torch.autograd"),
    ("torch/utils/data/", "the data loader"), ("torch/_dynamo/", "torch.compile"),
    ("torch/_inductor/", "torch.compile"), ("torch/_functorch/", "torch.compile"),
    ("<built-in ", BUILT_IN), ("<frozen ", LIBRARY), ("main thread at ", ELSEWHERE),
)  # fmt: skip


class Owner(NamedTuple):
    """Who owns idle time, how many s of it, and the function or the line that has most of it."""

    name: str
    seconds: float
    most: str


def owner_of(name: str) -> str:
    """Whose a piece of host code is, by the name of its innermost range; the name itself where that says nothing."""
    function = FUNCTION.search(name)
    path = PACKAGES.sub("", function["path"]) if function is not None else name
    if part := next((words for begin, words in PARTS if path.startswith(begin)), ""):
        return part
    if function is None:
        return OPERATORS if OPERATOR.match(name) else OWN if LINE_OF_CODE.search(name) else name
    first, *rest = path.split("/")
    if first.removesuffix(".py") in sys.stdlib_module_names or first.startswith("python3."):
        return LIBRARY
    # A trace of PyTorch names the program's own file alone, or by its whole path; our recordings name its line.
    return OWN if function["line"] and not (first and rest) else first.removesuffix(".py")


def owners(idle: Idle) -> list[Owner]:
    """The owners of the named host time between CUDA calls in which the GPU idles, the largest first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for cause, name, seconds in idle.places:
        if cause == BETWEEN:
            found.setdefault(owner_of(name), []).append((seconds, name))
    each = (Owner(owner, sum(seconds for seconds, _ in parts), max(parts)[1]) for owner, parts in found.items())
    return sorted(each, key=lambda one: -one.seconds)
