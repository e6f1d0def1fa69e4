"""What a finding is: one sentence-sized conclusion about a run, with the rule and threshold that led to it."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["good", "note", "advice", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = ("good", "note", "advice", "warning", "problem")


class Finding(msgspec.Struct, frozen=True):
    """A conclusion drawn from a run, never stored in it.

    ``rule`` names the rule ("launch.starving"); ``title`` is one short line, ``text`` one to three sentences with the
    run's own numbers; ``threshold`` is the rule's condition in words. ``rests_on`` lists the rows and facts used, each
    as "case-id metric" or as the name of a fact. ``suite`` is a benchmark suite, or "environment".
    """

    rule: str
    severity: Severity
    title: str
    text: str
    threshold: str
    rests_on: tuple[str, ...] = ()
    suite: str = "environment"
