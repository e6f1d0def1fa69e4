"""The names of cuda.bindings.nvrtc, looked up when they are first used, as in driver.py."""

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    from cuda.bindings import nvrtc

    found = getattr(nvrtc, name)
    setattr(sys.modules[__name__], name, found)
    return found
