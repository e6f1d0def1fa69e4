"""Where a run goes, what it adds to or completes, and what is refused before anything is measured."""

import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest
from make_small_run import BENCHMARK, RUN, SESSION
from recorded_runs import write
from worker_run import Recorder, outcomes, run

from microbench.analysis.stats import rows
from microbench.archive import schema, store
from microbench.core.errors import ExitCode, ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.model import Environment, GpuInfo, Settings
from microbench.session import plan, session
from microbench.session.messages import CaseDone

pytestmark = pytest.mark.usefixtures("data")


def test_into_adds_a_session_and_joins_the_values_of_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    first = run("calm", out=path)
    second = run("calm", "wild", into=str(path), how="nothing", preset="default")
    assert second.path == path
    loaded = store.read(store.find(path))
    assert loaded.run_id == first.run.run_id
    assert [outcome.session for outcome in loaded.outcomes] == [0, 0, 1, 1, 1, 1]
    assert [info.name for info in loaded.benchmarks] == ["calm", "wild"]
    assert loaded.benchmarks[0].axes[0].values == (1, 2, 3)
    assert len(loaded.sessions) == 2


def test_resume_measures_only_what_is_not_ok(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("wild", out=path, how="nothing,skip,exit,print")
    resumed = run(resume=str(path))
    assert [(one.session, one.case.params["how"], one.status) for one in outcomes(resumed)] == [
        (0, "nothing", "ok"), (0, "print", "ok"), (0, "skip", "skipped"), (0, "exit", "crashed"),
    ]  # fmt: skip
    assert len(resumed.run.sessions) == 1


def test_the_rounds_of_a_resumed_run_are_one_row(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("calm", out=path, listener=Recorder(interrupt_at=CaseDone), rounds=3)
    assert len(store.read(store.find(path)).outcomes) == 1
    found = rows(run(resume=str(path)).run)
    assert [(row.params["size"], len(row.outcomes)) for row in found] == [(1, 3), (2, 3)]


def test_a_resumption_that_was_killed_leaves_nothing_twice(tmp_path: Path) -> None:
    """Its growing file has what the run held before, and behind it what was measured again."""
    path = tmp_path / "run.json"
    finished = run("calm", out=path).run
    late, *rest = (msgspec.structs.replace(one, status="skipped", reason="time budget") for one in finished.outcomes)
    head = schema.encode(msgspec.structs.replace(finished, outcomes=(late, *rest)))
    store.growing_path(path).write_bytes(head + schema.encode_outcome(finished.outcomes[0]))
    resumed = run(resume=str(path)).run
    assert [(one.case.params["size"], one.status) for one in resumed.outcomes] == [(1, "ok"), (2, "ok")]


def test_a_package_installed_meanwhile_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    with monkeypatch.context() as before:
        before.setattr(plan, "_missing", lambda one, *_: "needs a package" if one.name == "warm" else None)
        first = run("warm", "calm", device="one", out=path).run
    assert [one.status for one in first.outcomes] == ["skipped", "ok", "ok"]
    assert [(one.case.benchmark, one.status) for one in run(resume=str(path)).run.outcomes] == [
        ("calm", "ok"), ("calm", "ok"), ("warm", "ok"),
    ]  # fmt: skip


def test_only_the_last_session_is_resumed(tmp_path: Path) -> None:
    """What an earlier session measured does not count as measured by it."""
    path = tmp_path / "run.json"
    run("calm", out=path)
    run("calm", into=str(path), listener=Recorder(interrupt_at=CaseDone))
    resumed = run(resume=str(path)).run
    assert [(one.session, one.case.params["size"]) for one in resumed.outcomes] == [(0, 1), (0, 2), (1, 1), (1, 2)]


@pytest.mark.parametrize(("change", "words"), [
    ({"environment": Environment(driver_version="1.2")}, "began with driver 1.2, but this machine has"),
    ({"environment": Environment(gpus=(GpuInfo("Other GPU", "GPU-other"),))}, r"Other GPU \(GPU-other\)"),
    ({"commit": "0" * 40}, "began with microbench .*0000, but this machine has"),
])  # fmt: skip
def test_a_run_is_resumed_only_where_it_was_begun(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    finished = run("calm", out=path).run
    other = msgspec.structs.replace(finished.sessions[0], **change)
    write(path, msgspec.structs.replace(finished, sessions=(other,), outcomes=()))
    before = path.read_bytes()
    with pytest.raises(UsageError, match=words) as refused:
        run(resume=str(path))
    assert "--into" in refused.value.next_step
    assert path.read_bytes() == before
    assert run("calm", into=str(path)).exit_code == ExitCode.MEASURED


def test_resume_keeps_the_settings_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("calm", out=path, listener=Recorder(interrupt_at=CaseDone), rounds=2)
    resumed = run(resume=str(path)).run
    assert [(one.case.params["size"], one.round) for one in resumed.outcomes] == [(1, 0), (2, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize(("more", "word"), [
    ({"preset": "full"}, "preset"), ({"rounds": 2}, "--rounds"), ({"device": "all"}, "--device"),
    ({"how": "print"}, "--set"),
])  # fmt: skip
def test_resume_refuses_to_change_what_was_asked_for(more: dict[str, object], word: str, tmp_path: Path) -> None:
    path = save_small_run(tmp_path / "run.json", Settings("quick", ("wild",), {"how": ("nothing",)}))
    with pytest.raises(UsageError, match=word):
        run(resume=str(path), **more)  # type: ignore[arg-type]


def save_small_run(path: Path, settings: Settings) -> Path:
    one = msgspec.structs.replace(SESSION, settings=settings)
    return write(path, msgspec.structs.replace(RUN, sessions=(one,)))


@pytest.mark.parametrize("known", ["begun", "now"])
def test_a_run_of_an_unknown_commit_is_resumed(known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, commits = tmp_path / "run.json", {"begun": None, "now": None} | {known: "0" * 40}
    monkeypatch.setattr(session, "commit", lambda: commits["begun"])
    run("calm", out=path, listener=Recorder(interrupt_at=CaseDone))
    monkeypatch.setattr(session, "commit", lambda: commits["now"])
    assert len(run(resume=str(path)).run.outcomes) == 2


def test_a_bundled_run_is_not_grown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = save_small_run(tmp_path / "nvidia-test.json", SESSION.settings)
    monkeypatch.setattr(store, "bundled", lambda: {"nvidia-test": path})
    with pytest.raises(UsageError, match="comes with microbench"):
        run("calm", into="nvidia-test")


@pytest.mark.parametrize("name", ["run.json.xz", "run.json"])
@pytest.mark.parametrize("how", ["into", "resume"])
def test_a_compressed_run_is_not_grown(name: str, how: str, tmp_path: Path) -> None:
    path = save_small_run(tmp_path / name, SESSION.settings)
    path.write_bytes(lzma.compress(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is compressed") as caught:
        run(**{how: str(path)})  # type: ignore[arg-type]
    assert caught.value.next_step == f"add to an unpacked copy: xz -dc {path} > COPY.json"
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.glob("*.json*")] == [name]


def test_a_run_is_not_written_compressed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compressed run") as caught:
        run("calm", out=tmp_path / "run.json.xz")
    assert ".json" in caught.value.next_step
    assert list(tmp_path.glob("*.json*")) == []


def test_a_run_by_another_method_is_not_grown(tmp_path: Path) -> None:
    path = save_small_run(tmp_path / "run.json", SESSION.settings)
    other = msgspec.structs.replace(BENCHMARK, name="calm", version=9)
    write(path, msgspec.structs.replace(RUN, benchmarks=(BENCHMARK, other)))
    with pytest.raises(UsageError, match="by method 9"):
        run("calm", into=str(path))


@pytest.mark.parametrize("more", [
    {"rounds": 0}, {"rounds": -1}, {"rounds": 10**9}, {"time_limit_s": 0.0}, {"time_limit_s": -5.0},
    {"time_limit_s": float("nan")}, {"time_limit_s": float("inf")}, {"preset": "fast"},
    {"out": Path("a.json"), "into": "b"}, {"into": "a", "resume": "b"},
])  # fmt: skip
def test_an_impossible_request_is_a_usage_error_before_anything_is_measured(more: dict[str, object]) -> None:
    listener = Recorder()
    with pytest.raises(UsageError) as caught:
        run("calm", listener=listener, **more)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.USAGE
    assert listener.events == []


@pytest.mark.parametrize("request_", [{"into": "nothing-like-it"}, {"resume": "/no/such/run.json"}])
def test_a_run_to_grow_must_be_there(request_: dict[str, str]) -> None:
    with pytest.raises(RunUnreadableError):
        run("calm", **request_)  # type: ignore[arg-type]


def test_a_file_that_exists_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("mine")
    listener = Recorder()
    with pytest.raises(ResultNotWrittenError) as caught:
        run("calm", out=path, listener=listener)
    assert caught.value.exit_code == ExitCode.USAGE
    assert listener.events == []
    assert path.read_text() == "mine"


def test_a_data_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(ResultNotWrittenError):
        run("calm")
