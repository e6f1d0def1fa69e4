"""What a command printed when somebody last looked at it: texts in tests/data/snapshots, compared to the letter.

UPDATE_SNAPSHOTS=1 writes them anew; then look at the difference before it is committed.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from microbench.core.model import Fact

FOLDER = Path(__file__).parent / "data" / "snapshots"


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


def same_facts(name: str, facts: Iterable[Fact]) -> None:
    """The same for facts, one a line: a value or the reason why there is none, and the source."""
    lines = []
    for fact in facts:
        assert (fact.value is None) == (fact.reason is not None), fact
        assert fact.source, fact
        known = f"= {fact.value!r} {fact.unit}".rstrip() if fact.value is not None else f"is unknown: {fact.reason}"
        lines.append(f"{fact.name} {known}  [{fact.source}]")
    same(f"facts/{name}", "\n".join(lines))
