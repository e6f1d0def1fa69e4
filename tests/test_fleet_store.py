"""The store of many runs: what it holds, that a batch is whole or absent, and that a query reaches nothing else."""

import csv
import errno
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from command_line import call
from make_run import make_run
from recorded_runs import save

from microbench.analysis.stats import rows
from microbench.archive import store as runs_store
from microbench.core.errors import ExitCode, ResultNotWrittenError, UsageError
from microbench.core.model import MemoryErrors, Run
from microbench.fleet import campaign as campaigns
from microbench.fleet.records import Source, records
from microbench.fleet.windows import LOG, Window

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from pyarrow import parquet

from microbench.fleet import store  # needs both packages to do anything


def written(folder: Path, run_id: str, run: Run | None = None) -> Path:
    return save(folder, msgspec.structs.replace(run or make_run(), run_id=run_id))


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A store of two runs on two nodes of one campaign."""
    sources = [Source(written(tmp_path, f"run-{n}"), "c1", f"n{n}", {"rack": f"r{n}"}) for n in (1, 2)]
    added = store.add_all(tmp_path / "store", sources)
    assert (added.runs, added.known, added.failed) == (2, 0, ())
    assert added.rows == 2 * len(rows(make_run()))
    return tmp_path / "store"


def answer(folder: Path, sql: str) -> list[tuple[object, ...]]:
    return list(store.query(folder, sql)[1])


def test_the_views_hold_figures_runs_gpus_and_findings(held: Path) -> None:
    run = make_run()
    first = rows(run)[0]
    found = answer(
        held,
        "SELECT node, labels['rack'], suite, benchmark, \"case\", metric, kind, median, ci_low FROM rows "
        f"WHERE \"case\" = '{first.case_id}' AND metric = '{first.metric.name}' ORDER BY node",
    )
    figure = (first.suite, first.benchmark, first.case_id, first.metric.name, first.metric.kind)
    assert found == [(f"n{n}", f"r{n}", *figure, first.value, first.interval.low) for n in (1, 2)]
    assert answer(held, "SELECT run, figures, ok, simulated FROM runs ORDER BY 1") == [
        (f"run-{n}", len(rows(run)), sum(one.status == "ok" for one in run.outcomes), True) for n in (1, 2)
    ]
    gpu = run.sessions[-1].gpus[0]
    assert answer(held, "SELECT node, device, gpu FROM nodes ORDER BY 1") == [
        (f"n{n}", gpu.uuid, gpu.name) for n in (1, 2)
    ]
    about = (
        "SELECT node, labels['rack'], run, device, title FROM findings WHERE rule = 'environment.simulated' ORDER BY 1"
    )
    assert answer(held, about) == [
        (f"n{n}", f"r{n}", f"run-{n}", gpu.uuid, "SIMULATED: no GPU was measured") for n in (1, 2)
    ]


def test_a_finding_about_one_of_two_gpus_is_held_against_that_gpu_alone(tmp_path: Path) -> None:
    run = runs_store.read(runs_store.bundled()["nvidia-h200-x2"])
    (session,) = run.sessions
    first, second = session.environment.gpus
    bad = msgspec.structs.replace(second, memory_errors=MemoryErrors(remap_pending=True))
    environment = msgspec.structs.replace(session.environment, gpus=(first, bad))
    session = msgspec.structs.replace(
        session, environment=environment, settings=msgspec.structs.replace(session.settings, device="all")
    )
    path = written(tmp_path, "two", msgspec.structs.replace(run, sessions=(session,)))
    found = {one["rule"]: one["device"] for one in records(Source(path, "c", "n", {}))["findings"]}
    assert found["environment.memory_errors"] == second.uuid
    assert found["environment.unseen"] is None, "of the machine"


def test_a_run_is_stored_once_and_a_changed_one_replaces_it(held: Path, tmp_path: Path) -> None:
    again = [Source(written(tmp_path, "run-1"), "c1", "n1", {})]
    assert store.add_all(held, again)[:3] == (0, 0, 1)
    run = make_run()
    shorter = msgspec.structs.replace(run, outcomes=run.outcomes[:1])
    assert store.add_all(held, [Source(written(tmp_path, "run-1", shorter), "c1", "n1", {})]).rows == len(rows(shorter))
    counts = dict(answer(held, "SELECT run, count(*) FROM rows GROUP BY 1"))
    assert counts == {"run-1": len(rows(shorter)), "run-2": len(rows(run))}
    assert answer(held, "SELECT count(*) FROM runs") == [(2,)]


def test_files_of_a_batch_that_was_cut_short_are_ignored(held: Path) -> None:
    (last,) = held.glob("runs/*/*.parquet")
    before = answer(held, "SELECT count(*) FROM rows")
    for path in held.glob(f"*/campaign=c1/**/{last.name}"):
        (path.parent / "99-cut.parquet").write_bytes(path.read_bytes())
    (last.parent / "99-cut.parquet").unlink()
    assert answer(held, "SELECT count(*) FROM rows") == before


@pytest.mark.parametrize("table", ["rows", "nodes", "findings", "runs"])
def test_of_a_batch_that_a_full_disk_cut_short_nothing_stays(
    held: Path, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write_table = {path: path.read_bytes() for path in held.rglob("*.parquet")}, parquet.write_table

    def full(whole: object, path: Path, **options: object) -> None:
        if path.relative_to(held).parts[0] == table:
            path.write_bytes(b"PAR1")
            raise OSError(errno.ENOSPC, "No space left on device")
        write_table(whole, path, **options)

    monkeypatch.setattr(parquet, "write_table", full)
    with pytest.raises(ResultNotWrittenError, match="cannot be written to: No space left"):
        store.add_all(held, [Source(written(tmp_path, "run-3"), "c1", "n3", {})])
    assert {path: path.read_bytes() for path in held.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_full_disk_is_told_by_every_command_and_damages_nothing(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")

    def ended(*arguments: str) -> tuple[int, str]:
        done = call("fleet", *arguments, "--store", str(disk / "s"))
        return done.exit_code, " ".join(done.output.split())

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in disk.rglob("*") if path.is_file() and path.name != "filling"}

    run = ("host_timer", "--quick", "--device", "fake", "--local", "1")
    try:
        assert ended("run", *run)[0] == ExitCode.MEASURED
        for free_bytes, commands in (
            (0, (("run", *run), ("watch", *run, "--every", "1s", "--times", "1"))),
            (20 << 10, (("run", *run), ("watch", *run, "--every", "1s", "--times", "1"))),
        ):
            for command in commands:
                (disk / "filling").unlink(missing_ok=True)
                (disk / "filling").write_bytes(bytes(shutil.disk_usage(disk).free - free_bytes))
                before = contents()
                code, said = ended(*command)
                assert code in (ExitCode.SOME_FAILED, ExitCode.USAGE), said
                assert "No space left on device" in said
                assert "Traceback" not in said
                assert "free some space" in said or "not in the store" in said
                after = contents()
                assert {path: after[path] for path in before} == before
                assert not [path for path in after if path.suffix == ".parquet" and path not in before]
                json.loads(next((disk / "s" / "campaigns").glob("*/campaign.json")).read_bytes())
        code, said = ended("report", "-o", str(disk / "page.html"))
        assert (code, "page.html cannot be written: No space left" in said) == (ExitCode.USAGE, True)
        assert ended("report")[0] == ExitCode.MEASURED
        (disk / "filling").unlink()
        last = max(each.name for each in (disk / "s" / "campaigns").iterdir() if (each / "campaign.json").exists())
        assert ended("import", str(disk / "s" / "campaigns" / last))[0] == ExitCode.MEASURED
        assert answer(disk / "s", "SELECT count(*) FROM runs") == [(2,)]
    finally:
        subprocess.run(["umount", disk], check=True)


def shortened(path: Path) -> None:
    table = parquet.read_table(path, partitioning=None)
    parquet.write_table(table.drop_columns([table.column_names[-1]]), path)


def fewer(path: Path) -> None:
    table = parquet.read_table(path, partitioning=None)
    parquet.write_table(table.slice(1), path)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing|tells of"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "cannot be read"),
    "random": (lambda path: path.write_bytes(random.Random(1).randbytes(4000)), "cannot be read"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "cannot be read"),
    "a column less": (shortened, "lacks the column"),
    "a row less": (fewer, "tells of"),
    "pages": (flipped, "cannot be read"),
}


@pytest.mark.parametrize("table", ["runs", "nodes", "findings", "rows"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_the_rest_goes_on(held: Path, tmp_path: Path, damage: str, table: str) -> None:
    if damage == "a row less" and table != "rows":
        pytest.skip("a batch may have any number of nodes and findings")
    store.add_all(held, [Source(written(tmp_path, "run-3"), "c2", "n3", {"rack": "r3"})])
    path = sorted(held.glob(f"{table}/campaign=c1/**/*.parquet"))[-1]
    change, words = DAMAGES[damage]
    change(path)
    everything = "SELECT r.*, n.*, f.*, s.* FROM rows r, nodes n, findings f, runs s LIMIT 1"
    _, _, left_out = store.query(held, everything)
    assert len(left_out) == 1
    assert re.search(words, left_out[0])
    assert path.name in left_out[0]
    if damage == "pages" and table != "runs":  # found only by what reads them
        assert call("fleet", "report", "--store", str(held)).exit_code == 0
        return
    assert answer(held, f"SELECT * FROM {table} WHERE campaign = 'c1'") == []
    assert answer(held, "SELECT run FROM runs") == [("run-3",)]
    for arguments in (("report",), ("trend",), ("query", "SELECT count(*) FROM rows")):
        shown = call("fleet", *arguments, "--store", str(held), COLUMNS="1000")
        assert shown.exit_code == 0
        assert path.name in shown.output
    again = [Source(tmp_path / f"run-{n}.json", "c1", f"n{n}", {}) for n in (1, 2)]
    assert store.add_all(held, again).runs == 2


def test_a_store_of_damaged_files_alone_says_so(held: Path) -> None:
    for path in held.glob("runs/*/*.parquet"):
        path.write_bytes(b"")
    for command in ("report", "trend"):
        ended = call("fleet", command, "--store", str(held))
        assert ended.exit_code == ExitCode.USAGE
        assert "cannot be read" in ended.stderr


def test_times_with_a_zone_need_no_other_package(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)
    (row,) = answer(held, "SELECT TIMESTAMPTZ '2026-01-01 12:00:00+00' AS a, 7, [TIMESTAMPTZ '2026-01-01 12:00:00+00']")
    assert [str(row[0])[:4], row[1], str(row[2])[:6]] == ["2026", 7, "['2026"]
    shown = call(
        "fleet", "query", "SELECT now() AS moment, run FROM runs ORDER BY run DESC", "--json", "--store", str(held)
    )
    assert [json.loads(line)["run"] for line in shown.stdout.splitlines()] == ["run-2", "run-1"]


def test_an_unreadable_file_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    sources = [Source(path, "c", "n", {}) for path in (broken, tmp_path / "absent", written(tmp_path, "good"))]
    added = store.add_all(tmp_path / "store", sources)
    assert added.runs == 1
    assert {path.name for path, _ in added.failed} == {"broken.json", "absent"}


@pytest.mark.parametrize("campaign", ["", "../up", "a/b", ".hidden", "x" * 81, "a'b"])
def test_a_campaign_cannot_leave_the_store(campaign: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot name a campaign"):
        store.add_all(tmp_path / "store", [Source(written(tmp_path, "run"), campaign, "n", {})])
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("sql", [
    "COPY (SELECT 1) TO '{folder}/out.csv'", "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{folder}/out.csv''')", "ATTACH '{folder}/out.csv'", "INSTALL httpfs",
    "LOAD httpfs", "SET enable_external_access = true", "PRAGMA database_list", "SELECT 1; DROP VIEW rows",
    "CREATE TABLE x AS SELECT 1", "SELECT * FROM read_text('{folder}/secret')",
    "SELECT * FROM read_csv('{folder}/store/../secret')", "SELECT * FROM glob('{folder}/*')", "FROM '{folder}/secret'",
    "SELECT * FROM secret_of_this_program", "SELECT nonsense", "",
])  # fmt: skip
def test_a_query_only_reads_and_only_the_store(sql: str, held: Path) -> None:
    secret_of_this_program = held.parent / "secret"
    secret_of_this_program.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError):
        answer(held, sql.format(folder=held.parent))
    assert not (held.parent / "out.csv").exists()


def test_words_of_a_run_are_neither_sql_nor_control_sequences(tmp_path: Path) -> None:
    hostile = "x'); DROP VIEW rows; --\x1b[31m\u202e"
    source = Source(written(tmp_path, hostile.replace("/", "")), "c", hostile, {hostile: hostile})
    folder = tmp_path / "it's a store"
    store.add_all(folder, [source])
    store.add_all(folder, [source._replace(path=written(tmp_path, "other"))])
    changed = make_run()
    changed = msgspec.structs.replace(changed, outcomes=changed.outcomes[:1])
    # The id of this run is quoted into the views.
    store.add_all(folder, [Source(written(tmp_path, hostile, changed), "c", hostile, {})])
    assert set(answer(folder, "SELECT DISTINCT node FROM rows")) == {(hostile,)}
    shown = call("fleet", "query", "SELECT node, labels FROM runs", "--store", str(folder))
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert "\\x1b[31m" in shown.stdout


def test_a_query_is_drawn_or_written_as_json_and_csv(held: Path) -> None:
    sql = "SELECT run, median, labels, NULL AS nothing, '=1' AS formula FROM rows ORDER BY ALL LIMIT 2"
    where = ("--store", str(held))
    drawn = call("fleet", "query", sql, *where).stdout
    assert "2 rows" in drawn
    assert "rack=r1" in drawn
    lines = [json.loads(line) for line in call("fleet", "query", sql, "--json", *where).stdout.splitlines()]
    table = list(csv.DictReader(io.StringIO(call("fleet", "query", sql, "--csv", *where).stdout)))
    assert [line["median"] for line in lines] == [float(row["median"]) for row in table]
    assert lines[0]["labels"] == json.loads(table[0]["labels"]) == {"rack": "r1"}
    assert (lines[0]["nothing"], table[0]["nothing"], table[0]["formula"]) == (None, "", "'=1")
    assert call("fleet", "query", sql, "--csv", "--json", *where).exit_code == 2
    assert "more than" not in drawn
    many = call("fleet", "query", "SELECT * FROM range(300)", *where).stdout
    assert "the first 200" in many


def test_import_takes_runs_and_whole_campaigns(tmp_path: Path) -> None:
    campaign = campaigns.make_folder(tmp_path, "c9")
    written(campaign, "a")
    record = campaigns.new_campaign("c9", [], campaigns.Options(), "")
    record.tasks = [
        campaigns.Task("host1", run="../c9/a.json", labels={"rack": "r7"}, status="ok"),
        campaigns.Task("host2", status="died"),
    ]
    campaigns.write(campaign, record)
    single, folder = written(tmp_path, "single"), str(tmp_path / "store")
    result = call("fleet", "import", str(campaign), str(single), "--store", folder, "--label", "rack=r1")
    assert result.exit_code == 0
    assert "of 2 runs stored" in result.stdout
    gpu = make_run().sessions[-1].gpus[0].uuid
    found = answer(Path(folder), "SELECT campaign, node, labels FROM runs ORDER BY 1")
    assert found == [("c9", "host1", {"rack": "r7"}), ("imported", gpu, {"rack": "r1"})]
    assert "1 was there already" not in result.stdout
    assert "0 runs stored; 2 were there already" in call("fleet", "import", str(campaign), str(single), "--store",
                                                         folder).stdout  # fmt: skip
    assert call("fleet", "import", str(single), "--store", folder, "--label", "rack").exit_code == 2
    assert call("fleet", "query", "SELECT 1", "--store", str(tmp_path / "none")).exit_code == 2


def test_many_runs_are_read_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FEW", 1)
    sources = [Source(written(tmp_path, f"run-{n}"), "c", f"n{n}", {}) for n in range(3)]
    assert store.add_all(tmp_path / "store", sources).runs == 3
    assert answer(tmp_path / "store", "SELECT count(DISTINCT node) FROM rows") == [(3,)]


def test_windows_of_a_long_watch_are_rows_of_their_own(tmp_path: Path) -> None:
    logs, folder = tmp_path / "recording-1", tmp_path / "store"
    logs.mkdir()
    for number, waits_s in ((1, 0.5), (2, 0.25)):
        window = Window("serve.py-42", "f", 1e9, 1e9 + number, 1.0, 0.4, {"waits": waits_s}, {}, {"launches": 50.0},
                        (0.01,) * 50, 0.1, 0.0, 0)  # fmt: skip
        with (logs / LOG).open("ab") as log:
            log.write(msgspec.json.encode(window) + b"\n")
        options = ("--store", str(folder), "--campaign", "job-7", "--node", "n1")
        stored = call("fleet", "import", str(logs), *options)  # the second time the log has grown
        assert (stored.exit_code, stored.stdout.split()[0]) == (0, str(5 * number)), stored.output
    sql = "SELECT campaign, node, name, sum(seconds) FROM windows WHERE kind = 'cause' GROUP BY ALL"
    assert answer(folder, sql) == [("job-7", "n1", "waits", 0.75)]
    assert answer(folder, "SELECT sum(count) FROM windows WHERE name = 'launches'") == [(100.0,)]
    assert answer(folder, "SELECT count(*) FROM runs") == [(0,)]
    with (logs / LOG).open("ab") as log:
        log.write(b'{"process": "ser')  # its writer was killed
    assert call("fleet", "import", str(logs), *options).stdout.split()[0] == "10"
    assert answer(folder, "SELECT count(*), max(unix_s) FROM windows") == [(10, 1e9 + 2)]
    (logs / LOG).write_text('{"process": "x"}\n')
    assert call("fleet", "import", str(logs), "--store", str(folder)).exit_code == ExitCode.UNREADABLE_RUN


INTERRUPTED = """
import sys

class Interrupting:  # Ctrl-C in the midst of DuckDB's own imports
    def find_spec(self, name, path=None, target=None):
        if name == "duckdb._version":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from microbench.__main__ import main
main()
"""


def test_a_ctrl_c_while_duckdb_is_imported_ends_without_words_of_leaks(held: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, "fleet", "query", "SELECT 1", "--store", str(held)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (ExitCode.INTERRUPTED, "")
    assert "leaked" not in ended.stderr
