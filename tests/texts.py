"""Any text that can be stored. Hypothesis's own default keeps answers on disk, and an interrupted try spoils them."""

from hypothesis import strategies as st


def any_text(max_size: int | None = None) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs",)), max_size=max_size)
