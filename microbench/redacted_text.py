"""Text without what names a machine or a person: each UUID, serial, address, path, user and host becomes one name
everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal

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
GIVEN = re.compile(r"(?:(?:GPU|MIG|ID|SERIAL|PATH|URL|USER|HOST|MAC|IP)-\d+[.-]?)+")
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
MAC = re.compile(
    rf"(?<![\w-]){ANY_HEX}{{2}}(?P<between>[:-])(?:{ANY_HEX}{{2}}(?P=between)){{4,18}}{ANY_HEX}{{2}}(?![\w-]|:\w)"
)
NOT_GIVEN = r"(?<![A-Z]-)"  # the number of a name that this module gave begins no address
IPV4 = re.compile(rf"(?<![\w.]){NOT_GIVEN}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?!\w|\.\d)")
# A word and a colon may come first, if it is seen that it is a word.
BEHIND_WORD = "|".join(rf"(?<=[G-Zg-z_]{ANY_HEX}{{{count}}}:)" for count in range(5))
IPV6 = re.compile(
    rf"(?:(?<![\w:.]){NOT_GIVEN}|{BEHIND_WORD})(?={ANY_HEX}{{0,4}}:{ANY_HEX}{{0,4}}:)"
    rf"[0-9A-Fa-f:]{{1,38}}(?:{ANY_HEX}|(?<!:)::)(?:\.\d{{1,3}}){{0,3}}(?!\w|:[\w:])"
)
# Four numbers behind these are a version, as those of NVIDIA's libraries are.
SOFTWARE = re.compile(
    r"(?:[=<>~!]=|\b(?:versions?|ver|release|driver|toolkit|runtime|firmware|v?bios"
    r"|(?:cuda|cupy|cutlass|nccl|(?:lib)?(?:cu(?:blas|dart|dnn|fft|pti|rand|solver|sparse)|nv(?:cc|fatbin|idia|jitlink|"
    r"ml|rtc|shmem|tx|vm)))[\w.-]{0,30})[\"')]{0,2}[\s:=/@-]{0,3}[\"'(]?)$",
    re.IGNORECASE,
)
LONGEST_SOFTWARE = 60
# Of an address that leaves out groups of zeros: a slice has fewer, and shorter ones.
FEWEST_GROUPS, LONG_GROUP = 4, 3
VERSION = re.compile(r"\d+(?:\.\d+)*")
AT = re.compile(r"(?<![\w.@-])([A-Za-z_][\w.-]*)@([A-Za-z][\w.-]*\w)")
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
        text = IPV4.sub("IP", IPV6.sub("IP", MAC.sub("MAC", text)))  # no names of hosts: they show what they are
        for found in USER_IN_TEXT.finditer(text):
            self.learn_name(found[1], "USER")
        for found in AT.finditer(text):
            if not GIVEN.fullmatch(found[2]):
                self.learn_name(found[1], "USER")
                self.learn_name(found[2], "HOST")
        for found in HOST_IN_TEXT.finditer(text):
            self.learn_name(found[1] or found[2], "HOST")
        for found in SERIAL.finditer(text):
            if any(character.isdigit() for character in found[1]):
                self.learn_name(found[1], "SERIAL")

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
        text = MAC.sub(lambda found: self._name(found[0].replace("-", ":").lower(), "MAC"), text)
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

    def _ipv4(self, found: re.Match[str]) -> str:
        """The name of an address; a version stays, and so does what every machine has."""
        before = found.string[max(found.start() - LONGEST_SOFTWARE, 0) : found.start()]
        try:
            address = IPv4Address(found[0])
        except AddressValueError:
            return found[0]
        common = address.is_loopback or address.is_unspecified or found[0].startswith("255.")
        return found[0] if common or SOFTWARE.search(before) else self._name(str(address), "IP")

    def _ipv6(self, found: re.Match[str]) -> str:
        """The name of an address; a slice such as 1::2 is none, nor are C++'s names."""
        try:
            address = IPv6Address(found[0])
        except AddressValueError:
            return found[0]
        groups = [group for group in found[0].split(":") if group]
        short = len(groups) < FEWEST_GROUPS and max(map(len, groups), default=0) < LONG_GROUP
        return found[0] if address.is_loopback or short else self._name(str(address), "IP")

    def _known_words(self) -> re.Pattern[str]:
        if self._words is None:
            words = [key for key, name in self._names.items() if name.startswith(("USER", "HOST", "SERIAL"))]
            inside = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)"
            self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{inside})(?![A-Za-z0-9])", re.IGNORECASE)
        return self._words
