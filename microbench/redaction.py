"""A run without what names its machine or its user, still a run: for exports that others get to see."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from microbench.model import AxisInfo, BenchmarkInfo, Case, Fact, Measurement, Metric, Run, Series, Session, Settings
from microbench.redacted_text import Kind, Redactor

Part = TypeVar("Part")

# Words of this tool, by which rows find their benchmark: a user called "launch" must not take them away. What shows
# what it is, such as a path, is taken out of them too.
OWN_WORDS: dict[type, tuple[str, ...]] = {
    AxisInfo: ("name",),
    BenchmarkInfo: ("name", "suite", "title", "about"),
    Case: ("benchmark",),
    Fact: ("name", "unit"),
    Measurement: ("metric", "clock", "bound", "stopped"),
    Metric: ("name", "kind", "unit", "about"),
    Series: ("metric",),
    Session: ("tool_version", "started_at", "commit"),
    Settings: ("preset", "select"),
}
# Facts that are such a name themselves.
NAMING_FACTS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"serial", re.IGNORECASE), "SERIAL"),
    (re.compile(r"(^|_)(host_?name|node_?name|fqdn)$", re.IGNORECASE), "HOST"),
    (re.compile(r"(^|_)(user|user_?name|login|log_?name)$", re.IGNORECASE), "USER"),
)


# Fields and facts that begin with a version.
VERSIONS = re.compile(r"(^|_)version$|^packages$", re.IGNORECASE)


class Identity(NamedTuple):
    """Names of a machine and of whoever uses it."""

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


def own_identity() -> Identity:
    """This machine's names and this user's: most runs are exported where they were measured."""
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    users.append(os.path.basename(os.path.expanduser("~")))
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:  # a container may run as a number that nobody has
        account = None
    if account is not None:
        users += [account.pw_name, account.pw_gecos.partition(",")[0]]
    hosts = (os.uname().nodename, os.environ.get("HOSTNAME", ""))
    return Identity(tuple(dict.fromkeys(filter(None, hosts))), tuple(dict.fromkeys(filter(None, users))))


def redacted(run: Run, identity: Identity | None = None) -> Run:
    """The run with host names, UUIDs, serial numbers, addresses, user names and paths replaced by GPU-1, PATH-2 and the
    like.

    The same thing gets the same name everywhere: in devices, parameters, facts, reasons and telemetry. ``identity``
    are names to look for besides those that texts give away; left out, this machine's and this user's.
    """
    redactor = Redactor(*(identity or own_identity()))
    _learn_facts(run, redactor)
    for text in _texts(run):
        redactor.learn(text)
    return _without(run, redactor, redactor.text)


def _learn_facts(run: Run, redactor: Redactor) -> None:
    told = [fact for session in run.sessions for fact in session.environment.facts]
    told += [fact for outcome in run.outcomes for fact in outcome.facts]
    for fact in told:
        for pattern, kind in NAMING_FACTS:
            if fact.value is not None and not isinstance(fact.value, bool) and pattern.search(fact.name):
                redactor.learn_name(str(fact.value), kind)


def _texts(value: Any) -> Iterator[str]:
    """Every string in a value, first things first: the first GPU of the run is to be GPU-1."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _texts(getattr(value, name))
    elif isinstance(value, tuple):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)


def _without(value: Part, redactor: Redactor, how: Callable[[str], str]) -> Part:
    """``value`` redacted: ``how`` its texts are, where their place does not say otherwise."""
    replaced: Any = value
    if isinstance(value, str):
        replaced = how(value)
    elif isinstance(value, tuple):
        replaced = tuple(_without(one, redactor, how) for one in value)
    elif isinstance(value, dict):
        replaced = {redactor.patterns(key): _without(one, redactor, how) for key, one in value.items()}
    elif isinstance(value, Fact) and isinstance(value.value, int | float) and _naming(value):
        replaced = msgspec.structs.replace(value, value=redactor.text(str(value.value)))
    elif isinstance(value, msgspec.Struct):
        changes = {
            name: changed
            for name in value.__struct_fields__
            if (changed := _without(old := getattr(value, name), redactor, _way(value, name, redactor))) != old
        }
        replaced = msgspec.structs.replace(value, **changes) if changes else value
    return replaced  # type: ignore[no-any-return]


def _way(struct: msgspec.Struct, name: str, redactor: Redactor) -> Callable[[str], str]:
    """How the texts of a struct's field are redacted."""
    if name in OWN_WORDS.get(type(struct), ()):
        return redactor.patterns
    told = struct.name if isinstance(struct, Fact) and name == "value" else name
    return redactor.version if VERSIONS.search(told) else redactor.text


def _naming(fact: Fact) -> bool:
    return any(pattern.search(fact.name) for pattern, _ in NAMING_FACTS)
