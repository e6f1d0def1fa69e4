"""What each window of a long watch showed, and its rows in a store of many jobs."""

from collections.abc import Mapping

import msgspec

from microbench.core.errors import RunUnreadableError
from microbench.core.units import plain
from microbench.fleet.records import Record, Source

LOG = "windows.jsonl"  # in the folder of `microbench watch --budget`: a window a line


class Window(msgspec.Struct, frozen=True):
    """The window of a recording, in s. ``causes`` are its idle time, and ``owners`` the parts of that between calls.
    ``counts`` are those of the whole steps in it, which last ``steps_s`` without the recorder.

    ``began_s`` is when the watch began. In the log ``steps_s`` is their mean alone, and the counts have their number.

    ``lost`` is the share of the window's time that the recorder took, and ``lost_behind`` that of the pause behind it;
    None where no steps in the pause show it. ``missing`` records were lost.
    """

    process: str
    file: str
    began_s: float
    unix_s: float
    span_s: float
    busy_s: float
    causes: Mapping[str, float]
    owners: Mapping[str, float]
    counts: Mapping[str, float]
    steps_s: tuple[float, ...]
    lost: float | None
    lost_behind: float
    missing: int

    @property
    def step_s(self) -> float | None:
        """The mean time of a step in s; None where no step repeats."""
        return sum(self.steps_s) / len(self.steps_s) if self.steps_s else None


def rows(source: Source) -> list[Record]:
    """The records of the windows of a watch, several each: its length, the GPU's work, idle time by cause and owner,
    and counts. Raises RunUnreadableError."""
    base: Record = {"node": source.node, "labels": list(source.labels.items())}
    found: list[Record] = []
    for line in source.path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):  # it is being written, or its writer was killed
            continue
        try:
            window = msgspec.json.decode(line, type=Window)
        except (msgspec.DecodeError, RecursionError) as error:
            cause = f"{plain(source.path.name)} is no log of windows: {plain(error)}"
            raise RunUnreadableError(cause, "give the folder of a `microbench watch --budget`") from None
        own = base | {"process": plain(window.process, 200), "began_s": window.began_s, "unix_s": window.unix_s}
        steps = window.counts.get("steps", len(window.steps_s))
        figures: list[tuple[str, str, float | None, float | None]] = [
            ("recorded", "", window.span_s, None), ("busy", "", window.busy_s, None),
            ("steps", "", (window.step_s or 0.0) * steps, steps),
            *(("cause", name, seconds, None) for name, seconds in window.causes.items()),
            *(("owner", name, seconds, None) for name, seconds in window.owners.items()),
            *(("count", name, None, count) for name, count in window.counts.items() if name != "steps"),
        ]  # fmt: skip
        names = ("kind", "name", "seconds", "count")
        found += [own | dict(zip(names, (kind, plain(name, 200), *rest), strict=True)) for kind, name, *rest in figures]
    return found
