"""Keeps the figures of many runs as Parquet files and answers SQL about them; the run files stay the source of truth.

A batch of runs becomes one file in each partition: ``rows/campaign=ID/suite=SUITE/BATCH.parquet``, and one file each in
``nodes``, ``findings`` and ``runs``. The file in ``runs`` is written last: files of a batch without it are ignored, so
a batch is stored as a whole or not at all. Nothing is ever rewritten; a run that was stored again replaces its older
version when it is read. A batch with a damaged or missing file is left out and named, and the rest goes on.
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from microbench.core import files
from microbench.core.errors import ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.units import counted, plain
from microbench.fleet.campaign import read_folder
from microbench.fleet.records import NUMBER, OF_RUNS, TABLES, TEXT, TRUTH, WHOLE, WORDS, Source, digest, records
from microbench.fleet.windows import rows as rows_of_windows

try:
    import duckdb
    import pyarrow
    from pyarrow import compute, parquet
except ImportError as error:
    missing = f"{plain(error.name or 'pyarrow').partition('.')[0]} cannot be imported: {plain(error)}"
    raise UsageError(missing, "pip install '.[fleet]' in a checkout of microbench") from None

# The name of a campaign is that of a folder.
CAMPAIGN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
SUITE = re.compile(r"[a-z][a-z_]{0,39}")
OTHER = "other"
# Runs that are held in memory and written together.
BATCH = 256
# Reading this few runs takes less time than starting other processes.
FEW = 32
ENDING = ".parquet"
HELP = f"the views are {', '.join(TABLES)}; the query `DESCRIBE rows` lists columns"
Result = TypeVar("Result")


class Added(NamedTuple):
    """What became of run files: rows and runs stored, runs that were there already, and files that are unreadable."""

    rows: int
    runs: int
    known: int
    failed: tuple[tuple[Path, str], ...]


def add_all(directory: Path, sources: Sequence[Source]) -> Added:
    """Store runs, each once: a file that its campaign has already with the same content is left out.

    Raises UsageError for a campaign that cannot name a folder, ResultNotWrittenError if the store cannot be written to.
    """
    for campaign in dict.fromkeys(source.campaign for source in sources):
        if not CAMPAIGN.fullmatch(campaign):
            raise UsageError(f"{plain(campaign, 40)} cannot name a campaign", "give letters, digits, _, - and .")
    new, known, failed = _new(directory, sources)
    rows = runs = 0
    for batch in _batches_read(new):
        found: dict[str, list[Tables]] = {}
        for source, tables in batch:
            if isinstance(tables, str):
                failed.append((source.path, tables))
            else:
                found.setdefault(source.campaign, []).append(tables)
        for campaign, several in found.items():
            rows += _write(directory, campaign, several)
            runs += len(several)
    return Added(rows, runs, known, tuple(failed))


def add_windows(directory: Path, source: Source) -> int:
    """Store the windows of a watch, and return how many rows they are. A log that has grown replaces what was stored of
    it. Raises as ``add_all``, and RunUnreadableError."""
    if not CAMPAIGN.fullmatch(source.campaign):
        raise UsageError(f"{plain(source.campaign, 40)} cannot name a campaign", "give letters, digits, _, - and .")
    found = rows_of_windows(source)
    named = hashlib.sha256(f"{source.node} {found[0]['began_s'] if found else 0}".encode()).hexdigest()[:32]
    path = directory / "windows" / f"campaign={source.campaign}" / f"{named}{ENDING}"
    try:
        _write_file(path, pyarrow.Table.from_pylist(found, _schema("windows")))
    except OSError as error:
        cause = f"the store {plain(directory)} cannot be written to: {plain(error.strerror or error)}"
        raise ResultNotWrittenError(cause, "give another folder, or make room") from None
    return len(found)


def _logs(directory: Path) -> list[Path]:
    """The stored windows of watches, without damaged files."""
    found = []
    for path in sorted((directory / "windows").glob(f"campaign=*/*{ENDING}")):
        with suppress(_DamagedError):
            _checked(path, "windows", whole=False)
            found.append(path)
    return found


def campaign_sources(folder: Path) -> list[Source]:
    """The runs of a recorded campaign. Raises RunUnreadableError."""
    recorded = read_folder(folder)
    # A name is that of a file in the folder, whatever the record says.
    return [
        Source(folder / Path(task.run).name, recorded.campaign, task.node, task.labels)
        for task in recorded.tasks
        if task.run
    ]


Tables = dict[str, pyarrow.Table]
Files = Mapping[str, Sequence[Path]]  # of a batch, by table


class _DamagedError(Exception):
    """A file of a batch is damaged or missing."""

    def __init__(self, path: Path, reason: str) -> None:
        again = f"import its runs again, then delete all files of the name {path.name} in the store"
        super().__init__(f"{plain(path)} {plain(reason)}, so its batch is left out: {again}")


def _batches(directory: Path, *, whole: bool = False) -> tuple[list[Files], tuple[str, ...]]:
    """The batches of a store, the oldest first, and sentences about those that are left out. The end of each file says
    what it holds; with ``whole`` all of it is read."""
    found: set[tuple[str, str]] = set()  # campaign and file; one in nodes without one in runs has lost that
    for name in ("runs", "nodes"):
        found |= {(path.parent.name, path.name) for path in (directory / name).glob(f"campaign=*/*{ENDING}")}
    batches, left_out = list[Files](), list[str]()
    for campaign, file in sorted(found):
        batch = {name: [directory / name / campaign / file] for name in OF_RUNS}
        batch["rows"] = sorted((directory / "rows" / campaign).glob(f"suite=*/{file}"))
        try:
            for name in ("runs", "nodes", "findings"):
                _checked(batch[name][0], name, whole or name == "runs")
            rows = sum(_checked(path, "rows", whole) for path in batch["rows"])
            if (figures := sum(_column(batch, "figures"))) != rows:
                raise _DamagedError(batch["runs"][0], f"tells of {figures} rows, and there are {rows}")
            batches.append(batch)
        except _DamagedError as damaged:
            left_out.append(str(damaged))
    return batches, tuple(left_out)


def _checked(path: Path, table: str, whole: bool) -> int:
    """The number of rows in a file of a table. Raises _DamagedError."""
    try:
        with files.open_regular(path) as stream, parquet.ParquetFile(stream) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            if whole:
                file.read()
    except FileNotFoundError:
        raise _DamagedError(path, "is missing") from None
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise _DamagedError(path, f"cannot be read ({plain(error)})") from None
    there = {column.name: column.type for column in schema}
    for column in _schema(table):
        if (table, column.name) != ("rows", "suite") and there.get(column.name) != column.type:
            raise _DamagedError(path, f"lacks the column {column.name}, or has another type of it")
    return int(rows)


def _column(batch: Files, name: str) -> list[Any]:
    """A column of the runs of a batch."""
    table = parquet.read_table(batch["runs"][0], columns=[name], partitioning=None)
    values: list[Any] = table[name].drop_null().to_pylist()
    return values


def _new(directory: Path, sources: Sequence[Source]) -> tuple[list[Source], int, list[tuple[Path, str]]]:
    """The sources that the store lacks, the number of those that it has, and the files that cannot be read."""
    stored = set()  # campaign and digest of every run
    for batch in _batches(directory)[0]:
        campaign = batch["runs"][0].parent.name.removeprefix("campaign=")
        stored |= {(campaign, one) for one in _column(batch, "digest")}
    new, known, failed = list[Source](), 0, list[tuple[Path, str]]()
    for source in sources:
        try:
            key = source.campaign, digest(source.path)
        except (OSError, ValueError) as error:  # ValueError: a name with a null character
            failed.append((source.path, getattr(error, "strerror", None) or str(error)))
            continue
        if key in stored:
            known += 1
        else:
            new.append(source)
            stored.add(key)
    return new, known, failed


def _batches_read(sources: Sequence[Source]) -> Iterator[list[tuple[Source, Tables | str]]]:
    """The tables of all sources, in batches, read by as many processes as there are cores."""
    workers = len(os.sched_getaffinity(0))
    batches = [sources[first : first + BATCH] for first in range(0, len(sources), BATCH)]
    if len(sources) > FEW and workers > 1:
        # A fork would copy the locks of threads that run here.
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            try:
                while batches:
                    read = list(zip(batches[0], pool.map(_read, batches[0], chunksize=4), strict=True))
                    batches.pop(0)
                    yield read
            except BrokenProcessPool:  # the calling program's own file cannot be imported by another process
                pass
    for batch in batches:
        yield [(source, _read(source)) for source in batch]


def _read(source: Source) -> Tables | str:
    """The tables of a run, or why it cannot be read."""
    try:
        found = records(source)
    except RunUnreadableError as error:
        return error.cause
    return {name: pyarrow.Table.from_pylist(found[name], _schema(name)) for name in OF_RUNS}


@cache
def _schema(table: str) -> pyarrow.Schema:
    """The columns of a table in a file. Its campaign, and the suite of a row, are folders."""
    types = {
        TEXT: pyarrow.string(), WHOLE: pyarrow.int64(), NUMBER: pyarrow.float64(), TRUTH: pyarrow.bool_(),
        WORDS: pyarrow.map_(pyarrow.string(), pyarrow.string()),
    }  # fmt: skip
    return pyarrow.schema([(name, types[kind]) for name, kind in TABLES[table].items() if name != "campaign"])


def _write(directory: Path, campaign: str, several: Sequence[Tables]) -> int:
    """Write the tables of several runs of a campaign as one batch, and return the number of rows."""
    batch = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    whole = {name: pyarrow.concat_tables([tables[name] for tables in several]) for name in OF_RUNS}
    rows = whole["rows"].sort_by([(name, "ascending") for name in ("suite", "benchmark", "metric", "case", "node")])
    parts: dict[str, list[pyarrow.Table]] = {}
    for suite in rows["suite"].unique().to_pylist():
        folder = suite if SUITE.fullmatch(suite) else OTHER
        parts.setdefault(folder, []).append(rows.filter(compute.equal(rows["suite"], suite)))
    written = list[Path]()
    try:
        for folder, tables in parts.items():
            part = pyarrow.concat_tables(tables).drop_columns(["suite"])
            written.append(directory / "rows" / f"campaign={campaign}" / f"suite={folder}" / f"{batch}{ENDING}")
            _write_file(written[-1], part)
        for name in ("nodes", "findings", "runs"):  # the runs last: with them the batch is there
            written.append(directory / name / f"campaign={campaign}" / f"{batch}{ENDING}")
            _write_file(written[-1], whole[name])
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        cause = f"the store {plain(directory)} cannot be written to: {plain(error.strerror or error)}"
        raise ResultNotWrittenError(cause, "give another folder, or make room") from None
    return int(rows.num_rows)


def _write_file(path: Path, table: pyarrow.Table) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        parquet.write_table(table, part, compression="zstd")
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def query(directory: Path, sql: str) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]], tuple[str, ...]]:
    """The columns of one SELECT over the views, its rows as they are read, and which batches are left out.

    Times with a zone are text. Raises UsageError for any other statement and for a wrong one.
    """
    (columns, rows), left_out = answered(directory, lambda connection: _asked(connection, sql))
    return columns, rows, left_out


def _asked(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("only one SELECT can be asked", HELP)
    asked = connection.sql(statements[0].query)
    names, zoned = tuple(asked.columns), ["WITH TIME ZONE" in str(kind) for kind in asked.types]
    if any(zoned):  # DuckDB would need pytz for them
        shown = (f"CAST(#{at} AS VARCHAR)" if one else f"#{at}" for at, one in enumerate(zoned, 1))
        found = connection.execute(f"SELECT {', '.join(shown)} FROM ({asked.sql_query()})")
    else:
        found = connection.execute(statements[0])
    first = found.fetchmany(1000)
    return names, chain(first, _fetched(found) if first else ())


def _fetched(found: Any) -> Iterator[tuple[Any, ...]]:
    while True:
        try:
            rows = found.fetchmany(1000)
        except duckdb.Error as error:
            raise _wrong(error) from None
        if not rows:
            return
        yield from rows


def _wrong(error: Exception) -> UsageError:
    cause = " ".join(str(error).partition("\n\n")[0].split())
    return UsageError(f"the query failed: {plain(cause)}", HELP)


def answered(directory: Path, ask: Callable[[duckdb.DuckDBPyConnection], Result]) -> tuple[Result, tuple[str, ...]]:
    """What ``ask`` gives from a connection whose views are the tables of a store, and which batches are left out.

    Raises UsageError if there is no store or nothing in it, and if DuckDB raises an error.
    """
    for whole in (False, True):  # only an error is worth the time to read all of each file
        batches, left_out = _batches(directory, whole=whole)
        if not batches and not _logs(directory):
            more = f"; {counted(len(left_out) - 1, 'more batch', 'more batches')}" if left_out[1:] else ""
            lost = f": {left_out[0]}{more}" if left_out else ""
            raise UsageError(
                f"there is no run in {plain(directory)}{lost}", "microbench fleet import RUN... --store DIR"
            )
        try:
            return ask(_opened(directory, batches)), left_out
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException) as error:
            raise _wrong(error) from None
        except duckdb.Error as error:
            failed = error
    raise _wrong(failed)


def _opened(directory: Path, batches: Sequence[Files]) -> duckdb.DuckDBPyConnection:
    """A connection whose views are the tables of these batches. It reads the store's folder and nothing else."""
    options = {
        "autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "temp_directory": "",
        "allow_community_extensions": "false", "python_enable_replacements": "false",
    }  # fmt: skip
    connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:", config=options)
    whole = directory.resolve()
    connection.execute(f"SET allowed_directories = [{_quoted(whole)}]")
    for name in OF_RUNS:
        paths = [whole / path.relative_to(directory) for batch in batches for path in batch[name]]
        connection.execute(f"CREATE VIEW all_{name} AS {_files(name, paths)}")
    logs = [whole / path.relative_to(directory) for path in _logs(directory)]
    connection.execute(f"CREATE VIEW windows AS SELECT * EXCLUDE (batch) FROM ({_files('windows', logs)})")
    # The views lack older versions of runs that were stored again.
    old = connection.execute(
        "SELECT batch, run FROM all_runs QUALIFY row_number() OVER (PARTITION BY campaign, run ORDER BY batch DESC) > 1"
    ).fetchall()
    replaced = ", ".join(f"({_quoted(batch)}, {_quoted(run)})" for batch, run in old)
    only = f" WHERE (batch, run) NOT IN ({replaced})" if replaced else ""
    for name in OF_RUNS:
        newest = ""
        if name == "nodes":
            newest = (
                " QUALIFY row_number() OVER (PARTITION BY campaign, node, device ORDER BY began DESC, run DESC) = 1"
            )
        connection.execute(f"CREATE VIEW {name} AS SELECT * EXCLUDE (batch) FROM all_{name}{only}{newest}")
    # From here on a query reaches no file but those of the store, and no option can be changed.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _files(table: str, paths: Sequence[Path]) -> str:
    """A SELECT of all rows in these files, with the columns of the table in their order."""
    types = {TEXT: "VARCHAR", WHOLE: "BIGINT", NUMBER: "DOUBLE", TRUTH: "BOOLEAN", WORDS: "MAP(VARCHAR, VARCHAR)"}
    columns = TABLES[table]
    if not paths:
        empty = ", ".join(f'NULL::{types[kind]} AS "{name}"' for name, kind in columns.items())
        return f"SELECT {empty}, '' AS batch WHERE false"
    folders = "{'campaign': VARCHAR, 'suite': VARCHAR}" if table == "rows" else "{'campaign': VARCHAR}"
    listed = ", ".join(map(_quoted, paths))
    names = ", ".join(f'"{name}"' for name in columns)
    batch = "parse_filename(filename, true) AS batch"
    read = f"read_parquet([{listed}], hive_partitioning = true, hive_types = {folders}, filename = true)"
    return f"SELECT {names}, {batch} FROM {read}"


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
