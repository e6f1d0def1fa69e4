"""Writes the manual page of microbench from the help of its commands, when a wheel is built."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent


def manual() -> str:
    """The page in the language of man(7)."""
    sys.path.insert(0, str(ROOT))
    from typer.main import get_command

    from microbench.cli.app import parser
    from microbench.core.errors import ExitCode
    from microbench.core.version import __version__

    command = get_command(parser())
    about = str(command.help).rstrip(".")
    codes = ", ".join(f"{int(code)} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
    parts = [
        f'.TH MICROBENCH 1 "" "microbench {__version__}" "User Commands"', ".SH NAME",
        rf"microbench \- {roff(about[0].lower() + about[1:])}", ".SH SYNOPSIS", r".B microbench", ".I COMMAND",
        "[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]", ".SH COMMANDS", *described(command, "microbench"),
        ".SH EXIT STATUS", roff(f"{codes}."),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def described(command: Any, name: str) -> Iterator[str]:
    """The commands of a group that do something, each with its arguments and options."""
    for word, one in command.commands.items():
        whole, group = f"{name} {word}", hasattr(one, "commands")
        if not group or one.invoke_without_command:
            context = one.make_context(whole, [], resilient_parsing=True)
            yield f'.SS "{roff(" ".join([whole, *one.collect_usage_pieces(context)]))}"'
            yield "\n.PP\n".join(map(roff, f"{one.help}\n\n{one.epilog}".split("\n\n")))
            for option in one.params:
                if record := option.get_help_record(context):
                    yield f".TP\n.B {roff(record[0])}\n{roff(record[1])}"
        if group:
            yield from described(one, whole)


def roff(text: str) -> str:
    """Text on one line without a meaning to roff."""
    text = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return re.sub(r"^([.'])", r"\\&\1", text)


class ManualPage(BuildHookInterface):
    """Puts the page where man finds it in an environment."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            self.folder = TemporaryDirectory()  # as long as this object
            page = Path(self.folder.name) / "microbench.1"
            page.write_text(manual(), encoding="utf-8")
            build_data["shared_data"][str(page)] = "share/man/man1/microbench.1"
