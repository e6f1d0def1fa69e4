"""Begins the recording of a process at its first import of a GPU package; `microbench watch` puts it on PYTHONPATH.

Every Python that the program starts runs this file, so it is written for old versions too, imports nothing before it
must, and hands on to the sitecustomize that it hides.
"""

import os
import sys

PACKAGES = {
    "torch", "cupy", "jax", "jaxlib", "tensorflow", "triton", "cuda", "numba.cuda", "pycuda", "warp", "tensorrt", "rmm",
    "cudf",
}  # fmt: skip
FIRST_PYTHON = (3, 9)  # that the recorder is written for
HERE = os.path.dirname(os.path.abspath(__file__))
VARIABLE = "MICROBENCH_WATCH"


class _FirstImport:
    """A finder that asks the other finders, and begins the recording when one of them has found a GPU package."""

    def find_spec(self, name: str, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in PACKAGES or self not in sys.meta_path:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self.begin(name)
                return spec
        return None

    def begin(self, package: str) -> None:
        """Begin once, whichever thread comes first."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return
        _begin(package)


def _begin(package: str) -> None:
    """Record this process; if that is impossible, leave the reason for the end of the watched program."""
    import json

    try:
        settings = json.loads(os.environ[VARIABLE])
        reasons, library = settings["reasons"], settings["library"]
    except (KeyError, TypeError, ValueError):  # the program has changed the variable
        return

    def tell(cause: str, next_step: str) -> None:
        try:
            with open(os.path.join(reasons, str(os.getpid())), "a") as file:
                file.write(json.dumps([cause, next_step]) + "\n")
        except OSError:
            pass

    try:
        if sys.version_info < FIRST_PYTHON:
            if not settings["injected"]:  # otherwise the library records this process when CUDA starts
                tell(sys.executable + " is older than Python 3.9", "run the program with a newer Python")
            return
        import importlib.util

        if not _taken(library):
            return

        # Under a name of its own, because the program may use another version of microbench itself.
        name, room = "_microbench_watch", os.path.dirname(HERE)
        where = os.path.join(room, "__init__.py")
        spec = importlib.util.spec_from_file_location(name, where, submodule_search_locations=[room])
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        recorder = importlib.import_module(name + ".recorder")
        recorder.begin(package, settings, tell)
    except Exception as error:  # noqa: BLE001  (the program matters more than its recording, whatever goes wrong)
        what = str(error) or type(error).__name__
        tell(what.splitlines()[0], getattr(error, "next_step", "please report this, with the program that was watched"))


def _taken(library: str) -> bool:
    """Take this process for Python. False if the library, which CUDA has loaded, records it already."""
    import ctypes

    return bool(ctypes.CDLL(library).microbench_take_process())


def _hand_on() -> None:
    """Import the sitecustomize that this one hides. Python reports its exceptions as it would without this file."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


if os.environ.get(VARIABLE):
    first_import = _FirstImport()
    sys.meta_path.insert(0, first_import)
    if not PACKAGES.isdisjoint(sys.modules):
        first_import.begin("(imported before)")
_hand_on()
