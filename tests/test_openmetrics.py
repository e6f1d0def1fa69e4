"""Tests of the export as OpenMetrics: a parser reads it, names do not change, and hostile text stays inside labels.

The dashboard for Grafana asks only for what an export has.
"""

import json
import math
import re
from pathlib import Path

import msgspec
import pytest
from command_line import call
from make_fake_run import make_fake_run
from make_run import DEVICE, make_run

from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.archive.openmetrics import UNITS, to_openmetrics
from microbench.core.bench import discover
from microbench.core.model import Run
from microbench.gpu.fake.costs import FakeCosts

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,(?:{LABEL}))*)\}})? (\S+)")
Labels = tuple[tuple[str, str], ...]


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """The samples by family. Raises AssertionError where the text breaks OpenMetrics 1.0."""
    *lines, end, nothing = text.split("\n")
    assert (end, nothing) == ("# EOF", "")
    found: dict[str, dict[Labels, float]] = {}
    about: dict[str, dict[str, str]] = {}
    name = ""
    for line in lines:
        if line.startswith("# "):
            _, kind, name, *words = line.split(" ", 3)
            assert kind in ("HELP", "TYPE", "UNIT")
            assert re.fullmatch(NAME, name)
            assert kind not in about.setdefault(name, {}), "each is given once"
            assert name not in found, "it comes before the samples, and families are not interleaved"
            about[name][kind] = words[0] if words else ""
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == name, "samples follow their family"
        labels = tuple((key, re.sub(r"\\(.)", r"\1", value)) for key, value in re.findall(LABEL, match[2] or ""))
        assert len(dict(labels)) == len(labels)
        assert labels not in found.setdefault(name, {}), "a series has one value"
        found[name][labels] = float(match[match.lastindex or 0])
    for family, said in about.items():
        assert said["TYPE"] == "gauge"  # node_exporter refuses the types that only OpenMetrics has
        assert "UNIT" not in said or family.endswith(f"_{said['UNIT']}")
    assert set(about) == set(found)
    return found


@pytest.mark.parametrize("make", [make_run, lambda: store.read(store.bundled()["nvidia-h200-x2"])])
def test_every_figure_is_there_with_its_interval(make: object) -> None:
    assert callable(make)
    run: Run = make()
    found = parsed(to_openmetrics(run))
    values = {value for family in found.values() for value in family.values()}
    for row in rows(run):
        if math.isfinite(row.value):
            assert {row.interval.median, row.interval.low, row.interval.high} <= values
    ((said, one),) = found["microbench_run"].items()
    assert (dict(said)["run"], one) == (run.run_id, 1)
    assert sum(found["microbench_run_cases"].values()) == len(run.outcomes)
    gpus = {dict(labels)["gpu"] for labels in found["microbench_run_started_timestamp_seconds"]}
    assert gpus == {gpu.uuid for gpu in run.sessions[-1].gpus}


def test_failures_are_counted_for_each_gpu_so_that_files_of_several_gpus_do_not_collide() -> None:
    run = make_run()
    *others, last = (outcome for outcome in run.outcomes if outcome.device == DEVICE)
    failed = msgspec.structs.replace(last, status="failed", measurements=())
    found = parsed(to_openmetrics(msgspec.structs.replace(run, outcomes=(*others, failed))))
    counts = {(dict(one)["gpu"], dict(one)["status"]): count for one, count in found["microbench_run_cases"].items()}
    assert (counts[DEVICE, "failed"], counts[DEVICE, "ok"]) == (1, len(others))
    empty = parsed(to_openmetrics(msgspec.structs.replace(run, outcomes=())))["microbench_run_cases"]
    assert {dict(one)["gpu"] for one in empty} == {DEVICE}
    assert set(empty.values()) == {0.0}


def test_names_are_stable() -> None:
    run = make_run()
    found = parsed(to_openmetrics(run))
    assert "microbench_launch_cost_submit_seconds_per_launch" in found
    series = dict(next(iter(found["microbench_launch_cost_submit_seconds_per_launch"])))
    assert {"gpu": DEVICE, "simulated": "true", "stat": "median"}.items() <= series.items()
    units = {metric.unit for benchmark in discover().values() for metric in benchmark.metrics}
    assert units <= set(UNITS), "give each unit its words"


def test_words_of_a_run_cannot_end_a_label_or_a_line() -> None:
    hostile = 'x"} 1\n# EOF\n\\'
    run = make_run()
    gpus = tuple(msgspec.structs.replace(gpu, name=hostile) for gpu in run.sessions[0].environment.gpus)
    environment = msgspec.structs.replace(run.sessions[0].environment, gpus=gpus)
    session = msgspec.structs.replace(run.sessions[0], environment=environment, started_at="never")
    axis = msgspec.structs.replace(
        run.outcomes[0], case=msgspec.structs.replace(run.outcomes[0].case, params={"gpu": hostile, "1 é": 2})
    )
    changed = msgspec.structs.replace(run, sessions=(session,), outcomes=(axis, *run.outcomes[1:]), run_id=hostile)
    found = parsed(to_openmetrics(changed))
    labels = [dict(labels) for family in found.values() for labels in family]
    axes = next(one for one in labels if "axis_gpu" in one)
    assert (axes["axis_gpu"], axes["_1__"]) == ('x"} 1 # EOF \\', "2")
    assert "microbench_run_started_timestamp_seconds" not in found


def test_the_command_writes_it() -> None:
    text = call("export", "nvidia-h200-x2", "--format", "openmetrics").stdout
    assert parsed(text)


DASHBOARD = json.loads((Path(__file__).parent.parent / "docs" / "grafana.json").read_text())
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
SELECTOR = re.compile(r"(microbench_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')
# Prometheus adds this label.
INSTANCE = "instance"


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard with its legend; those of variables come last."""
    asked = [(target["expr"], target["legendFormat"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*asked, *((one["query"]["query"], "") for one in VARIABLES.values() if one["type"] == "query")]


@pytest.fixture(scope="module")
def exported() -> dict[str, dict[Labels, float]]:
    """What a simulated run of the core exports, as far as the dashboard's metrics go."""
    text = json.dumps(DASHBOARD)
    core = [one for one in discover().values() if one.core and f"microbench_{one.name}_" in text]
    cases = [(case.benchmark, case.params) for one in core for case in one.cases("quick")]
    return parsed(to_openmetrics(make_fake_run(FakeCosts(), cases)))


@pytest.mark.parametrize(("query", "legend"), queries())
def test_the_dashboard_asks_for_series_that_an_export_has(
    query: str, legend: str, exported: dict[str, dict[Labels, float]]
) -> None:
    chosen = {
        name: one.get("allValue") or one["current"]["value"] for name, one in VARIABLES.items() if "current" in one
    }
    filled = re.sub(r"\$(\w+)", lambda name: (chosen | {"simulated": "true"})[name[1]], query)
    selectors = SELECTOR.findall(filled)
    assert len(selectors) == filled.count("microbench_") > 0
    there = {INSTANCE}
    for name, matchers in selectors:
        assert MATCHER.sub("", matchers).strip(",") == "", "nothing else is inside of the braces"
        found = [dict(labels) for labels in exported[name]]
        for label, how, value in MATCHER.findall(matchers):
            pattern = value if how == "=~" else re.escape(value)
            found = [one for one in found if label == INSTANCE or re.fullmatch(pattern, one[label])]
        assert found, f"{name}{{{matchers}}} has no series"
        there |= set(found[0])
    named = re.findall(r"(?:by|on) \(([^)]*)\)", filled) + re.findall(r"\{\{(\w+)\}\}", legend)
    named += re.findall(r"^label_values\(.*, (\w+)\)$", filled)
    assert {label for labels in named for label in labels.split(", ")} <= there


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken)), "panels overlap"
    assert max(x for x, _ in taken) < 24, "Grafana's grid has 24 columns"
    assert set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD))) == set(VARIABLES)
    held = [*panels, *(target for panel in panels for target in panel["targets"])]
    held += [one for one in VARIABLES.values() if one["type"] == "query"]
    assert {one["datasource"]["uid"] for one in held} == {"${datasource}"}, "it is chosen in the dashboard"
    required = {one["id"] for one in DASHBOARD["__requires"] if one["type"] == "panel"}
    assert {panel["type"] for panel in panels} == required
