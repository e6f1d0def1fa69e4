"""The marks that stand for grades and severities, with their tones."""

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
