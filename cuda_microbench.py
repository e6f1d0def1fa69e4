"""What the command microbench starts: if another package called microbench is imported, it says so and ends."""

import sys


def main() -> None:
    """Run the command line; exit code 2 if ``import microbench`` gives another package."""
    try:
        from microbench.__main__ import main as run
        from microbench.core import version  # noqa: F401
    except ImportError:
        import microbench

        place = getattr(microbench, "__file__", None) or "nothing"
        print(
            f"error: `import microbench` gives {place!a}, not the package of cuda-microbench\n"
            "next:  pip uninstall microbench, then install this one again from its checkout or wheel",
            file=sys.stderr,
        )
        sys.exit(2)
    run()
