"""Tests that unusual machines, unusual files and forged files give a one-line error, quickly and in little memory."""

import lzma
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from make_run import make_run
from make_small_run import MEASUREMENT, PER_CALL, RUN
from msgspec import Raw
from msgspec.structs import replace
from numba.core.caching import CacheImpl
from recorded_runs import write

from microbench.archive import history, remarks, schema, store
from microbench.comparison.compare import compare
from microbench.core import files
from microbench.core.errors import ExitCode, ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.model import NO_WORK, Case, Fact, Measurement, MemoryErrors, Series, Telemetry
from microbench.core.ops import LOOP_LAYER
from microbench.host import loops
from microbench.model import step_file
from microbench.model.workload import Kernels
from microbench.session import doctor


@pytest.fixture
def without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an account, and no HOME, as in a container."""

    def no_account(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_account)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "MICROBENCH_DATA", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("without_home")
def test_without_a_home_the_data_folder_is_below_the_root_folder() -> None:
    assert store.data_folder() == Path("/.local/share/microbench")
    doctor.loop_cache_folder()  # does not raise


def test_without_a_folder_for_its_cache_a_loop_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in CacheImpl.__subclasses__():
        monkeypatch.setattr(kind, "_locator_classes", [])
    assert loops.compiled(lambda number: number + 1)(1) == 2


@pytest.mark.parametrize("text", [
    ".".join("a" * 2000) + " = 1", "[" + " . ".join(['"a\\""'] * 2000) + "]", "x = {" + ".".join("a" * 2000),
    "streams = " + "1" * 4301, "per_step = 0x" + "f" * 4301, "part = [{kernels = 0x" + "f" * 5000 + "}]",
])  # fmt: skip
def test_a_long_key_or_number_of_a_step_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(UsageError, match="a key of over 16 words or a number of over 200 digits"):
        step_file.parsed(text, "step.toml", {})


def test_durations_beyond_the_number_of_kernels_are_dropped() -> None:
    text = "[[part]]\nkernels = 2\nduration = [" + '"6us",' * 1000 + "]"
    (part,) = step_file.parsed(text, "step.toml", {LOOP_LAYER: LOOP_LAYER}).parts
    assert isinstance(part, Kernels)
    assert len(part.durations_s) == 2


@pytest.mark.parametrize(("filler", "count"), [(b'{"a":{}},', 9 << 17), (b"1,", 17 << 20)])
def test_a_small_packed_file_of_many_values_is_not_decoded(filler: bytes, count: int, tmp_path: Path) -> None:
    path = tmp_path / "run.json.xz"
    whole = schema.encode(RUN)
    path.write_bytes(lzma.compress(whole.replace(b'"outcomes":[', b'"outcomes":[' + filler * count, 1), preset=0))
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    with pytest.raises(RunUnreadableError, match="too many values"):
        store.read(path)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 512 << 20


def test_thousands_of_rounds_are_compared_in_little_memory() -> None:
    base, new = (
        replace(make_run(rounds=1), run_id=name, outcomes=tuple(
            replace(make_run(rounds=1).outcomes[0], round=number) for number in range(2000)
        ))
        for name in ("a", "b")
    )  # fmt: skip
    tracemalloc.start()
    compare(base, new)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 64 << 20


@pytest.mark.parametrize("sample", ["1e-320", "1E+308", "1" * 300, "0." + "0" * 300 + "1"])
def test_an_impossible_sample_is_shown_as_damaged_and_left_out(sample: str, tmp_path: Path) -> None:
    run = make_run(rounds=1)
    damaged = replace(
        run.outcomes[0],
        measurements=tuple(
            replace(one, samples=Raw(f"[{sample}]".encode()), n=1) for one in run.outcomes[0].measurements
        ),
    )
    path = write(tmp_path / "run.json", replace(run, outcomes=(damaged, *run.outcomes[1:])))
    read = store.read(path).outcomes[0]
    assert read.status == "failed"
    assert read.reason.startswith("damaged: ")
    assert not read.measurements
    for arguments in (["show", str(path), "--all"], ["export", str(path)], ["show", str(path), "launch"]):
        assert call(*arguments).exit_code == 0
    assert "damaged" in call("show", str(path), "--all").stdout


def test_a_graph_of_no_nodes_is_damaged() -> None:
    case = Case("graph_lifecycle", {"nodes": 0})
    run = replace(RUN, outcomes=(replace(RUN.outcomes[0], case=case),))
    assert schema.decode(schema.encode(run)).outcomes[0].reason == "damaged: nodes=0 is an impossible number"


def test_pipes_and_devices_in_the_data_folder_are_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    good = write(tmp_path / "20260101T000000Z-00000001.json", RUN)
    os.mkfifo(good.with_suffix(".remarks"))
    os.mkfifo(tmp_path / "20260102T000000Z-00000002.json")
    (tmp_path / "20260103T000000Z-00000003.json").symlink_to("/dev/zero")
    (tmp_path / "20260104T000000Z-00000004.json").write_bytes(b"[" * 1_000_000)
    entries = history.entries(store.listing())
    assert [entry.run is None for entry in entries] == [True, True, True, False]
    assert "unreadable" in call("history").stdout
    assert call("history", "prune", "--keep", "1", "--yes").exit_code == 0
    assert good.exists(), "its remarks cannot be read, so a person may have written some"


def test_a_link_named_as_a_temporary_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    monkeypatch.setattr("os.urandom", bytes)
    for path in (tmp_path / "run.json", remarks.place(tmp_path / "run.json")):
        path.with_name(f".{path.name}.00000000{files.ASIDE}").symlink_to(target)
        with pytest.raises(FileExistsError):
            files.replace(path, b"new")
    with pytest.raises(ResultNotWrittenError):
        remarks.change(tmp_path / "run.json", label="x")
    assert target.read_bytes() == b"precious"


def test_an_impossible_clock_or_a_rate_without_work_is_damaged() -> None:
    clock = replace(RUN.outcomes[0], telemetry={"GPU-1": Telemetry(sm_clock_begin_hz=-1.0)})
    work = replace(RUN.outcomes[0], measurements=(replace(RUN.outcomes[0].measurements[0], work=NO_WORK),))
    read = schema.decode(schema.encode(replace(RUN, outcomes=(clock, work)))).outcomes
    assert [(each.reason or "").partition(" is ")[0] for each in read] == [
        "damaged: its sm_clock_begin_hz",
        "damaged: rate without its work",
    ]


@pytest.mark.parametrize(("kind", "words"), [("pipe", "it is not a regular file"), ("folder", "not a regular file")])
def test_only_a_regular_file_is_opened_as_a_step(kind: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "step.toml"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    for command in (["predict"], ["whatif", "--submit", "2us"], ["timeline"]):
        result = call(*command, str(path))
        assert result.exit_code == ExitCode.USAGE
        assert words in result.output


IMPOSSIBLE = {
    "sm_count": -1, "memory_bytes": 1 << 62, "sm_clock_max_hz": 1e-320, "memory_clock_max_hz": -1.0,
    "memory_bus_bits": -1, "power_limit_w": 1e300, "compute_capability": (1 << 60, 0),
}  # fmt: skip


def test_impossible_numbers_of_the_machine_are_unknown_and_said_to_be_damaged(tmp_path: Path) -> None:
    run = make_run(rounds=1)
    (session,) = run.sessions
    (gpu,) = session.environment.gpus
    link = replace(gpu.link, generation_max=1 << 60, lanes_max=-1)
    changed = replace(gpu, link=link, memory_errors=MemoryErrors(-1, 1 << 62, 3, remap_pending=True), **IMPOSSIBLE)
    environment = replace(session.environment, gpus=(changed,), facts=(Fact("cpu_count", -8, "here"),))
    session = replace(session, environment=environment, floors=replace(session.floors, idle_sync_s=-1.0))
    path = write(tmp_path / "run.json", replace(run, sessions=(session,)))
    read = store.read(path)
    assert read.outcomes == schema.decode(schema.encode(run)).outcomes
    for found in (read.sessions[0], store.read_head(path).sessions[0]):
        (known,) = found.environment.gpus
        assert [getattr(known, name) for name in IMPOSSIBLE] == [None] * len(IMPOSSIBLE)
        assert (known.link.generation_max, known.link.lanes_max, known.l2_bytes) == (None, None, gpu.l2_bytes)
        assert known.memory_errors == MemoryErrors(corrected_aggregate=3, remap_pending=True)
        assert found.floors.idle_sync_s is None
        assert {fact.reason for fact in found.environment.facts} >= {"damaged: -8 is an impossible number"}
    named = ("gpu0_sm_count", "gpu0_link_lanes_max", "gpu0_errors_corrected_volatile", "floor_idle_sync_s", "cpu_count")
    for arguments in (["show", str(path)], ["show", str(path), "--all"], ["explain", "clocks", "--run", str(path)]):
        words = " ".join(call(*arguments).stdout.replace("│", " ").split())
        assert "DAMAGED" in words
        assert all(name in words for name in named)


def test_a_negative_time_is_damaged_unless_it_is_the_noise_of_a_difference() -> None:
    rate, submit = RUN.outcomes[0], replace(RUN.outcomes[0].measurements[0], metric="submit")

    def status(samples: str, of: Measurement) -> str:
        changed = replace(of, samples=Raw(samples.encode()), n=3)
        return (
            schema.decode(schema.encode(replace(RUN, outcomes=(replace(rate, measurements=(changed,)),))))
            .outcomes[0]
            .status
        )

    for samples in ("[-1e-6,2e-6,3e-6]", "[1e-6,0,3e-6]", "[1e-6, 0.00,3e-6]", "[0e-6,1,2]", "[1e-6,2e-6, -0.0]"):
        assert status(samples, rate.measurements[0]) == "failed", samples
    assert status("[1.0e-06,0.02,100]", rate.measurements[0]) == "ok"
    assert status("[-1.0,-2.0,3e-6]", submit) == "failed"
    assert status("[-1e-6,2e-6,3e-6]", submit) == "ok"
    below = replace(submit, floor_s=1.28e-6)  # a node that costs nothing, of a long chain less a short one
    assert status("[-1e-6,-3.2e-7,-2e-6]", below) == "ok"
    assert status("[-2e-6,-3.2e-7,-2e-6]", below) == "failed"
    assert status("[0.0,0,3e-6]", submit) == "ok"


@pytest.mark.parametrize("change", [
    {"wall_s": -1.0}, {"wall_s": 1e300}, {"case": Case("copy", {"size_bytes": -64})},
    {"case": Case("copy", {"size_bytes": 1 << 62})}, {"series": (Series("rate", (0.0, 0.1), (1e9, 1e-320)),)},
    {"telemetry": {"GPU-1": Telemetry(power_w=-5.0)}}, {"telemetry": {"GPU-1": Telemetry(memory_clock_hz=1e300)}},
    {"measurements": (replace(MEASUREMENT, per_call=replace(PER_CALL, ratio=1e200)),)},
    {"measurements": (replace(MEASUREMENT, floor_s=-1e-6),)},
    {"measurements": (replace(MEASUREMENT, calls_per_sample=10**18),)},
])  # fmt: skip
def test_an_outcome_with_an_impossible_number_anywhere_is_damaged(change: dict[str, Any]) -> None:
    run = replace(RUN, outcomes=(replace(RUN.outcomes[0], **change),))
    (found,) = schema.decode(schema.encode(run)).outcomes
    assert (found.status, found.measurements, found.wall_s) == ("failed", (), 0.0)
    assert (found.reason or "").startswith("damaged: ")


def test_adding_to_a_run_keeps_an_impossible_number_and_resuming_measures_its_case_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert call("run", "memory_copy", "--quick", "--device", "fake", "--out", str(path)).exit_code == 0
    whole = schema.decode(path.read_bytes())
    damaged = replace(whole.outcomes[0], wall_s=-1.0)
    write(path, replace(whole, outcomes=(damaged, *whole.outcomes[1:])))
    assert call("run", "host_timer", "--quick", "--device", "fake", "--into", str(path)).exit_code == 0
    assert damaged in schema.decode(path.read_bytes(), keep_damage=True).outcomes
    assert store.read(path).outcomes[0].status == "failed"
