"""Runs one of the public programs: ``python lab/programs/run.py NAME STYLE --truth FILE``; ``--list`` names them all.

A program is a function that takes Iterations in one of the FAMILIES, or a file of its own in SCRIPTS whose loop is at
module level.
With --graph, the loop is not run: the step is captured, and the times of both go into the truth. With --prove, what
`microbench graph` says of the step goes there, with --compile what it says of torch.compile.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.metadata
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import iterations
from iterations import STYLES, Captured, Iterations

HERE = Path(__file__).parent
FAMILIES = (
    "torchvision_models", "timm_models", "transformers_models", "torch_training", "graphs_geometric", "jax_programs",
    "cupy_programs", "numba_programs",
)  # fmt: skip
SCRIPTS = ("spirals", "power_iteration", "random_walks", "word_model", "serving")
LIBRARIES = (
    "torch", "torchvision", "timm", "transformers", "torch-geometric", "jax", "flax", "optax", "diffrax",
    "cupy-cuda13x", "cupy-cuda12x", "numba", "numba-cuda", "numpy", "triton",
)  # fmt: skip


def programs() -> dict[str, str]:
    """The family of each program, "" for a file of its own. Nothing is imported."""
    found = {}
    for family in FAMILIES:
        for node in ast.parse((HERE / f"{family}.py").read_text()).body:
            if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["it"]:
                found[node.name] = family
    return found | dict.fromkeys(SCRIPTS, "")


def imported(path: Path) -> None:
    """Imports what a program imports, and not the program itself."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), path, "exec"), {})


def on_cpu() -> None:
    """A smoke test: what only a GPU can do is left out."""
    import torch

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.is_initialized = lambda: False


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        if name.replace("-", "_") in sys.modules or name.split("-")[0] in sys.modules:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def gpu_name() -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        ).stdout.splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ""


def main() -> None:
    known = programs()
    if "--list" in sys.argv:
        print("\n".join(known))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=known, metavar="NAME")
    parser.add_argument("style", choices=STYLES)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--graph", action="store_const", const="graph", default="")
    parser.add_argument("--prove", action="store_const", const="prove", dest="graph")
    parser.add_argument("--compile", action="store_const", const="compile", dest="graph")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    asked = parser.parse_args()

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the GPU
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    family = known[asked.name]
    if asked.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        if family not in ("jax_programs", "numba_programs"):
            on_cpu()
    it = iterations.it = Iterations(asked.style, asked.seconds, asked.device, asked.lock, asked.graph)
    error = ""
    try:
        module = importlib.import_module(family) if family else imported(HERE / f"{asked.name}.py")
        it.take()
        if family:
            getattr(module, asked.name)(it)
        else:
            runpy.run_path(str(HERE / f"{asked.name}.py"), run_name="__main__")
        iterations.settle()
        if it.graph:
            it.found["graph_reason"] = "the program offers no step whose inputs stay"
    except Captured:
        pass
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:600]
        raise
    finally:
        ended_ns = time.time_ns()
        if asked.truth is not None:
            truth = {
                "name": asked.name, "style": asked.style, "family": family, "gpu": gpu_name(), "python": sys.version,
                "versions": versions(), **it.truth(), "ended_ns": ended_ns, "error": error,
            }  # fmt: skip
            asked.truth.write_text(json.dumps(truth))
    said = {key: value for key, value in it.truth().items() if key != "stamps_ns"}
    print(asked.name, asked.style, json.dumps(said), file=sys.stderr)


if __name__ == "__main__":
    main()
