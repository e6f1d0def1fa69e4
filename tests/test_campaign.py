"""The campaign of faults, programs under watch and hostile files: five minutes of it in CI, and what is a failure."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import campaign
import campaign_faults
import campaign_files
import pytest
from make_small_run import RUN
from msgspec.structs import replace

from microbench.archive import schema, store
from microbench.core.errors import UsageError


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", [("--minutes", "3"), ("--minutes", "2", "--kinds", "watched")])
def test_five_minutes_of_the_campaign_find_nothing(options: tuple[str, ...]) -> None:
    command = [sys.executable, campaign.__file__, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def raising(error: Exception) -> Callable[[campaign_files.Reader, random.Random], None]:
    def read(reader: campaign_files.Reader, seed: random.Random) -> None:
        raise error

    return read


def slow(reader: campaign_files.Reader, seed: random.Random) -> None:
    time.sleep(5)


@pytest.mark.parametrize(
    ("read", "outcome"),
    [(raising(UsageError("no", "")), "refused"), (raising(KeyError("x")), "failed"), (slow, "failed")],
)
def test_a_file_is_refused_only_by_an_error_in_words_and_in_time(
    read: Callable[[campaign_files.Reader, random.Random], None],
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(campaign_files, "LONGEST_WAIT_S", 1)
    monkeypatch.setitem(campaign_files.KINDS, "json", (read, 1))
    tally = campaign.Tally()
    campaign_files.read_all(tmp_path, "json", 3, 4, time.monotonic() + 60, tally)
    assert tally.counts == {("json", outcome): 1}


def test_what_was_announced_and_is_in_no_file_is_lost(tmp_path: Path) -> None:
    bench = campaign_faults.Bench.__new__(campaign_faults.Bench)
    bench.folder = tmp_path
    place = bench.place("killed", 1)
    run = campaign_faults.Started.__new__(campaign_faults.Started)
    run.log = tmp_path / "log"
    run.log.write_text(f"[1/2] {RUN.outcomes[0].case.id}: 1 s\n")
    store.growing_path(place.out).write_bytes(schema.encode(RUN))
    place.check(run)
    store.growing_path(place.out).write_bytes(schema.encode(replace(RUN, outcomes=())))
    with pytest.raises(AssertionError, match="lost"):
        place.check(run)
    place.tmp.joinpath("microbench-x").mkdir()
    with pytest.raises(AssertionError, match="left behind"):
        place.check()
