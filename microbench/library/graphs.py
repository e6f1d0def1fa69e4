"""Makes a graph of a user's function in a process of its own, proves it, and proves the changed file once more."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from microbench.capture.handover import HELPER, Change, change, change_parts, why_not_applied
from microbench.capture.making import Asked, Made, Report, Times
from microbench.core.errors import UsageError
from microbench.core.targets import check_function, target
from microbench.core.units import plain

LIMIT_S, MODES = 600.0, ("default", "reduce-overhead")
LOOK_S = 0.1


def make_graph(
    what: str,
    setup: str = "",
    inputs: str = "",
    axes: dict[str, str] | None = None,
    compile: bool = False,
    limit_s: float = LIMIT_S,
    progress: Callable[[str], None] = lambda stage: None,
    hand_over: bool = True,
) -> Made:
    """Look at a function, capture it, and prove the graph; with ``hand_over`` the changed file too.

    Raises UsageError for bad names.
    """
    for one in filter(None, (what, setup, inputs)):
        check_function(target(one))
    asked = Asked(what, setup, inputs, dict(axes or {}))
    report = _report(asked, limit_s, progress)
    for mode in MODES if compile and not report.error else ():
        tried = _report(msgspec.structs.replace(asked, compile=mode), limit_s, progress)
        report.times += tried.times or [Times(f"torch.compile, {mode}", why=tried.error)]
    wanted = target(what)
    if not hand_over or wanted.kind != "file" or not (report.proved or report.blockers):
        return Made(what, report, None, None)
    file = Path(wanted.place).resolve()
    stays = {one.at for one in report.blockers}  # 0 for a call that is in no line of the function

    def changed(also: list[str]) -> Change | None:
        if report.proved:
            return change(file, wanted.name, also)
        return None if 0 in stays else change_parts(file, wanted.name, stays, report.operations, also)

    def proved(found: Change) -> Report:
        with tempfile.TemporaryDirectory(prefix="microbench-graph-") as name:
            copy = Path(name) / file.name
            copy.write_text(found.text, encoding="utf-8")
            (Path(name) / HELPER).write_text(found.helper, encoding="utf-8")
            named = [(text, target(text) if text else None) for text in (what, setup, inputs)]
            moved = [  # functions of the file are those of its copy
                f"{copy}::{one.name}" if one and one.kind == "file" and Path(one.place).resolve() == file else text
                for text, one in named
            ]
            progress("the changed file")
            source = file.read_text(encoding="utf-8") if found.parts else ""
            host = bool(found.parts or report.also)
            asked = Asked(moved[0], moved[1], moved[2], dict(axes or {}), parts=found.parts, source=source, host=host)
            return _report(asked, limit_s, progress, file.parent)

    found = changed(report.also)
    if found is None:
        return Made(what, report, None, None)
    again = proved(found)
    if found.parts and again.proved and again.also:  # what the parts must be told to look at
        found = changed(again.also) or found
        again = proved(found)
    return Made(what, report, found, again)


def _report(asked: Asked, limit_s: float, progress: Callable[[str], None], folder: Path | None = None) -> Report:
    """The report of a process, which is killed if it does not end; ``folder`` is where it finds other modules."""
    with tempfile.TemporaryDirectory(prefix="microbench-graph-") as name:
        file = Path(name) / "report.json"
        file.write_bytes(msgspec.json.encode(asked))
        paths = [str(folder)] if folder is not None else []
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
        }
        with (Path(name) / "output").open("w+b") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "microbench.capture.making", str(file)], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, env=environment,
            )  # fmt: skip
            ends_s, stage = time.monotonic() + limit_s, ""
            try:
                while process.poll() is None and time.monotonic() < ends_s:
                    time.sleep(LOOK_S)
                    if (now := _read(file)) is not None and now.stage != stage:
                        stage = now.stage
                        progress(stage)
            finally:
                hung = process.poll() is None
                if hung:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            report = _read(file) or Report()
            if hung:
                report.error = f"it did not end within {limit_s:.0f} s, at: {report.stage}; --limit gives it longer"
            elif process.returncode and not report.error:
                output.seek(0)
                last = output.read().decode(errors="replace").strip().splitlines()[-1:]
                words = plain(last[0], 200) if last else f"exit code {process.returncode}"
                report.error = f"its process ended at {report.stage}: {words}"
    return report


def _read(file: Path) -> Report | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def write_change(new: Change, out: Path | None, apply: bool) -> list[Path]:
    """Write the diff and the helper to ``out``, or with ``apply`` change the file itself. Raises UsageError."""
    if apply:
        if why := why_not_applied(new.file):
            raise UsageError(f"--apply changes nothing: {why}", "commit the file first, or apply the diff by hand")
        helper = new.file.parent / HELPER
        if helper.exists() and helper.read_text(encoding="utf-8") != new.helper:
            raise UsageError(f"{helper.name} exists with other content", "move it away first")
        helper.write_text(new.helper, encoding="utf-8")
        new.file.write_text(new.text, encoding="utf-8")
        return [new.file, helper]
    if out is None:
        return []
    try:
        out.mkdir()
    except OSError as error:
        raise UsageError(f"{plain(out)} cannot be made: {error.strerror}", "give a new folder by -o") from error
    written = [out / f"{new.file.stem}.diff", out / HELPER]
    for path, text in zip(written, (new.diff, new.helper), strict=True):
        path.write_text(text, encoding="utf-8")
    return written
