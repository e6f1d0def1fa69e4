"""The names of cuda.bindings.driver, and of cuda.bindings.nvrtc, looked up when they are first used.

So experiments can be imported, listed and simulated where the package is not installed.
"""

import importlib
import sys
from typing import Any


def __getattr__(name: str) -> Any:
    bindings = importlib.import_module(f"cuda.bindings.{'nvrtc' if name.startswith('nvrtc') else 'driver'}")
    found = getattr(bindings, name)
    setattr(sys.modules[__name__], name, found)
    return found
