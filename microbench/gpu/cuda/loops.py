"""The compiled loops of host/, imported when one is first used: Numba takes half a second to import.

So experiments can be imported, listed and simulated quickly.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microbench.host.graph_loops import *  # noqa: F403
    from microbench.host.loops import *  # noqa: F403


def __getattr__(name: str) -> Any:
    for place in ("loops", "graph_loops"):
        module = importlib.import_module(f"microbench.host.{place}")
        if hasattr(module, name):
            setattr(sys.modules[__name__], name, getattr(module, name))
            return getattr(module, name)
    raise AttributeError(f"host/ has no compiled loop {name}")
