"""Checks on a real GPU: the check of some work fails before its calls and passes after them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.protocol.gpu import Gpu, Submit


@contextmanager
def may_skip() -> Iterator[None]:
    """What this machine lacks for the work of the block skips the test."""
    try:
        yield
    except Skip as skip:
        pytest.skip(str(skip))


class Checked(Protocol):
    submit: Submit

    def fresh(self) -> None: ...

    def check(self) -> str: ...


def proven(gpu: Gpu, work: Checked, wrong: str | re.Pattern[str], calls: tuple[int, ...] = (1,)) -> None:
    """After each of these numbers of calls the result is right; on fresh operands, before any call, it is ``wrong``."""
    for count in calls:
        work.fresh()
        with pytest.raises(MeasurementError, match=wrong):
            work.check()
        work.submit(count)
        gpu.synchronize()
        assert "compared" in work.check()
        assert work.check() == work.check(), "a check changes nothing"
    work.fresh()
    with pytest.raises(MeasurementError, match=wrong):
        work.check()
