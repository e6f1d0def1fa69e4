"""The marks that stand for grades and severities, and the colours that stand for tones."""

from __future__ import annotations

from microbench.explain.finding import Severity
from microbench.report.document import Tone

TRUST_MARKS: dict[str, tuple[str, Tone]] = {
    "stable": ("●", "good"),
    "steady": ("◐", "note"),
    "noisy": ("○", "advice"),
    "throttled": ("▼", "problem"),
    "single": ("◌", "advice"),
    "below floor": ("◇", "advice"),
    "unverified": ("?", "problem"),
}
UNKNOWN_MARK: tuple[str, Tone] = ("?", "problem")
SEVERITY_MARKS: dict[Severity, str] = {"good": "✓", "note": "•", "advice": "→", "warning": "▲", "problem": "✗"}
# In the terminal's own palette, so that a light and a dark one both read well.
STYLES: dict[Tone, str] = {
    "plain": "", "strong": "bold", "quiet": "dim", "good": "green", "note": "cyan", "advice": "yellow",
    "warning": "bold yellow", "problem": "bold red", "first": "cyan", "second": "green", "third": "magenta",
    "fourth": "red", "on_first": "reverse cyan", "on_second": "reverse green",
    "on_third": "reverse magenta",
}  # fmt: skip
