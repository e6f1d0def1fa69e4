"""The check of pull requests: the script of the GitHub Action and of GitLab, in a repository with a target branch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_counts import at, program

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "compare_counts"
ENVIRONMENT = ("TRACE", "BASELINE", "FAIL_ON", "TARGET", "PULL_REQUEST", "GH_TOKEN")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose target branch has the baseline, with stand-ins for microbench's command and gh."""
    origin, clone, bins = tmp_path / "origin", tmp_path / "clone", tmp_path / "bin"
    for folder in (origin, bins):
        folder.mkdir()
    git("init", "--quiet", "--initial-branch=main", folder=origin)
    counts = subprocess.run(
        [sys.executable, "-m", "microbench", "diagnose", at(tmp_path, "base.json", program()), "--counts", "--json"],
        capture_output=True, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    (origin / "counts.json").write_bytes(counts.stdout)
    git("add", ".", folder=origin)
    git("commit", "--quiet", "-m", "baseline", folder=origin)
    git("clone", "--quiet", str(origin), str(clone), folder=tmp_path)
    for name, text in (
        ("microbench", f'exec "{sys.executable}" -m microbench "$@"'),
        ("gh", 'printf "%s\\n" "$@" >gh.txt; cat "${!#}" >comment.md; exit "${GH_FAILS:-0}"'),
    ):
        (bins / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (bins / name).chmod(0o755)
    return clone


def git(*arguments: str, folder: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def checked(clone: Path, trace: str, **more: str) -> tuple[int, str, str]:
    """The exit code, what the script said, and the summary."""
    summary = clone / "summary.md"
    environment = {
        **os.environ, "PATH": f"{clone.parent / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(clone.parent), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(clone / "out.txt"),
        "TRACE": trace, "BASELINE": "counts.json", "FAIL_ON": "launches>+0, waits>+0", "TARGET": "main", **more,
    }  # fmt: skip
    ended = subprocess.run(
        [SCRIPT], cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    return ended.returncode, ended.stdout + ended.stderr, summary.read_text() if summary.exists() else ""


def test_more_work_fails_and_is_commented_on(clone: Path) -> None:
    code, said, summary = checked(clone, at(clone.parent, "new.json", program("wait", 1)), PULL_REQUEST="7")
    assert code == 5
    assert "failed: waits>+0" in said
    assert "**A step does more: 1 more wait for the GPU" in summary
    arguments = (clone / "gh.txt").read_text().split("\n")
    assert arguments[:6] == ["pr", "comment", "7", "--edit-last", "--create-if-none", "--body-file"]
    assert (clone / "comment.md").read_text() == summary
    named = (clone / "out.txt").read_text().removeprefix("counts=").strip()
    assert '"waits": 2' in Path(named).read_text()


@pytest.mark.slow
def test_the_same_work_passes_whatever_gh_says(clone: Path) -> None:
    code, said, summary = checked(
        clone, at(clone.parent, "new.json", program(seed=5)), TARGET="", PULL_REQUEST="7", GH_FAILS="1"
    )
    assert (code, "The comment was not written" in said) == (0, True)
    assert "The counts of a step are the same" in summary


@pytest.mark.slow
def test_without_a_baseline_the_counts_are_written(clone: Path) -> None:
    code, said, _ = checked(clone, at(clone.parent, "new.json", program()), BASELINE="other.json")
    assert (code, (clone / "gh.txt").exists()) == (0, False)
    assert "No baseline: commit `other.json`" in said


def test_what_is_no_trace_ends_with_its_error(clone: Path) -> None:
    code, said, _ = checked(clone, str(clone / "counts.txt"))
    assert code == 2
    assert "next:" in said


def test_the_action_gives_the_script_what_it_reads() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, compare = action["runs"]["steps"]
    assert set(compare["env"]) == set(ENVIRONMENT)
    assert compare["run"].endswith('scripts/compare_counts"')
    inputs = set(re.findall(r"inputs\.([\w-]+)", str(action["runs"])))
    assert inputs == set(action["inputs"])
    assert not re.search(r"\$\{\{", install["run"] + compare["run"]), "inputs never become code"
    read = set(re.findall(r"\$\{?([A-Z_]{4,})", SCRIPT.read_text()))
    assert read - {"RUNNER_TEMP", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"} <= set(ENVIRONMENT)
