"""Removes from a run what identifies a machine or a person, for exports that others will see. The result is a run.

The fields of a run are known, so a field that holds a UUID, host name, user name, serial number or path is replaced by
its kind. In all other text this machine's and user's names are replaced, and paths, UUIDs, e-mail-like, MAC and IP
addresses by one pattern each. A short list of keys marks other names: hostname=X, "user": "X", SN: X.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import msgspec

from microbench.core import model

Kind = Literal["HOST", "USER", "SERIAL", "GPU", "ID", "PATH", "MAC", "IP"]
Part = TypeVar("Part")

# Fields that hold this tool's own words. Rows find their benchmark by them, even if a user is called "launch".
OWN_WORDS: dict[type, tuple[str, ...]] = {
    model.AxisInfo: ("name", "about", "labels"),
    model.BenchmarkInfo: ("name", "suite", "title", "about"),
    model.Case: ("benchmark",),
    model.Fact: ("name", "unit"),
    model.GpuInfo: ("name",),
    model.Measurement: ("metric", "clock", "bound", "stopped"),
    model.Metric: ("name", "kind", "unit", "about"),
    model.Run: ("run_id",),
    model.Series: ("metric",),
    model.Session: ("tool_version", "started_at", "commit", "order_seed"),
    model.Settings: ("preset", "select"),
}
# Facts whose whole value is a name, and facts that hold paths.
FACT_KINDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(^|_)serial(_number|_no)?$", re.IGNORECASE), "SERIAL"),
    (re.compile(r"(^|_)(host_?name|node_?name|fqdn|master_addr|node_?list)$", re.IGNORECASE), "HOST"),
    (re.compile(r"(^|_)(user|user_?name|login|log_?name)$", re.IGNORECASE), "USER"),
    (re.compile(r"(^preloaded_libraries|_(path|directory|file))$", re.IGNORECASE), "PATH"),
)
# Accounts and hosts that many machines have, and the kinds themselves, identify nobody.
COMMON_NAMES = frozenset(
    {
        "admin", "cuda", "docker", "gpu", "host", "id", "ip", "localhost", "mac", "nobody", "none", "nvidia", "path",
        "root", "runner", "serial", "test", "ubuntu", "user",
    }
)  # fmt: skip
GIVEN = re.compile(r"(?:HOST|USER|SERIAL|GPU|ID|PATH|MAC|IP)-\d+")
VERSION = re.compile(r"\d+(?:\.\d+)*")

# Texts may be long and hostile. The look-behinds keep a pattern from starting again inside what it has just tried.
PATH = re.compile(
    r"(?<![\w+.-])[A-Za-z][\w+.-]{1,20}://[^\s\"'<>]+"  # a URL
    r"|(?<![\w/.~)\]])(?!/(?:proc|sys|dev)/)(?:~[\w.-]*/|/[^\s/\"'`<>|:;,()\[\]{}]+/)[^\s\"'`<>|:;,()\[\]{}]+"
)
UUID = re.compile(
    r"(?P<gpu>(?:(?:GPU|MIG)-){0,2})(?P<digits>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"|(?<!\w)(?:GPU|MIG)-(?P<beginning>[0-9a-f]{8}[0-9a-f-]*)(?!\w)",
    re.IGNORECASE,
)
MAC = re.compile(
    r"(?<![0-9A-Fa-f])(?<![0-9A-Fa-f][:-])[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?!\w|\1\w)"
)
IPV4 = re.compile(r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)")
IPV6 = re.compile(
    r"(?<![\w.])(?<![0-9A-Fa-f:]:)(?<!IP-)[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:(?:\.\d{1,3}){3})?(?![\w:])"
)
# Names that a key marks. The keys that are plain words ("host: 3.2 µs") mark one only in quotes or before "=".
KEYED = re.compile(
    r"(?<!\w)(?:"
    r"(?P<host>\w*(?:host_?name|node_?name|fqdn|master_addr|(?P<nodes>node_?list))|host(?=\\?[\"']|=))"
    r"|(?P<user>\w*(?:user_?name|log_?name)|(?:\w*_)?(?:user|login)(?=\\?[\"']|=))"
    r"|(?P<serial>(?:\w*_)?(?:serial(?:_?(?:number|no|num))?|s/?n)(?=\\?[\"']?\s?[=:]\s?\\?[\"']?[A-Z-]{0,8}\d))"
    r")\\?[\"']?\s?[=:]\s?\\?[\"']?"
    r"(?P<value>[A-Z0-9](?:[\w.-]*\w)?(?(nodes)(?:\[[\d,-]*\]|,[A-Z0-9][\w.-]*)*))",
    re.IGNORECASE,
)
# Names that tell an address or an id by their form: a cloud's ip-10-0-0-1, a network card's enx3cecef12345a.
IP_NAME = re.compile(r"(?<![A-Za-z0-9-])ip(?:-\d{1,3}){4}(?:\.[A-Za-z0-9][\w-]*)*(?![\w-])", re.IGNORECASE)
CARD = re.compile(r"(?<![A-Za-z0-9])(enx)([0-9a-f]{12})(?![A-Za-z0-9])", re.IGNORECASE)
GLUED_UUID = re.compile(r"(?:(?<=uuid)|(?<![A-Za-z0-9]))[0-9a-f]{32}(?![A-Za-z0-9])", re.IGNORECASE)
USER_AT_HOST = re.compile(r"(?<![\w.@-])([A-Za-z_][\w.-]*)(@\[?)([A-Za-z0-9](?:[\w.-]*\w)?)")


Identity = tuple[Iterable[str], Iterable[str]]  # names of a machine and of its user


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
    return dict.fromkeys(filter(None, hosts)), dict.fromkeys(filter(None, users))


def redacted(run: model.Run, identity: Identity | None = None) -> model.Run:
    """The run with host names, UUIDs, serial numbers, addresses, user names and paths replaced by GPU-1, PATH-2 and so
    on. The same name gets the same replacement everywhere.

    ``identity`` holds the names to search for in all text; default: this machine's and user's.
    """
    redactor = Redactor(*(identity or own_identity()))
    return _redacted(run, redactor, redactor.text)


def _redacted(value: Part, redactor: Redactor, replace: Callable[[str], str]) -> Part:
    """``value`` with ``replace`` applied to its text, except in fields that need another treatment."""
    result: Any = value
    if isinstance(value, str):
        result = replace(value)
    elif isinstance(value, tuple):
        result = tuple(_redacted(part, redactor, replace) for part in value)
    elif isinstance(value, dict):
        result = {key: _redacted(part, redactor, replace) for key, part in value.items()}
    elif isinstance(value, msgspec.Struct):
        own_words = OWN_WORDS.get(type(value), ())
        names = (name for name in value.__struct_fields__ if name not in own_words)
        result = msgspec.structs.replace(value, **{name: _field(value, name, redactor) for name in names})
    return result  # type: ignore[no-any-return]


def _field(struct: msgspec.Struct, name: str, redactor: Redactor) -> Any:
    value = getattr(struct, name)
    replace: Callable[[str], str] = redactor.text
    if isinstance(struct, model.Fact) and name == "value":
        kind = next((kind for pattern, kind in FACT_KINDS if pattern.search(struct.name)), None)
        if kind not in (None, "PATH") and value is not None and not isinstance(value, bool):
            return redactor.name(str(value), kind)
        if kind == "PATH":
            replace = redactor.paths
        elif struct.name.endswith("version"):
            replace = redactor.version
    elif name.endswith(("version", "packages")):
        replace = redactor.version
    elif (type(struct), name) in ((model.GpuInfo, "uuid"), (model.Outcome, "device")):
        replace = redactor.gpu
    elif (type(struct), name) == (model.Outcome, "telemetry"):
        value = {redactor.gpu(uuid): telemetry for uuid, telemetry in value.items()}
    return _redacted(value, redactor, replace)


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
        words = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True))) or r"(?!)"
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)

    def name(self, text: str, kind: Kind) -> str:
        """The replacement of a text that is a name of that kind. Common names and numeric hosts and users stay."""
        key = text.casefold()
        common = kind in ("HOST", "USER") and (len(key) < 2 or key in COMMON_NAMES or key.isdigit())
        return text if common or not text or GIVEN.match(text) else self._numbered(key, kind)

    def gpu(self, uuid: str) -> str:
        """The replacement of a GPU's UUID in any form."""
        shown = self.text(uuid)
        return shown if shown != uuid else self.name(uuid, "GPU")

    def text(self, text: str) -> str:
        """A text with known names, paths, UUIDs and addresses replaced."""
        text = UUID.sub(self._uuid, PATH.sub(self._path, text))
        text = MAC.sub(lambda match: self._numbered(re.sub("[:-]", "", match[0].lower()), "MAC"), text)
        text = IPV4.sub(self._address, IPV6.sub(self._address, text))
        text = USER_AT_HOST.sub(
            lambda match: self.name(match[1], "USER") + match[2] + self.name(match[3], "HOST"), text
        )
        text = GLUED_UUID.sub(lambda match: self._numbered(match[0].lower(), "ID"), text)
        text = CARD.sub(lambda match: match[1] + self._numbered(match[2].lower(), "MAC"), text)
        text = IP_NAME.sub(lambda match: self.name(match[0], "HOST"), KEYED.sub(self._keyed, text))
        return self._words.sub(lambda match: self._names[match[0].casefold()], text)

    def version(self, text: str) -> str:
        """A text that begins with a version, which looks like an IP address if it has four numbers."""
        match = VERSION.match(text)
        number = match[0] if match is not None else ""
        return number + self.text(text[len(number) :])

    def paths(self, text: str) -> str:
        """A list of paths, including relative ones, separated by colons or blanks."""
        return re.sub(r"[^\s:]*/[^\s:]*", self._path, text)

    def _numbered(self, key: str, kind: Kind) -> str:
        if key not in self._names:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            self._names[key] = f"{kind}-{self._numbers[kind]}"
        return self._names[key]

    def _path(self, match: re.Match[str]) -> str:
        path = match[0].rstrip(".!?") or match[0]
        return self.name(path, "PATH") + match[0][len(path) :]

    def _keyed(self, match: re.Match[str]) -> str:
        kind: Kind = "HOST" if match["host"] else "USER" if match["user"] else "SERIAL"
        return match[0][: match.start("value") - match.start()] + self.name(match["value"], kind)

    def _uuid(self, match: re.Match[str]) -> str:
        """A GPU may be named by the beginning of its UUID, and a text may be cut short in one."""
        digits = (match["digits"] or match["beginning"]).replace("-", "").lower()
        if match["beginning"]:
            return self._gpus.get(digits[:8]) or self._numbered(digits, "GPU")
        name = self._numbered(digits, "GPU" if match["gpu"] else "ID")
        return self._gpus.setdefault(digits[:8], name) if match["gpu"] else name

    def _address(self, match: re.Match[str]) -> str:
        """The replacement of an IP address, except one that every machine has. Short groups as in 1::2 are a slice."""
        text, colon = match[0], ""
        if _address(text) is None and text.endswith(":"):
            text, colon = text[:-1], ":"
        address = _address(text)
        is_slice = max(map(len, text.split(":"))) < 3
        if address is None or is_slice or address.is_loopback or text in ("::", "0.0.0.0") or text.startswith("255."):
            return match[0]
        return self._numbered(str(address), "IP") + colon


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
