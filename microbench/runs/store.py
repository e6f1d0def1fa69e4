"""Runs on disk: where they lie, which one a name means, loading, and the bundled reference runs."""

from __future__ import annotations

import difflib
import os
import secrets
from datetime import datetime
from pathlib import Path

import msgspec
import platformdirs

from microbench.core.errors import RunUnreadableError
from microbench.core.model import Run
from microbench.core.units import plain
from microbench.runs import remarks, schema

FINISHED = ".json"
GROWING = ".jsonl"
PACKED = ".xz"  # after FINISHED: what xz makes of a finished run. It is read like any other, and never added to
XZ_MAGIC = b"\xfd7"  # the first two of its six bytes: no JSON begins so, and a file cut short there is known as well
# A run of every suite in full is a few MB; msgspec would hold this much of somebody's other file in memory.
LARGEST_BYTES = 2 << 30
# Sessions and benchmarks stand before the outcomes: some 30 kB, more in a run that was grown often.
HEAD_BYTES, MOST_HEAD_BYTES = 1 << 16, 1 << 24
NAMES_COMPARED = 200  # for a name that is nearly right; more would take longer than reading the run
LIST_THEM = "`microbench show --help` lists what a run can be named by"


def data_folder() -> Path:
    """Where runs are kept unless told otherwise: MICROBENCH_DATA, or the user's data folder. May not exist yet."""
    chosen = os.environ.get("MICROBENCH_DATA")
    if not chosen:
        return platformdirs.user_data_path("microbench", appauthor=False)
    return Path(os.path.expanduser(chosen))  # pathlib's raises for an unknown ~user


def new_run_id(now: datetime) -> str:
    """``<UTC time>-<short id>``: sorts by time, unique, and the file's name. ``now`` is in UTC."""
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def bundled() -> dict[str, Path]:
    """The recorded runs of real GPUs that come with the package, by name."""
    folder = Path(__file__).parent / "reference"
    paths = [path for ending in (PACKED, "") for path in sorted(folder.glob(f"*{FINISHED}{ending}"))]
    return {path.name.removesuffix(PACKED).removesuffix(FINISHED): path for path in paths}


def growing_path(path: Path) -> Path:
    """Where the run that will be finished as ``path`` grows: RUN.json -> RUN.jsonl."""
    return path.with_suffix(GROWING) if path.suffix == FINISHED else path.parent / (path.name + GROWING)


def finished_path(path: Path) -> Path:
    """Where the run at ``path``, finished or growing, lies once it is finished."""
    return path.with_suffix(FINISHED) if path.suffix == GROWING else path


def is_packed(path: Path) -> bool:
    """True if the file is compressed by xz, whatever its name is; False if it is not there."""
    try:
        with path.open("rb") as file:
            return file.read(len(XZ_MAGIC)) == XZ_MAGIC
    except (OSError, ValueError):
        return False


def listing() -> list[Path]:
    """Every run of the data folder, newest first; one that was killed, or still grows, by its growing file."""
    folder = data_folder()
    try:
        paths = {path.stem: path for path in folder.glob(f"*{FINISHED}")}
        paths |= {path.stem: path for path in folder.glob(f"*{GROWING}") if _begun(path)}
    except OSError:
        return []
    return [paths[stem] for stem in sorted(paths, reverse=True) if not stem.startswith(".")]


def _begun(path: Path) -> bool:
    """Whether something stands in a growing file; one that was finished meanwhile is gone."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def last() -> Path | None:
    """The newest run of the data folder, or None."""
    return next(iter(listing()), None)


def find(name: str | Path) -> Path:
    """The file of a run: a path, a bundled run's name, a run id, the unique beginning of one (or of its last part), or
    a label that one run has.

    Raises RunUnreadableError when there is none, or more than one.
    """
    path = Path(name)
    if _is_file(path) or _is_file(growing_path(path)):
        return path
    if path.suffix == GROWING and _is_file(finished_path(path)):
        return finished_path(path)  # it has grown up since it was named
    name = str(name)
    if name in bundled():
        return bundled()[name]
    if os.sep in name or path.suffix in (FINISHED, GROWING, PACKED):
        raise RunUnreadableError(f"there is no run file {plain(name)}", "check the path; " + LIST_THEM)
    runs = listing()
    found = [path for path in runs if name and (path.stem.startswith(name) or _short_id(path).startswith(name))]
    if found := found or (remarks.labelled(name, runs) if name else []):
        if len(found) == 1:
            return found[0]
        several = ", ".join(path.stem for path in found[:5])
        raise RunUnreadableError(f"{plain(name)} means {len(found)} runs: {several}", "give more of an id")
    near = difflib.get_close_matches(name, [*bundled(), *(path.stem for path in runs[:NAMES_COMPARED])], n=1)
    raise RunUnreadableError(f"there is no run {plain(name)}", f"did you mean {near[0]}?" if near else LIST_THEM)


def _short_id(path: Path) -> str:
    return path.stem.rpartition("-")[2]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the file system, a folder that may not be searched
        return False


def load(name: str | Path) -> Run:
    """The run that ``name`` means (see ``find``). Raises RunUnreadableError."""
    return read(find(name))


def newest(path: Path) -> Path:
    """The file that ``read`` reads for ``path``."""
    growing = growing_path(path)
    if path.suffix != GROWING and _is_file(growing) and (growing.stat().st_size > 0 or not _is_file(path)):
        return growing
    return path


def read(path: Path) -> Run:
    """The run in that file, or in the growing file beside it, which is newer: a killed run left it, or one still grows.

    The file may be compressed by xz. Raises RunUnreadableError.
    """
    path = newest(path)
    name = plain(path)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise _too_large(name)
        data = path.read_bytes()
    except OSError as error:
        raise RunUnreadableError(f"{name} cannot be read: {error.strerror or error}", "check the path") from None
    if data.startswith(XZ_MAGIC):
        data = _unpacked(data, name)
    if not data:
        cause = f"{name} is empty: nothing was measured, or it is still probing"
        raise RunUnreadableError(cause, "wait for it, or delete it and measure again")
    return schema.decode(data, name)


def read_head(path: Path) -> Run:
    """The run in that file without its outcomes: of a file that this tool wrote only the beginning is read.

    Raises RunUnreadableError as ``read`` does.
    """
    try:
        with newest(path).open("rb") as file:
            data = b""
            while len(data) < MOST_HEAD_BYTES and (more := file.read(len(data) or HEAD_BYTES)):
                data += more
                if (run := schema.decode_head(data)) is not None:
                    return run
    except OSError:
        pass  # read tells why
    return msgspec.structs.replace(read(path), outcomes=())


def _unpacked(data: bytes, name: str) -> bytes:
    """What xz packed, in one stream or several. No more of it than a run may have: a small file may hold far more."""
    try:
        import lzma
    except ImportError:
        raise RunUnreadableError(
            f"{name} is compressed, and this Python was built without lzma",
            "unpack it by `xz -dk`",
        ) from None
    unpacked = b""
    while data:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        try:
            unpacked += unpacker.decompress(data, LARGEST_BYTES + 1 - len(unpacked))
        except lzma.LZMAError as error:
            raise _damaged(name, plain(error)) from None
        if len(unpacked) > LARGEST_BYTES:
            raise _too_large(name)
        if not unpacker.eof:
            raise _damaged(name, "it is cut short")
        data = unpacker.unused_data
    return unpacked


def _damaged(name: str, cause: str) -> RunUnreadableError:
    return RunUnreadableError(f"{name} is damaged: {cause}", "copy it once more, or show another run")


def _too_large(name: str) -> RunUnreadableError:
    return RunUnreadableError(f"{name} is too large to be a run", LIST_THEM)
