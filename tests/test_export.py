"""CSV and JSON: every measurement, every case without one, nothing that a reason can break."""

import csv
import io
import json

import msgspec
import pytest
from make_link_run import make_link_run
from make_run import failed, make_run, outcome, skipped

from microbench.analysis.stats import rows
from microbench.archive.export import HEADER, to_csv, to_json
from microbench.core.bench import discover
from microbench.core.model import LinkInfo, Run

PROMISED = (
    "run,device,simulated,benchmark,case,params,metric,unit,clock,n,median,ci_low,ci_high,p90,p99,min,ceiling,trust,"
    "status,reason,max,tail,verified,version,suite,session,round,"
    "interval,low_level,high_level"
)


def table(run: Run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(run))))


def test_one_row_a_measurement_and_one_for_each_case_without() -> None:
    assert ",".join(HEADER) == to_csv(make_run()).splitlines()[0] == PROMISED
    assert table(make_run(gpu=False, extra=[outcome("launch_queue", argument_bytes=0)]))[-1]["status"] == "ok"
    run = make_run(extra=[skipped(), failed(), failed("signal 11", "crashed")])
    measured = sum(len(one.measurements) for one in run.outcomes)
    found = table(run)
    assert len(found) == measured + 3
    last = found[-3:]
    assert [row["status"] for row in last] == ["skipped", "failed", "crashed"]
    assert [row["reason"] for row in last][1:] == ["CUDA_ERROR_ILLEGAL_ADDRESS", "signal 11"]
    assert all(row["metric"] == row["median"] == row["trust"] == row["n"] == "" for row in last)


def test_numbers_are_whole_and_in_base_units() -> None:
    run = make_run()
    row = next(one for one in table(run) if one["benchmark"] == "launch_cost" and one["metric"] == "submit")
    known = next(one for one in rows(run) if one.benchmark == "launch_cost" and one.metric.name == "submit")
    assert float(row["median"]) == known.value
    assert float(row["ci_low"]) == known.interval.low
    assert float(row["tail"]) == float(row["p99"])
    assert row["unit"] == "s/launch"
    assert row["simulated"] == "true"
    assert row["version"] == str(discover()["launch_cost"].version)
    assert json.loads(row["params"]) == {}


def test_a_rates_tail_is_its_slow_end() -> None:
    row = next(one for one in table(make_run()) if one["benchmark"] == "host_memory")
    assert float(row["min"]) <= float(row["tail"]) < float(row["median"]) < float(row["p90"])
    assert json.loads(row["params"]) == {"size_bytes": 1 << 28, "threads": "one"}


def test_a_ceiling_is_that_of_the_gpu_that_moves_the_data() -> None:
    run = make_link_run(gpus=2)
    session = run.sessions[0]
    wide = LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256)
    links = (wide, msgspec.structs.replace(wide, lanes_max=8))
    gpus = tuple(
        msgspec.structs.replace(gpu, link=link) for gpu, link in zip(session.environment.gpus, links, strict=True)
    )
    environment = msgspec.structs.replace(session.environment, gpus=gpus)
    made = msgspec.structs.replace(run, sessions=(msgspec.structs.replace(session, environment=environment),))
    found = [one for one in table(made) if one["benchmark"] == "link_concurrent" and '"h2d"' in one["params"]]
    ceilings = {json.loads(one["params"])["gpu_index"]: float(one["ceiling"]) for one in found}
    assert ceilings[1] == pytest.approx(ceilings[0] / 2)
    joined = [one for one in json.loads(to_json(made))["rows"] if one["benchmark"] == "link_concurrent"]
    assert {one["ceiling"] for one in joined} >= set(ceilings.values())


def test_rounds_are_told_apart_and_joined() -> None:
    run = make_run(rounds=3)
    submit = [one for one in table(run) if one["benchmark"] == "launch_cost" and one["metric"] == "submit"]
    assert [row["round"] for row in submit] == ["0", "1", "2", "all"]
    assert [row["trust"] for row in submit] == ["steady", "steady", "steady", "stable"]
    assert int(submit[3]["n"]) == sum(int(row["n"]) for row in submit[:3])


def test_no_reason_breaks_a_row_or_becomes_a_formula() -> None:
    reasons = ['=HYPERLINK("http://x")', "+1", "-1", "@x", " =1", 'a,"b"\nc\r\nd', "\x1b[2J", "x" * 100_000]
    run = make_run(gpu=False, extra=[failed(reason) for reason in reasons])
    text = to_csv(run)
    measured = sum(len(one.measurements) for one in run.outcomes)
    assert len(text.splitlines()) == 1 + measured + len(reasons)
    cells = [row["reason"] for row in table(run)[-len(reasons) :]]
    assert all(not cell.lstrip().startswith(("=", "+", "-", "@")) for cell in cells)
    assert all("\x1b" not in cell for cell in cells)
    assert max(len(cell) for cell in cells) < 3000


def test_a_metric_the_run_does_not_declare_has_no_figures() -> None:
    run = make_run(gpu=False)
    infos = tuple(msgspec.structs.replace(info, metrics=()) for info in run.benchmarks)
    found = table(msgspec.structs.replace(run, benchmarks=infos))
    assert all(row["median"] == row["unit"] == "" and row["metric"] for row in found)


@pytest.mark.parametrize("rounds", [1, 3])
def test_json_holds_the_run_and_its_figures(rounds: int) -> None:
    run = make_run(rounds=rounds, extra=[skipped()])
    document = json.loads(to_json(run))
    assert document["simulated"] is True
    assert document["run"]["run_id"] == run.run_id
    assert len(document["rows"]) == len(rows(run))
    first = document["rows"][0]
    assert {"median", "ci_low", "ci_high", "trust", "simulated", "params", "rounds"} <= set(first)
    assert first["rounds"] == rounds
    assert any(one["rule"] == "launch.starving" for one in document["findings"])
