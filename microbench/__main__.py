"""`python -m microbench` and the command microbench. Ctrl-C while the packages are imported ends it quietly."""

import os
import signal

INTERRUPTED = 130  # ExitCode.INTERRUPTED, whose import takes long enough to be interrupted


def main() -> None:
    """Run the command line. Where a shell has switched Ctrl-C off, as for what it starts with &, it stays off."""
    interruptible = signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    if interruptible:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    from microbench.cli.app import main as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
