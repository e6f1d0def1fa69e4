"""The names of cuda.bindings.driver, looked up when they are first used.

So experiments can be imported, listed and simulated where the package is not installed.
"""

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    from cuda.bindings import driver

    found = getattr(driver, name)
    setattr(sys.modules[__name__], name, found)
    return found
