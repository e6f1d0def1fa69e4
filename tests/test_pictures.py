"""The pictures of README and docs are what its commands draw today (scripts/pictures makes them)."""

import html
import re
from pathlib import Path

import pytest
from command_line import call

ROOT = Path(__file__).parents[1]


def words(svg: Path) -> str:
    """The text in a picture; its colours and the name that rich makes up for it left out."""
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8"))
    return "\n".join(html.unescape(piece) for piece in drawn)


@pytest.mark.parametrize(("name", "command"), [
    ("report.svg", "show nvidia-h200"), ("timeline.svg", "timeline --run nvidia-h200 --kernels 8 --duration 3us"),
])  # fmt: skip
def test_a_picture_is_of_today(name: str, command: str, tmp_path: Path) -> None:
    drawn = tmp_path / name
    assert call(*command.split(), "--svg", str(drawn), COLUMNS="120").exit_code == 0
    assert words(drawn) == words(ROOT / "docs" / name), "scripts/pictures draws them anew"
    assert f"{command} --svg" in (ROOT / "scripts" / "pictures").read_text(encoding="utf-8")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"{name})" in page.read_text(encoding="utf-8") for page in pages)
