"""The library: it gives the command's figures, draws itself, and its errors say what to do next."""

import copy
import json
import pickle
import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import command_line
import msgspec
import pytest
from browser import launched
from compare_runs import changed, made
from make_trace import kineto, steps_of
from recorded_runs import write

import microbench as mb
from microbench.core.bench import discover
from microbench.library.results import Drawn

PARTS = (mb.Kernels(30, (4e-6,)), mb.Wait())


def command(*arguments: str) -> str:
    return command_line.call(*arguments).stdout


@pytest.fixture(scope="module")
def reference() -> mb.RecordedRun:
    return mb.load("nvidia-h200")


def drawn(result: Drawn) -> tuple[str, str]:
    """The text and the HTML of a result, of which neither runs, loads or closes anything."""
    text, page = str(result), result._repr_html_()
    assert not re.search(r"<script|</?html|<link|<img|https?://(?!www\.w3\.org)", page)
    assert page.count("<div") == page.count("</div>")
    assert page.count("<details") == page.count("</details>")
    assert repr(result).startswith(f"<microbench.{type(result).__name__}")
    assert "\n" not in repr(result)
    return text, page.replace("\N{NO-BREAK SPACE}", " ")


def test_a_run_is_measured_quietly_and_saved(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[tuple[int, int, str]] = []
    run = mb.run(
        "launch_kind", quick=True, device="fake", axes={"kind": ["own_stream", "pdl"]}, label="mine",
        progress=lambda *each: heard.append(each),
    )  # fmt: skip
    assert capfd.readouterr() == ("", "")
    assert heard == [(1, 2, "launch_kind[kind=own_stream]"), (2, 2, "launch_kind[kind=pdl]")]
    assert run.path.parent == data
    assert (run.simulated, run.problems, mb.load("mine").id, mb.load().id) == (True, (), run.id, run.id)
    assert "SIMULATED" in repr(run)
    for result in (run, run.rows(), run.part("launch")):
        assert all("SIMULATED" in one for one in drawn(result)), repr(result)
    text, _ = drawn(run)
    assert text == command("show")
    more = mb.run("launch_queue", quick=True, device="fake", into=run)
    assert more.id == run.id
    assert {row.benchmark for row in more.rows()} == {"launch_kind", "launch_queue"}


def test_runs_are_called_by_their_names_where_these_lead_to_them(data: Path, tmp_path: Path) -> None:
    kept, elsewhere = (
        mb.run("launch_kind", quick=True, device="fake", axes={"kind": "pdl"}, out=out)
        for out in (None, tmp_path / "elsewhere.json")
    )
    _, page = drawn(mb.compare(kept, elsewhere))
    assert f"<dt>BASE</dt><dd>run {kept.id}, " in page
    assert f"<dt>NEW</dt><dd>{elsewhere.path}: run {elsewhere.id}, " in page


def test_ctrl_c_saves_the_run_and_is_raised(data: Path) -> None:
    def interrupt(done: int, total: int, case: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"run\(resume='.*'\)"):
        mb.run("launch_kind", quick=True, device="fake", progress=interrupt)
    (path,) = data.glob("*.json")
    begun = mb.load(path)
    assert [row.case for row in begun.rows(metric="submit")] == ["launch_kind[kind=own_stream]"]
    assert len(mb.run(resume=begun).rows(metric="submit")) > 1


def test_rows_are_those_of_the_json_export(reference: mb.RecordedRun) -> None:
    exported = json.loads(command("export", "nvidia-h200", "--format", "json"))["rows"]
    own = [{name: value for name, value in vars(row).items() if value is not None} for row in reference.rows()]
    assert own == [{name: value for name, value in row.items() if value is not None} for row in exported]


def test_rows_are_chosen_by_suite_benchmark_metric_and_axis(reference: mb.RecordedRun) -> None:
    (row,) = reference.rows("launch_layers", "submit", layer="triton", arguments=4)
    assert (row.case, row.unit) == ("launch_layers[arguments=4,family=same_kernel,layer=triton]", "s/launch")
    assert row.ci_low <= row.median <= row.ci_high
    assert {each.suite for each in reference.rows("link")} == {"link"}
    assert reference.rows("launch_layers", layer="no such layer") == []


def test_rows_become_columns_of_one_type_each(reference: mb.RecordedRun) -> None:
    table = reference.rows().columns()
    assert {len(column) for column in table.values()} == {len(reference.rows())}
    for name, column in table.items():
        kinds = {type(value) for value in column if value is not None}
        assert len(kinds) <= 1 or kinds == {int, float}, name
    own = {name for name in table if name in mb.Row.__dataclass_fields__}
    assert not own & {axis for benchmark in discover().values() for axis in benchmark.axes}, "an axis hides a column"


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_rows_become_other_tables(package: str, reference: mb.RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = reference.rows("launch_kind")
    convert = {"pandas": rows.to_pandas, "polars": rows.to_polars, "pyarrow": rows.to_arrow}[package]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(mb.UsageError, match=f"{package} cannot be imported") as caught:
        convert()
    assert caught.value.next_step.startswith(f"pip install {package}")
    stand_in: Any = types.ModuleType(package)
    stand_in.DataFrame = stand_in.table = lambda columns: ("a table", columns)
    monkeypatch.setitem(sys.modules, package, stand_in)
    assert convert() == ("a table", rows.columns())


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_installed_packages_take_every_row_of_a_run(package: str, reference: mb.RecordedRun) -> None:
    pytest.importorskip(package)
    rows = reference.rows()
    table = {"pandas": rows.to_pandas, "polars": rows.to_polars, "pyarrow": rows.to_arrow}[package]()
    assert table.shape == (len(rows), len(rows.columns()))


def test_a_run_draws_what_the_command_draws(reference: mb.RecordedRun) -> None:
    text, page = drawn(reference)
    assert text == command("show", "nvidia-h200")
    assert "REFERENCE" in page
    assert page.count("<svg") >= 7
    assert [one.rule for one in reference.findings]
    # The command leaves out pictures that would make the page of a suite long, and says how many.
    lines = str(reference.part("memory")).splitlines()
    left_out = [one for one in command("show", "nvidia-h200", "memory").splitlines() if one not in lines]
    assert [re.sub(r"\d+ more pictures?", "N more", one) for one in left_out] == [
        "N more: microbench show nvidia-h200 memory --all"
    ]
    for part in ("launch_kind", "ladder"):
        text, page = drawn(reference.part(part))
        assert text == command("show", "nvidia-h200", part), part
        assert "REFERENCE" in page


def test_a_prediction_is_that_of_the_command(reference: mb.RecordedRun) -> None:
    options = ("--kernels", "30", "--duration", "4us", "--run", "nvidia-h200")
    step = mb.predict(kernels=30, duration="4us", run=reference)
    assert step.to_dict() == json.loads(command("predict", *options, "--json"))
    text, page = drawn(step)
    assert text == command("predict", *options, "--all")
    assert step.findings[0].title in page
    assert mb.predict(mb.Workload(PARTS), run="nvidia-h200").stream_s == step.stream_s
    assert step.graph_s is not None
    assert step.speedup == step.stream_s / step.graph_s
    assert mb.predict("decode-7b", run=reference).limits == ("host",)


def test_a_diagnosis_is_that_of_the_command(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_bytes(kineto(steps_of(12).trace()))
    found = mb.diagnose(trace, run="nvidia-h200")
    assert found.to_dicts() == [json.loads(command("diagnose", str(trace), "--run", "nvidia-h200", "--json"))]
    text, page = drawn(found)
    assert text == command("diagnose", str(trace), "--run", "nvidia-h200")
    assert found.findings[0].title in page
    assert len(str(found.details)) > len(text)
    (bound,), (idle,) = found.bounds, found.idle_shares
    assert bound == found.to_dicts()[0]["bound"]
    assert idle is not None
    assert 0 < idle < 1


def test_a_comparison_is_that_of_the_command(tmp_path: Path) -> None:
    before = write(tmp_path / "base.json", made(1))
    after = write(tmp_path / "new.json", made(2, changed(0.6, case_id="memory_stream[kernel=copy]"), run_id="new"))
    found = mb.compare(mb.load(before), after)
    text, page = drawn(found)
    assert text == command("compare", str(before), str(after))
    assert found.findings[0].text.split(".")[0] in page
    assert (found.fails(), mb.compare(after, before).fails()) == (True, False)
    assert {one.verdict for one in found.figures} >= {"slower"}


@pytest.mark.parametrize(("call", "words"), [
    (lambda run: mb.load("nvidia-h2000"), "there is no run nvidia-h2000"),
    (lambda run: mb.load(Path("nowhere.json")), "there is no run file nowhere.json"),
    (lambda run: mb.run("lunch"), "there is no suite or benchmark called lunch"),
    (lambda run: mb.run(quick=True, full=True), "cannot be combined"),
    (lambda run: mb.run("launch_kind", axes={"kinds": 1}), "called kinds"),
    (lambda run: run.rows("lunch"), "no row has the suite or benchmark lunch"),
    (lambda run: run.rows("launch", "submits"), "no row has the metric submits"),
    (lambda run: run.rows("launch_kind", kinds=1), "no row has the axis kinds"),
    (lambda run: run.part("lunch"), "there is no part lunch"),
    (lambda run: mb.compare(run, "nvidia-h200"), "are the same run"),
    (lambda run: mb.compare(run, "nvidia-h200-x2", same_within="40%"), "is no percentage"),
    (lambda run: mb.compare(run, "nvidia-h200-x2").fails("slow"), "there is no limit slow"),
    (lambda run: mb.predict(mb.Workload(PARTS), kernels=3), "cannot be combined"),
    (lambda run: mb.predict("nowhere.toml"), "nowhere.toml"), (lambda run: mb.diagnose(), "no trace is given"),
    (lambda run: mb.diagnose("nowhere.json"), "nowhere.json"),
    (lambda run: mb.diagnose("nowhere.json", step="4 long"), "4 long"),
])  # fmt: skip
def test_an_error_has_its_cause_and_the_next_step(call: Any, words: str, reference: mb.RecordedRun, data: Path) -> None:
    with pytest.raises(mb.MicrobenchError) as caught:
        call(reference)
    assert words in caught.value.cause
    assert caught.value.__notes__ == [f"next: {caught.value.next_step}"]
    assert list(data.iterdir()) == []


def test_errors_pass_between_processes() -> None:
    for kind in (mb.UsageError, mb.DeviceAbsentError, mb.RunUnreadableError, mb.ResultNotWrittenError):
        error = pickle.loads(pickle.dumps(kind("the cause", "what to do")))
        assert (type(error), error.cause, error.next_step) == (kind, "the cause", "what to do")
        assert (str(error), error.__notes__) == ("the cause", ["next: what to do"])


def test_what_a_user_wrote_is_never_markup(tmp_path: Path, data: Path) -> None:
    hostile = "<script>alert(1)</script>"
    run = made(1)
    session = run.sessions[0]
    gpus = tuple(msgspec.structs.replace(gpu, name=hostile) for gpu in session.environment.gpus)
    environment = msgspec.structs.replace(session.environment, gpus=gpus)
    sessions = tuple(msgspec.structs.replace(one, environment=environment) for one in run.sessions)
    loaded = mb.load(write(tmp_path / "hostile.json", msgspec.structs.replace(run, sessions=sessions)))
    for result in (loaded, loaded.rows(), loaded.part("launch")):
        drawn(result)
    assert "&lt;script&gt;" in loaded._repr_html_()


def test_a_notebook_keeps_its_own_style(reference: mb.RecordedRun, tmp_path: Path) -> None:
    outside = "<h3 id='outside'>Outside</h3><table id='table'><tr><td>1</td></tr></table>"
    seen = {}
    style = "element => JSON.stringify(Object.entries(getComputedStyle(element)))"
    with launched() as browser:
        for name, inside in (("without", ""), ("with", reference._repr_html_())):
            path = tmp_path / f"{name}.html"
            path.write_text(f"<body data-jp-theme-light='true'>{outside}<main>{inside}</main>", encoding="utf-8")
            with browser.new_context(offline=True, viewport={"width": 400, "height": 800}) as context:
                tab = context.new_page()
                tab.goto(path.as_uri())
                seen[name] = [tab.eval_on_selector(one, style) for one in ("#outside", "#table")]
                if inside:
                    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
                    ground = "element => getComputedStyle(element).backgroundColor"
                    light = tab.eval_on_selector(".microbench", ground)
                    tab.evaluate("document.body.dataset.jpThemeLight = 'false'")
                    assert light != tab.eval_on_selector(".microbench", ground)
                    assert tab.locator(".microbench svg:visible").count() == 1  # the first figure is open
    assert seen["with"] == seen["without"]


@pytest.mark.parametrize("kind", ["run", "rows", "findings", "comparison", "step", "traces", "error"])
def test_what_the_library_gives_can_be_made_in_a_thread_and_sent_to_another_process(
    kind: str, tmp_path: Path, reference: mb.RecordedRun
) -> None:
    """A step of 1100 kernels was nested too deeply to be copied."""
    trace = tmp_path / "trace.json"
    trace.write_bytes(kineto(steps_of(8).trace()))
    makes: dict[str, Any] = {
        "run": lambda: mb.load("nvidia-h200"),
        "rows": lambda: reference.rows("launch_cost"),
        "findings": lambda: reference.findings,
        "comparison": lambda: mb.compare(reference, Path(__file__).parent / "data" / "quiet-h200.json.xz"),
        "step": lambda: mb.predict(kernels=1100, duration="6us", layer="torch", run=reference),
        "traces": lambda: mb.diagnose(trace, run=reference),
        "error": lambda: mb.UsageError("a cause", "a next step"),
    }
    with ThreadPoolExecutor(2) as threads:
        made, other = threads.map(lambda _: makes[kind](), range(2))
    expected = str(made)
    assert str(other) == expected
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert type(copied) is type(made)
        assert str(copied) == expected
