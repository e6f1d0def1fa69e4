"""Whether `microbench ab` finds a slower call on this card, and no change between equals.

python lab/ab_on_gpu.py [TIMES [launch|graph|equal …]]; every case runs TIMES (20) times. The slower side is a Python
whose cuLaunchKernel (launch: +5 %) or cuGraphLaunch (graph: +3 % of a replay of ten empty kernels) first spins; `cc`
builds the wrapper. A measurement has one case of two figures. It takes 12 to 20 processes of about a second, 15 to 30 s
in all, and is ended after LIMIT_S. One more of equals before each case tells how long 5 or 3 % are. It prints a line
for each measurement and a table: found, in the other direction, in another figure, pairs and seconds (medians).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 90.0
ROOT = Path(__file__).resolve().parent.parent
ONE_CASE = {
    "launch": ("launch_layers", "--set", "layer=loop", "--set", "arguments=0"),
    "graph": ("graph_gain", "--set", "submitter=loop", "--set", "kernels=10", "--set", "duration=0"),
}
WRAPPER = """
#include <time.h>
typedef int (*call)(long, long, long, long, long, long, long, long, long, long, long);
static call real;
static long spin_ns;
void wrap(long address, long ns) { real = (call)address; spin_ns = ns; }
static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
int spinning(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) {
    for (long end = now_ns() + spin_ns; now_ns() < end;) {}
    return real(a, b, c, d, e, f, g, h, i, j, k);
}
"""
# A side's Python: it asks for the driver's function through the wrapper.
PYTHON = """#!{python}
import ctypes, runpy, sys
sys.path.insert(0, {root!r})
if "-c" in sys.argv:
    exec(sys.argv[sys.argv.index("-c") + 1])
    sys.exit()
from microbench.gpu.cuda import context
library, real = ctypes.CDLL({library!r}), context.entry_point
def entry_point(name):
    address = real(name)
    if name != {function!r}:
        return address
    library.wrap(ctypes.c_long(address), ctypes.c_long({spin_ns}))
    return ctypes.cast(library.spinning, ctypes.c_void_p).value
context.entry_point = entry_point
sys.argv = sys.argv[sys.argv.index("-m") + 1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class Slower(NamedTuple):
    """What is slowed down: the driver's function, by what share of which figure of how many calls."""

    function: str
    share: float
    metric: str
    calls: int


SLOWER = {"launch": Slower("cuLaunchKernel", 0.05, "submit", 1), "graph": Slower("cuGraphLaunch", 0.03, "graph", 10)}


def ab(what: str, *sides: str) -> dict[str, Any] | None:
    """One measurement, with the seconds that it took; None if it did not end in time."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "microbench", "ab", *sides, *ONE_CASE[what], "--fail-on", "any", "--json"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if answer.returncode not in (0, 5):
        raise SystemExit(answer.stderr)
    return {**json.loads(answer.stdout), "seconds": time.monotonic() - began_s}


def slower_python(folder: Path, what: str) -> str:
    """A Python in which a call takes a share longer than now."""
    equal, slower = ab(what, "-A", "X=1", "-B", "X=2"), SLOWER[what]
    if equal is None:
        raise SystemExit(f"a measurement takes longer than {LIMIT_S} s")
    now_s = next(one["base"] for one in equal["figures"] if one["metric"] == slower.metric)
    spin_ns = round(1e9 * now_s * slower.calls * slower.share)
    print(f"{what}: {slower.function} spins for {spin_ns} ns", flush=True)
    source, library, python = folder / "wrapper.c", folder / "wrapper.so", folder / f"{what}_python"
    source.write_text(WRAPPER)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    names: Mapping[str, object] = {
        "python": sys.executable, "root": str(ROOT), "library": str(library), "function": slower.function,
        "spin_ns": spin_ns,
    }  # fmt: skip
    python.write_text(PYTHON.format(**names))
    python.chmod(0o755)
    return str(python)


def main(times: int, cases: list[str]) -> None:
    lines = []
    for case in cases:
        what = "launch" if case == "equal" else case
        with tempfile.TemporaryDirectory() as folder:
            sides = ("X=1", "X=2") if case == "equal" else ("X=1", slower_python(Path(folder), what))
            answers = []
            for number in range(times):
                answer = ab(what, "-A", sides[0], "-B", sides[1])
                figures = answer["figures"] if answer else []
                words = [f"{one['metric']} {one['verdict']} {one['ratio'] or 0:.3f}" for one in figures]
                print(f"{case} {number + 1}: {', '.join(words) or 'not in time'}", flush=True)
                answers += [answer] if answer else []
        metric = SLOWER[what].metric
        own = [one["verdict"] for answer in answers for one in answer["figures"] if one["metric"] == metric]
        rest = [one["verdict"] for answer in answers for one in answer["figures"] if one["metric"] != metric]
        pairs, seconds = (statistics.median(answer[key] for answer in answers) for key in ("pairs", "seconds"))
        lines.append(
            f"{case}: {own.count('slower')} of {times} slower, {own.count('faster')} faster, "
            f"{rest.count('slower') + rest.count('faster')} of {len(rest)} other figures changed, "
            f"{pairs:g} pairs, {seconds:.0f} s"
        )
    print("\n".join(lines))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20, sys.argv[2:] or [*SLOWER, "equal"])
