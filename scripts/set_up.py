"""Makes .venv ready for the other scripts: builds it or adds packages, unless it is complete.

It uses the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(".venv", "microbench.json")
FAILED = 2
INTERRUPTED = 130

State = Mapping[str, str | int | bool | None]


class SetUpError(Exception):
    """The environment cannot be made. The text is the cause and the next step on one line."""


def driver_cuda(library: str = "libcuda.so.1") -> int | None:
    """The major version of CUDA that the driver supports, such as 13; None without a driver."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000


def packages_for(cuda: int | None) -> str | None:
    """The extra to install: cu12 or cu13 (a newer driver runs older packages); None for no GPU packages."""
    return None if cuda is None or cuda < 12 else "cu12" if cuda == 12 else "cu13"


def state_wanted(root: Path, gpu_packages: str | None, tests: bool) -> State:
    """What .venv must be made of, including the paths of checkout and Python, which its scripts contain."""
    declared = b"".join((root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    return {
        "gpu_packages": gpu_packages,
        "tests": tests,
        "declared": hashlib.sha256(declared).hexdigest(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "root": str(root),
    }


def state_recorded(root: Path) -> State:
    """What .venv is made of; empty if there is none or its set-up did not finish."""
    try:
        state = json.loads((root / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) and (root / ".venv/bin/microbench").exists() else {}


def is_ready(recorded: State, wanted: State) -> bool:
    """True if nothing needs to be installed. An environment with the test tools also serves without them."""
    return recorded in (wanted, {**wanted, "tests": True})


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Wait for another set-up of the same checkout. The folder itself is locked, so no lock file stays behind."""
    folder = os.open(root / "scripts", os.O_RDONLY)
    try:
        # Some network file systems have no locks; two set-ups at once are rare enough to go on without one.
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def requirement(root: Path, wanted: State) -> str:
    """What pip is to install: the checkout with its extras."""
    extras = [wanted["gpu_packages"]] if wanted["gpu_packages"] else []
    if wanted["tests"]:
        extras += ["test"] if wanted["gpu_packages"] else ["test", "compile"]
    return f"{root}[{','.join(str(extra) for extra in extras)}]" if extras else str(root)


def create(root: Path) -> None:
    """Make an empty .venv, marked as ours. Raises SetUpError if it exists and is not ours, or cannot be made."""
    folder = root / ".venv"
    if folder.exists() and any(folder.iterdir()) and not (root / RECORD).exists():
        raise SetUpError(f"{folder} was not made by this script: move it away and call again")
    if importlib.util.find_spec("ensurepip") is None:
        raise SetUpError(
            f"{sys.executable} has no ensurepip: install python3-venv, or name a Python in MICROBENCH_PYTHON"
        )
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    (root / RECORD).touch()
    venv.create(folder, with_pip=True, symlinks=True)


def install(root: Path, wanted: State) -> None:
    """Let pip fill .venv; its log shows only if it fails, on stderr. Raises SetUpError."""
    command = [str(root / ".venv/bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--constraint", str(root / "constraints.txt"), "--editable", requirement(root, wanted)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        raise SetUpError("pip could not install the packages; its reason is above: fix it and call again")


def make_ready(root: Path, wanted: State) -> None:
    """Install what is missing. The record is written last, so that an interrupted set-up starts again the next time.

    Raises SetUpError.
    """
    if is_ready(state_recorded(root), wanted):
        return
    with one_at_a_time(root):
        recorded = state_recorded(root)
        if is_ready(recorded, wanted):
            return
        gpu = f"packages for CUDA {str(wanted['gpu_packages'])[2:]}" if wanted["gpu_packages"] else "no GPU packages"
        print(
            f"microbench: making .venv ready with Python {wanted['python']} and {gpu}, once; this takes minutes",
            file=sys.stderr,
        )
        target = wanted
        # Other GPU packages, another Python or a moved folder need a new environment.
        if recorded and all(recorded.get(key) == wanted[key] for key in ("gpu_packages", "python", "root")):
            # Installed test tools stay, so that calling the two scripts in turn does not install them again and again.
            target = {**wanted, "tests": wanted["tests"] or recorded["tests"]}
            (root / RECORD).write_text("", encoding="utf-8")
        else:
            create(root)
        install(root, target)
        (root / RECORD).write_text(json.dumps(target), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Exit code 0 when .venv is ready."""
    try:
        make_ready(ROOT, state_wanted(ROOT, packages_for(driver_cuda()), "--tests" in arguments))
    except KeyboardInterrupt:
        print("microbench: interrupted; the next call starts the set-up again", file=sys.stderr)
        return INTERRUPTED
    except SetUpError as error:
        print(f"microbench: {error}", file=sys.stderr)
        return FAILED
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"microbench: .venv cannot be made here ({error}): move the checkout to a folder that you can write to",
            file=sys.stderr,
        )
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
