"""The file format: every old file is read, and any file that is not a run gives a one-line error."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_small_run import MEASUREMENT, OUTCOMES, PER_CALL, RUN
from msgspec.structs import replace
from texts import any_text

from microbench.archive import schema
from microbench.core.errors import ExitCode, MeasurementError, RunUnreadableError
from microbench.core.model import Outcome, Run
from microbench.report.heading import banners

GOLDEN = Path(__file__).parent / "data" / "run-v1.json"


def comparable(run: Run) -> Any:
    """A Run as plain values: samples are compared as what they say."""
    return json.loads(msgspec.json.encode(run))


def document() -> dict[str, Any]:
    return json.loads(schema.encode(RUN))


def unreadable(data: bytes) -> str:
    with pytest.raises(RunUnreadableError) as caught:
        schema.decode(data, "run.json")
    assert caught.value.exit_code == ExitCode.UNREADABLE_RUN
    assert caught.value.next_step
    assert caught.value.cause.startswith("run.json ")
    assert len(caught.value.cause.splitlines()) == 1
    return caught.value.cause


def test_the_first_format_is_still_read() -> None:
    run = schema.decode(GOLDEN.read_bytes())
    assert comparable(run) == {**comparable(RUN), "schema_version": schema.SCHEMA_VERSION}
    assert run.outcomes[0].measurements[0].values == (1.5e-6, 1.25e-6, 2.0)
    indented = json.dumps(document(), indent=2).encode()
    assert comparable(schema.decode(indented)) == comparable(RUN)
    samples = schema.decode(schema.encode(RUN)).outcomes[0].measurements[0].samples
    assert bytes(samples) == b"[1.5e-06,1.25e-06,2]", "samples stay as written until they are decoded"


def lost(old: Any, new: Any, place: str = "run") -> list[str]:
    """The places where ``new`` lacks or changes what ``old`` holds."""
    if isinstance(old, dict) and isinstance(new, dict):
        missing = [f"{place}.{key}" for key in old.keys() - new.keys()]
        return missing + [one for key in old.keys() & new.keys() for one in lost(old[key], new[key], f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [one for index, (left, right) in pairs for one in lost(left, right, f"{place}[{index}]")]
    return [] if old == new else [place]


def test_the_format_is_written_as_before() -> None:
    """New optional keys may come; anything else needs a new version and a new golden file."""
    assert lost(json.loads(GOLDEN.read_bytes()), json.loads(schema.encode(RUN))) == []


def test_a_growing_file_is_read_with_and_without_its_last_line() -> None:
    head = replace(RUN, outcomes=RUN.outcomes[:1])
    lines = [schema.encode_outcome(outcome) for outcome in RUN.outcomes[1:]]
    whole = schema.encode(head) + b"".join(lines)
    assert comparable(schema.decode(whole)) == comparable(RUN)
    assert comparable(schema.decode(whole[:-1])) == comparable(RUN)
    for length in range(len(whole) - len(lines[-1]), len(whole) - 1, 7):
        assert len(schema.decode(whole[:length]).outcomes) == len(RUN.outcomes) - 1


def spoiled(line: bytes) -> Iterator[bytes]:
    """The line with one byte changed in ways that each make it another kind of wrong."""
    yield b"}" + line[1:]
    yield line.replace(b'"', b"\xff", 1)
    yield line[:20] + b"\n" + line[21:]
    yield line.replace(b'"session":0', b'"session":7')


def test_damaged_lines_of_a_growing_file_are_skipped_and_counted() -> None:
    head = schema.encode(replace(RUN, outcomes=()))
    first, second, *others = [schema.encode_outcome(outcome) for outcome in RUN.outcomes]
    for damaged in spoiled(first):
        assert damaged != first
        assert len(damaged) == len(first)
        run = schema.decode(head + damaged + second + b"".join(others))
        assert comparable(replace(run, damaged_lines=0)) == comparable(replace(RUN, outcomes=RUN.outcomes[1:]))
        assert run.damaged_lines == damaged.count(b"\n")
    assert run.damaged_lines == 1
    (banner,) = (one for one in banners(run) if one.word == "DAMAGED")
    assert banner.text.startswith("1 damaged line of the file")
    assert schema.decode(schema.encode(run)).damaged_lines == 0


def test_keys_of_a_later_tool_are_ignored_and_missing_ones_have_defaults() -> None:
    changed = document()
    changed["mood"] = "good"
    changed["carried"] = {"by": "an earlier version, which wrote derived rows at the end of large files", "rows": [1]}
    changed["outcomes"][0]["mood"] = {"deep": [1, 2]}
    del changed["outcomes"][0]["series"]
    assert schema.decode(json.dumps(changed).encode()).outcomes[0].series == ()


@pytest.mark.parametrize("version", [0, -1, -(10**12)])
def test_an_unknown_format_is_refused_with_the_next_step(version: int) -> None:
    newer = {"schema_version": schema.SCHEMA_VERSION + 1, "whatever": True}
    with pytest.raises(RunUnreadableError, match="newer") as caught:
        schema.decode(json.dumps(newer).encode(), "run.json")
    assert "install a newer checkout or wheel" in caught.value.next_step
    assert "no microbench ever wrote" in unreadable(json.dumps({**document(), "schema_version": version}).encode())


@pytest.mark.parametrize(("data", "why"), [
    (b"", "cut short"), (b"\n", "cut short"), (b"null", "Expected `object`"), (b"[]", "Expected `object`"),
    (b"42", "Expected `object`"), (b"{}", "schema_version"), (b"not json", "malformed"),
    (b"\x00\x01\x02\xff", "malformed"), (b"\x1f\x8b\x08\x00", "malformed"),
    (b"\x89PNG\r\n\x1a\n", "malformed"), (b'{"schema_version":"1"}', "Expected `int`"),
    (b'{"schema_version":1}', "missing required field `run_id`"),
    (b'{"schema_version":1,"run_id":"\xff\xfe"}', "UTF-8"),
    (b'{"schema_version":1,"run_id":' + b"[" * 200_000, "nested too deeply"),
    (b'{"schema_version":1,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    (b'{"schema_version":' + b"9" * 100_000 + b"}", "out of range"),
    (schema.encode(RUN)[:-200], "cut short"),
])  # fmt: skip
def test_data_that_is_not_a_run_says_why(data: bytes, why: str) -> None:
    assert why in unreadable(data)


def changed(path: str, value: Any) -> bytes:
    """The run with the value at ``path`` (names and indices between dots) put in place, as JSON."""
    whole = document()
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = whole
    for part in way:
        place = place[part]
    place[last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(("path", "value"), [
    ("sessions", []), ("outcomes.0.session", 1), ("outcomes.0.session", -1), ("outcomes.0.round", -1),
    ("outcomes.0.status", "fine"), ("outcomes.0.case.params.size_bytes", 10**30),
    ("outcomes.0.case.params.size_bytes", 1.5), ("outcomes.0.wall_s", "NaN"), ("outcomes.0.wall_s", float("nan")),
    ("outcomes.0.facts.0.value", 10**4000), ("outcomes.0.facts.0.value", []), ("outcomes.0.measurements.0.n", -1),
    ("outcomes.0.measurements.0.calls_per_sample", 0), ("outcomes.0.measurements.0.calls_per_sample", 1 << 64),
    ("outcomes.0.measurements.0.work.bytes", -5), ("outcomes.0.measurements.0.clock", "sun"),
    ("outcomes.0.measurements.0.samples", []), ("outcomes.0.measurements.0.samples", None),
    ("outcomes.0.measurements.0.samples", [[1, 2]]), ("outcomes.0.measurements.0.samples", [1, None]),
    ("outcomes.0.measurements.0.samples", ["1"]), ("outcomes.0.measurements.0.samples", 7),
    ("outcomes.0.measurements.0.samples", {"a": 1}), ("outcomes.0.measurements.0.per_call.counts", []),
    ("outcomes.0.measurements.0.per_call.counts", [-1]), ("outcomes.0.measurements.0.per_call.ratio", 1.0),
    ("outcomes.0.measurements.0.per_call.first_edge", 0.0), ("benchmarks.0.metrics.0.kind", "wish"),
    ("sessions.0.environment.gpus.0.sm_count", 10**25),
])  # fmt: skip
def test_a_run_that_contradicts_itself_is_refused(path: str, value: Any) -> None:
    unreadable(changed(path, value))


def test_a_sample_that_no_float_can_hold_makes_its_outcome_a_failed_one() -> None:
    run = schema.decode(schema.encode(RUN).replace(b"[1.5e-06,", b"[1e999,"))
    assert (run.outcomes[0].status, run.outcomes[0].measurements) == ("failed", ())
    assert run.outcomes[0].reason == "damaged: rate is an impossible number"


def test_long_strings_and_doubled_keys_do_no_harm() -> None:
    long = schema.decode(changed("outcomes.4.reason", "x" * 10_000_000))
    assert len(long.outcomes[4].reason or "") == 10_000_000
    doubled = schema.encode(RUN).replace(b'"run_id":', b'"run_id":"other","run_id":', 1)
    assert schema.decode(doubled).run_id == RUN.run_id


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_not_written(number: float) -> None:
    outcome = replace(OUTCOMES[0], wall_s=number)
    run = replace(RUN, outcomes=(OUTCOMES[1], outcome))
    with pytest.raises(MeasurementError, match=r"^run\.outcomes\[1\]\.wall_s is not a finite number$"):
        schema.encode(run)
    histogram = replace(PER_CALL, p99=number)
    measurement = replace(MEASUREMENT, per_call=histogram)
    with pytest.raises(MeasurementError, match=r"measurements\[0\]\.per_call\.p99 is not"):
        schema.encode_outcome(replace(OUTCOMES[0], measurements=(measurement,)))
    measurement = replace(MEASUREMENT, samples=msgspec.Raw(msgspec.json.encode([1.0, number])))
    with pytest.raises(MeasurementError, match=r"measurements\[0\]\.samples is not"):
        schema.encode_outcome(replace(OUTCOMES[0], measurements=(measurement,)))


OUTCOMES_OF_ANY_KIND = st.builds(
    lambda params, samples, reason, number: replace(
        OUTCOMES[0], case=replace(OUTCOMES[0].case, params=params), reason=reason, wall_s=number,
        measurements=(replace(MEASUREMENT, samples=msgspec.Raw(msgspec.json.encode(samples)), n=len(samples)),),
    ),
    st.dictionaries(any_text(max_size=5), st.integers(0, 2**49) | any_text(max_size=5), max_size=3),
    st.lists(st.floats(1e-90, 1e90), max_size=5), st.none() | any_text(), st.floats(0, 1e9),
)  # fmt: skip


@given(st.lists(OUTCOMES_OF_ANY_KIND, max_size=3))
def test_every_run_comes_back_as_it_was(outcomes: list[Outcome]) -> None:
    run = replace(RUN, outcomes=tuple(outcomes))
    back = schema.decode(schema.encode(run))
    assert comparable(back) == comparable(run)
    assert [one.measurements[0].values for one in back.outcomes] == [one.measurements[0].values for one in outcomes]


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_run_is_read_or_refused(data: st.DataObject) -> None:
    """Bytes taken out, put in or changed anywhere: a Run, or RunUnreadableError, and nothing else."""
    whole = bytearray(schema.encode(RUN) + schema.encode_outcome(OUTCOMES[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(begin, min(len(whole), begin + 20)))
        whole[begin:end] = data.draw(st.binary(max_size=10))
    with contextlib.suppress(RunUnreadableError):
        for outcome in schema.decode(bytes(whole)).outcomes:
            for measurement in outcome.measurements:
                _ = measurement.values
