"""Any text that can be stored: every character but lone surrogates.

Not Hypothesis's own default: that first tries every character with the UTF-8 codec and keeps the answers on disk, and
one interrupted try there would fail every later run.
"""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


def any_text(max_size: int | None = None) -> SearchStrategy[str]:
    """Text of up to ``max_size`` characters."""
    return st.text(st.characters(exclude_categories=("Cs",)), max_size=max_size)
