"""Injects faults into simulated runs, reads hostile files, and counts the outcomes by kind.

    scripts/campaign --minutes 30 --seed 0    # faults for at most two thirds of the time, hostile files for the rest
    scripts/campaign --only KIND --seed N     # one fault or file again, as a failure prints it
    scripts/campaign --kinds watched --faults 2000 --minutes 120    # programs under `microbench watch` alone
    scripts/campaign --kinds trace --files 100000 --minutes 90 --table lab/measurements/campaigns.csv

tests/campaign_faults.py has the faults, tests/campaign_watched.py the programs under watch, tests/campaign_files.py the
hostile files, tests/campaign_fleet.py and tests/campaign_traces.py odd workers, stores, functions and traces. The exit
code is 1 if anything failed.
"""

import argparse
import csv
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import campaign_faults
import campaign_files
import campaign_fleet
import campaign_watched

from microbench.core.errors import MicrobenchError

ROOT = Path(__file__).resolve().parent.parent
FAULTS, FILES = 500, 1_000_000
SHARE_OF_FAULTS = 2 / 3
campaign_faults.FAULTS.update(campaign_watched.PROGRAMS | campaign_fleet.FAULTS)
campaign_files.KINDS.update(campaign_fleet.KINDS)
LARGEST_MEMORY_BYTES = 1 << 30
MOST_SHOWN = 20


class Tally:
    """Counts outcomes by kind, and prints each failure with the command that repeats it."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failures = 0
        self._lock = threading.Lock()

    def add(self, kind: str, outcome: str, count: int = 1) -> None:
        with self._lock:
            self.counts[kind, outcome] += count

    def fail(self, kind: str, seed: int, cause: str) -> None:
        self.add(kind, "failed")
        with self._lock:
            self.failures += 1
            if self.failures <= MOST_SHOWN:
                print(f"failed: scripts/campaign --only {kind} --seed {seed}\n    {cause}", flush=True)

    def of(self, kinds: list[str], outcome: str | None = None) -> int:
        return sum(count for (kind, each), count in self.counts.items() if kind in kinds and outcome in (None, each))


def inject(bench: campaign_faults.Bench, kind: str, seed: int, tally: Tally) -> None:
    """Inject one fault. A folder of a failure is kept, and named."""
    place = bench.place(kind, seed)
    try:
        tally.add(kind, campaign_faults.FAULTS[kind](place, random.Random(f"{kind} {seed}")) or "held")
    except (AssertionError, OSError, MicrobenchError, campaign_faults.HUNG) as error:
        tally.fail(kind, seed, f"{error}; see {place.root}")
        return
    shutil.rmtree(place.root)


def faults(folder: Path, kinds: list[str], seeds: range, until_s: float, tally: Tally) -> None:
    """Inject the faults of these kinds in turn, on one thread more than there are cores: half of a fault is waiting."""
    threads = len(os.sched_getaffinity(0)) + 1
    bench = campaign_faults.Bench(folder, threads)
    waiting, lock = iter(seeds), threading.Lock()

    def lane() -> None:
        while time.monotonic() < until_s or len(seeds) == 1:
            with lock:
                seed = next(waiting, None)
            if seed is None:
                return
            inject(bench, kinds[seed % len(kinds)], seed, tally)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(lane) for _ in range(threads)]:
            done.result()


def table(tally: Tally, kinds: list[str], columns: list[str]) -> None:
    print(f"\n{'':<22}" + "".join(f"{column:>12}" for column in columns))
    for name, several in [*((kind, [kind]) for kind in kinds), ("all", kinds)]:
        if tally.of(several):
            print(f"{name:<22}" + "".join(f"{tally.of(several, column):>12}" for column in columns))


def record(path: Path, tally: Tally, kinds: list[str], seed: int) -> None:
    """Add a line for each kind to a table: how many were tried, and how many of them failed."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    cores = len(os.sched_getaffinity(0))
    machine = f"{cores} {'core' if cores == 1 else 'cores'}, no GPU"
    begun = path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not begun:
            writer.writerow(("class", "count", "faults", "seed", "machine", "commit", "date", "note"))
        for kind in filter(lambda kind: tally.of([kind]), kinds):
            counted = tally.of([kind]), tally.of([kind], "failed")
            writer.writerow((kind, *counted, seed, machine, commit.strip(), time.strftime("%Y-%m-%d"), ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    fault_kinds, file_kinds = list(campaign_faults.FAULTS), list(campaign_files.KINDS)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after that time (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the first fault and the first file (default: 0)")
    parser.add_argument("--only", metavar="KIND", choices=fault_kinds + file_kinds, help="one of a kind, with its seed")
    parser.add_argument("--kinds", default="", help="faults and files whose kind begins so (default: all)")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"the most faults (default: {FAULTS})")
    parser.add_argument("--files", type=int, default=FILES, help=f"the most files (default: {FILES})")
    parser.add_argument("--table", metavar="CSV", type=Path, help="add a line for each kind to this table")
    asked = parser.parse_args()
    for kinds in (campaign_faults.FAULTS, campaign_files.KINDS):
        for name in [name for name in kinds if not name.startswith(asked.kinds)]:
            del kinds[name]
    fault_kinds, file_kinds = list(campaign_faults.FAULTS), list(campaign_files.KINDS)
    if not fault_kinds and not file_kinds:
        parser.error(f"no kind begins with {asked.kinds}")
    for name in [name for name in os.environ if name.startswith("MICROBENCH_")]:
        del os.environ[name]
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    folder.chmod(0o755)  # some faults are another user's
    os.environ["MICROBENCH_DATA"] = str(folder / "data")
    tally, whole_s = Tally(), asked.minutes * 60
    share = SHARE_OF_FAULTS if file_kinds else 1.0
    peak_bytes = 0
    if asked.only not in file_kinds and fault_kinds:
        kinds = [asked.only] if asked.only else fault_kinds
        seeds = range(asked.seed, asked.seed + (1 if asked.only else asked.faults))
        faults(folder, kinds, seeds, began_s + whole_s * share, tally)
    faulted_s = time.monotonic() - began_s
    if asked.only not in fault_kinds and file_kinds:
        end = asked.seed + (1 if asked.only else asked.files)
        until_s = began_s + max(whole_s, faulted_s + whole_s * (1 - share))  # the last fault may take a while
        peak_bytes = campaign_files.read_all(folder, asked.only, asked.seed, end, until_s, tally)
    took_s = time.monotonic() - began_s
    if tally.failures == 0:
        shutil.rmtree(folder, ignore_errors=True)
    table(tally, fault_kinds, ["held", "impossible", "failed"])
    table(tally, file_kinds, ["read", "refused", "failed"])
    largest_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(f"\nseed {asked.seed}, {len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}")
    print(f"{tally.of(fault_kinds)} faults in {faulted_s:.0f} s")
    print(f"{tally.of(file_kinds)} files in {took_s - faulted_s:.0f} s")
    print(f"most memory of a process: {max(peak_bytes, largest_bytes) / 1e6:.0f} MB")
    if max(peak_bytes, largest_bytes) > LARGEST_MEMORY_BYTES:
        print("failed: that is over 1 GiB")
        return 1
    print(f"failures: {tally.failures}")
    if asked.table:
        record(asked.table, tally, [*fault_kinds, *file_kinds], asked.seed)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
