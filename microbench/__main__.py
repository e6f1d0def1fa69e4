"""`python -m microbench` and the command microbench. Ctrl-C while the packages are imported ends it quietly.

`microbench watch` starts again without the variables and the folder of Python that are meant for its command.
"""

import os
import sys

INTERRUPTED = 130  # ExitCode.INTERRUPTED, whose import takes long enough to be interrupted
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CALLER_IGNORES = "microbench_caller_ignores"  # the option -X with the signals that the caller ignores
CALLER_BLOCKS = "microbench_caller_blocks"  # and that of scripts/microbench with those which the caller blocks
PYTHON_IGNORES = 1 << 12 | 1 << 24  # SIGPIPE and SIGXFSZ
# These hand on what they ignore, and ignore neither by themselves.
HAND_ON = ("sh", "bash", "dash", "zsh", "ksh", "busybox", "systemd", "timeout", "xargs", "find", "make")


def main() -> None:
    """Run the command line. Where a shell has switched Ctrl-C off, as for what it starts with &, it stays off."""
    if sys.argv[1:2] == ["watch"]:
        _start_clean()
    import gc
    import signal

    gc.set_threshold(200_000)  # many objects and few cycles: searching for these took 5 % of a screen
    if isinstance(blocked := sys._xoptions.get(CALLER_BLOCKS), str):
        signal.pthread_sigmask(
            signal.SIG_SETMASK, {one for one in signal.valid_signals() if int(blocked, 16) >> one - 1 & 1}
        )
    interruptible = signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    if interruptible:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    from microbench.cli.app import main as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except SystemExit as ended:
        # DuckDB reports what is left as leaks; an import of it that was interrupted is not in sys.modules.
        if not ended.code and "duckdb" not in sys.modules:
            gc.freeze()  # or Python would search everything for cycles before it ends
        raise


def _start_clean() -> None:
    """Start Python again, without the environment that is meant for the command (PYTHONPATH, PYTHONINSPECT and so on),
    and without the working folder. Packages that only PYTHONPATH has are still found, after Python's own.

    Until then only modules that Python has loaded already may be imported.
    """
    began_with = {entry.partition(b"=")[0] for entry in _content("/proc/self/environ").split(b"\0")}
    if b"LC_CTYPE" not in began_with:
        os.environ.pop("LC_CTYPE", None)  # Python sets it in a locale of ASCII, for its own sake
    if sys.flags.ignore_environment and sys.flags.safe_path:
        sys.argv[0] = "microbench"
        if ROOT not in sys.path:
            sys.path.insert(0, ROOT)
        sys.path += [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        return
    options = ["-E", "-P", "-X", f"{CALLER_IGNORES}={_caller_ignores():x}"]
    options += ["-B"] * sys.flags.dont_write_bytecode + ["-s"] * sys.flags.no_user_site
    options += ["-X", "utf8"] * sys.flags.utf8_mode
    if sys.pycache_prefix:
        options += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    this = os.path.join(ROOT, "microbench", "__main__.py")
    if os.path.isfile(this) and sys.executable:
        os.execv(sys.executable, [sys.executable, *options, this, *sys.argv[1:]])


def _caller_ignores() -> int:
    """The signals that were ignored when this process began, a bit each. Python itself ignores two; of these the parent
    is asked, if it hands on what it ignores. scripts/microbench knows them."""
    own, parent = _ignores("self"), str(os.getppid())
    hands_on = _content(f"/proc/{parent}/comm").decode(errors="replace").strip() in HAND_ON
    return own & ~PYTHON_IGNORES | (_ignores(parent) & PYTHON_IGNORES if hands_on else 0)


def _ignores(process: str) -> int:
    after = _content(f"/proc/{process}/status").partition(b"SigIgn:")[2].split(maxsplit=1)
    return int(after[0], 16) if after else 0


def _content(path: str) -> bytes:
    """What a file of /proc holds; nothing if it is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
