"""Which CPU goes to whom, and that a user's own pinning holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from microbench.core.errors import Skip
from microbench.host.affinity import cpus_near, find_cores, on_cores, pinned
from microbench.host.native import NativeHost


def two_nodes(root: Path) -> Path:
    """A machine of two sockets with two cores each and two threads a core: CPUs 0 to 7, siblings four apart."""
    for cpu in range(8):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n", encoding="utf-8")
    (root / "sys/devices/system/cpu/online").write_text("0-7\n", encoding="utf-8")
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="utf-8")
    return root


def test_worker_and_watcher_sit_on_the_gpu_s_node_and_helpers_one_a_core(tmp_path: Path) -> None:
    cores = find_cores(1, two_nodes(tmp_path), range(8))
    assert (cores.plan.worker_core, cores.plan.watcher_core) == (2, 3)
    assert cores.helpers == (2, 3, 0, 1)
    assert cores.watcher_alone


def test_only_what_is_allowed_is_used(tmp_path: Path) -> None:
    cores = find_cores(0, two_nodes(tmp_path), (1, 3))
    assert cores.allowed == {1, 3}
    assert set(cores.helpers) == {1, 3}


def test_with_one_cpu_the_watcher_is_not_alone(tmp_path: Path) -> None:
    cores = find_cores(None, two_nodes(tmp_path), (5,))
    assert cores.helpers == (5,)
    assert not cores.watcher_alone


def test_a_user_s_pinning_holds_and_pinned_ends() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with pinned(one):
        assert find_cores().allowed == one
        assert on_cores(lambda: os.sched_getaffinity(0), one).result() == one
    assert os.sched_getaffinity(0) == before


def test_no_node_means_every_cpu_that_is_allowed() -> None:
    assert cpus_near(None, (0, 1)) == {0, 1}
    assert cpus_near(977, (0, 1)) == {0, 1}


def test_a_hand_off_needs_a_second_cpu() -> None:
    with pinned({min(os.sched_getaffinity(0))}):
        host = NativeHost()
    with pytest.raises(Skip, match="second CPU"):
        host.wakeup_stamps("spin", 1)
