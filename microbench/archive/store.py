"""Finds and reads runs: the data folder, the names of runs, compressed files, bundled reference runs."""

import os
import re
import stat
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from microbench.archive import processes, remarks, schema
from microbench.core import files
from microbench.core.errors import RunUnreadableError, nearest
from microbench.core.model import Run
from microbench.core.units import plain

FINISHED = ".json"
GROWING = ".jsonl"
PACKED = ".xz", ".gz"  # follow FINISHED: a compressed run is read like any other and never added to
# How xz and gzip begin, and no JSON: two of six bytes of xz also identify a truncated file.
XZ_MAGIC, GZIP_MAGIC = b"\xfd7", b"\x1f\x8b"
# A full run of every suite is about 10 MB. A larger file, packed or not, is not a run and would fill the memory.
LARGEST_BYTES = 1 << 28
# Sessions and benchmarks come before the outcomes: about 30 kB, more in a run with many sessions.
HEAD_BYTES, MOST_HEAD_BYTES = 1 << 16, 1 << 24
RUN_ID = re.compile(r"\d{8}T\d{6}Z-")  # how it begins
NAMES_COMPARED = 200  # to suggest a similar name; comparing more would take longer than reading a run
LIST_THEM = "`microbench history` lists the recorded runs, `microbench show --help` the ways to name one"


def data_folder() -> Path:
    """The folder of recorded runs: MICROBENCH_DATA, or the user's data folder. It may not exist yet."""
    chosen = os.environ.get("MICROBENCH_DATA")
    if chosen:
        return Path(os.path.expanduser(chosen))  # pathlib's raises for an unknown ~user
    try:
        return platformdirs.user_data_path("microbench", appauthor=False)
    except RuntimeError:  # a user id without an account, and no HOME: containers then take the root folder
        return Path("/.local/share/microbench")


def new_run_id(now: datetime) -> str:
    """``<UTC time>-<short id>``: sorts by time, is unique, and names the file. ``now`` is in UTC.

    The short id begins with the microseconds, because runs of one second have an order, too.
    """
    return f"{now:%Y%m%dT%H%M%SZ}-{now.microsecond:05x}{os.urandom(2).hex()[1:]}"


def bundled() -> dict[str, Path]:
    """The recorded runs of real GPUs that the package includes, by name. gzip unpacks five times as fast as xz."""
    folder = Path(__file__).parent / "reference"
    paths = [path for ending in (*PACKED, "") for path in sorted(folder.glob(f"*{FINISHED}{ending}"))]
    return {path.name.rpartition(FINISHED)[0]: path for path in paths}


def growing_path(path: Path) -> Path:
    """The growing file of the run that will be finished as ``path``: RUN.jsonl for RUN.json."""
    return path.with_suffix(GROWING) if path.suffix == FINISHED else path.parent / (path.name + GROWING)


def finished_path(path: Path) -> Path:
    """The finished file of the run at ``path``, which may be its growing file."""
    return path.with_suffix(FINISHED) if path.suffix == GROWING else path


def newest(path: Path) -> Path:
    """The file that ``read`` reads for ``path``: the growing file next to it if there is one, else ``path``."""
    if path.suffix == GROWING:
        return path
    growing = growing_path(path)
    size_bytes = _size(growing)
    return growing if size_bytes or (size_bytes == 0 and _size(path) is None) else path


def is_packed(path: Path) -> bool:
    """True if the file is compressed, judged by its content; False if it cannot be read."""
    try:
        with files.open_regular(path) as file:
            return file.read(len(XZ_MAGIC)) in (XZ_MAGIC, GZIP_MAGIC)
    except (OSError, ValueError):
        return False


def listing() -> list[Path]:
    """Every run of the data folder, newest first. An unfinished run is listed by its growing file; an empty growing
    file is only a reserved name and is not listed.

    The name says when a run began. A file of another name is as old as its last change.
    """
    folder = data_folder()
    try:
        paths = {path.stem: path for path in folder.glob(f"*{FINISHED}")}
        paths |= {path.stem: path for path in folder.glob(f"*{GROWING}") if _size(path)}
    except OSError:
        return []
    named = [stem for stem in paths if not stem.startswith(".")]
    return [paths[stem] for stem in sorted(named, key=lambda stem: (_began(paths[stem]), stem), reverse=True)]


def _began(path: Path) -> str:
    """When a run began, as its id writes it."""
    if RUN_ID.match(path.stem):
        return path.stem
    try:
        changed_s = path.stat().st_mtime
    except OSError:
        return ""
    return f"{datetime.fromtimestamp(changed_s, UTC):%Y%m%dT%H%M%SZ}"


def last() -> Path | None:
    """The newest run of the data folder, or None."""
    return next(iter(listing()), None)


def find(name: str | Path) -> Path:
    """The file of a run, named by a path, a bundled run's name, a label, or the beginning of a run id or of the id's
    last part. Raises RunUnreadableError if there is no such run, or more than one."""
    path = Path(name)
    if _size(path) is not None or _size(growing_path(path)) is not None:
        return path
    if path.suffix == GROWING and _size(finished_path(path)) is not None:
        return finished_path(path)  # the run was finished after the user looked up its name
    name = str(name)
    if name in bundled():
        return bundled()[name]
    if os.sep in name or path.suffix in (FINISHED, GROWING, *PACKED):
        raise RunUnreadableError(f"there is no run file {plain(name)}", "check the path; " + LIST_THEM)
    runs = listing()
    matches = [
        path for path in runs if name and (path.stem.startswith(name) or path.stem.rpartition("-")[2].startswith(name))
    ]
    if not matches and name:
        matches = [path for path, remark in remarks.read_all(runs).items() if remark.label == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = ", ".join(path.stem for path in matches[:5])
        raise RunUnreadableError(f"{plain(name)} means {len(matches)} runs: {several}", "type more of the id")
    known = [*bundled(), *(path.stem for path in runs[:NAMES_COMPARED])]
    raise RunUnreadableError(f"there is no run {plain(name)}", nearest(name, known) or LIST_THEM)


def _size(path: Path) -> int | None:
    """The length of a regular file in bytes; None if there is no such file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # also for a name that is too long, or a folder without permission
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read(path: Path, keep_damage: bool = False) -> Run:
    """The run in that file, or in the growing file next to it, which is newer. The file may be compressed.

    The run has the deviations of fresh processes that are known for its machine. Impossible numbers are taken out; with
    ``keep_damage`` they stay, for a file that is written again. Raises RunUnreadableError.
    """
    path = newest(path)
    name = plain(path)
    try:
        with files.open_regular(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > LARGEST_BYTES:
                raise _too_large(name)
            data = file.read(size_bytes)
    except OSError as error:
        raise RunUnreadableError(f"{name} cannot be read: {error.strerror or error}", "check the path") from None
    return processes.attached(decode(data, name, keep_damage), data_folder())


def decode(data: bytes, name: str, keep_damage: bool = False) -> Run:
    """The run in the content of a file, without the deviations of its machine. Raises RunUnreadableError."""
    if data.startswith((XZ_MAGIC, GZIP_MAGIC)):
        data = _unpacked(data, name)
    if not data:
        cause = f"{name} is empty: nothing was measured, or the run is still starting"
        raise RunUnreadableError(cause, "wait, or delete it and measure again")
    return schema.decode(data, name, keep_damage)


def read_head(path: Path) -> Run:
    """The run in that file without its outcomes. Only the beginning of a file that this tool wrote is read.

    Raises RunUnreadableError as ``read`` does.
    """
    try:
        with files.open_regular(newest(path)) as file:
            data = b""
            while len(data) < MOST_HEAD_BYTES and (more := file.read(len(data) or HEAD_BYTES)):
                data += more
                if (run := schema.decode_head(data)) is not None:
                    return run
    except OSError:
        pass  # read raises the error that says why
    return msgspec.structs.replace(read(path), outcomes=())


def _unpacked(data: bytes, name: str) -> bytes:
    """Unpack xz or gzip, up to LARGEST_BYTES, because a small file may unpack to far more."""
    try:
        import lzma
    except ImportError:
        cause = f"{name} is compressed, and this Python was built without lzma"
        raise RunUnreadableError(cause, "unpack it with `xz -dk`") from None
    unpacked = b""
    while data:
        packed_by_xz = data.startswith(XZ_MAGIC)
        unpacker: Any = lzma.LZMADecompressor(lzma.FORMAT_XZ) if packed_by_xz else zlib.decompressobj(wbits=31)
        try:
            unpacked += unpacker.decompress(data, LARGEST_BYTES + 1 - len(unpacked))
        except (lzma.LZMAError, zlib.error) as error:
            raise _damaged(name, plain(error)) from None
        if len(unpacked) > LARGEST_BYTES:
            raise _too_large(name)
        if not unpacker.eof:
            raise _damaged(name, "it is cut short")
        data = unpacker.unused_data
    return unpacked


def _damaged(name: str, cause: str) -> RunUnreadableError:
    return RunUnreadableError(f"{name} is damaged: {cause}", "copy it again, or show another run")


def _too_large(name: str) -> RunUnreadableError:
    return RunUnreadableError(f"{name} is too large to be a run", LIST_THEM)
