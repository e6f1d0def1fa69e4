"""Text without what names a machine or a person: each UUID, serial, path, user and host becomes one name everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Kind = Literal["GPU", "MIG", "ID", "SERIAL", "PATH", "URL", "USER", "HOST"]

# Accounts and hosts that many machines have: they name nobody, and their words stand in other places too.
COMMON_NAMES = frozenset(
    {
        "admin", "cuda", "docker", "gpu", "host", "id", "localhost", "mig", "nobody", "nvidia", "path", "root",
        "runner", "serial", "test", "ubuntu", "url", "user",
    }
)  # fmt: skip
SHORTEST_NAME = 2

# Texts come from anywhere and may be long: no pattern may begin anew inside what it has just tried (hence the
# look-behinds), or a megabyte of dots would take hours.
GIVEN = re.compile(r"(?:GPU|MIG|ID|SERIAL|PATH|URL|USER|HOST)-\d+")  # by this module: a text may come twice
URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
# The kernel calls these the same on every machine, and they say where a fact is from.
KEPT_PATH = re.compile(r"/(?:proc|sys)(?:/|$)")
QUOTED_PATH = re.compile(r"(?P<quote>[\"'`])(?P<path>(?:~[\w.-]*|\.{1,2}|[A-Za-z]:)?[/\\][^\"'`\n]*)(?P=quote)")
# A list of paths is taken apart at the colon, comma or semicolon before the next one.
PATH = re.compile(
    # from a root, ~ or dots on, or an option's letter
    r"""(?:(?<![\w/\\])|(?<=[\s"'=,]-[A-Z]))(?:~[\w.-]*|\.{1,2})?/(?=[^\s/"'`])(?:(?![:,;]~?/)[^\s"'`<>|])+"""
    r"""|\b[A-Za-z]:\\[^\s"'`<>|]*|\\\\[\w.-]+\\[^\s"'`<>|]*"""  # of Windows
    r"""|(?<![\w/.@+-])(?:[\w.+@-]+/)+[\w.+@-]*\.[A-Za-z]\w{0,9}\b"""  # from here on: only a file's ending tells
)
LINE_NUMBER = re.compile(r"(?::\d{1,9}){1,2}$")
HEX = "[0-9a-f]"
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
        for found in USER_IN_TEXT.finditer(text):
            self.learn_name(found[1], "USER")
        for found in AT.finditer(text):
            self.learn_name(found[1], "USER")
            self.learn_name(found[2], "HOST")
        for found in HOST_IN_TEXT.finditer(text):
            self.learn_name(found[1] or found[2], "HOST")
        for found in SERIAL.finditer(text):
            if any(character.isdigit() for character in found[1]):
                self.learn_name(found[1], "SERIAL")

    def patterns(self, text: str) -> str:
        """``text`` without URLs, paths, UUIDs and serial numbers of boards."""
        text = URL.sub(lambda found: self._name(found[0], "URL"), text)
        text = QUOTED_PATH.sub(lambda found: f"{found[1]}{self._path(found['path'])}{found[1]}", text)
        text = PATH.sub(self._bare_path, text)
        text = UUID.sub(self._uuid, text)
        return BOARD_SERIAL.sub(lambda found: self._name(found[0], "SERIAL"), text)

    def text(self, text: str) -> str:
        """``text`` without all of it, learnt words as well."""
        return self._known_words().sub(lambda found: self._names[found[0].casefold()], self.patterns(text))

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

    def _known_words(self) -> re.Pattern[str]:
        if self._words is None:
            words = [key for key, name in self._names.items() if name.startswith(("USER", "HOST", "SERIAL"))]
            inside = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)"
            self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{inside})(?![A-Za-z0-9])", re.IGNORECASE)
        return self._words
