"""The export as OpenMetrics: a parser by the specification reads it, names are stable, hostile text stays a label."""

import math
import re

import msgspec
import pytest
from command_line import call
from make_run import DEVICE, make_run

from microbench.analysis.stats import rows
from microbench.core.bench import discover
from microbench.core.model import Run
from microbench.runs import store
from microbench.runs.openmetrics import UNITS, to_openmetrics

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
