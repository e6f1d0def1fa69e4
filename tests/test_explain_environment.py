"""What distorts a run: each rule with its severity and values, silent off its condition, named by session."""

from pathlib import Path
from typing import Any

import pytest
import snapshots
from msgspec.structs import replace
from read_findings import drawn
from recorded_trees import unpack

from microbench.analysis.evidence import Finding
from microbench.core.model import Environment, Fact, Floors, GpuInfo, LinkInfo, MemoryErrors, Run, Session, Settings
from microbench.explain.environment import EFFECTS, NEEDED_FACTS, errors_in_words, findings, session_findings
from microbench.host.facts import LAUNCH_PREFIXES, LAUNCH_VARIABLES, host_facts

QUIET_FACTS: dict[str, Any] = {
    "governor": "performance", "c_state_deepest": "C1", "c_state_exit_latency_s": 2e-6, "clock_source": "tsc",
    "virtualization": "none", "container": "none", "tracer": "none", "profiler": "none", "mps": "off",
    "physical_core_count": 8, "cpu_affinity_count": 16, "cpu_quota": "unlimited", "load_average_1min": 0.5,
    "pcie_aspm_policy": "default", "submit_core": 4, "submit_core_siblings": "none", "submit_core_numa_node": 1,
    "watcher_core": 5, "parent_cores": "6-7",
}  # fmt: skip
QUIET_GPU = GpuInfo(
    name="GPU", uuid="GPU-1", sm_count=132, memory_bus_bits=6144, ecc=True, mig=False, persistence=True,
    confidential_computing=False, numa_node=1, other_processes=(),
    link=LinkInfo(generation_now=1, generation_max=5, lanes_now=16, lanes_max=16),
)  # fmt: skip


def session(gpu: dict[str, Any] | None = None, floors: Floors = Floors(), **facts: Any) -> Session:  # noqa: B008
    """A quiet machine but for the facts and GPU fields given."""
    known = tuple(Fact(name, value, "test") for name, value in {**QUIET_FACTS, **facts}.items())
    gpus = (replace(QUIET_GPU, **(gpu or {})),)
    environment = Environment(gpus=gpus, facts=known)
    return Session(environment, Settings(), "0", "2026-01-01T00:00:00Z", floors=floors)


def run(*sessions: Session) -> Run:
    return Run(schema_version=1, run_id="test", sessions=sessions, benchmarks=(), outcomes=())


def only(*sessions: Session) -> Finding:
    (finding,) = findings(run(*sessions))
    return finding


def test_a_quiet_machine_has_no_findings() -> None:
    assert findings(run(session())) == []
    assert findings(run()) == []


MEMORY_ERRORS = (
    MemoryErrors(rows_remapped_uncorrected=9, remap_pending=True, remap_failed=True),
    MemoryErrors(uncorrected_volatile=1, uncorrected_aggregate=2, remap_pending=True),
    MemoryErrors(pages_retired=4, retirement_pending=True), MemoryErrors(uncorrected_volatile=1),
)  # fmt: skip
# Facts and fields of the GPU that differ from a quiet machine's; each is one finding.
FACTS: list[dict[str, Any]] = [
    {"governor": "powersave"}, {"governor": "schedutil", "governor_by_policy": "3 performance, 1 schedutil"},
    {"governor": "powersave", "cpu_frequency_driver": "intel_pstate", "energy_preference": "performance"},
    {"c_state_deepest": "C6", "c_state_exit_latency_s": 133e-6}, {"submit_core_siblings": "12"},
    {"submit_core_siblings": "12", "parent_cores": "12-13"}, {"submit_core_siblings": "12", "watcher_core": 12},
    {"clock_source": "hpet"}, {"clock_source": "xen"}, {"physical_core_count": 2}, {"physical_core_count": 1},
    {"cpu_quota": 1.5}, {"load_average_1min": 9.0}, {"virtualization": "kvm"}, {"virtualization": "wsl"},
    {"container": "gvisor", "virtualization": "kvm"}, {"pcie_aspm_policy": "powersupersave"},
    {"profiler": "Nsight Systems"}, {"tracer": "gdb"}, {"mps": "running"},
    {"mps": "control pipe without a visible daemon"}, {"submit_core_numa_node": 0},
]  # fmt: skip
FIELDS: list[dict[str, Any]] = [
    {"other_processes": ("python (pid 7)",)}, {"other_processes": ("Xorg (graphics, pid 7)",)},
    {"other_processes": ("Xorg (graphics, pid 7)", "python (pid 8)")}, {"confidential_computing": True},
    {"mig": True, "sm_count": 16}, {"ecc": False}, {"ecc": True, "memory_bus_bits": 384},
    *({"memory_errors": errors} for errors in MEMORY_ERRORS), {"persistence": False},
    {"link": LinkInfo(lanes_now=8, lanes_max=16)},
]  # fmt: skip


def told(of: dict[str, Any], seen: Session) -> str:
    finding = only(seen)
    assert finding.suite == "environment"
    assert finding.threshold
    assert finding.rests_on
    assert finding.severity in ("note", "problem") or finding.advice, "a warning or advice says what to do"
    what = ", ".join(f"{name}={value}" for name, value in of.items())
    return f"== {what} (rests on {', '.join(finding.rests_on)})\n{drawn(finding)}"


def test_what_each_machine_is_told() -> None:
    effects = ({name: when[0] if when else "32"} for name, _, _, when in EFFECTS)
    texts = [told(facts, session(**facts)) for facts in (*FACTS, *effects)]
    texts += [told(fields, session(gpu=fields)) for fields in FIELDS]
    slow = session(clock_source="hpet", floors=Floors(timer_call_s=1.2e-6))
    texts.append(told({"the reading of its own session": "1.20 µs"}, slow))
    hidden = session(gpu={"mig": None})
    facts = tuple(fact for fact in hidden.environment.facts if fact.name != "governor")
    facts += (Fact("governor", None, "sysfs", "not shown"),)
    texts.append(
        told({"hidden": "governor, MIG"}, replace(hidden, environment=replace(hidden.environment, facts=facts)))
    )
    simulated = replace(session(governor="powersave", CUDA_LAUNCH_BLOCKING="1"), simulated=True)
    texts.append(told({"simulated": "the only problem"}, simulated))
    several = run(session(governor="powersave"), session(governor="powersave", profiler="ncu"), session())
    for what, found in (("three sessions", several), ("two GPUs", run(of_two_gpus("all")))):
        texts.append("\n".join((f"== {what}, worst first", *map(drawn, findings(found)))))
    snapshots.same("environment", "\n\n".join(texts))


@pytest.mark.parametrize("facts", [
    {"c_state_exit_latency_s": 9.9e-6}, {"clock_source": "kvm-clock"}, {"clock_source": "arch_sys_counter"},
    {"physical_core_count": 3}, {"cpu_quota": 3.0}, {"load_average_1min": 8.0},
    {"load_average_1min": 1.0, "cpu_affinity_count": 1}, {"pcie_aspm_policy": "performance"}, {"container": "docker"},
    {"CUDA_LAUNCH_BLOCKING": "0"}, {"CUDA_LAUNCH_BLOCKING": ""}, {"CUDA_MODULE_LOADING": "LAZY"},
    {"CUDA_VISIBLE_DEVICES": "1"},
])  # fmt: skip
def test_rules_are_silent_on_the_other_side_of_their_threshold(facts: dict[str, Any]) -> None:
    assert findings(run(session(**facts))) == []


@pytest.mark.parametrize("fields", [
    {"integrated": True, "link": LinkInfo(lanes_now=1, lanes_max=16)},
    {"link": LinkInfo(lanes_now=1, lanes_max=16, coherent=True)},
    {"link": LinkInfo(generation_now=1, generation_max=5, lanes_now=16, lanes_max=16)},
    {"numa_node": None},
    {"memory_bus_bits": None},
    # Repaired long ago, and errors that were corrected.
    {"memory_errors": MemoryErrors(50, 0, 90, 3, 2, 1, False, False, 12, False)},
])  # fmt: skip
def test_gpu_rules_are_silent_without_cause(fields: dict[str, Any]) -> None:
    assert findings(run(session(gpu=fields))) == []


def test_every_variable_with_an_effect_is_recorded() -> None:
    for name, *_ in EFFECTS:
        assert name in LAUNCH_VARIABLES or name.startswith(LAUNCH_PREFIXES)


def test_rules_ask_for_facts_that_exist(tmp_path: Path) -> None:
    recorded = {fact.name for fact in host_facts(unpack("server", tmp_path), {})}
    assert set(QUIET_FACTS) <= recorded
    assert NEEDED_FACTS.keys() <= recorded
    named = {fact for facts in FACTS for fact in facts}
    assert named <= recorded


def test_an_old_file_without_facts_is_unknown_not_fine() -> None:
    old = Session(Environment(gpus=(GpuInfo(name="GPU", uuid="GPU-1"),)), Settings(), "0", "2026-01-01T00:00:00Z")
    assert [finding.rule for finding in findings(run(old))] == ["environment.unseen"]


def test_a_simulated_gpu_may_have_memory_errors() -> None:
    bad = replace(session(gpu={"memory_errors": MemoryErrors(remap_pending=True)}), simulated=True)
    assert [finding.rule for finding in findings(run(bad))] == ["environment.simulated", "environment.memory_errors"]


def test_memory_errors_in_words() -> None:
    assert errors_in_words(MemoryErrors()) is None
    assert errors_in_words(MemoryErrors(0, 0, 0, 0, remap_pending=False)) == "none"
    every = MemoryErrors(1, 0, 12, 2, 1, 2, True, True, 1, True)
    assert errors_in_words(every) == (
        "2 uncorrected ECC errors, 12 corrected ECC errors (1 since the driver was loaded), 3 rows remapped, "
        "1 page retired, row remap failed, row remap pending, page retirement pending"
    )


def of_two_gpus(device: str | None) -> Session:
    """The second GPU has persistence mode off, and hides whether MIG is on."""
    second = replace(QUIET_GPU, index=1, uuid="GPU-2", persistence=False, mig=None)
    base = session()
    where = replace(base.environment, gpus=(QUIET_GPU, second))
    return replace(base, environment=where, settings=Settings(device=device))


def test_a_gpu_that_is_not_measured_distorts_nothing() -> None:
    assert findings(run(of_two_gpus(None))) == []


def test_hostile_values_in_a_file_do_not_stop_it() -> None:
    hostile = session(
        governor=7, c_state_exit_latency_s="soon", submit_core_siblings="x-y", physical_core_count="many",
        load_average_1min=True, cpu_quota="lots", CUDA_LAUNCH_BLOCKING=1, mps=3,
    )  # fmt: skip
    assert all(isinstance(finding, Finding) for finding in session_findings(hostile))


def test_a_recorded_machine_from_files_to_findings(tmp_path: Path) -> None:
    facts = host_facts(unpack("virtual_machine", tmp_path), {"CUDA_LAUNCH_BLOCKING": "1"})
    found = findings(run(Session(Environment(facts=facts), Settings(), "0", "2026-01-01T00:00:00Z")))
    rules = [finding.rule.removeprefix("environment.") for finding in found]
    assert set(rules[:4]) == {"clock_source", "cuda_launch_blocking", "profiler", "tracer"}
    assert {"few_cores", "virtualization", "smt_sibling", "unseen"} <= set(rules)
