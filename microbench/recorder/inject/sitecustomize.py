# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Begins the recording of a process when it first imports a GPU package; `microbench watch` puts it on PYTHONPATH.

Every Python that the program starts runs this file, so it is written for all versions from 2.7 on, imports nothing
before it must, and hands on to the sitecustomize that it hides. Where variables or options of Python hide this file
itself, the library runs it when CUDA starts: recorder.c.
"""

import os
import sys

PACKAGES = {
    "torch", "cupy", "jax", "jaxlib", "tensorflow", "triton", "numba.cuda", "pycuda", "warp", "tensorrt", "rmm", "cudf",
}  # fmt: skip
NAMESPACE = "cuda."  # its packages are NVIDIA's: cuda.bindings, cuda.core and so on
FIRST_PYTHON = (3, 9)  # that the recorder is written for
FIRST_FINDERS = (3, 4)  # that look for modules as the finder below does
HERE = os.path.dirname(os.path.abspath(__file__))
VARIABLE, REASONS = "MICROBENCH_WATCH", "MICROBENCH_WATCH_REASONS"


class _FirstImport:
    """A finder that asks the other finders, and has the recording begin when what they found is executed: a program may
    only ask whether it could import a package."""

    def find_spec(self, name, path=None, target=None):
        if not (name in PACKAGES or name.startswith(NAMESPACE)) or self not in sys.meta_path:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self.begin_before(spec)
                return spec
        return None

    def begin_before(self, spec):
        """Begin when the import system makes the module of a package, after which it executes it; at once if its loader
        does not let itself be changed. An exception of the package then has no frame of this file."""
        loader, name = spec.loader, spec.name
        if loader is None:  # a folder without code
            return

        def begin_and_create(spec):
            if spec.name == name:  # a loader may be that of several modules
                vars(loader).pop("create_module", None)
                self.begin(name)
            return create(spec)

        try:
            create = loader.create_module
            vars(loader)["create_module"] = begin_and_create
        except (AttributeError, TypeError):  # it is a class, or has slots
            self.begin(name)

    def begin(self, package):
        """Begin once, whichever thread comes first."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return
        _begin(package)


def _begin(package):
    """Record this process from the import of this package on. Without a package the library records it already, and
    Python joins. If that is impossible, leave the reason for the end of the watched program."""
    reasons = os.environ.get(REASONS)
    if not reasons:  # the program has changed the variables
        return

    def tell(cause, next_step):
        try:
            with open(os.path.join(reasons, str(os.getpid())), "a") as file:
                file.write("[" + _quoted(cause) + ", " + _quoted(next_step) + "]\n")
        except OSError:
            pass

    try:
        import json

        try:
            settings = json.loads(os.environ[VARIABLE])
            library, injected = settings["library"], settings["injected"]
        except (KeyError, TypeError, ValueError):  # the program has changed the variable
            return
        if sys.version_info < FIRST_PYTHON:
            if not injected:  # otherwise the library records this process when CUDA starts
                tell(sys.executable + " is older than Python 3.9", "run the program with a newer Python")
            return
        import importlib.machinery
        import importlib.util

        if package and not _taken(library):
            return

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname):
                return _unseen(super().get_code(fullname))

        # Under a name of its own, because the program may use another version of microbench itself.
        name, room = "_microbench_watch", os.path.dirname(os.path.realpath(HERE))
        where = os.path.join(room, "__init__.py")
        spec = importlib.util.spec_from_file_location(name, where, submodule_search_locations=[room])
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path_importer_cache[room] = importlib.machinery.FileFinder(room, (Loader, [".py"]))
        try:
            recorder = importlib.import_module(name + ".recorder")
        finally:
            sys.path_importer_cache.pop(room, None)
        (recorder.obey if settings["orders"] else recorder.begin)(package, settings, tell)
    except Exception as error:  # noqa: BLE001  (the program matters more than its recording, whatever goes wrong)
        what = (str(error) or type(error).__name__).splitlines()[0]
        if package is None and what.endswith("at interpreter shutdown"):  # too late for a thread
            return
        what = what if package else "lines of Python, because " + what
        tell(what, getattr(error, "next_step", "please report this, with the program that was watched"))


def _unseen(code):
    """Code in no file, with all code in it: what measures the coverage of the program leaves it out."""
    within = tuple(_unseen(one) if hasattr(one, "co_code") else one for one in code.co_consts)
    return code.replace(co_filename="<microbench>/" + os.path.basename(code.co_filename), co_consts=within)


def _quoted(text):
    """A string of JSON; the program's own json may be another one."""
    plain = (one if " " <= one <= "~" and one not in '"\\' else "\\u" + format(ord(one), "04x") for one in text)
    return '"' + "".join(plain) + '"'


def _taken(library):
    """Take this process for Python. False if the library, which CUDA has loaded, records it already."""
    import ctypes

    return bool(ctypes.CDLL(library).microbench_take_process())


def _hand_on():
    """Import the sitecustomize that this one hides. Python reports its exceptions as it would without this file."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize" and str(error) != "No module named sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


def _join():
    """Have Python join the recording. If a module of Python's own library is only half imported now, a thread does so,
    which waits for the import. It must not import threading, which takes the thread that does so for the main one."""
    library = os.path.join(os.path.dirname(os.__file__), "")
    specs = [vars(one).get("__spec__") for one in list(sys.modules.values()) if type(one) is type(sys)]
    half = {one.name: str(one.origin) for one in specs if one is not None and getattr(one, "_initializing", False)}
    if not any(origin.startswith(library) and "-packages" not in origin for origin in half.values()):
        _begin(None)
    elif "threading" in sys.modules and "threading" not in half:
        import _signal  # type: ignore[import-not-found]  # signal may be half imported
        import _thread

        before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            _thread.start_new_thread(_begin, (None,))
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


if __name__ == "sitecustomize":
    if os.environ.get(VARIABLE) and sys.version_info >= FIRST_PYTHON:
        for each in list(vars(_FirstImport).values()) + list(globals().values()):
            if hasattr(each, "__code__"):
                each.__code__ = _unseen(each.__code__)
    if os.environ.get(VARIABLE) and sys.version_info >= FIRST_FINDERS:
        first_import = _FirstImport()
        sys.meta_path.insert(0, first_import)
        if not PACKAGES.isdisjoint(sys.modules):  # by a file of a folder of packages, before this one
            first_import.begin("(imported before)")
    _hand_on()
else:
    _join()
