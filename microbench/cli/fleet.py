"""The command `microbench fleet run`: the same run on every GPU of many nodes. fleet_store.py has the others."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench.cli import fleet_store, options
from microbench.cli.output import command
from microbench.core.errors import ExitCode, MicrobenchError, UsageError

if TYPE_CHECKING:
    from microbench.fleet.campaign import Campaign, Task
    from microbench.fleet.clusters import Where

LINES_SHOWN, NAMES_SHOWN = 20, 3
STATUS_WORDS = {"failed": "failed", "died": "died", "hung": "hung", "no_gpu": "no GPU", "waiting": "not measured"}

fleet_app = typer.Typer(
    help="Measure every GPU of many nodes, and find those unlike the others.",
    epilog="Example: microbench fleet run --scheduler tcp://head:8786 --store fleet",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


@fleet_app.callback()
def _fleet() -> None:
    pass


def run(
    store: options.Store,
    names: options.Measured = None,
    local: options.Local = None,
    scheduler: options.Scheduler = None,
    ssh: options.SshHosts = None,
    slurm: options.SlurmJobs = None,
    quick: options.Quick = False,
    full: options.Full = False,
    overrides: options.Overrides = None,
    device: options.FleetDevice = None,
    rounds: options.Rounds = 1,
    time_limit: options.TimeLimit = None,
    limit: options.TaskLimit = None,
    wait: options.WaitForNodes = 60.0,
    label: options.NodeLabels = None,
    labels: options.LabelsFile = None,
    resume: options.ResumedCampaign = None,
    simulated: options.SimulatedNodes = None,
) -> int:
    """Run the same benchmarks on every GPU of many nodes.

    The runs are kept in the store. The nodes are workers of Dask: those of a scheduler, or ones that are started here,
    by SSH or by Slurm. A machine runs one task at a time. What dies or hangs is recorded with its reason, and the rest
    goes on. The exit code is 0 if every task is ok, else 1.
    """
    import msgspec

    from microbench.fleet import campaign as records
    from microbench.fleet.clusters import Where, check, connected
    from microbench.fleet.engine import Engine
    from microbench.runs.store import new_run_id

    hosts = tuple(dict.fromkeys(host.strip() for host in (ssh or "").split(",") if host.strip()))
    where = Where(local, scheduler, hosts, slurm)
    check(where)
    if resume is not None:
        if names or quick or full or overrides or device or rounds != 1 or time_limit is not None:
            raise UsageError("--resume keeps what the campaign measures", "give only where the nodes are")
        campaign = records.read(store, resume)
        asked = campaign.options
    else:
        if quick and full:
            raise UsageError("--quick and --full cannot be combined", "give one of them, or neither")
        preset = "quick" if quick else "full" if full else "default"
        asked = records.Options(preset, tuple(overrides or ()), device, rounds, time_limit)
        campaign = records.new_campaign(
            new_run_id(datetime.now(UTC)), list(names or ()), asked, " ".join(where.arguments)
        )
    if limit is not None:
        campaign.options = msgspec.structs.replace(asked, limit_s=limit)
    needs_gpu = _needs_gpu(campaign)
    node_labels = records.read_labels(labels) if labels is not None else {}
    differing = records.read_simulated(simulated) if simulated is not None else {}
    every_node = records.parsed_labels(label or [])
    try:
        with _signals(), _shown() as changed, connected(where) as connection:
            folder = records.make_folder(store, campaign.campaign)
            Engine(
                connection.client, campaign, folder, labels=every_node, node_labels=node_labels, simulated=differing,
                needs_gpu=needs_gpu, unreachable=connection.unreachable, expected=where.expected, wait_s=wait,
                absent=connection.absent, changed=changed,
            ).run()  # fmt: skip
    except KeyboardInterrupt:
        if records.folder_of(store, campaign.campaign).exists():  # else it has not begun
            _close(campaign, store, where)
        return ExitCode.INTERRUPTED
    _close(campaign, store, where)
    everything = campaign.tasks and all(task.status == "ok" for task in campaign.tasks)
    return ExitCode.MEASURED if everything else ExitCode.SOME_FAILED


def _needs_gpu(campaign: Campaign) -> bool:
    """Check what every node will be asked, before any is. False if it can be measured without a GPU.

    Raises UsageError.
    """
    from microbench.core.bench import discover
    from microbench.run.plan import parse_overrides
    from microbench.run.request import RunRequest, examine

    asked = campaign.options
    request = RunRequest(
        tuple(campaign.selection), asked.preset, parse_overrides(asked.overrides), asked.device, asked.rounds,
        asked.time_limit_s,
    )  # fmt: skip
    intent = examine(request, discover(), datetime.now(UTC))
    return any(chosen.benchmark.gpus != 0 for chosen in intent.selected)


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, act as Ctrl-C: what was started on other machines ends then."""
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
    """What draws the state of a campaign: one line that is updated on a terminal, nothing elsewhere."""
    from microbench.report.terminal.terminal import Painter, open_console

    console = open_console(sys.stderr)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda campaign, running: None
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


def _close(campaign: Campaign, store: Path, where: Where) -> None:
    """Draw the closing screen: how many runs came back, which did not and why, and what to type next."""
    from microbench.fleet.campaign import folder_of
    from microbench.report.terminal import terminal

    console = terminal.open_console()
    painter = terminal.Painter(console)
    missing = [task for task in campaign.tasks if task.status != "ok"]
    ok = len(campaign.tasks) - len(missing)
    mark = " · SIMULATED" if campaign.simulated else ""
    nodes = len({task.node for task in campaign.tasks})
    title = f"campaign {campaign.campaign} · {nodes} node{'s' if nodes != 1 else ''}{mark}"
    console.print(painter.text(title, "strong"), soft_wrap=True)
    came_back = f"{ok} of {len(campaign.tasks)} runs are ok" if campaign.tasks else "no node came"
    console.print(painter.text(came_back, "good" if ok and not missing else "problem"))
    noted = [task for task in campaign.tasks if task.status == "ok" and task.reason]
    for tasks, sign in ((missing, "✗"), (noted, "▲")):
        for words in _grouped(tasks):
            console.print(painter.text(f" {sign if painter.fine else '-'} {words}"), soft_wrap=True)
    said = ["microbench", "fleet", "report", "--store", str(store), "-o", "page.html"]
    folder = folder_of(store, campaign.campaign)
    lines = [f"saved: {folder}", *_add_to_store(store, folder), f"next:  {shlex.join(said)}"]
    if missing:
        again = ["microbench", "fleet", "run", "--store", str(store), "--resume", campaign.campaign, *where.arguments]
        lines.append(f"again: {shlex.join(again)}")
    terminal.tell(lines, console)


def _add_to_store(store: Path, folder: Path) -> list[str]:
    """Add the campaign's runs to the store that reports and queries read; lines that say what was not added."""
    from microbench.fleet.store import add_all, campaign_sources

    try:
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


COMMANDS = ((run, "microbench fleet run --local 4 --device fake --quick --store fleet"), *fleet_store.COMMANDS)
for _function, _example in COMMANDS:
    fleet_app.command(_function.__name__.rstrip("_"), epilog=f"Example: {_example}")(command(_function))
