"""The commands fleet run and fleet watch: the same run on every GPU of many nodes. fleet_store.py has the others."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench.cli import fleet_store
from microbench.cli.options import CampaignOptions
from microbench.cli.output import command, draw, tell, tell_error
from microbench.core.errors import ExitCode, MicrobenchError, UsageError
from microbench.core.options import REQUIRED, option
from microbench.core.units import counted, plain, typed_time, wall
from microbench.library.options import NAMES, overrides_of, preset_of

if TYPE_CHECKING:
    from microbench.fleet.campaign import Campaign, Options, Task
    from microbench.fleet.clusters import Where

STORE = option("DIR", "The folder that keeps campaigns and their runs.", default=REQUIRED)
LINES_SHOWN, NAMES_SHOWN = 20, 3
LONGEST_EVERY_S = 366 * 86400.0
# Seconds between two looks at the clock while a watch waits for the next campaign.
LOOK_EVERY_S = 60.0
LINE_EVERY_S = 10.0  # between two lines of progress where there is no terminal
STATUS_WORDS = {"failed": "failed", "died": "died", "hung": "hung", "no_gpu": "no GPU", "waiting": "not measured"}

fleet_app = typer.Typer(
    help="Measure every GPU of many nodes, and find the outliers.",
    epilog="Example: microbench fleet run --scheduler tcp://head:8786 --store fleet",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


def run(
    *,
    store: Path = STORE,
    names: Sequence[str] = NAMES,
    given: CampaignOptions,
    resume: str | None = option("ID", "Run what this campaign still lacks."),
) -> int:
    """Run the same benchmarks on every GPU of many nodes.

    The runs are kept in the store. The nodes are workers of Dask: those of a scheduler, or ones that are started here,
    by SSH or by Slurm. A machine runs one task at a time. What dies or hangs is recorded with its reason, and the rest
    goes on. The exit code is 0 if every task is ok, else 1.
    """
    import msgspec

    from microbench.fleet import campaign as records

    where, asked = _given(given)
    if resume is None:
        campaign = _new(names, asked, where)
    else:
        measures = (*names, given.quick, given.full, given.overrides, given.device)
        if any(measures) or given.rounds != 1 or given.time_limit is not None:
            raise UsageError("--resume keeps what the campaign measures", "give only where the nodes are")
        campaign = records.read(store, resume)
        if given.limit is not None:
            campaign.options = msgspec.structs.replace(campaign.options, limit_s=given.limit)
    said = ["microbench", "fleet", "report", "--store", str(store), "-o", "page.html"]
    return _carry_out(campaign, store, where, given, [f"next:  {shlex.join(said)}"])


def watch(
    *,
    every: str = option("TIME", "From the start of one campaign to that of the next: 30min, 6h, 1d.", default=REQUIRED),
    store: Path = STORE,
    names: Sequence[str] = NAMES,
    times: int | None = option("N", "End after N campaigns; default: at Ctrl-C.", least=1),
    given: CampaignOptions,
) -> int:
    """Repeat a campaign, and say after each what changed.

    The campaigns are those of fleet run, and what changed is said as by fleet trend. They start at fixed times from the
    first one on; one that takes longer delays only the next. If one cannot start, this is said, and the next is tried
    at its time. Ctrl-C ends the watch, and closes a campaign that runs. The exit code is 0 if every task of all
    campaigns is ok and stored, else 1.
    """
    every_s = typed_time(every, LONGEST_EVERY_S, "90s, 30min, 6h, 1d")
    if every_s < 1:
        raise UsageError(f"--every {plain(every, 40)} is less than a second", "--every 6h")
    where, asked = _given(given)
    first_ns, every_ns = time.time_ns(), round(every_s * 1e9)
    worst = ExitCode.MEASURED
    for number in range(1, times + 1) if times is not None else count(1):
        began_ns = time.time_ns()
        try:
            ended = _carry_out(_new(names, asked, where), store, where, given, [])
        except MicrobenchError as error:
            if number == 1 and isinstance(error, UsageError):
                raise
            tell_error(error)
            ended = ExitCode.SOME_FAILED
        else:
            if ended == ExitCode.INTERRUPTED:
                return ended
            _tell_trend(store)
        worst = max(worst, ended)
        if number != times:
            due_ns = first_ns + ((began_ns - first_ns) // every_ns + 1) * every_ns
            try:
                _wait_until(due_ns, began_ns, every_s)
            except KeyboardInterrupt:
                break
    return worst


def _given(given: CampaignOptions) -> tuple[Where, Options]:
    """Where the nodes are, and the options that every task gets. Raises UsageError, also for wrong labels."""
    from microbench.fleet.campaign import USUAL_LIMIT_S, Options, parsed_labels
    from microbench.fleet.clusters import Where, check

    hosts = tuple(dict.fromkeys(host.strip() for host in (given.ssh or "").split(",") if host.strip()))
    where = Where(given.local, given.scheduler, hosts, given.slurm)
    check(where)
    parsed_labels(list(given.label))
    preset, limit_s = preset_of(given.quick, given.full), USUAL_LIMIT_S if given.limit is None else given.limit
    return where, Options(preset, given.overrides, given.device, given.rounds, given.time_limit, limit_s)


def _new(names: Sequence[str], asked: Options, where: Where) -> Campaign:
    from microbench.archive.store import new_run_id
    from microbench.fleet.campaign import new_campaign

    return new_campaign(new_run_id(datetime.now(UTC)), list(names), asked, " ".join(where.arguments))


def _carry_out(
    campaign: Campaign, store: Path, where: Where, given: CampaignOptions, next_lines: list[str]
) -> ExitCode:
    """Run what the campaign lacks, add its runs to the store and draw the closing screen with ``next_lines``.

    Raises MicrobenchError if it cannot start or go on; what came back is in the store all the same.
    """
    from microbench.core.bench import discover
    from microbench.core.model import Settings
    from microbench.fleet import campaign as records
    from microbench.fleet.clusters import connected
    from microbench.fleet.engine import Engine
    from microbench.session.request import RunRequest, examine

    asked = campaign.options
    settings = Settings(
        asked.preset, tuple(campaign.selection), overrides_of(asked.overrides), asked.device, asked.rounds,
        asked.time_limit_s,
    )  # fmt: skip
    intent = examine(RunRequest(settings), discover(), datetime.now(UTC))
    needs_gpu = any(chosen.benchmark.gpus != 0 for chosen in intent.selected)
    labels = records.parsed_labels(list(given.label))
    node_labels = records.read_labels(given.labels) if given.labels is not None else {}
    differing = records.read_simulated(given.simulated) if given.simulated is not None else {}
    ok_before = campaign.counts()["ok"]
    try:
        with _signals(), _shown() as changed, connected(where, given.wait) as (client, unreachable, absent):
            folder = records.make_folder(store, campaign.campaign)
            Engine(
                client, campaign, folder, labels=labels, node_labels=node_labels, simulated=differing,
                needs_gpu=needs_gpu, unreachable=unreachable, expected=where.expected, wait_s=given.wait,
                absent=absent, changed=changed,
            ).run()  # fmt: skip
    except KeyboardInterrupt:
        if records.folder_of(store, campaign.campaign).exists():
            _close(campaign, store, where, next_lines)
        else:
            typer.echo("interrupted before the campaign began", err=True)
        return ExitCode.INTERRUPTED
    except MicrobenchError:
        if campaign.counts()["ok"] > ok_before:
            _close(campaign, store, where, next_lines)
        raise
    stored = _close(campaign, store, where, next_lines)
    everything = stored and campaign.tasks and all(task.status == "ok" for task in campaign.tasks)
    return ExitCode.MEASURED if everything else ExitCode.SOME_FAILED


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, act as Ctrl-C, so that processes on other machines end too."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _shown() -> Iterator[Callable[[Campaign, Sequence[str]], None]]:
    """A function that shows how far a campaign is. A terminal has one line, which changes; elsewhere a new line is
    written, at most every LINE_EVERY_S."""
    from microbench.report.terminal.terminal import Painter, open_console, tell

    console = open_console(sys.stderr)
    if not console.is_terminal or console.is_dumb_terminal:
        told, due_s = "", 0.0

        def written(campaign: Campaign, running: Sequence[str]) -> None:
            nonlocal told, due_s
            line = progress_line(campaign, running)
            if line != told and time.monotonic() >= due_s:
                told, due_s = line, time.monotonic() + LINE_EVERY_S
                tell([line], console)

        yield written
        return
    from rich.live import Live

    painter = Painter(console)
    with Live(painter.text("looking for the nodes…", "quiet"), console=console, transient=True) as live:

        def changed(campaign: Campaign, running: Sequence[str]) -> None:
            line = painter.text(progress_line(campaign, running), "quiet")
            line.no_wrap, line.overflow = True, "crop"
            live.update(line)

        yield changed


def progress_line(campaign: Campaign, running: Sequence[str]) -> str:
    """The state of a campaign in one line."""
    counts = campaign.counts()
    done = sum(count for status, count in counts.items() if status != "waiting")
    words = [f"{done} of {len(campaign.tasks)} runs"]
    words += [f"{count} {STATUS_WORDS.get(status, status)}" for status, count in counts.items() if status != "waiting"]
    return " · ".join([*words, *([f"running: {_listed(running)}"] if running else [])])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _close(campaign: Campaign, store: Path, where: Where, next_lines: Sequence[str]) -> bool:
    """Draw the closing screen: how many runs came back, which did not and why, and what to type next. False if what
    came back is not in the store."""
    from microbench.fleet.campaign import folder_of
    from microbench.report.terminal import terminal

    console = terminal.open_console()
    painter = terminal.Painter(console)
    missing = [task for task in sorted(campaign.tasks, key=lambda task: task.name) if task.status != "ok"]
    ok = len(campaign.tasks) - len(missing)
    mark = " · SIMULATED" if campaign.simulated else ""
    nodes = counted(len({task.node for task in campaign.tasks}), "node")
    title = f"campaign {campaign.campaign} · {nodes}{mark}"
    console.print(painter.text(title, "strong"), soft_wrap=True)
    came_back = f"{ok} of {len(campaign.tasks)} runs are ok" if campaign.tasks else "no node came"
    console.print(painter.text(came_back, "good" if ok and not missing else "problem"))
    noted = [task for task in campaign.tasks if task.status == "ok" and task.reason]
    for tasks, sign in ((missing, "✗"), (noted, "▲")):
        for words in _grouped(tasks):
            console.print(painter.text(f" {sign if painter.fine else '-'} {words}"), soft_wrap=True)
    folder = folder_of(store, campaign.campaign)
    not_stored = _add_to_store(store, folder)
    lines = [f"saved: {folder}", *not_stored, *next_lines]
    if missing:
        again = ["microbench", "fleet", "run", "--store", str(store), "--resume", campaign.campaign, *where.arguments]
        lines.append(f"again: {shlex.join(again)}")
    terminal.tell(lines, console)
    return not not_stored


def _add_to_store(store: Path, folder: Path) -> list[str]:
    """Add the campaign's runs to the store that reports and queries read; lines that say what was not added."""
    try:
        from microbench.fleet.store import add_all, campaign_sources

        failed = add_all(store, campaign_sources(folder)).failed
    except MicrobenchError as error:
        later = ["microbench", "fleet", "import", str(folder), "--store", str(store)]
        return [f"not in the store: {error.cause}", f"then:  {shlex.join(later)}"]
    return [f"not in the store: {path.name}: {reason}" for path, reason in failed]


def _grouped(tasks: Sequence[Task]) -> list[str]:
    """One line for each group of tasks that ended for the same reason, at most LINES_SHOWN."""
    groups: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        groups.setdefault((STATUS_WORDS.get(task.status, "ok"), task.reason), []).append(task.name)
    lines = [
        f"{_listed(names)}: {status}{': ' if reason else ''}{reason}" for (status, reason), names in groups.items()
    ]
    more = len(lines) - LINES_SHOWN
    return lines[:LINES_SHOWN] + ([f"and {more} more kinds, in the campaign's file"] if more > 0 else [])


def _tell_trend(store: Path) -> None:
    """Draw what changed over the campaigns of the store, and name the outliers of the newest."""

    try:
        from microbench.fleet.sheet import name_of, trend_screen
        from microbench.fleet.trend import trend
        from microbench.fleet.verdict import judged

        unlike = _listed([name_of(named.gpu) for named in judged(store).named])
        more = f"outliers in this campaign: {unlike}: microbench fleet report --store {store}" if unlike else ""
        draw(trend_screen(trend(store, None, fleet_store.USUAL_LAST), more))
    except MicrobenchError as error:
        tell([f"no trend: {error.cause}"])


def _wait_until(due_ns: int, began_ns: int, every_s: float) -> None:
    """Say when the next campaign starts, and wait until then. The clock may be set meanwhile, or the machine sleep."""
    left_s = (due_ns - time.time_ns()) / 1e9
    if left_s > 0:
        shown = "%Y-%m-%d %H:%M" if every_s >= 60 else "%Y-%m-%d %H:%M:%S"
        moment = datetime.fromtimestamp(due_ns / 1e9, UTC).strftime(shown)
        line = f"next campaign: {moment} UTC, in {wall(left_s)}; Ctrl-C ends the watch"
    else:
        took_s = (time.time_ns() - began_ns) / 1e9
        line = f"next campaign: now, because this one took {wall(took_s)}, longer than {wall(every_s)}"
    tell([line, ""])
    while (left_s := (due_ns - time.time_ns()) / 1e9) > 0:
        time.sleep(min(left_s, LOOK_EVERY_S))


COMMANDS = (
    (run, "microbench fleet run --local 4 --device fake --quick --store fleet"),
    (watch, "microbench fleet watch --every 6h --scheduler tcp://head:8786 --store fleet"),
    (fleet_store.import_, "microbench fleet import RUN --store DIR --label rack=r1"),
    (fleet_store.query, 'microbench fleet query --store DIR "SELECT suite, count(*) FROM rows GROUP BY suite"'),
    (fleet_store.report, "microbench fleet report --store DIR -o fleet.html"),
    (fleet_store.trend, "microbench fleet trend --store DIR"),
)
for _function, _example in COMMANDS:
    fleet_app.command(_function.__name__.rstrip("_"), epilog=f"Example: {_example}")(command(_function))
