"""Programs with one slow thing between their steps, which must be named; `lab/culprits.py` runs all of them."""

import platform
from pathlib import Path

import pytest
from culprits import CULPRITS, run
from watched import Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder is for x86-64 alone"),
]
SAMPLE = (  # not Python's lock, of which a busy machine leaves the main thread less
    "a loop of its own", "a sleep", "a hook of a package", "a collection of garbage", "a lock by with",
    "a queue whose other end computes", "a loader that starves", "a loader of another process", "print to a slow pipe",
    "a process that is started", "an import in the loop", "a busy process on its core",
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_the_owner_of_a_slow_thing_has_its_time(place: Place, tmp_path: Path, name: str) -> None:
    """Its owner has 90 % of its time or more on a quiet machine, and 80 % beside other tests."""
    culprit = CULPRITS[name]
    found = run(place, tmp_path, culprit)
    assert found.owners[0].name == culprit.owner, found
    assert found.of(culprit) > 0.8 * found.injected_s, found
    assert culprit.place in found.owners[0].most
