"""Host facts from recorded trees, each with its source or a reason, and the assignment of CPUs to threads."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import snapshots
from hypothesis import given
from hypothesis import strategies as st
from recorded_trees import unpack, write

from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.host import affinity
from microbench.host.facts import GOVERNORS, host_facts, worst
from microbench.host.files import Machine, as_cpu_list, cpu_list
from microbench.host.native import NativeHost

CPUS = "sys/devices/system/cpu"


def facts_of(root: Path, environment: dict[str, str] | None = None) -> dict[str, Fact]:
    return {fact.name: fact for fact in host_facts(root, environment or {})}


def values(root: Path, environment: dict[str, str] | None = None) -> dict[str, object]:
    return {name: fact.value for name, fact in facts_of(root, environment).items()}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two nodes of four cores each; CPUs n and n + 8 share core n."""
    return unpack("server", tmp_path)


@pytest.mark.parametrize("tree", ["server", "virtual_machine", "container"])
def test_every_fact_of_a_recorded_machine(tmp_path: Path, tree: str) -> None:
    snapshots.same_facts(f"host-{tree}", host_facts(unpack(tree, tmp_path), {}))


def test_an_empty_machine_gives_reasons_and_never_raises(tmp_path: Path) -> None:
    found = host_facts(tmp_path, {})
    assert len({fact.name for fact in found}) == len(found)
    unknown = [fact for fact in found if fact.value is None]
    assert len(unknown) > 20
    assert all(fact.reason and fact.source for fact in unknown)
    assert all(fact.reason is None for fact in found if fact.value is not None)
    assert all(fact.source for fact in host_facts()), "here too"


def test_unreadable_files_are_unknown_not_fatal(server: Path) -> None:
    path = server / f"{CPUS}/smt/active"
    path.unlink()
    path.mkdir()  # reading a folder fails for root as well
    fact = facts_of(server)["smt_active"]
    assert fact.value is None
    assert fact.reason == "is a directory"


@pytest.mark.parametrize(("path", "text", "name", "value"), [
    ("proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2", "virtualization", "wsl"),
    ("proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2", "wsl", True),
    ("proc/version", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", "container", "gvisor"),
    ("sys/class/dmi/id/sys_vendor", "Amazon EC2", "virtualization", "none"),  # its bare metal is bare metal
    ("proc/self/cgroup", "0::/kubepods/besteffort/pod1", "container", "kubernetes"),
    ("proc/self/cgroup", "0::/system.slice/docker-0123456789ab.scope", "container", "docker"),
    ("run/.containerenv", "", "container", "podman"),
    (".dockerenv", "", "container", "docker"),
])  # fmt: skip
def test_virtual_machines_and_containers(server: Path, path: str, text: str, name: str, value: object) -> None:
    write(server, path, text)
    assert values(server)[name] == value


def test_variables_that_change_launches_are_listed_and_others_not(server: Path) -> None:
    environment = {"CUDA_LAUNCH_BLOCKING": "1", "NUMBA_CUDA_DEBUGINFO": "1", "CUDA_HOME": "/usr/local/cuda", "KEY": "x"}
    found = values(server, environment)
    assert found["launch_variables"] == "CUDA_LAUNCH_BLOCKING, NUMBA_CUDA_DEBUGINFO"
    assert found["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "CUDA_HOME" not in found
    assert "KEY" not in found


@pytest.mark.parametrize(("environment", "profiler"), [
    ({"NSYS_PROFILING_SESSION_ID": "7"}, "Nsight Systems"),
    ({"NV_NSIGHT_INJECTION_PORT_BASE": "49152"}, "Nsight Compute"),
    ({"LD_PRELOAD": "/opt/sanitizer/libsanitizer-collection.so"}, "Compute Sanitizer"),
    ({"CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"}, "Nsight Systems"),
    ({"CUDA_INJECTION64_PATH": "/home/me/mine.so"}, "the library /home/me/mine.so"),
    ({"LD_PRELOAD": "/usr/lib/libjemalloc.so"}, "none"),
    ({"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}, "none"),
])  # fmt: skip
def test_profilers(server: Path, environment: dict[str, str], profiler: str) -> None:
    assert values(server, environment)["profiler"] == profiler


def test_mps(server: Path) -> None:
    assert values(server)["mps"] == "off"
    write(server, "tmp/nvidia-mps/control", "")
    assert values(server)["mps"] == "control pipe without a visible daemon"
    assert values(server, {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})["mps"] == "off"
    write(server, "proc/99/comm", "nvidia-cuda-mps")
    assert values(server, {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})["mps"] == "running"


def test_the_worst_governor_is_shown_and_an_unknown_one_is_worse_than_all() -> None:
    assert worst(("performance", "ondemand", "performance"), GOVERNORS) == "ondemand"
    assert worst(("performance", "powersave"), GOVERNORS) == "powersave"
    assert worst(("powersave", "vendor_special"), GOVERNORS) == "vendor_special"


def test_a_disabled_idle_state_does_not_count(server: Path) -> None:
    for state in ("state2", "state3"):
        write(server, f"{CPUS}/cpu1/cpuidle/{state}/disable", "1")
    found = values(server)
    assert found["c_state_deepest"] == "C1"
    write(server, f"{CPUS}/cpu1/cpuidle/state3/disable", "0")
    assert values(server)["c_state_deepest"] == "C3"


def test_the_tightest_cgroup_limit_counts(server: Path) -> None:
    write(server, "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.max", str(1 << 30))
    write(server, "sys/fs/cgroup/user.slice/cpu.max", "50000 100000")
    found = facts_of(server)
    assert found["memory_limit_bytes"].value == 1 << 30
    assert found["memory_limit_bytes"].source.endswith("session-3.scope/memory.max")
    assert found["cpu_quota"].value == 0.5


def test_a_given_plan_is_recorded_as_it_is(server: Path) -> None:
    cores = affinity.Cores(5, (7, 15), 6, (5, 6, 7), frozenset((5, 6, 7, 15)))
    found = {fact.name: fact.value for fact in host_facts(server, {}, cores)}
    assert (found["submit_core"], found["watcher_core"], found["parent_cores"]) == (5, 6, "7,15")
    assert (found["submit_core_siblings"], found["submit_core_numa_node"]) == ("13", 1)
    assert (found["cpu_affinity_count"], found["physical_core_count"]) == (4, 3)


@pytest.mark.parametrize(("allowed", "near_node", "plan"), [
    (range(16), None, (1, (0, 8, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), 2)),  # not core 0, no siblings
    (range(16), 1, (4, (0, 8, 1, 9, 2, 10, 3, 11, 6, 14, 7, 15), 5)),
    ((0, 1, 4, 5), None, (1, (4, 5), 0)),  # the watcher on the worker's node, even on core 0
    ((0, 1, 2), 1, (1, (0,), 2)),  # no core near the GPU
    ((3,), None, (3, (3,), 3)),
    ((0, 1), None, (1, (0,), 0)),
    ((2, 10), None, (2, (10,), 10)),  # one core, two threads: only a sibling is left
    ((1, 9, 2, 10), None, (1, (10,), 2)),  # two cores: the parent shares the watcher's
])  # fmt: skip
def test_plans_of_servers(server: Path, allowed: Sequence[int], near_node: int | None, plan: object) -> None:
    assert affinity.find_cores(near_node, server, allowed)[:3] == plan


def test_plan_without_sysfs_takes_each_cpu_for_a_core_and_needs_one(tmp_path: Path) -> None:
    assert affinity.find_cores(None, tmp_path, (0, 1, 2))[:3] == (1, (0,), 2)
    with pytest.raises(ValueError, match="no CPU"):
        affinity.find_cores(None, tmp_path, ())


@given(st.sets(st.integers(0, 15), min_size=1), st.sampled_from([None, 0, 1, 7]))
def test_plan_uses_allowed_cpus_and_shares_no_more_than_it_must(
    tmp_path_factory: pytest.TempPathFactory, allowed: set[int], near_node: int | None
) -> None:
    root = tmp_path_factory.getbasetemp() / "server_of_plans"
    if not root.exists():
        unpack("server", root)
    plan = affinity.find_cores(near_node, root, allowed)
    assert {plan.worker_core, plan.watcher_core, *plan.parent_cores} <= allowed
    cores = {cpu % 8 for cpu in allowed}
    worker, watcher = plan.worker_core % 8, plan.watcher_core % 8
    parents = {cpu % 8 for cpu in plan.parent_cores}
    assert (worker != watcher) == (len(cores) > 1)
    assert (worker not in parents) == (len(cores) > 1)
    assert (watcher not in parents) or len(cores) < 3


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_go_both_ways(cpus: set[int]) -> None:
    assert cpu_list(as_cpu_list(cpus)) == tuple(sorted(cpus))


def test_cores_keep_only_their_allowed_cpus(server: Path) -> None:
    assert [core.cpus for core in affinity.physical_cores(Machine(server), (1, 9, 10))] == [(1, 9), (10,)]


def test_worker_and_watcher_sit_on_the_gpu_s_node_and_helpers_on_a_core_each(server: Path) -> None:
    cores = affinity.find_cores(1, server, range(16))
    assert (cores.worker_core, cores.watcher_core) == (4, 5)
    assert cores.helpers == (4, 5, 6, 7, 0, 1, 2, 3)
    assert cores.watcher_alone


def test_only_what_is_allowed_is_used(server: Path) -> None:
    cores = affinity.find_cores(0, server, (1, 3))
    assert cores.allowed == {1, 3} == set(cores.helpers)
    alone = affinity.find_cores(None, server, (5,))
    assert alone.helpers == (5,)
    assert not alone.watcher_alone
    assert affinity.cpus_near(None, (0, 1)) == affinity.cpus_near(977, (0, 1)) == {0, 1}


def test_a_user_s_pinning_holds_and_pinned_ends() -> None:
    before = os.sched_getaffinity(0)
    lowest = {min(before)}
    with affinity.pinned(lowest):
        assert affinity.find_cores().allowed == lowest
        assert affinity.on_cores(lambda: os.sched_getaffinity(0), lowest).result() == lowest
    assert os.sched_getaffinity(0) == before


def test_a_hand_off_needs_a_second_cpu() -> None:
    with affinity.pinned({min(os.sched_getaffinity(0))}):
        host = NativeHost()
    with pytest.raises(Skip, match="second CPU"):
        host.wakeup_stamps("spin", 1)
