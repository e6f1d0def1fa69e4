"""A run without what names its machine or its user, still a run: for exports that others get to see."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from microbench.core.model import (
    AxisInfo,
    BenchmarkInfo,
    Case,
    Fact,
    Measurement,
    Metric,
    Run,
    Series,
    Session,
    Settings,
)

# Text without what names a machine or a person: each UUID, serial, address, path, user and host becomes one name
# everywhere.


Kind = Literal["GPU", "MIG", "ID", "SERIAL", "PATH", "URL", "USER", "HOST", "MAC", "IP"]

# Accounts and hosts that many machines have: they name nobody, and their words stand in other places too.
COMMON_NAMES = frozenset(
    {
        "admin", "cuda", "docker", "gpu", "host", "id", "ip", "localhost", "mac", "mig", "nobody", "nvidia", "path",
        "root", "runner", "serial", "test", "ubuntu", "url", "user",
    }
)  # fmt: skip
SHORTEST_NAME = 2

# Texts come from anywhere and may be long: no pattern may begin anew inside what it has just tried (hence the
# look-behinds), or a megabyte of dots would take hours.
# By this module, one or several in a row: a text may come twice.
GIVEN = re.compile(rf"(?:(?:{'|'.join(get_args(Kind))})-\d+[.-]?)+")
GIVEN_ADDRESS = re.compile(r"(?<![A-Za-z0-9])[nrt]?(?:MAC|IP)-\d")
# What stands before these with an @ is no user but a package, say.
GIVEN_TO_NO_HOST = ("ID-", "SERIAL-", "PATH-", "URL-")
URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
# The kernel calls these the same on every machine, and they say where a fact is from.
KEPT_PATH = re.compile(r"/(?:proc|sys)(?:/|$)")
QUOTED_PATH = re.compile(r"(?P<quote>[\"'`])(?P<path>(?:~[\w.-]*|\.{1,2}|[A-Za-z]:)?[/\\][^\"'`\n]*)(?P=quote)")
# A list of paths is taken apart at the colon, comma or semicolon before the next one.
PATH = re.compile(
    # from a root, ~ or dots on, or an option's letter; fe80::/10 is a network
    r"""(?:(?<![\w/\\])|(?<=[\s"'=,]-[A-Z]))(?!(?<=::)/\d{1,3}(?![\w/]|\.\w))(?:~[\w.-]*|\.{1,2})?/(?=[^\s/"'`])(?:(?![:,;]~?/)[^\s"'`<>|])+"""
    r"""|\b[A-Za-z]:\\[^\s"'`<>|]*|\\\\[\w.-]+\\[^\s"'`<>|]*"""  # of Windows
    r"""|(?<![\w/.@+-])(?:[\w.+@-]+/)+[\w.+@-]*\.[A-Za-z]\w{0,9}\b"""  # from here on: only a file's ending tells
)
LINE_NUMBER = re.compile(r"(?::\d{1,9}){1,2}$")
HEX, ANY_HEX = "[0-9a-f]", "[0-9A-Fa-f]"
WHOLE_UUID = rf"{HEX}{{8}}(?:-{HEX}{{4}}){{3}}-{HEX}{{12}}|{HEX}{{32}}"
UUID_END = rf"{HEX}{{0,8}}(?:-{HEX}{{4}}){{1,3}}-{HEX}{{12}}"  # a text may be cut anywhere
UUID_BEGIN = rf"{HEX}{{4,}}(?:-{HEX}+)*"  # by which a device may be named
UUID = re.compile(
    rf"(?:(?<![0-9a-z])|(?<=(?<![0-9a-z])0x))(?:(?P<kinds>(?:(?:GPU|MIG)-){{1,2}})(?:{WHOLE_UUID}|{UUID_BEGIN})|{WHOLE_UUID}|{UUID_END})(?![0-9a-z])",
    re.IGNORECASE,
)
SERIAL = re.compile(
    r"\b(?:serial(?:[ _-]?(?:number|num|no))?|s/n)\b[\"']?\s{0,3}(?:[:=#]|is\b)?\s{0,3}[\"']?([A-Za-z0-9][\w-]{3,})",
    re.IGNORECASE,
)
BOARD_SERIAL = re.compile(r"(?<![\w.])\d{13}(?![\w.])")  # of NVIDIA's boards
# Addresses. They may be joined to a word by anything but a letter or digit, and texts may show a line's end as \n.
ESCAPED = r"(?<=\\[nrt])"


def _behind_word(separator: str) -> str:
    """A separator that could be the address's own may come first, if it is seen that a word ends there."""
    return "|".join(rf"(?<=[G-Zg-z_]{ANY_HEX}{{{count}}}{separator})" for count in range(5))


PAIR, FOUR = rf"{ANY_HEX}{{2}}", rf"{ANY_HEX}{{4}}"
MAC = re.compile(
    rf"(?<!IP-)(?:(?<![A-Za-z0-9])(?={PAIR}:)|(?<![A-Za-z0-9-])|{_behind_word('-')}|{ESCAPED})"
    rf"{PAIR}(?P<between>[:-])(?:{PAIR}(?P=between)){{4,18}}{PAIR}(?![A-Za-z0-9]|(?P=between){PAIR}(?![A-Za-z0-9]))"
    # InfiniBand's, of four groups; eight are an IPv6 address
    rf"|(?:(?<![A-Za-z0-9:])|{_behind_word(':')}|{ESCAPED})(?:{FOUR}:){{3,6}}{FOUR}(?![A-Za-z0-9]|:[A-Za-z0-9:])"
    # a switch's way to write one
    rf"|(?:(?<![A-Za-z0-9])|{ESCAPED})(?<!{FOUR}\.)(?:{FOUR}\.){{2}}{FOUR}(?![A-Za-z0-9]|\.{FOUR}(?![A-Za-z0-9:]))"
)
IPV4 = re.compile(
    rf"(?:(?<![A-Za-z0-9])|{ESCAPED})(?<![0-9]\.)(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}(?![A-Za-z0-9]|\.[0-9])"
)
# The number of a name that this module gave begins no address; it has no four digits.
NOT_GIVEN = rf"(?:(?![0-9]{{1,3}}:)|{''.join(f'(?<!{kind}-)' for kind in get_args(Kind))})"
IPV6 = re.compile(
    rf"(?:(?<![A-Za-z0-9:])(?<![0-9]\.){NOT_GIVEN}|{_behind_word(':')}|{ESCAPED})"
    rf"(?={ANY_HEX}{{0,4}}:{ANY_HEX}{{0,4}}:)"
    rf"[0-9A-Fa-f:]{{1,38}}(?:{ANY_HEX}|(?<!:)::)(?:\.[0-9]{{1,3}}){{0,3}}(?![A-Za-z0-9]|:[A-Za-z0-9:])"
)
# Four numbers behind these are a version: a library's file or package of NVIDIA's, or the word itself. Nothing looser:
# a version that is taken away costs little, an address that stays much, and hosts and variables are called cuda, too.
SOFTWARE = re.compile(
    r"\w\.so\.$"
    r"|(?<![\w.@-])(?:nvidia[_-])?(?:cu(?:blas|dnn|fft|file|rand|solver|sparse|sparselt)|npp|nvjpeg)(?:[_-]cu\d\d)?(?:-|==)$"
    r"|(?<![\w.@-])(?![a-z_]{0,30}(?:host|addr|node|server|socket|comm|peer|(?<![a-z])ip(?![a-z])))"
    r"(?:[a-z_]{0,30}_)?(?:versions?|ver|release)[\"']?\s{0,2}[:=]?\s{0,2}[\"'(]{0,2}$",
    re.IGNORECASE,
)
LONGEST_SOFTWARE = 60
WHEEL = re.compile(r"-(?:py|cp)[23]\w{0,9}(?:\.py3)?-(?:none|abi3|cp3)|\.dist-info\b")
# A port, a network's size or a socket, which no version has.
BEHIND_ADDRESS = re.compile(r":\d|/\d|<")
# Of an address that leaves out groups of zeros: a slice has fewer, and shorter ones. Private networks begin so.
FEWEST_GROUPS, LONG_GROUP = 4, 3
PRIVATE = ("fc", "fd")
VERSION = re.compile(r"\d+(?:\.\d+)*")
AT = re.compile(r"(?<![\w.@-])([A-Za-z_][\w.-]*)@\[?([A-Za-z][\w.-]*\w)")
# As a shell, Python or JSON says it; also of SLURM_JOB_USER and the like.
IS = r"(?:=|[\"']\s?:\s?)"
USER_IN_TEXT = re.compile(
    rf"(?:/home/|/Users/|\\Users\\|(?<![A-Za-z0-9])(?:USER|LOGNAME|USERNAME){IS}|\buid=\d{{1,10}}\()"
    r"[\"']?([A-Za-z0-9_][\w.-]*)"
)
HOST_IN_TEXT = re.compile(
    rf"(?<![A-Za-z0-9])(?:HOST|HOSTNAME|NODENAME|NODE_NAME){IS}[\"']?([A-Za-z0-9_][\w.-]*)"
    r"|(?<![\w.-])((?:[\w-]+\.)+(?:local|internal|lan|corp|intranet|localdomain|home\.arpa))(?![\w-])"
)


class Redactor:
    """Replaces what it has learnt, and what shows what it is: ``learn`` every text first, then ask for each.

    A path without its quotes ends at a blank, and a user or host is known only from a place that says so.
    """

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self._names: dict[str, str] = {}
        self._given: dict[Kind, int] = {}
        self._words: re.Pattern[str] | None = None
        for kind, known in (("HOST", hosts), ("USER", users)):
            for name in known:
                self.learn_name(name, kind)  # type: ignore[arg-type]

    def learn_name(self, name: str, kind: Kind) -> None:
        """``name``, a word, is from now on replaced wherever it stands."""
        name = name.rstrip(".-")
        key = name.casefold()
        if key.isdigit() and kind != "SERIAL":
            return  # a number names nobody, and stands in other places too
        if len(key) >= SHORTEST_NAME and key not in COMMON_NAMES and not GIVEN.fullmatch(name):
            self._name(key, kind)
            self._words = None
            if kind == "HOST" and "." in key:
                self.learn_name(name.partition(".")[0], kind)

    def learn(self, text: str) -> None:
        """Learn the users, hosts and serial numbers that show themselves in a text."""
        # Addresses are no names of hosts: they show what they are. What is joined to one is no name, before and after.
        text = IPV4.sub("IP-0", IPV6.sub("IP-0", MAC.sub("MAC-0", text)))
        for found in USER_IN_TEXT.finditer(text):
            self._learn_shown(found[1], "USER")
        for found in AT.finditer(text):
            given = GIVEN.fullmatch(found[2])
            if not given or not found[2].startswith(GIVEN_TO_NO_HOST):
                self._learn_shown(found[1], "USER")
            self._learn_shown(found[2], "HOST")
        for found in HOST_IN_TEXT.finditer(text):
            self._learn_shown(found[1] or found[2], "HOST")
        for found in SERIAL.finditer(text):
            if any(character.isdigit() for character in found[1]):
                self._learn_shown(found[1], "SERIAL")

    def _learn_shown(self, name: str, kind: Kind) -> None:
        if not GIVEN_ADDRESS.search(name):
            self.learn_name(name, kind)

    def patterns(self, text: str) -> str:
        """``text`` without what shows by itself what it is: URLs, paths, UUIDs, serial numbers of boards, addresses."""
        return self._addresses(self._found(text))

    def text(self, text: str) -> str:
        """``text`` without all of it, learnt words as well."""
        known = self._known_words()
        return self._addresses(known.sub(lambda found: self._names[found[0].casefold()], self._found(text)))

    def version(self, text: str) -> str:
        """``text`` that begins with a version, which of four numbers would look like an address."""
        begin = VERSION.match(text)
        kept = begin[0] if begin is not None else ""
        return kept + self.text(text[len(kept) :])

    def _found(self, text: str) -> str:
        text = URL.sub(lambda found: self._name(found[0], "URL"), text)
        text = QUOTED_PATH.sub(lambda found: f"{found[1]}{self._path(found['path'])}{found[1]}", text)
        text = PATH.sub(self._bare_path, text)
        text = UUID.sub(self._uuid, text)
        return BOARD_SERIAL.sub(lambda found: self._name(found[0], "SERIAL"), text)

    def _addresses(self, text: str) -> str:
        text = MAC.sub(self._mac, text)
        return IPV4.sub(self._ipv4, IPV6.sub(self._ipv6, text))

    def _name(self, key: str, kind: Kind) -> str:
        if key not in self._names:
            self._given[kind] = self._given.get(kind, 0) + 1
            self._names[key] = f"{kind}-{self._given[kind]}"
        return self._names[key]

    def _path(self, path: str) -> str:
        return path if KEPT_PATH.match(path) else self._name(path, "PATH")

    def _bare_path(self, found: re.Match[str]) -> str:
        whole = found[0]
        path = whole.rstrip(".,;:!?)]}") or whole
        if line := LINE_NUMBER.search(path[-20:]):
            path = path[: -len(line[0])]
        return self._path(path) + whole[len(path) :]

    def _uuid(self, found: re.Match[str]) -> str:
        """The name of a UUID, also where only its beginning or end is left."""
        kinds = (found["kinds"] or "").upper()
        digits = found[0][len(kinds) :].replace("-", "").lower()
        kind: Kind = "ID" if not kinds else "GPU" if kinds.endswith("GPU-") else "MIG"
        whole = (key for key in self._names if len(key) == 32 and (key.startswith(digits) or key.endswith(digits)))
        name = self._name(next(whole, digits), kind)
        return f"MIG-{name}" if kinds == "MIG-GPU-" else name

    def _mac(self, found: re.Match[str]) -> str:
        """The name of a hardware address, however its digits are grouped."""
        digits = re.sub(r"[:.-]", "", found[0]).lower()
        return self._name(":".join(digits[place : place + 2] for place in range(0, len(digits), 2)), "MAC")

    def _ipv4(self, found: re.Match[str]) -> str:
        """The name of an address; a version stays, and so does what every machine has."""
        numbers = [int(number) for number in found[0].split(".")]  # also of 010.001.002.003
        if max(numbers) > 255:
            return found[0]
        address = IPv4Address(bytes(numbers))
        common = address.is_loopback or address.is_unspecified or numbers[0] == 255
        return found[0] if common or _is_version(found) else self._name(str(address), "IP")

    def _ipv6(self, found: re.Match[str]) -> str:
        """The name of an address; a slice such as 1::2 is none, nor are C++'s names."""
        try:
            address = IPv6Address(found[0])
        except AddressValueError:
            return found[0]
        groups = [group for group in found[0].split(":") if group]
        short = len(groups) < FEWEST_GROUPS and max(map(len, groups), default=0) < LONG_GROUP
        short = short and not (groups and len(groups[0]) == 2 and found[0].lower().startswith(PRIVATE))
        return found[0] if address.is_loopback or short else self._name(str(address), "IP")

    def _known_words(self) -> re.Pattern[str]:
        if self._words is None:
            words = [key for key, name in self._names.items() if name.startswith(("USER", "HOST", "SERIAL"))]
            inside = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)"
            self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{inside})(?![A-Za-z0-9])", re.IGNORECASE)
        return self._words


def _is_version(found: re.Match[str]) -> bool:
    """Whether what stands around four numbers says that they are a version."""
    text, begin, end = found.string, found.start(), found.end()
    if BEHIND_ADDRESS.match(text, end):
        return False
    wheel = text[max(begin - 1, 0) : begin] == "-" and WHEEL.match(text, end)
    return bool(wheel or SOFTWARE.search(text[max(begin - LONGEST_SOFTWARE, 0) : begin]))


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
