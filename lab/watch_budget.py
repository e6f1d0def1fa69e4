"""What `watch --budget` takes from programs that run for minutes, and whether its windows show what a long one shows.

By hand, on a machine with a GPU: ``python lab/watch_budget.py OUT SECONDS PROGRAM:STYLE:BUDGET[:GPU] …``, for example
``bert_classifier:each:1%:0``. All of them run side by side, so give each a GPU of its own. At the end each is recorded
for five more seconds by ``--attach``. OUT gets budget.json and, for each program, what was printed.

The loss of a recording is how much longer the program's iterations took from a second before it to a second and a half
behind it than those of the three seconds on either side; the total is their sum over the whole time. The same
calculation where nothing was recorded gives its error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from microbench.service.budget import behind
from microbench.traces.reading import read

LAB = Path(__file__).parent
BEFORE_S, BEHIND_S, BESIDE_S = 1.0, 1.5, 3.0
ASKED_S = 5.0
IMPORT_S = 150.0


def run(out: Path, seconds: float, what: str) -> dict[str, Any]:
    """One program under a watch, until its time is over."""
    name, style, budget, *gpu = what.split(":")
    folder = out / f"{name}_{style}_{budget.rstrip('%')}"
    truth = out / f"{folder.name}.truth.json"
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": gpu[0] if gpu else "0"}
    program = [sys.executable, str(LAB / "programs" / "run.py"), name, style, "--seconds", str(seconds + 4 * ASKED_S)]
    watch = [sys.executable, "-m", "microbench", "watch"]
    with (out / f"{folder.name}.txt").open("w") as printed:
        process = subprocess.Popen(
            [*watch, "--budget", budget, "-o", str(folder), "--", *program, "--truth", str(truth)],
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    # A process that was joined has opened a file in the folder of recordings; then its loop begins, too.
    until_s = time.monotonic() + IMPORT_S
    while time.monotonic() < until_s and process.poll() is None and not list(folder.glob("now/*.rows")):
        time.sleep(0.1)
    began_ns = time.time_ns()
    try:
        time.sleep(seconds)
        asked_ns = time.time_ns()
        answer = subprocess.run(
            [*watch, "--attach", str(process.pid), "--for", f"{ASKED_S}s"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=environment, check=False,
        )  # fmt: skip
        (out / f"{folder.name}.attach.txt").write_text(answer.stdout + answer.stderr)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    return judged(folder, truth, began_ns, asked_ns) | {"code": process.returncode, "attach": answer.returncode}


def judged(folder: Path, truth: Path, began_ns: int, asked_ns: int) -> dict[str, Any]:
    """What recording took by the program's own clock, and the shares of idle time in windows and in the long one."""
    stamps = np.array(json.loads(truth.read_text())["stamps_ns"], np.int64)
    begin_ns, end_ns = max(began_ns, int(stamps[0])), asked_ns - int(BEFORE_S * 1e9)
    recorded = []
    for path in sorted(folder.glob("*.rows")):
        trace = read(path)
        epoch_ns, window = trace.epoch_ns or 0, trace.windows[0]
        behind_ns = window[1] + int(behind((window[1] - window[0]) * 1e-9) * 1e9)
        if epoch_ns + window[0] < end_ns:
            recorded.append((epoch_ns + window[0] - int(BEFORE_S * 1e9), epoch_ns + behind_ns + int(BEHIND_S * 1e9)))
    lost = [excess(stamps, one, recorded) for one in recorded]
    length = int(np.mean([after - before for before, after in recorded])) if recorded else int(4e9)
    still = [
        found
        for at in range(begin_ns, end_ns - length, length)
        if not any(at < after and before < at + length for before, after in recorded)
        and np.isfinite(found := excess(stamps, (at, at + length), recorded))
    ]
    span_s = (end_ns - begin_ns) * 1e-9
    known = [one for one in lost if np.isfinite(one)]
    scatter = float(np.std(still, ddof=1)) if len(still) > 2 else float("nan")
    windows = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    asked = max(windows, key=lambda one: one["span_s"])  # nobody else records for so long
    before = [one for one in windows if one["unix_s"] * 1e9 < asked_ns]
    total = sum(known) / span_s
    bound = total + 1.65 * scatter * np.sqrt(len(known)) / span_s
    return {
        "program": folder.name, "span_s": span_s, "recordings": len(recorded), "judged": len(known),
        "iterations": len(stamps), "loss": total, "upper": bound, "each_s": lost, "still_mean_s": float(np.mean(still)),
        "still_s": scatter, "still": len(still), "said_lost": [one["lost"] for one in windows],
        "missing": sum(one["missing"] for one in windows), "step_s": [one["steps_s"] for one in windows],
        "shares": shares(before), "asked_shares": shares([asked]),
    }  # fmt: skip


def excess(stamps: np.ndarray, around: tuple[int, int], recorded: list[tuple[int, int]]) -> float:
    """How many seconds the iterations in a stretch took more than their neighbours do; NaN without neighbours."""
    own = stamps[(stamps >= around[0]) & (stamps <= around[1])]
    beside_ns, count = 0, 0
    for begin_ns, end_ns in (
        (around[0] - int(BESIDE_S * 1e9), around[0]),
        (around[1], around[1] + int(BESIDE_S * 1e9)),
    ):
        for before, after in recorded:
            if (before, after) != around and before < end_ns and begin_ns < after:
                begin_ns, end_ns = (after, end_ns) if before <= begin_ns else (begin_ns, before)
        inside = stamps[(stamps >= begin_ns) & (stamps <= end_ns)]
        if len(inside) > 1:
            beside_ns, count = beside_ns + int(inside[-1] - inside[0]), count + len(inside) - 1
    if count == 0 or len(own) < 2:
        return float("nan")
    return (int(own[-1] - own[0]) - (len(own) - 1) * beside_ns / count) * 1e-9


def shares(windows: list[dict[str, Any]]) -> dict[str, float]:
    """The shares of the windows' time: the GPU's work and each cause of idle time."""
    span_s = sum(one["span_s"] for one in windows)
    found = {"busy": sum(one["busy_s"] for one in windows)}
    for one in windows:
        for cause, seconds in one["causes"].items():
            found[cause] = found.get(cause, 0.0) + seconds
    return {name: seconds / span_s for name, seconds in found.items()}


def main() -> None:
    out, seconds, jobs = Path(sys.argv[1]).resolve(), float(sys.argv[2]), sys.argv[3:]
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = list(pool.map(lambda what: run(out, seconds, what), jobs))
    (out / "budget.json").write_text(json.dumps(found, indent=1))
    for one in found:
        print(
            f"{one['program']}: {one['recordings']} recordings in {one['span_s']:.0f} s took {one['loss']:.3%}, at most"
            f" {one['upper']:.3%} (still: {one['still_mean_s'] * 1e3:.1f} ms, scatter {one['still_s'] * 1e3:.1f} ms of"
            f" {one['still']}); missing {one['missing']}, exit {one['code']}, attach {one['attach']}"
        )
        for name in sorted({*one["shares"], *one["asked_shares"]}):
            print(f"  {name:30} {one['shares'].get(name, 0):7.1%} {one['asked_shares'].get(name, 0):7.1%}")


if __name__ == "__main__":
    main()
