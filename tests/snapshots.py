"""What a command printed when somebody last looked at it: texts in tests/data/snapshots, compared to the letter.

UPDATE_SNAPSHOTS=1 writes them anew; then look at the difference before it is committed.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from microbench.core.model import Fact
from microbench.traces.trace import MEMORIES, NONE, RANGE_KINDS, SYNC_KINDS, WORK_KINDS, Trace

FOLDER = Path(__file__).parent / "data" / "snapshots"
# What two files of the same program have in common, and what else a trace tells.
PROGRAM = ("format", "gpus", "versions", "epoch_ns", "resolution_ns", "rank")
FILE = ("bus_ids", "lost", "unread", "samples")


def same(name: str, text: str) -> None:
    """Assert that ``text`` is the snapshot of that name; blanks at the ends of lines do not count."""
    stripped = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stripped, encoding="utf-8")
    assert stripped == path.read_text(encoding="utf-8"), (
        f"{name} looks different: if you mean it, run UPDATE_SNAPSHOTS=1 pytest tests/test_snapshots.py, read git diff"
    )


def rounded(text: str) -> str:
    """Data without the last digits of its figures, which are a matter of who calculates."""
    return re.sub(r"\d+\.\d{5,}(e-?\d+)?", lambda found: f"{float(found[0]):.5g}", text)


def ordered(text: str) -> str:
    """A JSON document by its keys."""
    return rounded(json.dumps(json.loads(text), indent=2, sort_keys=True))


def same_facts(name: str, facts: Iterable[Fact]) -> None:
    """The same for facts, one a line: a value or the reason why there is none, and the source."""
    lines = []
    for fact in facts:
        assert (fact.value is None) == (fact.reason is not None), fact
        assert fact.source, fact
        known = f"= {fact.value!r} {fact.unit}".rstrip() if fact.value is not None else f"is unknown: {fact.reason}"
        lines.append(f"{fact.name} {known}  [{fact.source}]")
    same(f"facts/{name}", "\n".join(lines))


def told(trace: Trace, facts: Iterable[str] = PROGRAM) -> str:
    """A trace in words: these facts of it, and a line for each row with what it has."""
    kinds = {"work": WORK_KINDS, "ranges": RANGE_KINDS, "syncs": SYNC_KINDS}

    def word(table: str, column: str, value: Any) -> object:
        match column:
            case "name":
                return repr(trace.names[value])
            case "thread":
                return tuple(trace.threads[value])
            case "kind":
                return kinds[table][value]  # type: ignore[index]
        return MEMORIES[value] if column in ("source", "target") else value

    def row(table: str, columns: Any, values: Any) -> str:
        known = zip(columns, values, strict=True)
        return f"{table}: " + ", ".join(f"{one} {word(table, one, value)}" for one, value in known if value != NONE)

    lines = []
    for fact in facts:
        known = getattr(trace, fact)
        lines.append(f"{fact}: {sorted(known.items()) if isinstance(known, dict) else known!r}")
    for table in ("work", "calls", "ranges", "syncs"):
        rows = getattr(trace, table)
        texts = [(values[0], row(table, rows.dtype.names, values)) for values in rows.tolist()]
        # Of equal times, either work may come first.
        lines += [text for _, text in (sorted(texts) if table == "work" else texts)]
    return "\n".join(lines)


def same_trace(name: str, trace: Trace) -> None:
    """Assert that all that a trace tells is the snapshot of that name."""
    same(f"traces/{name}", told(trace, PROGRAM + FILE))
