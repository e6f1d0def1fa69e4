"""Removes what identifies a machine or a person from a run, which stays a run: for exports that others will see.

The fields of a run are known, so UUIDs, host names, user names, serial numbers and paths in them are replaced by the
field's kind. In free text the names of this machine and user are replaced, paths, UUIDs and addresses by their form,
and names behind a key such as ``HOSTNAME=``.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from microbench.core.model import (
    AxisInfo,
    BenchmarkInfo,
    Case,
    Fact,
    GpuInfo,
    Measurement,
    Metric,
    Outcome,
    Run,
    Series,
    Session,
    Settings,
)

Kind = Literal["HOST", "USER", "SERIAL", "GPU", "ID", "PATH", "MAC", "IP"]
Part = TypeVar("Part")

# This tool's own words. Rows find their benchmark by them, so a user called "launch" must not change them.
OWN_WORDS: dict[type, tuple[str, ...]] = {
    AxisInfo: ("name", "about", "labels"),
    BenchmarkInfo: ("name", "suite", "title", "about"),
    Case: ("benchmark",),
    Fact: ("name", "unit"),
    GpuInfo: ("name",),
    Measurement: ("metric", "clock", "bound", "stopped"),
    Metric: ("name", "kind", "unit", "about"),
    Run: ("run_id",),
    Series: ("metric",),
    Session: ("tool_version", "started_at", "commit"),
    Settings: ("preset", "select"),
}
# Facts that hold nothing but a name, and facts that hold paths.
FACT_KINDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(^|_)serial(_number|_no)?$", re.IGNORECASE), "SERIAL"),
    (re.compile(r"(^|_)(host_?name|node_?name|fqdn)$", re.IGNORECASE), "HOST"),
    (re.compile(r"(^|_)(user|user_?name|login|log_?name)$", re.IGNORECASE), "USER"),
    (re.compile(r"(^preloaded_libraries|_(path|directory|file))$", re.IGNORECASE), "PATH"),
)
# Accounts and hosts that many machines have, and the kinds themselves: as a name they identify nobody.
COMMON_NAMES = frozenset(
    {
        "admin", "cuda", "docker", "gpu", "host", "id", "ip", "localhost", "mac", "nobody", "none", "nvidia", "path",
        "root", "runner", "serial", "test", "ubuntu", "user",
    }
)  # fmt: skip
SHORTEST_NAME = 2
MOST_KNOWN = 100  # names that are searched for in all texts: each one costs time at every word
GIVEN = re.compile(r"(?:HOST|USER|SERIAL|GPU|ID|PATH|MAC|IP)-\d+")
VERSION = re.compile(r"\d+(?:\.\d+)*")
LISTED_PATH = re.compile(r"[^\s:]*/[^\s:]*")

# Texts may be long and hostile: no pattern may start again inside what it has just tried, hence the look-behinds.
PATH = re.compile(
    r"(?<![\w+.-])[A-Za-z][\w+.-]{1,20}://[^\s\"'<>]+"  # a URL
    r"|(?<![\w/.~)\]])(?!/(?:proc|sys|dev)/)(?:~[\w.-]*/|/[^\s/\"'`<>|:;,()\[\]{}]+/)[^\s\"'`<>|:;,()\[\]{}]+"
)
UUID = re.compile(
    r"((?:(?:GPU|MIG)-){0,2})([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f]))",
    re.IGNORECASE,
)
BEGUN_UUID = re.compile(r"(?<!\w)(?:GPU|MIG)-([0-9a-f]{8}[0-9a-f-]*)(?!\w)", re.IGNORECASE)
MAC = re.compile(
    r"(?<![0-9A-Fa-f])(?<![0-9A-Fa-f][:-])[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4,18}[0-9A-Fa-f]{2}(?!\w|\1\w)"
    r"|(?<![a-z])enx[0-9a-f]{12}(?!\w)"  # an interface named by its address
)
IPV4 = re.compile(r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)")
IPV6 = re.compile(
    r"(?<![\w.])(?<![0-9A-Fa-f:]:)(?<!IP-)[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:(?:\.\d{1,3}){3})?(?![\w:])"
)
BOARD_SERIAL = re.compile(r"(?<![\w.])\d{13}(?!\w|\.\d)")  # of NVIDIA's boards
CLOUD_HOST = re.compile(r"(?<!\w)ip(?:-\d{1,3}){4}(?:[\w.-]*\w)?")
USER_AT_HOST = re.compile(r"(?<![\w.@-])([A-Za-z_][\w.-]*)(@\[?)([A-Za-z0-9](?:[\w.-]*\w)?)")
# Keys that a name follows. The short ones need more than a colon: "on the host: 3 µs" is a sentence.
IS, IS_SHORT = r"[\"']?\s{0,2}[:=]\s{0,2}[\"']?", r"(?:=|[\"']\s?:\s?)[\"']?"
NAME = r"([a-z0-9_](?:[\w.-]*\w)?)"
KEYS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "HOST",
        re.compile(rf"((?<![a-z])(?:host_?name|node_?name|node_?list|master_addr|fqdn){IS}){NAME}", re.IGNORECASE),
    ),
    ("HOST", re.compile(rf"((?<![a-z])(?:host|node){IS_SHORT}){NAME}", re.IGNORECASE)),
    ("USER", re.compile(rf"((?<![a-z])(?:user_?name|log_?name|login){IS}){NAME}", re.IGNORECASE)),
    ("USER", re.compile(rf"((?<![a-z])(?:user{IS_SHORT}|uid=\d{{1,10}}\()){NAME}", re.IGNORECASE)),
    (
        "SERIAL",
        re.compile(rf"((?<![a-z])(?:serial(?:[ _-]?(?:number|no))?|s/n|sn){IS})(?=[\w-]*\d){NAME}", re.IGNORECASE),
    ),
)


class Redactor:
    """Replaces names by their kind and a number, the same name by the same number everywhere."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self._names: dict[str, str] = {}
        self._numbers: dict[Kind, int] = {}
        self._gpus: dict[str, str] = {}  # by the first eight digits of their UUIDs
        for host in hosts:
            for name in (host, host.partition(".")[0]):
                self.name(name, "HOST")
        for user in users:
            self.name(user, "USER")
        self._known = dict(list(self._names.items())[:MOST_KNOWN])
        words = "|".join(map(re.escape, sorted(self._known, key=len, reverse=True))) or r"(?!)"
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)

    def name(self, text: str, kind: Kind) -> str:
        """What replaces a text that is a name of that kind. Common names, and numbers of users and hosts, stay."""
        key = text.casefold()
        common = kind in ("HOST", "USER") and (len(key) < SHORTEST_NAME or key in COMMON_NAMES or key.isdigit())
        return text if common or not text or GIVEN.match(text) else self._numbered(key, kind)

    def gpu(self, uuid: str) -> str:
        """What replaces the UUID of a GPU, whatever its form."""
        shown = self.text(uuid)
        return shown if shown != uuid else self.name(uuid, "GPU")

    def text(self, text: str) -> str:
        """A text without the names in it that can be recognised."""
        text = PATH.sub(self._path, text)
        text = BEGUN_UUID.sub(self._begun_uuid, UUID.sub(self._uuid, text))
        text = MAC.sub(lambda found: self._numbered(re.sub("enx|[:-]", "", found[0].lower()), "MAC"), text)
        text = IPV4.sub(self._address, IPV6.sub(self._address, text))
        text = CLOUD_HOST.sub(lambda found: self.name(found[0], "HOST"), text)
        for kind, pattern in KEYS:
            text = pattern.sub(partial(self._after_key, kind), text)
        text = USER_AT_HOST.sub(self._user_at_host, text)
        text = BOARD_SERIAL.sub(lambda found: self.name(found[0], "SERIAL"), text)
        return self._words.sub(lambda found: self._known[found[0].casefold()], text)

    def version(self, text: str) -> str:
        """A text that begins with a version: of four numbers it would look like an IP address."""
        begin = VERSION.match(text)
        number = begin[0] if begin is not None else ""
        return number + self.text(text[len(number) :])

    def paths(self, text: str) -> str:
        """A list of paths, relative ones included, separated by colons or blanks."""
        return LISTED_PATH.sub(self._path, text)

    def _numbered(self, key: str, kind: Kind) -> str:
        if key not in self._names:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            self._names[key] = f"{kind}-{self._numbers[kind]}"
        return self._names[key]

    def _path(self, found: re.Match[str]) -> str:
        path = found[0].rstrip(".!?") or found[0]
        return self.name(path, "PATH") + found[0][len(path) :]

    def _uuid(self, found: re.Match[str]) -> str:
        digits = found[2].replace("-", "").lower()
        name = self._numbered(digits, "GPU" if found[1] else "ID")
        return self._gpus.setdefault(digits[:8], name) if found[1] else name

    def _begun_uuid(self, found: re.Match[str]) -> str:
        """A device may be named by the beginning of its UUID, and a text be cut short in one."""
        digits = found[1].replace("-", "").lower()
        return self._gpus.get(digits[:8]) or self._numbered(digits, "GPU")

    def _address(self, found: re.Match[str]) -> str:
        """An IP address, unless every machine has it. Short groups only, as in 1::2, are a slice."""
        text, colon = found[0], ""
        if _address(text) is None and text.endswith(":"):
            text, colon = text[:-1], ":"
        address = _address(text)
        is_slice = max(map(len, text.split(":"))) < 3
        if address is None or is_slice or address.is_loopback or text in ("::", "0.0.0.0") or text.startswith("255."):
            return found[0]
        return self._numbered(str(address), "IP") + colon

    def _after_key(self, kind: Kind, found: re.Match[str]) -> str:
        return found[1] + self.name(found[2], kind)

    def _user_at_host(self, found: re.Match[str]) -> str:
        return self.name(found[1], "USER") + found[2] + self.name(found[3], "HOST")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class Identity(NamedTuple):
    """Names of a machine and of its user."""

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


def own_identity() -> Identity:
    """The names of this machine and this user: most runs are exported where they were measured."""
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    users.append(os.path.basename(os.path.expanduser("~")))
    try:
        account = pwd.getpwuid(os.getuid())
        users += [account.pw_name, account.pw_gecos.partition(",")[0]]
    except KeyError:  # the user id of a container may belong to no account
        pass
    hosts = (os.uname().nodename, os.environ.get("HOSTNAME", ""))
    return Identity(tuple(dict.fromkeys(filter(None, hosts))), tuple(dict.fromkeys(filter(None, users))))


def redacted(run: Run, identity: Identity | None = None) -> Run:
    """The run with host names, UUIDs, serial numbers, addresses, user names and paths replaced by GPU-1, PATH-2 and so
    on; the same thing gets the same name everywhere.

    ``identity`` holds names to search for in all texts, this machine's and user's if left out; names that the run's
    own facts state are added.
    """
    hosts, users = identity or own_identity()
    facts = [fact for session in run.sessions for fact in session.environment.facts]
    stated = [(_kind(fact), str(fact.value)) for fact in facts if fact.value is not None]
    hosts = (*hosts, *(value for kind, value in stated if kind == "HOST"))
    users = (*users, *(value for kind, value in stated if kind == "USER"))
    redactor = Redactor(hosts, users)
    return _without(run, redactor, redactor.text)


def _kind(fact: Fact) -> Kind | None:
    return next((kind for pattern, kind in FACT_KINDS if pattern.search(fact.name)), None)


def _without(value: Part, redactor: Redactor, how: Callable[[str], str]) -> Part:
    """``value`` with ``how`` applied to its texts, except for fields that say otherwise."""
    replaced: Any = value
    if isinstance(value, str):
        replaced = how(value)
    elif isinstance(value, tuple):
        replaced = tuple(_without(part, redactor, how) for part in value)
    elif isinstance(value, dict):
        replaced = {key: _without(part, redactor, how) for key, part in value.items()}
    elif isinstance(value, msgspec.Struct):
        own_words = OWN_WORDS.get(type(value), ())
        changes = {name: _field(value, name, redactor) for name in value.__struct_fields__ if name not in own_words}
        replaced = msgspec.structs.replace(value, **changes)
    return replaced  # type: ignore[no-any-return]


def _field(struct: msgspec.Struct, name: str, redactor: Redactor) -> Any:
    value = getattr(struct, name)
    if isinstance(struct, Fact) and name == "value":
        kind = _kind(struct)
        if kind == "PATH":
            return _without(value, redactor, redactor.paths)
        if kind is not None and value is not None and not isinstance(value, bool):
            return redactor.name(str(value), kind)
        return _without(value, redactor, redactor.version if struct.name.endswith("version") else redactor.text)
    if isinstance(struct, Outcome) and name == "telemetry":
        value = {redactor.gpu(uuid): telemetry for uuid, telemetry in value.items()}
    if (type(struct), name) in ((GpuInfo, "uuid"), (Outcome, "device")):
        return _without(value, redactor, redactor.gpu)
    return _without(value, redactor, redactor.version if name.endswith(("version", "packages")) else redactor.text)
