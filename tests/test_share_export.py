"""Exports: JSON lines, Markdown, the JSON Schema of run files, and that an exported run can be read again."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from make_link_run import make_link_run
from make_run import failed, make_run, skipped
from make_small_run import RUN
from msgspec.structs import replace
from test_schema import comparable

from microbench.archive import schema, store
from microbench.archive.export import HEADER, to_csv, to_json, to_json_lines
from microbench.core.errors import RunUnreadableError
from microbench.core.model import Run
from microbench.library.runs import report_of
from microbench.report.markdown import to_markdown

jsonschema = pytest.importorskip("jsonschema")
PUBLISHED = Path(__file__).parent.parent / "docs" / "run.schema.json"
SAMPLES_CHECKED = 2


def lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in to_json_lines(run).splitlines()]


def test_json_lines_are_the_rows_of_the_csv() -> None:
    run = make_run(rounds=3, extra=[skipped(), failed()])
    rows = list(csv.DictReader(io.StringIO(to_csv(run))))
    found = lines(run)
    assert len(found) == len(rows)
    for line, row in zip(found, rows, strict=True):
        assert set(line) <= set(HEADER)
        assert {name for name, value in row.items() if value} == set(line)
        assert str(line["round"]) == row["round"]
        if "median" in line:
            assert line["median"] == float(row["median"])
        assert line["params"] == json.loads(row["params"])


def test_text_in_json_lines_is_as_it_was() -> None:
    reason = '=1+1\n\x1b[2J "quoted" \u202e' + "x" * 10_000
    found = lines(make_run(gpu=False, extra=[failed(reason)]))
    assert found[-1]["reason"] == reason
    assert "median" not in found[-1]


def test_a_json_export_is_a_run_again() -> None:
    run = make_run(rounds=2, extra=[skipped(), failed()])
    whole = to_json(run)
    assert comparable(schema.decode(whole)) == comparable(run)
    for data in (whole[: len(whole) // 3], b'{"run":null}', b'{"run":[]}', b'{"run":{}}', b'{"run":{"run":{"run":1}}}'):
        with pytest.raises(RunUnreadableError):
            schema.decode(data)
    with pytest.raises(RunUnreadableError, match="newer"):
        schema.decode(b'{"run":{"schema_version":99}}')


def cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_markdown_has_every_finding_and_every_row() -> None:
    run = make_link_run(gpus=2)
    report = report_of(run)
    text = to_markdown(report)
    assert text.startswith("# SIMULATED GPU (SIMULATED)\n")
    bullets = [line for line in text.splitlines() if re.match(r"- \S \*\*", line)]
    assert len(bullets) == len(report.environment) + sum(len(section.findings) for section in report.sections)
    tables = [table for section in report.sections for study in section.studies for table in study.tables]
    assert sum(len(table.rows) for table in tables) <= sum(line.startswith("| ") for line in text.splitlines())
    path = store.bundled()["nvidia-h200-x2"]
    assert "REFERENCE" in to_markdown(report_of(store.read(path), path))


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    text = to_markdown(report_of(make_run(extra=[failed("a|b \\| c")])))
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
        else:
            width = width or len(cells(line))
            assert len(cells(line)) == width


def test_hostile_text_never_becomes_markup() -> None:
    hostile = (
        "<script>alert(1)</script> [x](http://y) ![i](j) `c` **b** _e_ | ~~d~~ # h\n\n- item\n\n</details> &lt; \u202e"
    )
    run = make_run(extra=[failed(hostile)], gpu_name=hostile)
    text = to_markdown(report_of(run))
    assert "<script" not in text
    headline = next(line for line in text.splitlines() if line.startswith("# "))
    assert not re.search(r"(?<!\\)[\[\]`|*~](?=.*e_)", headline)
    assert "\u202e" not in text
    assert "&amp;lt;" in text
    assert len(re.findall(r"^</details>$", text, re.MULTILINE)) == text.count("<details>")
    assert set(re.findall(r"</?(\w+)", text)) == {"details", "summary"}


@pytest.fixture(scope="module")
def validator() -> Any:
    document = schema.run_schema()
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def test_the_published_schema_is_up_to_date() -> None:
    outdated = "the schema changed: microbench export --schema > docs/run.schema.json"
    assert PUBLISHED.read_bytes() == call("export", "--schema").stdout_bytes, outdated
    parts = schema.run_schema()["$defs"]
    assert len(parts) > 15
    assert all(part["description"].strip() and "``" not in part["description"] for part in parts.values())


def short(run: Run) -> Any:
    """The run as plain JSON with every tenth outcome and a few samples of each measurement."""
    document = comparable(replace(run, outcomes=run.outcomes[::10]))
    for outcome in document["outcomes"]:
        for measurement in outcome.get("measurements", ()):
            measurement["samples"] = measurement["samples"][:SAMPLES_CHECKED]
            if "per_call" in measurement:
                measurement["per_call"]["counts"] = measurement["per_call"]["counts"][:SAMPLES_CHECKED]
    return document


def test_runs_are_valid(validator: Any) -> None:
    bundled = map(store.read, store.bundled().values())
    for run in (RUN, make_run(rounds=2, extra=[skipped(), failed()]), make_run(gpu=False), *bundled):
        validator.validate(short(run))
    document = {**comparable(RUN), "mood": "good"}
    document["outcomes"][0]["mood"] = 1
    assert validator.is_valid(document), "keys of a later version are valid"


@pytest.mark.parametrize("changes", [
    {"schema_version": 2}, {"sessions": []}, {"run_id": None},
    {"outcomes": [{"case": {"benchmark": "x"}, "session": 0, "round": 0, "status": "fine"}]},
    {"outcomes": [{"case": {"benchmark": "x", "params": {"a": 1.5}}, "session": 0, "round": 0, "status": "ok"}]},
])  # fmt: skip
def test_other_documents_are_not_valid(changes: dict[str, Any], validator: Any) -> None:
    assert not validator.is_valid({**comparable(RUN), **changes})


@pytest.mark.parametrize("samples", [["1"], [None], [[1]], {}, [1.0] * 513])
def test_samples_must_be_numbers_and_not_too_many(samples: Any, validator: Any) -> None:
    document = comparable(RUN)
    document["outcomes"][0]["measurements"][0]["samples"] = samples
    assert not validator.is_valid(document)
