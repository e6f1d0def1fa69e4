"""What a command printed when somebody last looked at it: texts in tests/data/snapshots, compared to the letter.

UPDATE_SNAPSHOTS=1 writes them anew; then look at the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

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
