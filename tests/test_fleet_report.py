"""The verdict on a fleet: the right GPUs are named with their cause, on one screen and on one page."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import snapshots
from command_line import call
from fleet_runs import one_run, slowed, with_gpu, write

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from microbench.core.errors import UsageError
from microbench.core.model import Fact, MemoryErrors
from microbench.fleet import campaign, causes, sheet, store, verdict  # need both packages to do anything
from microbench.fleet.causes import Gpu
from microbench.fleet.records import Source

NODES = 12
HALVED, SLOWER = {"pcie_h2d": 2.0, "pcie_d2h": 2.0}, {"dram": 1 / 0.97}
ERRORS = {
    5: MemoryErrors(0, 1, 0, 1, 0, 0, True, False), 7: MemoryErrors(0, 0, 40, 2, 0, 2, False, False)
}  # fmt: skip
HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a campaign of equal nodes, of which n3 has a halved link and n7 a slow memory, both in rack r1.

    The memory of n7 has remapped rows; that of n5 is as fast as the others', and one of its rows waits to be remapped.
    """
    folder = tmp_path_factory.mktemp("fleet")
    sources = []
    for number in range(NODES):
        jitter = random.Random(number)
        run = slowed(one_run(), {3: HALVED, 7: SLOWER}.get(number, {}), jitter)
        run = with_gpu(run, link_lanes_now=8) if number == 3 else run
        run = with_gpu(run, memory_errors=ERRORS[number]) if number in ERRORS else run
        labels = {"rack": "r1" if number in (3, 7) else "r2", "owner": HOSTILE}
        sources.append(Source(write(folder / f"run-{number}.json", run), "c1", f"n{number}", labels))
    assert store.add_all(folder / "store", sources).runs == NODES
    record = campaign.new_campaign("c1", [], campaign.Options(), "")
    record.tasks = [campaign.Task("n99", status="hung", reason=HOSTILE), campaign.Task("n1", status="ok")]
    campaign.write(campaign.make_folder(folder / "store", "c1"), record)
    return folder / "store"


def test_the_slow_gpus_are_named_with_what_is_slow_and_why(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fleet.parent)
    shown = [call("fleet", "report", "--store", "store", *more, COLUMNS="120").stdout for more in ((), ("--json",))]
    snapshots.same("fleet-report", "\n".join([*shown[:-1], snapshots.ordered(shown[-1])]))
    assert "\x1b" not in "".join(shown)


def test_equal_gpus_and_too_few_gpus_are_not_named(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"{n}.json", slowed(one_run(), {}, random.Random(n))) for n in range(8)]
    store.add_all(tmp_path / "a", [Source(path, "c", path.stem, {}) for path in runs])
    assert verdict.judged(tmp_path / "a").named == ()
    assert "none of 8 GPUs" in call("fleet", "report", "--store", str(tmp_path / "a")).stdout
    assert "No GPU is an outlier" in sheet.page(verdict.judged(tmp_path / "a")), "fleet.alike"
    half = write(tmp_path / "half.json", slowed(one_run(), HALVED, random.Random(1)))
    store.add_all(tmp_path / "b", [Source(path, "c", path.stem, {}) for path in (*runs[:3], half)])
    assert verdict.judged(tmp_path / "b").named == ()
    few = call("fleet", "report", "--store", str(tmp_path / "b")).stdout
    assert "not compared: each class has fewer than 5 GPUs" in few
    page = sheet.page(verdict.judged(tmp_path / "b"))
    assert "Not compared: each class has fewer than" in page
    assert ">1 of 4 GPUs is slow against the ceilings" in page, "the title"
    assert "Smallest detectable change" not in page, "nothing was compared"
    assert 'id="tables"' not in page
    assert "No GPU is an outlier" not in page


def test_few_gpus_are_held_against_their_ceilings(tmp_path: Path) -> None:
    for name, factors, low in (("sound", {}, 0), ("half", HALVED, 1)):
        runs = [slowed(one_run(), factors if n == 1 else {}, random.Random(n)) for n in range(3)]
        paths = [write(tmp_path / f"{name}-{n}.json", run) for n, run in enumerate(runs)]
        store.add_all(tmp_path / name, [Source(path, "c", f"n{n}", {}) for n, path in enumerate(paths)])
        found = verdict.judged(tmp_path / name)
        assert found.named == ()
        told = [(one.rule, one.title.partition(":")[0]) for one in sheet.findings(found)]
        assert told == [("fleet.ceiling", "n1 GPU 0")] * low
        shown = " ".join(call("fleet", "report", "--store", str(tmp_path / name), COLUMNS="200").stdout.split())
        assert f"{low or 'none'} of 3 GPUs is slow against the ceilings" in shown
        assert ("PCIe 5.0 x16 is slow" in shown) == bool(low)
        assert ('fill="var(--problem)"' in sheet.page(found)) == bool(low)


def test_other_models_are_compared_among_themselves(tmp_path: Path) -> None:
    sources = []
    for n in range(12):
        run = slowed(one_run(), {"dram": 2.0} if n < 6 else {}, random.Random(n))
        run = with_gpu(run, name="Old GPU") if n < 6 else run
        sources.append(Source(write(tmp_path / f"{n}.json", run), "c", f"n{n}", {}))
    store.add_all(tmp_path / "s", sources)
    found = verdict.judged(tmp_path / "s")
    assert (len(found.classes), found.named) == (2, ())
    assert "repair due" not in [name for name, *_ in sheet._lines(found)], "no memory has errors"


def test_the_page_shows_map_distributions_and_what_to_check(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert call("fleet", "report", "--store", str(fleet), "-o", str(out)).exit_code == 0
    text = out.read_text()
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert" in text
    drawing = text[text.index("The GPUs") :]
    wide = drawing[: drawing.index("</svg>")]
    assert wide.count("<rect") == NODES
    assert wide.count('fill="var(--problem)"') >= 2
    tables = ("What to check on which node", "Smallest detectable change", "Tasks without a run")
    for words in (*tables, "memory_stream bandwidth", "8 of 16 lanes", "SIMULATED", "rack r1"):
        assert words in text, words
    assert not re.search(r"(src|href)=[\"']https?:", text)
    assert call("fleet", "report", "--store", str(fleet), "-o", str(out)).exit_code == 2  # it exists
    assert call("fleet", "report", "--store", str(fleet), "--campaign", "none").exit_code == 2
    with pytest.raises(UsageError, match="no campaign"):
        verdict.judged(fleet, "x")


def gpu(**fields: Any) -> Gpu:
    usual = Gpu("n", "GPU-1", 0, "class", {}, 0, 700.0, 50.0, 0.0, "", {"driver": "1"}, False, ())
    return usual._replace(**fields)


OTHERS = [gpu(node=f"o{n}") for n in range(9)]


@pytest.mark.parametrize(("fields", "slow", "kind", "seen"), [
    ({"facts": {"link generation_now": "4", "driver": "1"}}, {"copies to the GPU": 1.0}, causes.DOWN_TRAINED,
     "PCIe generation 4, elsewhere 5"),
    ({}, {"copies to the GPU": 1.0}, causes.DOWN_TRAINED, "probable"),
    ({}, {"copies to the GPU": 0.1}, causes.TRAFFIC, "shared uplink"),
    ({"findings": (("environment.other_processes", "problem", "2 other processes on the GPU", "End them."),)},
     {"matrix products": 0.3}, causes.TRAFFIC, "2 other processes"),
    ({"throttled": 0.5, "throttle_reasons": "thermal"}, {"matrix products": 0.3}, causes.THROTTLED, "thermal"),
    ({"power_limit_w": 500.0}, {"matrix products": 0.3}, causes.THROTTLED, "500 W, elsewhere 700 W"),
    ({"temperature_c": 80.0}, {"matrix products": 0.3}, causes.THROTTLED, "80 °C, elsewhere 50 °C"),
    ({}, {"calls on the host": 0.5}, causes.SLOW_HOST, "only calls on the host"),
    ({"findings": (("environment.governor", "warning", "The CPU governor is powersave", "Set it."),)},
     {"calls on the host": 0.5}, causes.SLOW_HOST, "powersave"),
    ({"facts": {"driver": "2"}}, {"matrix products": 0.3}, causes.UNKNOWN, "driver is 2, elsewhere 1"),
])  # fmt: skip
def test_causes_are_what_the_others_do_not_have(fields: Any, slow: dict[str, float], kind: str, seen: str) -> None:
    others = [one._replace(facts={**one.facts, "link generation_now": "5"}) for one in OTHERS]
    (cause, *_) = causes.likely(gpu(**fields), others, slow)
    assert cause.kind == kind
    assert seen in cause.seen
    assert cause.check


SLOW_MEMORY = {"DRAM bandwidth": 0.03}


@pytest.mark.parametrize(("errors", "of_others", "slow", "kind"), [
    (MemoryErrors(0, 0, 0, 1), MemoryErrors(), SLOW_MEMORY, causes.MEMORY_ERRORS),
    (MemoryErrors(remap_pending=True), MemoryErrors(), {"memory_stream bandwidth": 0.03}, causes.MEMORY_ERRORS),
    (MemoryErrors(remap_failed=True), MemoryErrors(), SLOW_MEMORY, causes.MEMORY_ERRORS),
    (MemoryErrors(pages_retired=3), MemoryErrors(pages_retired=0), SLOW_MEMORY, causes.MEMORY_ERRORS),
    (MemoryErrors(40, 0, 40, 0), MemoryErrors(1, 0, 9, 0), SLOW_MEMORY, causes.MEMORY_ERRORS),
    (MemoryErrors(40, 0, 40, 0), MemoryErrors(25, 0, 60, 0), SLOW_MEMORY, causes.MEMORY),
    (MemoryErrors(9, 0, 9, 0), MemoryErrors(0, 0, 0, 0), SLOW_MEMORY, causes.MEMORY),
    (MemoryErrors(rows_remapped_corrected=1), MemoryErrors(), SLOW_MEMORY, causes.MEMORY_ERRORS),
    (MemoryErrors(rows_remapped_corrected=1), MemoryErrors(rows_remapped_corrected=1), SLOW_MEMORY, causes.MEMORY),
    (MemoryErrors(0, 0, 0, 0, 0, 0, False, False), MemoryErrors(), SLOW_MEMORY, causes.MEMORY),
    (MemoryErrors(remap_failed=True), MemoryErrors(), {"matrix products": 0.3}, causes.UNKNOWN),
    (MemoryErrors(remap_failed=True), MemoryErrors(), {"copies to the GPU": 0.1}, causes.TRAFFIC),
    (MemoryErrors(remap_failed=True), MemoryErrors(), {"calls on the host": 0.1}, causes.SLOW_HOST),
])  # fmt: skip
def test_memory_errors_are_a_cause_of_a_slow_memory_alone(
    errors: MemoryErrors, of_others: MemoryErrors, slow: dict[str, float], kind: str
) -> None:
    others = [one._replace(facts=facts_of(of_others)) for one in OTHERS]
    finding = ("environment.memory_errors", "problem", "GPU memory: row remap failed", "Run the field diagnostic.")
    (cause,) = causes.likely(gpu(facts=facts_of(errors), findings=(finding,)), others, slow)
    assert cause.kind == kind
    assert ("memory rows" in cause.seen, "memory remap" in cause.seen) == (False, False), "counts differ anyway"
    assert cause.check


def test_an_old_run_does_not_say_that_its_memory_has_no_errors() -> None:
    (cause,) = causes.likely(gpu(), OTHERS, SLOW_MEMORY)
    assert "does not say whether the memory has errors" in cause.seen
    assert "ROW_REMAPPER" in cause.check
    (cause,) = causes.likely(gpu(facts=facts_of(MemoryErrors(0, 0, 0, 0))), OTHERS, SLOW_MEMORY)
    assert "its memory errors: none" in cause.seen


def facts_of(errors: MemoryErrors) -> dict[str, str]:
    known = {name: getattr(errors, name) for name in errors.__struct_fields__}
    return {"driver": "1"} | {f"memory {name}": str(value) for name, value in known.items() if value is not None}


def test_a_host_that_claims_facts_of_the_gpu_is_not_believed(tmp_path: Path) -> None:
    run = one_run()
    claimed = Fact("memory remap_pending", HOSTILE, "a file")
    environment = msgspec.structs.replace(run.sessions[0].environment, facts=(claimed,))
    run = msgspec.structs.replace(run, sessions=(msgspec.structs.replace(run.sessions[0], environment=environment),))
    store.add_all(tmp_path / "s", [Source(write(tmp_path / "one.json", run), "c", "n", {})])
    assert verdict.judged(tmp_path / "s").gpus[0].memory_errors == MemoryErrors()


def test_a_finding_that_most_have_is_no_cause() -> None:
    common = ("environment.governor", "warning", "The CPU governor is powersave", "Set it.")
    others = [one._replace(findings=(common,)) for one in OTHERS]
    (cause,) = causes.likely(gpu(findings=(common,)), others, {"calls on the host": 0.5})
    assert "powersave" not in cause.seen


def test_a_shared_label_is_told_only_if_few_others_have_it() -> None:
    everyone = [gpu(node=f"n{n}", labels={"rack": f"r{n // 4}", "room": "x"}) for n in range(40)]
    (alone,) = verdict.shared_labels(everyone[:4], everyone)
    assert "rack=r0; no other GPU has it" in alone
    (most,) = verdict.shared_labels(everyone[:3], everyone)
    assert "so does 1 other there, none of the 36 elsewhere" in most
    assert verdict.shared_labels(everyone[:5], everyone) == []
    assert verdict.shared_labels(everyone[:1], everyone) == []
