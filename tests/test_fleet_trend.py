"""`microbench fleet trend` and `fleet watch`: which GPUs changed, since when and with what; the loop over campaigns."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import snapshots
from command_line import call
from fleet_runs import at, one_run, slowed, with_gpu, write

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from microbench.cli import fleet as commands
from microbench.core.errors import ExitCode, MicrobenchError, UsageError
from microbench.core.model import Run
from microbench.fleet import campaign, clusters, store
from microbench.fleet.engine import Engine
from microbench.fleet.records import Source
from microbench.fleet.series import Board, Point
from microbench.fleet.trend import Event, Trend, _Shift, _told, trend

HALVED, SLOWER, FASTER = {"pcie_h2d": 2.0}, {"dram": 1 / 0.97}, {"dram": 0.95}
HOSTILE = "n0\x1b[31m<b>"
TIMES = [f"2026-11-{20 + number // 4}T{number % 4 * 6:02d}:00:00Z" for number in range(24)]


def measured(folder: Path, name: str, began: str, factors: dict[str, float], **facts: Any) -> Path:
    """A run file of a GPU that began then; ``facts`` of its GPU begin with gpu_, the others are its machine's."""
    seed = random.Random(f"{folder.name} {name}")
    of_gpu = {key.removeprefix("gpu_"): value for key, value in facts.items() if key.startswith("gpu_")}
    others = {key: value for key, value in facts.items() if not key.startswith("gpu_")}
    run = with_gpu(at(slowed(one_run(), factors, seed), began, **others), **of_gpu)
    return write(folder / f"{name}.json", run)


def with_settings(path: Path, **settings: Any) -> Path:
    from microbench.archive import schema

    run: Run = schema.decode(path.read_bytes())
    sessions = tuple(
        msgspec.structs.replace(one, settings=msgspec.structs.replace(one.settings, **settings)) for one in run.sessions
    )
    return write(path, msgspec.structs.replace(run, sessions=sessions))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twelve campaigns, whose names are not in the order of time, of GPUs of which each has a story."""
    folder = tmp_path_factory.mktemp("watched")
    sources = []
    for number in range(12):
        name, began = f"c{99 - number}", TIMES[number]

        def add(node: str, factors: dict[str, float], began: str = began, name: str = name, **facts: Any) -> Path:
            path = measured(folder, f"{name}-{node.partition(chr(27))[0]}", began, factors, **facts)
            sources.append(Source(path, name, node, {}))
            return path

        add("steady", {})
        # Its link has half of its lanes from the ninth campaign on.
        add("halved", HALVED if number >= 8 else {}, gpu_link_lanes_now=8 if number >= 8 else 16)
        # Its memory is slower from the sixth on, of which it misses two.
        if number not in (6, 9):
            add("gaps", SLOWER if number >= 5 else {})
        # Another board came in its place with the seventh, and is slower from its beginning.
        path = add("swapped", SLOWER if number >= 6 else {})
        if number >= 6:
            text = path.read_bytes()
            assert b"0000000051d0" in text
            path.write_bytes(text.replace(b"0000000051d0", b"0000000000aa"))
        # Its link was repaired before the fifth.
        add("repaired", HALVED if number < 4 else {}, gpu_link_lanes_now=8 if number < 4 else 16)
        # Its task of the fourth was resumed only after the eighth, when its memory was slow already.
        late = TIMES[7].replace("00:00Z", "30:00Z") if number == 3 else began
        add("resumed", SLOWER if number >= 8 or number == 3 else {}, late)
        # Its memory was slow for four campaigns.
        add(HOSTILE, SLOWER if 2 < number < 7 else {})
    # A campaign of other settings, in which all are slow.
    for node in ("steady", "halved"):
        path = measured(folder, f"other-{node}", TIMES[9].replace("00:00Z", "40:00Z"), {"dram": 2.0})
        sources.append(Source(with_settings(path, preset="quick"), "other", node, {}))
    assert store.add_all(folder / "store", sources).failed == ()
    return folder / "store"


def found(folder: Path, **how: Any) -> Trend:
    return trend(folder, how.get("campaign"), how.get("last", 200))


def of(several: Trend, node: str) -> Event:
    (event,) = [one for one in several.events if [gpu.node for gpu in one.gpus] == [node]]
    return event


def test_each_gpu_that_changed_is_told_with_what_since_when_and_with_what(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU with a hostile name became slow and fast again: only the second is still worth telling."""
    monkeypatch.chdir(watched.parent)
    shown = [
        call("fleet", "trend", "--store", "store", *more, COLUMNS="80").stdout for more in ((), ("--why",), ("--json",))
    ]
    snapshots.same("fleet-trend", "\n".join([*shown[:-1], snapshots.ordered(shown[-1])]))
    plain = call("fleet", "trend", "--store", "store", COLUMNS="80", LC_ALL="C", PYTHONIOENCODING="ascii").stdout
    for text in (shown[0], plain):
        assert max(map(len, text.splitlines())) <= 80
        assert "\x1b" not in text


def test_a_trend_can_end_earlier_and_be_shorter(watched: Path) -> None:
    early = found(watched, campaign="c93")
    # The campaign that was resumed later is not among them.
    assert (early.campaigns, early.last) == (6, TIMES[6])
    assert [event.gpus[0].node for event in early.events] == [HOSTILE, "repaired"]
    assert of(early, HOSTILE).slower
    # The new board has a series of its own, which is too short; the old one is told of no more.
    assert (len(early.gpus), early.judged) == (7, 5)
    last = found(watched, last=6)
    assert (last.campaigns, last.others, last.judged) == (6, 1, 5)
    assert [event.gpus[0].node for event in last.events] == []
    with pytest.raises(UsageError, match="no campaign"):
        found(watched, campaign="none")


def test_campaigns_of_other_selections_are_left_out(tmp_path: Path) -> None:
    sources = []
    for number, began in enumerate(TIMES[:14]):
        name, other = f"c{number:02d}", number % 2 == 1
        record = campaign.new_campaign(name, ["memory"] if other else ["link"], campaign.Options(), "")
        campaign.write(campaign.make_folder(tmp_path / "s", name), record)
        sources.append(Source(measured(tmp_path, name, began, SLOWER if number >= 7 else {}), name, "n", {}))
        # In the first of them a run of other settings was imported into the same campaign.
        path = measured(tmp_path, f"{name}-m", began, SLOWER if number < 7 else {})
        sources.append(Source(with_settings(path, preset="quick") if number < 7 else path, name, "m", {}))
    store.add_all(tmp_path / "s", sources)
    several = found(tmp_path / "s")
    assert (several.campaigns, several.others) == (7, 6)
    assert [(event.gpus, event.since) for event in several.events] == [((Board("n", 0),), TIMES[7])]
    assert (found(tmp_path / "s", campaign="c12").campaigns, found(tmp_path / "s", campaign="c12").judged) == (7, 1)


def test_what_all_gpus_have_is_told_once(tmp_path: Path) -> None:
    sources = []
    for number, began in enumerate(TIMES[:8]):
        for node in range(4):
            new = number >= 4 and node != 3
            factors = {**({"dram": 1.05} if new else {}), **(HALVED if node == 1 and number >= 4 else {})}
            facts = {"driver_version": "580.2" if new else "580.1"}
            path = measured(tmp_path, f"{number}-{node}", began, factors, **facts)
            sources.append(Source(path, f"c{number}", f"n{node}", {"rack": "r2" if new else "r1"}))
    store.add_all(tmp_path / "s", sources)
    several = found(tmp_path / "s")
    assert [len(event.gpus) for event in several.events] == [3, 1]
    assert several.events[0].but == (Board("n3", 0),)
    text = " ".join(call("fleet", "trend", "--store", str(tmp_path / "s"), COLUMNS="80").stdout.split())
    assert "3 of 4 GPUs became slower" in text
    assert "all 4 GPUs but n3 GPU 0: memory_stream bandwidth 5.0 % slower since 2026-11-21 00:00" in text
    assert "driver is 580.2, before 580.1; label rack is r2, before r1" in text
    assert "n1 GPU 0: copies to the GPU 2.0× slower since 2026-11-21 00:00 (slow link: PCIe 5.0 x16 is slow" in text


def step(node: str, number: int, moment: int, group: str = "DRAM bandwidth", size: float = 0.1) -> _Shift:
    """A change between two campaigns, without more about it."""
    point = Point((node, f"GPU-{number}"), Board(node, number), ("", "c"), "class", "", None)
    early, since, late = (("", f"{each:03d}") for each in (moment - 2, moment, moment + 1))
    return _Shift(point, group, size, early, since, late, (point,), (point,), 3)


def told(steps: list[_Shift], nodes: int, gpus: int) -> list[tuple[str, int, int]]:
    """What is told of these changes: the place, how many GPUs, and how many others of the place there are."""
    points = [step(f"n{node}", number, 9).of for node in range(nodes) for number in range(gpus)]
    return [(name, len({one.of.key for one in several}), len(but)) for several, name, but in _told(steps, points)]


def test_changes_are_told_of_the_largest_place_that_most_of_its_gpus_have_them_in() -> None:
    every = [step(f"n{node}", number, 10) for node in range(4) for number in range(8)]
    assert told(every, 4, 8) == [("class", 32, 0)]
    assert told(every[8:16], 4, 8) == [("n1", 8, 0)]
    assert told(every[8:14], 4, 8) == [("n1", 6, 2)]
    assert told(every[8:12], 4, 8) == [("", 1, 0)] * 4
    assert told(every[:1], 1, 1) == [("", 1, 0)]
    # A campaign apart is the same change, three are not.
    near = [step("n0", number, 10 + number % 2) for number in range(8)]
    assert told(near, 4, 8) == [("n0", 8, 0)]
    far = [step("n0", number, 10 + 3 * (number % 2)) for number in range(8)]
    assert told(far, 4, 8) == [("", 1, 0)] * 8
    # One GPU has another change at the same time.
    assert told([*every, step("n2", 3, 10, "copies to the GPU")], 4, 8) == [("class", 32, 0), ("", 1, 0)]
    boards = [one.of.board for one in every]
    both = [*every, *(step(board.node, board.number or 0, 11, "copies to the GPU", -0.2) for board in boards)]
    assert told(both, 4, 8) == [("class", 32, 0)]


def test_few_campaigns_say_that_it_is_too_early(watched: Path, tmp_path: Path) -> None:
    text = call("fleet", "trend", "--store", str(watched), "--campaign", "c97").stdout
    assert "too early: 3 of 6 campaigns" in text
    assert call("fleet", "trend", "--store", str(tmp_path)).exit_code == ExitCode.USAGE


# The loop.


class Clock:
    """A time that passes only while something sleeps or measures; ``seconds`` is what each campaign takes."""

    def __init__(self, *seconds: float) -> None:
        self.now_s, self.seconds = 1e9, iter(seconds)
        self.starts: list[float] = []
        self.raising: dict[int, BaseException] = {}
        self.ended = ExitCode.MEASURED

    def time_ns(self) -> int:
        return round(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= commands.LOOK_EVERY_S
        self.now_s += seconds

    def carry_out(self, made: campaign.Campaign, *more: object) -> ExitCode:
        assert made.tasks == []
        self.starts.append(self.now_s - 1e9)
        self.now_s += next(self.seconds)
        if (number := len(self.starts)) in self.raising:
            raise self.raising[number]
        return self.ended


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    def made(*seconds: float) -> Clock:
        one = Clock(*seconds)
        monkeypatch.setattr(commands, "time", SimpleNamespace(time_ns=one.time_ns, sleep=one.sleep))
        monkeypatch.setattr(commands, "_carry_out", one.carry_out)
        monkeypatch.setattr(commands, "_tell_trend", lambda store: None)
        return one

    return made


def watch(*arguments: str, folder: str = "store") -> Any:
    return call("fleet", "watch", "launch_cost", "--local", "1", "--store", folder, *arguments)


def test_campaigns_start_on_a_fixed_grid(clock: Callable[..., Clock]) -> None:
    one = clock(100, 4000, 30, 8000, 10, 10)
    ended = watch("--every", "1h", "--times", "6")
    assert ended.exit_code == ExitCode.MEASURED
    # The second and the fourth take longer than an hour; what starts late does not move the others.
    assert one.starts == [0, 3600, 7600, 10800, 18800, 21600]
    lines = [line for line in ended.stdout.splitlines() if line.startswith("next campaign: ")]
    assert lines == [
        "next campaign: 2001-09-09 02:46 UTC, in 58 min 20 s; Ctrl-C ends the watch",
        "next campaign: now, because this one took 1 h 06 min, longer than 1 h 00 min",
        "next campaign: 2001-09-09 04:46 UTC, in 52 min 50 s; Ctrl-C ends the watch",
        "next campaign: now, because this one took 2 h 13 min, longer than 1 h 00 min",
        "next campaign: 2001-09-09 07:46 UTC, in 46 min 30 s; Ctrl-C ends the watch",
    ]


def test_a_campaign_that_cannot_start_is_told_and_tried_again(clock: Callable[..., Clock]) -> None:
    one = clock(1, 1, 1, 1)
    one.raising = {number: MicrobenchError(f"cause {number}", "next") for number in (1, 3)}
    one.raising[2] = UsageError("labels.toml cannot be read", "give a file")
    ended = watch("--every", "90s", "--times", "4")
    assert one.starts == [0, 90, 180, 270]
    assert ended.exit_code == ExitCode.SOME_FAILED
    for words in ("cause 1", "labels.toml cannot be read", "cause 3"):
        assert f"error: {words}" in ended.stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (("--every", "soon"), "soon is not a time"), (("--every", "0.4ns"), "less than a second"),
    (("--every", "400d"), "too long"), (("--every", "6h", "--quick", "--full"), "cannot be combined"),
    (("--every", "6h", "nothing"), "nothing"),
    (("--every", "6h", "--simulated", "absent.toml"), "absent.toml cannot be read"),
    (("--every", "6h", "--scheduler", "tcp://a:1"), "several of"),
])  # fmt: skip
def test_wrong_arguments_start_nothing(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    ended = watch(*arguments, folder=str(tmp_path / "store"))
    assert ended.exit_code == ExitCode.USAGE
    assert words in " ".join(ended.stderr.split())
    assert not (tmp_path / "store").exists()


def test_an_interruption_ends_the_watch(clock: Callable[..., Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    one = clock(1, 1)
    one.ended = ExitCode.INTERRUPTED  # of a campaign, which is closed then
    assert (watch("--every", "1h").exit_code, len(one.starts)) == (ExitCode.INTERRUPTED, 1)
    one = clock(1, 1)
    one.ended = ExitCode.SOME_FAILED

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "time", SimpleNamespace(time_ns=one.time_ns, sleep=interrupt))
    assert (watch("--every", "1h").exit_code, len(one.starts)) == (ExitCode.SOME_FAILED, 1)


def test_each_screen_of_a_watch_also_names_what_is_slow_now(watched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands._tell_trend(watched)
    words = " ".join(capsys.readouterr().out.split())
    assert "trend over 12 campaigns" in words
    assert "outliers in this campaign: halved GPU 0" in words
    assert f"microbench fleet report --store {watched}" in words


def test_a_watch_without_any_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands._tell_trend(tmp_path)
    assert capsys.readouterr().out.startswith("no trend: there is no run in ")


@pytest.mark.parametrize(("ending", "code"), [
    (MicrobenchError("the scheduler was lost", "what came back is kept"), ExitCode.SOME_FAILED),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED),
])  # fmt: skip
@pytest.mark.parametrize("command", [("run",), ("watch", "--every", "1h", "--times", "1")])
def test_what_came_back_before_a_campaign_was_cut_off_is_in_the_store(
    ending: BaseException, code: ExitCode, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(engine: Engine) -> None:
        run = measured(tmp_path, "run", TIMES[0], {})
        (engine.folder / "run.json").write_bytes(run.read_bytes())
        engine.campaign.tasks = [campaign.Task("n", status="ok", run="run.json"), campaign.Task("m")]
        campaign.write(engine.folder, engine.campaign)
        raise ending

    monkeypatch.setattr(Engine, "run", cut_off)
    nothing = (None, dict[str, str](), lambda names: {})
    monkeypatch.setattr(clusters, "connected", lambda where, wait_s: nullcontext(nothing))
    ended = call("fleet", *command, "launch_cost", "--local", "2", "--store", str(tmp_path / "s"), "--device", "fake")
    assert ended.exit_code == code
    assert "1 of 2 runs are ok" in ended.stdout
    assert "--resume" in ended.stdout
    assert ("the scheduler was lost" in ended.stderr) == (code == ExitCode.SOME_FAILED)
    assert list(store.query(tmp_path / "s", "SELECT node FROM runs")[1]) == [("n",)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_campaigns_of_a_simulated_node_are_watched(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    ended = watch("--quick", "--device", "fake", "--every", "1s", "--times", "2", folder=str(tmp_path / "s"))
    assert ended.exit_code == ExitCode.MEASURED, ended.output
    assert len(list((tmp_path / "s" / "campaigns").iterdir())) == 2
    assert ended.stdout.count("1 of 1 runs are ok") == 2
    assert "trend over 2 campaigns · 1 GPU on 1 node" in ended.stdout
    assert ended.stdout.count("too early: ") == 2
    assert ended.stdout.count("next campaign: ") == 1
    assert "SIMULATED" in ended.stdout
