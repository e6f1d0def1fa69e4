"""Whose the host's time is, by microbench watch, by py-spy, and by torch.profiler with stacks, for the same programs.

``python lab/owners.py OUT [NAME …]`` on a GPU, with py-spy installed, runs each program of lab/programs once for each
of them, and writes the three largest owners with their shares to OUT/owners.csv. The names of owners are microbench's:
by owner_of for the stacks of py-spy, by diagnose for the trace of torch.profiler. py-spy knows nothing of the GPU, so
its shares are of all samples of threads at work; the others are of the host's time between CUDA calls while the GPU
idles.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LAB = Path(__file__).parent
ENDINGS = {"watch": "", "py-spy": ".raw", "torch.profiler": ".json"}
NAMES = (
    "llama_static", "gpt2", "bert_classifier", "resnet18", "vae", "gru_by_hand", "gcn", "serving", "flax_mlp",
    "conjugate_gradient",
)  # fmt: skip
WARM, PROFILED, SPIED_S = 6, 10, 4
FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]+\.py|<[^>]+>)(?::(?P<line>\d+))?\)$")


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    # Those that say why the GPU idles run alone, else work waits for other programs on it.
    rows = [of(name, out, way) for name in names for way in ("watch", "torch.profiler")]
    with ThreadPoolExecutor(2) as pool:
        rows += pool.map(lambda name: of(name, out, "py-spy"), names)
    rows.sort(key=lambda row: names.index(row[0]))
    with (out / "owners.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("program", "by", "first", "share", "second", "share", "third", "share"), *rows])


def of(name: str, out: Path, way: str) -> list[str]:
    """The row of a program and a way to ask."""
    run = [str(LAB / "programs" / "run.py"), name, "each", "--seconds", str(SPIED_S)]
    environment = {**os.environ, "PYTHONPATH": f"{LAB.parent}:{os.environ.get('PYTHONPATH', '')}"}
    made = out / f"{name}.{way}{ENDINGS[way]}"
    command = [sys.executable, __file__, "--child", way, str(made), *run]
    if way == "watch":
        command = [sys.executable, "-m", "microbench", "watch", "-o", str(made), "--", sys.executable, *run]
    with made.with_name(f"{made.name}.txt").open("w") as output, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=150, check=False)
    shares = {}
    if made.exists():
        shares = spied(made.read_text()) if way == "py-spy" else diagnosed(made)
    cells = [cell for owner, share in [*shares.items()][:3] for cell in (owner, f"{share:.3f}")]
    row = [name, way, *cells, *[""] * (6 - len(cells))]
    print(*row, sep=" | ", flush=True)
    return row


def diagnosed(made: Path) -> dict[str, float]:
    """The owners by microbench diagnose."""
    command = [sys.executable, "-m", "microbench", "diagnose", str(made), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout or "{}")
    owners = {one["name"]: one["seconds"] for one in found.get("owners", [])}
    return {owner: seconds / (sum(owners.values()) or 1) for owner, seconds in owners.items()}


def spied(raw: str) -> dict[str, float]:
    """The owners of py-spy's folded stacks: by the Python functions of each, the framework's own threads apart."""
    from microbench.diagnosis.owners import owner_of

    found = Counter[str]()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        names = []
        for frame in stack.split(";"):
            if (seen := FRAME.match(frame)) is not None:
                file = re.sub(r".*(-packages/|lib/python[\d.]+/)", "", seen["file"])
                file = file.removeprefix("programs/")  # of lab/: the program's own
                names.append(f"{file}({seen['line'] or 0}): {seen['function']}")
        found[owner_of(names)[0] if names else "threads without Python"] += int(count)
    return {owner: count / found.total() for owner, count in found.most_common()}


def child(way: str, made: str, program: list[str]) -> None:
    """Runs a program, and begins py-spy or torch.profiler after six iterations."""
    sys.argv = program
    sys.path.insert(0, str(LAB / "programs"))
    import iterations

    spy: Any = None
    profile: Any = None
    counted, end, enough = 0, iterations.Iterations.end, iterations.Iterations.enough

    def ended(it: Any) -> None:
        nonlocal counted, spy, profile
        end(it)
        counted += 1
        if counted == WARM and way == "py-spy":
            command = ["py-spy", "record", "--native", "--format", "raw", "--rate", "200", "--duration", str(SPIED_S)]
            spy = subprocess.Popen([*command, "--output", made, "--pid", str(os.getpid())])
        elif counted == WARM and "torch" in sys.modules:
            profile = importlib.import_module("torch.profiler").profile(with_stack=True)
            profile.start()
        elif counted == WARM + PROFILED and profile is not None:
            profile.stop()
            profile.export_chrome_trace(made)
            os._exit(0)

    def is_enough(it: Any) -> bool:
        return spy.poll() is not None if spy is not None else enough(it)

    iterations.Iterations.end, iterations.Iterations.enough = ended, is_enough
    import runpy

    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main(Path(sys.argv[1]), sys.argv[2:] or [*NAMES])
