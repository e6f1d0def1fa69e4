"""Functions of the host that the driver calls from threads of its own: compiled, as Python would need its lock."""

from __future__ import annotations

import numba
from numba import types

from microbench.host.loops import load_flag, store_flag


@numba.cfunc(types.void(types.int64), cache=True)
def append_on_host(words: int) -> None:
    """A host function of a graph or stream: the word after the one at ``words`` becomes that and 1."""
    store_flag(words + 4, load_flag(words) + 1)
