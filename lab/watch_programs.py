"""Records the public programs of lab/programs by `microbench watch`, several side by side, on a machine with a GPU.

``python lab/watch_programs.py OUT --programs resnet18,gat --styles each,none`` writes to OUT for each program and style
its recordings (a folder), what was printed (.txt) and the truth (.truth.json), and at the end summary.json. They import
side by side; a lock lets one use the GPU at a time. --plain runs programs alone, --graph measures steps as graphs.
Names stand for programs, families (torch_training), or all of them (all); a minus before a name leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

LAB = Path(__file__).parent
sys.path.insert(0, str(LAB / "programs"))

from iterations import STYLES  # noqa: E402
from run import programs  # noqa: E402

HOW = {
    "graph": "graphs of the steps, without microbench watch", "prove": "what `microbench graph` says of the steps",
    "compile": "what it says of torch.compile of them",
}  # fmt: skip


class Job(NamedTuple):
    name: str
    style: str
    ending: str  # of its files' names

    @property
    def stem(self) -> str:
        return f"{self.name}_{self.ending}"


def chosen(names: str) -> list[str]:
    """The programs of a list of names, in the order of the list."""
    known = programs()
    found: dict[str, None] = {}
    for name in names.split(","):
        plain = name.removeprefix("-")
        meant = [one for one, family in known.items() if plain in ("all", one, family)]
        if not meant:
            raise SystemExit(f"no program or family is called {plain}")
        for one in meant:
            if name.startswith("-"):
                found.pop(one, None)
            else:
                found[one] = None
    return list(found)


def command(job: Job, asked: argparse.Namespace) -> list[str]:
    program = [
        sys.executable, str(LAB / "programs" / "run.py"), job.name, job.style, "--seconds", str(asked.seconds),
        "--lock", str(asked.out / "lock"), "--truth", str(asked.out / f"{job.stem}.truth.json"),
    ]  # fmt: skip
    if asked.how:
        return [*program, f"--{asked.how}"]
    if asked.plain:
        return program
    recorded = ["-o", str(asked.out / job.stem), *shlex.split(asked.watch)]
    return [sys.executable, "-m", "microbench", "watch", *recorded, "--", *program]


def run(job: Job, asked: argparse.Namespace, ends_s: float) -> dict[str, Any]:
    """What came of one process. It has a session of its own, so that all that it started ends with it."""
    began = time.monotonic()
    left_s = min(asked.each, ends_s - began)
    if left_s < asked.least:
        return {"program": job.name, "style": job.style, "code": None, "seconds": 0.0, "why": "out of time"}
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160", "OMP_NUM_THREADS": str(asked.threads)}
    environment["PYTHONPATH"] = f"{LAB.parent}:{os.environ.get('PYTHONPATH', '')}"
    why = ""
    with (asked.out / f"{job.stem}.txt").open("w") as output:
        process = subprocess.Popen(
            command(job, asked), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(left_s)
        except subprocess.TimeoutExpired:
            why = f"stopped after {left_s:.0f} s"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = {"program": job.name, "style": job.style, "code": process.returncode}
    return {**found, "seconds": round(time.monotonic() - began, 1), "why": why, **figures(job, asked.out)}


def figures(job: Job, out: Path) -> dict[str, Any]:
    """What the truth says, without its stamps."""
    try:
        truth = json.loads((out / f"{job.stem}.truth.json").read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in truth.items() if key not in ("stamps_ns", "name", "style", "python")}


def line(number: int, of: int, found: dict[str, Any]) -> str:
    """One line of progress."""
    words = [f"{number:3}/{of}", f"{found['program']:20}", f"{found['style']:5}", f"exit {found['code']}"]
    words.append(f"{found['seconds']:5.1f} s")
    if "median_s" in found:
        words.append(f"step {found['median_s'] * 1e6:9.1f} us, {found['iterations']} times")
    for name in ("eager_seconds", "graph_seconds"):
        if name in found:
            words.append(f"{name.removesuffix('_seconds')} {found[name] * 1e6:9.1f} us")
    if (report := found.get("report")) is not None:
        times = " ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in report["times"])
        ways = "; ".join(report["blockers"]) or f"{report['why']} {report['difference']}"
        compiled = "; ".join(f"{name}: {ratio:.2f} {why}" for name, (ratio, why) in report["compiled"].items())
        words.append(f"{'PROVED' if report['proved'] else 'not'} {times} {ways} {compiled}")
    if found.get("beyond_replay_s"):
        words.append(f"graphed() beyond the replay {statistics.median(found['beyond_replay_s']) * 1e6:.2f} us")
    if "graph_nodes" in found:
        words.append(f"{found['graph_nodes']} nodes")
    words += [" ".join(found[key].split()) for key in ("why", "error", "graph_reason") if found.get(key)]
    return "  ".join(words)[:400]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", default="all")
    parser.add_argument("--styles", default=",".join(STYLES))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measured loop")
    parser.add_argument("--jobs", type=int, default=8, help="processes side by side")
    parser.add_argument("--threads", type=int, default=2, help="of OpenMP in each process")
    parser.add_argument("--watch", default="", help="further options of microbench watch, in one word")
    parser.add_argument("--plain", action="store_true", help="without microbench watch")
    for how, what in HOW.items():
        parser.add_argument(f"--{how}", dest="how", action="store_const", const=how, help=what)
    parser.add_argument("--each", type=float, default=120.0, help="the most seconds of a process")
    parser.add_argument("--limit", type=float, default=520.0, help="the most seconds of all")
    parser.add_argument("--least", type=float, default=20.0, help="with fewer seconds left, no process is started")
    asked = parser.parse_args()
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    ends_s = time.monotonic() + asked.limit
    # All styles of a program follow each other, so that the files of its libraries are still in memory.
    styles = ["each"] if asked.how else asked.styles.split(",")
    endings = {style: asked.how or (f"{style}_plain" if asked.plain else style) for style in styles}
    jobs = [Job(name, style, ending) for name in chosen(asked.programs) for style, ending in endings.items()]
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for number, one in enumerate(pool.map(lambda job: run(job, asked, ends_s), jobs), 1):
            found += [one]
            print(line(number, len(jobs), one), flush=True)
            (asked.out / "summary.json").write_text(json.dumps(found, indent=1))
    print(f"{sum(one['code'] == 0 for one in found)} of {len(found)} ended well; {asked.out / 'summary.json'}")


if __name__ == "__main__":
    main()
