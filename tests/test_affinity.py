"""Which CPU goes to whom, and that a user's own pinning holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_trees import unpack

from microbench.core.errors import Skip
from microbench.host.affinity import cpus_near, find_cores, on_cores, pinned
from microbench.host.native import NativeHost


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two nodes of four cores each; CPUs n and n + 8 share core n."""
    return unpack("server", tmp_path)


def test_worker_and_watcher_sit_on_the_gpu_s_node_and_helpers_on_a_core_each(server: Path) -> None:
    cores = find_cores(1, server, range(16))
    assert (cores.plan.worker_core, cores.plan.watcher_core) == (4, 5)
    assert cores.helpers == (4, 5, 6, 7, 0, 1, 2, 3)
    assert cores.watcher_alone


def test_only_what_is_allowed_is_used(server: Path) -> None:
    cores = find_cores(0, server, (1, 3))
    assert cores.allowed == {1, 3} == set(cores.helpers)
    alone = find_cores(None, server, (5,))
    assert alone.helpers == (5,)
    assert not alone.watcher_alone


def test_a_user_s_pinning_holds_and_pinned_ends() -> None:
    before = os.sched_getaffinity(0)
    lowest = {min(before)}
    with pinned(lowest):
        assert find_cores().allowed == lowest
        assert on_cores(lambda: os.sched_getaffinity(0), lowest).result() == lowest
    assert os.sched_getaffinity(0) == before


def test_no_node_means_every_cpu_that_is_allowed() -> None:
    assert cpus_near(None, (0, 1)) == {0, 1}
    assert cpus_near(977, (0, 1)) == {0, 1}


def test_a_hand_off_needs_a_second_cpu() -> None:
    with pinned({min(os.sched_getaffinity(0))}):
        host = NativeHost()
    with pytest.raises(Skip, match="second CPU"):
        host.wakeup_stamps("spin", 1)
