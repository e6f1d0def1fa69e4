"""A campaign and its file: what was asked of the nodes, and what became of each task.

``DIR/campaigns/ID/campaign.json`` is replaced whole after every change, next to the run files that came back.
"""

import os
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from microbench.core import files
from microbench.core.errors import ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.units import plain

CAMPAIGNS = "campaigns"
CAMPAIGN_FILE = "campaign.json"
LARGEST_BYTES = 1 << 28
USUAL_LIMIT_S = 1800.0

Ended = Literal["ok", "failed", "died", "hung", "no_gpu"]
Status = Literal["waiting", Ended]


class Options(msgspec.Struct, frozen=True):
    """The options of ``microbench run`` that every task gets, and ``limit_s``, after which a task is ended.

    With a ``device`` a node has one task that measures that device, else one task for each of its GPUs.
    """

    preset: str = "default"
    overrides: tuple[str, ...] = ()
    device: str | None = None
    rounds: int = 1
    time_limit_s: float | None = None
    limit_s: float = USUAL_LIMIT_S


class Task(msgspec.Struct):
    """One run on one node. ``gpu`` is a UUID, or empty where the options name the device; ``run`` is the name of the
    run file that came back, or empty. ``versions`` are what the node said before its first task."""

    node: str
    gpu: str = ""
    status: Status = "waiting"
    reason: str = ""
    tries: int = 0
    run: str = ""
    labels: dict[str, str] = {}
    versions: dict[str, str] = {}
    began: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.node} {self.gpu}" if self.gpu else self.node

    def file_name(self, number: int) -> str:
        """The name of the run file: without unusual characters, and with a number where other tasks have it too."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", self.name)[:80].strip("_") or "node"
        return f"{name}-{number}.json.xz" if number > 1 else f"{name}.json.xz"

    def end(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason


class Campaign(msgspec.Struct):
    """Everything about a campaign but the runs themselves. Times are UTC in ISO 8601."""

    campaign: str
    began: str
    ended: str | None
    selection: list[str]
    options: Options
    scheduler: str
    tasks: list[Task]

    @property
    def simulated(self) -> bool:
        return self.options.device == "fake"

    def counts(self) -> Counter[Status]:
        return Counter(task.status for task in self.tasks)

    def task(self, node: str, gpu: str) -> Task | None:
        return next((task for task in self.tasks if (task.node, task.gpu) == (node, gpu)), None)


def new_campaign(identity: str, selection: list[str], options: Options, scheduler: str) -> Campaign:
    """A campaign without tasks, which begins now."""
    return Campaign(identity, now(), None, selection, options, scheduler, [])


def now() -> str:
    """The time as campaigns write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder_of(store: Path, identity: str) -> Path:
    """The folder of a campaign in the store."""
    return store / CAMPAIGNS / identity


def make_folder(store: Path, identity: str) -> Path:
    """Make the folder of a new campaign. Raises ResultNotWrittenError."""
    folder = folder_of(store, identity)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause = f"{plain(folder)} cannot be created: {error.strerror or error}"
        raise ResultNotWrittenError(cause, "name another folder with --store") from None
    return folder


def write(folder: Path, campaign: Campaign) -> None:
    """Replace the campaign's file, all or nothing. Raises ResultNotWrittenError."""
    put(folder / CAMPAIGN_FILE, msgspec.json.format(msgspec.json.encode(campaign), indent=1))


def put(path: Path, data: bytes) -> None:
    """Replace a file of a campaign, all or nothing. Raises ResultNotWrittenError."""
    try:
        os.close(files.replace(path, data))
    except OSError as error:
        cause = f"{plain(path)} cannot be written: {error.strerror or error}"
        next_step = "free some space, or name another folder with --store"
        if (path.parent / CAMPAIGN_FILE).exists():
            next_step = f"what came back is in {plain(path.parent)}: free some space, then --resume {path.parent.name}"
        raise ResultNotWrittenError(cause, next_step) from None


def read(store: Path, identity: str) -> Campaign:
    """The campaign of that id in the store. Raises RunUnreadableError."""
    known = sorted(each.parent.name for each in (store / CAMPAIGNS).glob(f"*/{CAMPAIGN_FILE}"))
    if identity not in known:
        newest = f"the newest one there is {plain(known[-1])}" if known else "it has no campaign yet"
        raise RunUnreadableError(f"there is no campaign {plain(identity)} in {plain(store)}", newest)
    return read_folder(folder_of(store, identity))


def read_folder(folder: Path) -> Campaign:
    """The campaign that a folder has. Raises RunUnreadableError."""
    path = folder / CAMPAIGN_FILE
    try:
        with files.open_regular(path) as file:
            return msgspec.json.decode(file.read(LARGEST_BYTES), type=Campaign)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        cause = f"{plain(path)} cannot be read: {plain(error)}"
        raise RunUnreadableError(
            cause, "start a new campaign; the run files beside it can be shown as they are"
        ) from None


def parsed_labels(texts: list[str]) -> dict[str, str]:
    """The labels of KEY=VALUE texts. Raises UsageError."""
    pairs = [(text, text.partition("=")) for text in texts]
    for text, (key, equals, value) in pairs:
        if not (key and equals and value):
            raise UsageError(f"--label {plain(text)} is not KEY=VALUE", "for example --label rack=r1")
    return {key: value for _, (key, _, value) in pairs}


def read_labels(path: Path) -> dict[str, dict[str, str]]:
    """The labels of each node, from a TOML or JSON file with a table for each node. Raises UsageError."""
    tables = _by_node(path, "--labels", dict[str, str | int], 'write [node-1] and rack = "r1"')
    return {node: {key: str(value) for key, value in table.items()} for node, table in tables.items()}


class Simulated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one simulated node differs from the others: costs of its GPU, a fault of the node, a limit of its own."""

    costs: dict[str, Any] = {}
    fault: Literal["", "dies", "hangs"] = ""
    limit_s: float | None = None


def read_simulated(path: Path) -> dict[str, Simulated]:
    """The simulated nodes that differ, from a TOML or JSON file. Raises UsageError."""
    example = 'write [node-1] and costs = {…} or fault = "dies" or "hangs"'
    return dict(_by_node(path, "--simulated", Simulated, example))


def _by_node(path: Path, option: str, kind: Any, example: str) -> Any:
    """What a file says of each node, which is of that kind. Raises UsageError."""
    decode, read, node = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode, {}, "the file"
    try:
        with files.open_regular(path) as file:
            tables = decode(file.read(LARGEST_BYTES), type=dict[str, dict[str, Any]])
        for node, table in tables.items():
            read[node] = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{plain(path)}, {plain(node)}: {plain(error)}", example) from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UsageError(f"{option} {plain(path)} cannot be read: {plain(error)}", "give a TOML or JSON file") from None
    return read
