"""`microbench graph` of functions of CuPy, whose graphs are played on the CPU. On a GPU: lab/array_traps.py."""

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from played_cupy import installed

with installed():
    array_traps: Any = importlib.import_module("array_traps")
    from traps import notices, report_of, said

    from microbench.capture import blockers, making, proof, suspects

OF_A_GPU = {
    name
    for name in (*array_traps.TRAPS, *array_traps.SOUND)
    if name.startswith(("numba", "cuda_core", "raw_", "elementwise_k", "reduction_k", "fused", "own_generator"))
} | {"adds_at_indices"}


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(proof, "CALLS", 24)
    monkeypatch.setattr(making, "ROUND_S", 0.001)
    monkeypatch.setattr(blockers, "broken", lambda stream: False)
    monkeypatch.setattr(suspects, "operations", lambda call, **_: Counter({1: 1}))  # which the driver counts
    with installed() as package:
        monkeypatch.setattr(array_traps, "cp", package)
        yield package


@pytest.mark.parametrize("name", [one for one in array_traps.TRAPS if one not in OF_A_GPU])
def test_a_function_whose_graph_is_wrong_is_refused_with_its_reason(name: str) -> None:
    maker, wanted = array_traps.TRAPS[name]
    report = report_of(maker)
    assert not report.proved
    assert re.search(wanted, said(report)), said(report)


@pytest.mark.parametrize("name", [one for one in array_traps.SOUND if one not in OF_A_GPU])
def test_a_sound_function_is_proved(name: str) -> None:
    report = report_of(array_traps.SOUND[name])
    assert report.proved, said(report)
    assert report.counts["replays"] >= 20


@pytest.mark.parametrize("name", array_traps.SETTINGS)
def test_a_setting_that_the_caller_changes_between_calls_is_noticed(name: str) -> None:
    report = report_of(array_traps.SETTINGS[name])
    assert report.proved, said(report)
    assert notices(array_traps.SETTINGS[name])
