"""How fast a store takes runs in, how large it becomes and how long queries take. Run by hand: see --help.

The runs are copies of one simulated run with other nodes and other values; what is written and read is a real store.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from microbench.fleet import store
from microbench.fleet.records import Source

QUERIES = {
    "count": "SELECT count(*) FROM rows",
    "median by node": "SELECT node, median(median) FROM rows WHERE benchmark = 'memory_stream' AND metric = "
    "'bandwidth' GROUP BY node ORDER BY 2 LIMIT 10",
    "one node": "SELECT benchmark, metric, median FROM rows WHERE node = 'n17' AND suite = 'link'",
    "by label": "SELECT labels['rack'], avg(median) FROM rows WHERE benchmark = 'link_copy' GROUP BY 1 ORDER BY 2",
    "every figure": "SELECT benchmark, metric, count(*), median(median), mad(median) FROM rows GROUP BY ALL",
    "runs": "SELECT campaign, count(*), sum(figures) FROM runs GROUP BY 1",
}


def timed(work: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def simulated_run(folder: Path) -> Path:
    path = folder / "run.json"
    command = [sys.executable, "-m", "microbench", "run", "--quick", "--device", "fake", "--out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def copies(run: Path, folder: Path, count: int) -> list[Source]:
    """Copies of a run as files, each with an id of its own."""
    text = run.read_text()
    run_id = text.partition('"run_id":"')[2].partition('"')[0]
    sources = []
    for number in range(count):
        path = folder / f"{number}.json"
        path.write_text(text.replace(run_id, f"{run_id}-{number}"))
        sources.append(Source(path, "files", f"n{number}", {"rack": f"r{number // 16}"}))
    return sources


def varied(tables: store.Tables, count: int, first: int, random: np.random.Generator) -> list[store.Tables]:
    """The tables of many runs at once: those of one run, with other nodes, ids, labels and medians."""
    several: store.Tables = {}
    for name, table in tables.items():
        whole = pa.concat_tables([table] * count)
        each = np.repeat(np.arange(first, first + count), len(table))
        columns = {"node": [f"n{one % 1000}" for one in each], "run": [f"run-{one}" for one in each]}
        columns["labels"] = [[("rack", f"r{one % 1000 // 16}")] for one in each]
        if name == "rows":
            columns["median"] = np.asarray(whole["median"]) * random.normal(1, 0.01, len(whole))
        for column, values in columns.items():
            place = whole.schema.get_field_index(column)
            whole = whole.set_column(place, column, pa.array(values, whole.schema.field(column).type))
        several[name] = whole
    return [several]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7, help="rows for the queries")
    parser.add_argument("--files", type=int, default=200, help="run files for the rate of the import")
    given = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = simulated_run(folder)
        (folder / "files").mkdir()
        sources = copies(run, folder / "files", given.files)
        seconds, added = timed(lambda: store.add_all(folder / "imported", sources))
        assert isinstance(added, store.Added)
        print(f"from run files: {added.rows} rows in {seconds:.1f} s, {added.rows / seconds:.0f} rows/s")
        tables = store._read(sources[0])
        assert not isinstance(tables, str)
        big, random, written, writing = folder / "big", np.random.default_rng(1), 0, 0.0
        while written < given.rows:
            number = written // len(tables["rows"])
            batch = varied(tables, store.BATCH, number, random)
            seconds, rows = timed(lambda batch=batch, number=number: store._write(big, f"c{number // 4096}", batch))
            writing += seconds
            written += int(rows)
        print(f"from rows: {written} rows in {writing:.1f} s, {written / writing:.0f} rows/s")
        files = [path.stat().st_size for path in big.rglob("*.parquet")]
        print(f"size: {sum(files) / 1e6:.0f} MB in {len(files)} files, {sum(files) / written:.1f} bytes a row")
        seconds, _ = timed(lambda: store.answered(big, lambda connection: connection.close()))
        print(f"opening: {seconds:.2f} s")
        for what, sql in QUERIES.items():
            times = [timed(lambda sql=sql: list(store.query(big, sql)[1]))[0] for _ in range(3)]
            print(f"{what}: {statistics.median(times):.2f} s (first {times[0]:.2f} s), with opening")


if __name__ == "__main__":
    main()
