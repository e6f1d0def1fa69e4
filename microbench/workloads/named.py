"""Which file a workload's name means: one of the user's, or an example that comes with the package."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from microbench.errors import UsageError
from microbench.text import plain
from microbench.workload import Workload
from microbench.workloads.file import AN_EXAMPLE, parsed

ENDING = ".toml"
LARGEST_BYTES = 1 << 20


def examples() -> dict[str, Path]:
    """The workloads that come with the package, by name."""
    folder = Path(__file__).parent / "examples"
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def read(name: str | Path) -> Workload:
    """The workload in that file, or the example of that name. Raises UsageError."""
    path = _found(str(name))
    shown = plain(path.name)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)  # a device or a pipe has no size to ask for, and may have no end
        if len(data) > LARGEST_BYTES:
            raise UsageError(f"{shown} is too large to describe a step", AN_EXAMPLE)
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{shown} is not UTF-8", AN_EXAMPLE) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{shown} cannot be read: {plain(reason)}", "check the path") from None
    return parsed(text, path.name)


def _found(name: str) -> Path:
    shipped = examples()
    if name in shipped:
        return shipped[name]
    if name.endswith(ENDING) or os.sep in name:
        return Path(name)
    near = difflib.get_close_matches(name, shipped, n=1)
    listed = f"the examples are {', '.join(shipped)}; a file of your own ends in {ENDING}"
    step = f"did you mean {near[0]}? {listed}" if near else listed
    raise UsageError(f"there is no workload {plain(name, 40)}", step)
