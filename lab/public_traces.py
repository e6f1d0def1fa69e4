"""Reads public traces of GPU programs, and asks ``microbench diagnose`` what it says of each.

``python lab/public_traces.py FOLDER [--new]`` needs no GPU. FOLDER has git directories of public repositories at
OWNER+NAME/repo, without work trees, and loose traces at OWNER+NAME/PATH, such as those of an unpacked archive. Every
trace of the table is diagnosed anew; one that is not there keeps its row. ``--new`` adds traces that the table lacks.
A person writes the columns expert, right and cause; they stay as they are.

Busy time and communication are read here by other code than the tool's, so that a mistake of its readers shows.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parent / "measurements" / "public_traces.csv"
COLUMNS = (
    "repository", "commit", "path", "bytes", "gpu", "launches", "span_ms", "busy_percent",
    "exposed_communication_percent", "annotated_step_ms", "said_step_ms", "verdict", "first_advice",
    "expert", "right", "cause",
)  # fmt: skip
ENDS = (".json", ".json.gz", ".sqlite")
TALK = re.compile(r"nccl|nvshmem|deep_ep|ep::int|all_?(reduce|gather|to_?all)|reduce_?scatter|device_reduce", re.I)
COPY = re.compile(r"mem(cpy|set)", re.I)
STEP = re.compile(r"^(ProfilerStep|step\b|iteration)", re.I)
SQLITE = b"SQLite format 3"


class Truth(NamedTuple):
    """What a trace's own records say: ``work`` by device (begin and end in us, name), ``steps`` in us."""

    gpus: set[str]
    work: dict[Any, list[tuple[float, float, str]]]
    launches: int
    steps: list[float]


def length(pieces: Iterable[tuple[float, float]]) -> float:
    """The time in which at least one of the pieces runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(pieces):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def of_chrome(data: bytes) -> Truth:
    """PyTorch's form. Older versions write other categories."""
    loaded = json.loads(data, strict=False)
    events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
    gpus = {one.get("name", "") for one in loaded.get("deviceProperties", [])} if loaded is not events else set()
    work, launches, steps = defaultdict(list), 0, []
    for event in events:
        if event.get("ph") != "X" or "ts" not in event:
            continue
        name, category = str(event.get("name", "")), str(event.get("cat", "")).lower()
        begin, taken = float(event["ts"]), float(event.get("dur", 0))
        if category in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            device = (event.get("args") or {}).get("device", event.get("pid"))
            work[device].append((begin, begin + taken, name))
        elif category in ("runtime", "cuda_runtime", "cuda_driver"):
            launches += "Launch" in name
        elif STEP.search(name) and category in ("user_annotation", "cpu_op", "operator"):
            steps.append(taken)
    return Truth(gpus, work, launches, steps)


def of_nsys(path: Path) -> Truth:
    """Nsight Systems' export, by its tables."""
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type='table'")}

        def rows(table: str, columns: str) -> list[Any]:
            return base.execute(f"SELECT {columns} FROM {table}").fetchall() if table in tables else []

        text = dict(rows("StringIds", "id, value"))
        work = defaultdict(list)
        for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"):
            name = "demangledName" if kind == "KERNEL" else "NULL"
            for begin, end, device, what in rows(f"CUPTI_ACTIVITY_KIND_{kind}", f"start, end, deviceId, {name}"):
                work[device].append((begin / 1e3, end / 1e3, str(text.get(what, kind))))
        launches = sum("Launch" in str(text.get(name)) for (name,) in rows("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"))
        marks = rows("NVTX_EVENTS", "start, end, text, textId")
        steps = [(end - at) / 1e3 for at, end, words, name in marks if end and STEP.search(words or text.get(name, ""))]
        return Truth({name for (name,) in rows("TARGET_INFO_GPU", "name")}, work, launches, steps)


def machine(path: Path) -> dict[str, str]:
    """The columns read from the trace itself. Exposed is communication beside which no other kernel runs. Both shares
    are means over the devices that worked."""
    data = path.read_bytes()
    try:
        truth = of_nsys(path) if data.startswith(SQLITE) else of_chrome(unpacked(data))
    except (ValueError, KeyError, EOFError, OSError, sqlite3.Error) as error:
        return {"gpu": f"unreadable: {type(error).__name__}"}
    columns = {"gpu": " + ".join(sorted(truth.gpus)), "launches": str(truth.launches)}
    if truth.steps:
        columns["annotated_step_ms"] = f"{statistics.median(truth.steps) / 1e3:.4g}"
    if not (pieces := [piece for device in truth.work.values() for piece in device]):
        return columns
    span = max(end for _, end, _ in pieces) - min(begin for begin, _, _ in pieces)
    busy, exposed = [], []
    for device in truth.work.values():
        busy.append(length((begin, end) for begin, end, _ in device))
        kernels = [piece for piece in device if not COPY.match(piece[2])]
        others = ((begin, end) for begin, end, name in kernels if not TALK.search(name))
        exposed.append(length((begin, end) for begin, end, _ in kernels) - length(others))
    share = 100 / (span or 1.0)
    return columns | {
        "span_ms": f"{span / 1e3:.4g}",
        "busy_percent": f"{statistics.fmean(busy) * share:.1f}",
        "exposed_communication_percent": f"{statistics.fmean(exposed) * share:.1f}",
    }


def said(path: Path) -> dict[str, str]:
    """What the tool says: the time that it calls a step, its verdict, and its first advice."""
    command = ["timeout", "180", sys.executable, "-m", "microbench", "diagnose", str(path), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        words = ended.stderr.replace(str(path), path.name).removeprefix("error: ").strip().splitlines()
        return {"verdict": (words or [f"exit code {ended.returncode}"])["Traceback" in ended.stderr and -1]}
    warned = " (a warning on the screen)" if "Warning" in ended.stderr else ""
    told = json.loads(ended.stdout)
    advised = (one["title"] for one in told["findings"] if one["severity"] == "advice")
    return {
        "said_step_ms": f"{told['step']['watched_s'] * 1e3:.4g}" if told["step"] else "",
        "verdict": (told["bound"] or told["why_no_idle"]) + warned,
        "first_advice": next(advised, ""),
    }


def traces_in(owned: Path) -> Iterator[tuple[str, str, bytes]]:
    """The commit, path and content of each trace of a repository: its newest version, from history too."""
    git = ("git", "-C", str(owned / "repo"))
    log = ("log", "--all", "--diff-filter=AM", "--name-only", "--format=commit:%H", "--", *(f"*{end}" for end in ENDS))
    found: dict[str, str] = {}
    for line in subprocess.run([*git, *log], capture_output=True, text=True, check=False).stdout.splitlines():
        if line.startswith("commit:"):
            commit = line.removeprefix("commit:")
        elif line:
            found.setdefault(line, commit)
    for path, commit in found.items():
        content = subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, check=False).stdout
        if is_trace(content):
            yield commit, path, content
    for loose in owned.rglob("*"):
        if (path := str(loose.relative_to(owned))).endswith(ENDS) and not path.startswith("repo/"):
            yield "", path, loose.read_bytes()


def is_trace(content: bytes) -> bool:
    """Whether the content has CUDA's calls or work of a GPU in a form that the tool reads."""
    if content.startswith(SQLITE):
        return b"CUPTI_ACTIVITY_KIND" in content
    return re.search(rb'"(kernel|Kernel|gpu_memcpy|Memcpy|cudaLaunchKernel)"', unpacked(content)) is not None


def unpacked(content: bytes) -> bytes:
    """The content without gzip; nothing of a broken file."""
    with contextlib.suppress(OSError, EOFError):
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    return b""


def main(folder: Path, *, new: bool) -> None:
    with TABLE.open(newline="") as table:
        rows = {(row["repository"], row["path"]): row for row in csv.DictReader(table)}
    for owned in sorted(one for one in folder.iterdir() if one.is_dir()):
        repository = owned.name.replace("+", "/", 1)
        for commit, path, content in traces_in(owned):
            if not (known := rows.get((repository, path), {})) and not new:
                continue
            row = {"repository": repository, "commit": commit or known.get("commit", ""), "path": path}
            row |= {column: known.get(column, "") for column in ("expert", "right", "cause")}
            with tempfile.TemporaryDirectory() as name:
                trace = Path(name) / Path(path).name
                row["bytes"] = str(trace.write_bytes(content))
                rows[repository, path] = row | machine(trace) | said(trace)
            print(repository, path, rows[repository, path]["verdict"], sep="  ", flush=True)
    with TABLE.open("w", newline="") as table:
        writer = csv.DictWriter(table, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), new="--new" in sys.argv)
