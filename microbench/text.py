"""Text from users, devices and files made safe to show: nothing in it can move a cursor, and it has an end."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 400
UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
MAYBE_UNSEEN = re.compile(r"[^\x20-\x7e]")

# What the reports themselves write, for terminals and pipes that are not UTF-8.
ASCII = str.maketrans(
    {
        "µ": "u", "±": "+-", "−": "-", "▸": ">", "×": "x", "·": "-", "–": "-", "—": "-", "…": "...", "≥": ">=",
        "≤": "<=", "≈": "~", "●": "*", "◐": "+", "○": "~", "◌": "1", "▼": "!", "◇": "_", "✓": "+", "✗": "x", "▲": "^",
        "│": "|", "─": "-", "├": "|", "┤": "|", "┴": "+", "┬": "+", "└": "+", "┘": "+", "█": "#", "▓": "=", "▒": "-",
        "░": ".", "▌": "|", "▏": "|", "’": "'", "“": '"', "”": '"', "•": "*", "┊": ":", "→": "->", "╌": "-", "┄": ".",
    }
)  # fmt: skip


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\n\r\t":
        return " "
    if unicodedata.category(character) not in UNSEEN_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain(text: object, longest: int = LONGEST) -> str:
    """``text`` on one line: control, format and bidirectional characters are spelled out, what is too long is cut."""
    whole = str(text)
    kept = MAYBE_UNSEEN.sub(_escaped, whole[:longest])
    return kept if len(whole) <= longest else f"{kept}… ({len(whole)} characters)"


def to_ascii(text: str) -> str:
    """``text`` in ASCII: the reports' own symbols have a likeness, anything else becomes a question mark."""
    return text.translate(ASCII).encode("ascii", "replace").decode("ascii")
