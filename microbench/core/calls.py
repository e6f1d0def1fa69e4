"""Runs a function of the user whole: one that is async on an event loop, a generator to its end."""

import asyncio
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from microbench.core.errors import UsageError


def run_whole(call: Callable[[], Any], kind: Callable[..., Any]) -> Callable[[], Any]:
    """The call of a function, awaited on one event loop if it is ``async def``, and exhausted if it is a generator.

    Of what a generator yields the last is the result. The call raises UsageError where it would have to await in a
    thread whose event loop runs already.
    """
    if inspect.isgeneratorfunction(kind):
        return lambda: _last(call())
    if not (inspect.iscoroutinefunction(kind) or inspect.isasyncgenfunction(kind)):
        return call
    loop = asyncio.new_event_loop()

    async def awaited() -> Any:
        result = call()
        return _last([each async for each in result]) if inspect.isasyncgen(result) else await result

    def run() -> Any:
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "an async function cannot be run here, where an event loop runs already",
                "call this in code that is not async, or in a thread: await asyncio.to_thread(…)",
            )
        return loop.run_until_complete(awaited())

    weakref.finalize(run, loop.close)
    return run


def _last(several: Iterable[Any]) -> Any:
    kept = deque(several, maxlen=1)
    return kept.pop() if kept else None
