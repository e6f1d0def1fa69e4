"""Checks on a real GPU: the check of some work fails before its calls and passes after them."""

import re
from typing import Protocol

import pytest

from microbench.core.errors import MeasurementError
from microbench.gpu.protocol.gpu import Gpu, Submit


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
