"""Reads of /proc and /sys that return a reason instead of raising when a file is missing or forbidden."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from microbench.core.model import Fact, Scalar


class Reading(NamedTuple):
    """One file's text, stripped, or None and the reason. ``source`` is the path as on a live machine."""

    text: str | None
    source: str
    reason: str | None = None


class Machine(NamedTuple):
    """The file tree that facts are read from: "/" on a live machine, a recorded tree in tests."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """The place of ``path`` (absolute, as on a live machine) in this tree."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> Reading:
        try:
            return Reading(self.at(path).read_text(encoding="utf-8", errors="replace").strip(), path)
        except OSError as error:
            return Reading(None, path, why_unreadable(error))

    def names(self, path: str) -> tuple[str, ...]:
        """Names inside a folder, sorted; empty if it is missing or forbidden."""
        try:
            return tuple(sorted(entry.name for entry in self.at(path).iterdir()))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        try:
            return self.at(path).exists()
        except OSError:
            return False


def why_unreadable(error: OSError) -> str:
    """An OSError in words: "no such file", "permission denied"."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file"
    return (error.strerror or type(error).__name__).lower()


def known(name: str, value: Scalar, source: str, unit: str = "") -> Fact:
    """A fact with a value."""
    return Fact(name, value, source, None, unit)


def unknown(name: str, reason: str, source: str) -> Fact:
    """A fact without a value, and why."""
    return Fact(name, None, source, reason)


def stated(name: str, value: Scalar, source: str, reason: str) -> Fact:
    """A known fact, or for a value of None an unknown one with ``reason``."""
    return known(name, value, source) if value is not None else unknown(name, reason, source)


def fact(name: str, reading: Reading, convert: Callable[[str], Scalar] = str) -> Fact:
    """The fact that a file states; unknown if the file is unreadable or ``convert`` raises ValueError."""
    if reading.text is None:
        return unknown(name, reading.reason or "unreadable", reading.source)
    try:
        return known(name, convert(reading.text), reading.source)
    except ValueError:
        return unknown(name, f"cannot be understood: {reading.text[:40]!r}", reading.source)


def labelled(text: str | None, label: str, separator: str = ":") -> str | None:
    """The value of the first ``label: value`` line of a /proc file, or None."""
    for line in (text or "").splitlines():
        name, separated, value = line.partition(separator)
        if separated and name.strip() == label:
            return value.strip()
    return None


def bracketed(text: str) -> str:
    """The marked word of a line such as ``always [madvise] never``. Raises ValueError if none is marked."""
    return text[text.index("[") + 1 : text.index("]")]


def cpu_list(text: str) -> tuple[int, ...]:
    """CPUs of a kernel list such as ``0-3,8``, sorted. Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def as_cpu_list(cpus: Iterable[int]) -> str:
    """CPUs in the kernel's list notation: the inverse of ``cpu_list``."""
    spans: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
