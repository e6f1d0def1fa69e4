"""docs/validation.md is what lab/validation.py makes of the tables and of the recorded runs, and short."""

import csv
from pathlib import Path

import pytest
import validation

TABLES = sorted((Path(validation.__file__).parent / "measurements").glob("*.csv"))


def test_the_page_is_made_from_the_tables() -> None:
    text = validation.PAGE.read_text(encoding="utf-8")
    assert text == validation.page(), "python lab/validation.py writes docs/validation.md"
    assert len(text.split()) <= 1850


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_each_line_of_a_table_has_all_of_its_columns(path: Path) -> None:
    header, *lines = csv.reader(path.read_text(encoding="utf-8").splitlines())
    assert lines
    assert {len(line) for line in lines} == {len(header)}


def test_a_figure_that_no_table_has_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"links\.csv has no row"):
        validation.value("links", what="of another machine")
