"""Unpacks the small /proc and /sys trees of tests/data/sysfs. One file each: their names hold colons and links."""

import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "sysfs"


def unpack(name: str, into: Path) -> Path:
    """The tree ``name`` as files and links under ``into``, which is then the root."""
    tree = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    for path, text in tree["files"].items():
        write(into, path, text)
    for path, target in tree["links"].items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).symlink_to(target)
    return into


def write(root: Path, path: str, text: str) -> None:
    """One file of a tree, in place of the one that was there."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="utf-8")
