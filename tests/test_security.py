"""Each claim of SECURITY.md, and the tests that hold it. What no other file tests is tested here."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "SECURITY.md").read_text()
# A phrase of each claim, and the tests that hold it. "-" is for what is advice, or a choice that no program can break.
CLAIMS = {
    "It needs no root, opens no network connection": "test_commands_open_no_connection test_it_needs_no_root",
    "changes no setting of a GPU": "test_no_setting_of_a_gpu_is_changed",
    "Use GitHub's private reporting": "-",
    "the package itself, Python, the installed GPU packages": "-",
    "the command line and environment variables of the user": "-",
    "Whoever can change these can run code as you": "-",
    "there is no pickle, no `eval`, no import by a name from a file": "test_files_that_are_read_run_no_code "
    "test_nothing_is_unpickled_or_evaluated",
    "SQLite is told to refuse these tables": "test_sqlite_refuses_to_read_the_environment "
    "test_views_triggers_and_virtual_tables_are_refused",
    "Rows beyond a bound are counted and left out": "test_rows_beyond_the_limits_are_counted",
    "`tests/test_traces_*.py` change thousands of files": "test_many_changed_files_are_read_or_refused",
    "Control and bidirectional characters are escaped": "test_hostile_names_and_notes_are_text",
    "A CSV cell that begins like a formula": "test_no_reason_breaks_a_row_or_becomes_a_formula",
    "Anything but a message of `session/messages.py` ends the worker":
    "test_a_case_that_was_never_ordered_right_ends_the_worker",
    "Bounds are checked before memory is used": "test_a_small_file_that_unpacks_to_a_huge_one_is_not_unpacked "
    "test_a_small_packed_file_of_many_values_is_not_decoded",
    "200 digits of a number in a step file": "test_a_long_key_or_number_of_a_step_is_refused_before_it_is_parsed",
    "Only regular files are opened": "test_pipes_and_devices_in_the_data_folder_are_a_line_each "
    "test_only_a_regular_file_is_opened_as_a_step",
    "An impossible number is shown as damaged": "test_an_impossible_sample_is_shown_as_damaged_and_left_out",
    "A forged run that is plausible is believed": "-",
    "runs `ID.json`, while measured `ID.jsonl`": "test_commands_write_only_where_they_say",
    "an existing file is replaced only by": "test_what_exists_is_not_overwritten",
    "a run whose place was lost while it was measured": "test_a_folder_that_was_deleted_costs_no_result",
    "made anew (`O_EXCL`, `O_NOFOLLOW`), never through a link": "test_a_link_named_as_a_temporary_file_is_not_followed",
    "removed at the end; where root watches, other users may leave reasons in it":
    "test_a_process_that_gives_up_its_rights_says_why_it_is_not_recorded "
    "test_ctrl_c_at_any_moment_of_a_block_leaves_nothing_and_the_next_one_is_recorded "
    "test_folders_of_watch_are_readable_by_the_user_alone",
    "runs that `history prune` lists and you confirm": "test_nothing_is_deleted_without_a_limit_and_a_confirmation",
    "recordings of `microbench watch`": "test_without_a_place_in_the_folder_it_records_elsewhere",
    "the libraries `recorder-*.so`, `scanner-*.so` and `looking-*.so`": "test_commands_write_only_where_they_say",
    "compiled host loops (Numba)": "test_without_a_folder_for_its_cache_a_loop_is_compiled_all_the_same",
    "baselines of `microbench.counts()` in pytest": "test_counts_are_held_against_a_baseline",
    "traces of `trace_handler`": "test_each_trace_of_a_profiler_is_kept_and_diagnosed",
    "Files get the rights that your umask gives": "test_commands_write_only_where_they_say",
    "none comes from a run or a step file": "test_files_that_are_read_run_no_code",
    "with a folder of the package on `PYTHONPATH`": ""
    "test_the_environment_has_the_variables_of_watch_alone_more",
    "`microbench` never imports from the working folder": "test_the_command_imports_nothing_from_the_working_folder",
    "to this machine, unless an address is named": "test_metrics_add_up_and_name_the_file",
    "`watch --attach` asks at a socket of mode 0600": "test_nobody_but_this_user_gets_in "
    "test_hostile_bytes_change_nothing",
    "anyone who can connect to a scheduler or a worker can run code there": ""
    "test_tls_without_certificates_says_what_to_configure",
    "microbench itself sends the selection and options of `microbench run`, and no code": ""
    "test_the_options_reach_the_run",
    "Its content policy allows one script, by its hash": ""
    "test_only_the_pages_own_scripts_may_run_and_nothing_is_fetched test_hostile_text_is_text "
    "test_hostile_text_does_nothing",
    "`--redact` of `export` and `report` replaces": "test_no_secret_survives_in_any_export "
    "test_paths_uuids_and_addresses_are_replaced",
    "It does not find a name that nothing marks": "-",
}  # fmt: skip


def test_each_claim_has_a_test() -> None:
    assert "SECURITY.md" in (ROOT / "README.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    for claim, names in CLAIMS.items():
        assert claim in " ".join(TEXT.split()), f"SECURITY.md does not say: {claim}"
        for name in names.split():
            assert name == "-" or f"def {name}(" in tests, name
    for part in re.split(r"\n\n+|\n(?=- |\| )", TEXT):
        said = " ".join(part.split())
        if said and not said.startswith(("#", "| what |", "|---")):
            assert any(claim in said for claim in CLAIMS), f"no test is named for: {said}"


# What commands do, as Python itself reports it

HOOK = """
import os, sys
log = os.open(os.environ["AUDITED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def hook(event, arguments):
    if event.startswith("socket.") or event == "pickle.find_class":
        os.write(log, f"{event} {arguments!r}\\n".encode())
    elif event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int) and arguments[2] & WRITES:
        if not os.path.isdir(arguments[0]):  # else a file without a name, by which the doctor tries the folder
            os.write(log, f"open {os.path.abspath(arguments[0])}\\n".encode())
    elif event in ("os.mkdir", "os.remove", "os.rmdir"):
        os.write(log, f"open {os.path.abspath(os.fspath(arguments[0]))}\\n".encode())
    elif event == "os.rename":
        os.write(log, f"open {os.path.abspath(os.fspath(arguments[1]))}\\n".encode())
sys.addaudithook(hook)
"""


class Audited:
    """Runs commands with a home of their own, and keeps what Python says of connections, pickles and files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        for name in ("hook", "home", "work", "tmp"):
            (folder / name).mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,), before: Sequence[str] = ()) -> list[tuple[str, str]]:
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        variables = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp"),
            "AUDITED": str(log), "PYTHONPATH": os.pathsep.join((str(self.folder / "hook"), str(ROOT))),
            "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": str(self.folder / "numba"),
        }  # fmt: skip
        line = [*before, sys.executable, "-m", "microbench", *arguments]
        ended = subprocess.run(
            line, cwd=self.work, env=variables, capture_output=True, text=True, check=False, umask=0o077
        )
        assert ended.returncode in codes, ended.stderr
        assert "Traceback" not in ended.stderr
        seen = [line.partition(" ") for line in log.read_text().splitlines()] if log.exists() else []
        return [(event, what) for event, _, what in seen]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    made = Audited(tmp_path_factory.mktemp("audited"))
    made.ran = [  # type: ignore[attr-defined]
        made.run("run", "launch_kind", "--quick", "--device", "fake"),
        made.run("show"),
        made.run("report", "-o", "page.html"),
        made.run("export", "--format", "csv"),
        made.run("history"),
        made.run("watch", "--", "true"),
        made.run("doctor", codes=(0, 1)),
    ]
    return made


def test_commands_open_no_connection(audited: Audited) -> None:
    events = [event for each in audited.ran for event, _ in each]  # type: ignore[attr-defined]
    assert "open" in events, "the hook hears something"
    assert not [event for event in events if event.startswith("socket.")]


def test_commands_write_only_where_they_say(audited: Audited) -> None:
    root = audited.folder
    named = [
        r"home/\.local/share(/microbench(/(\.?[0-9]{8}T\w+-\w+\.jsonl?(\.\w+\.microbench)?|processes\.learned))?)?",
        r"home/\.cache(/microbench(/.*)?)?", r"tmp/microbench-\w+(/.*)?", r"tmp",
        r"work/\.?page\.html(\.\w+\.microbench)?", r"work/recording-1", r"numba(/.*)?", r"home/\.local",
    ]  # fmt: skip
    allowed = re.compile("|".join(named))
    for each in audited.ran:  # type: ignore[attr-defined]
        for event, path in each:
            inside = os.path.relpath(path, root)
            if event == "open" and not path.startswith(("/dev/", "/proc/", str(ROOT))):
                assert allowed.fullmatch(inside), path
            assert event != "open" or not path.startswith(str(ROOT)), path
    left = {str(path.relative_to(root)): path for name in ("home", "work", "tmp") for path in (root / name).rglob("*")}
    assert not [name for name in left if name.startswith("tmp/")], "temporary folders are removed"
    for name, path in left.items():
        assert allowed.fullmatch(name), name
        assert path.stat().st_mode & 0o077 == 0, f"{name} has more rights than the umask gives"


def test_files_that_are_read_run_no_code(tmp_path: Path) -> None:
    """A run whose benchmark and metric are named like modules that leave a file where they are imported."""
    audited = Audited(tmp_path)
    (audited.work / "evil.py").write_text("open('imported', 'w').close()")
    evil = (ROOT / "tests" / "data" / "run-v1.json").read_text()
    names = set(re.findall(r'"benchmark": ?"(\w+)"', evil))
    for name in names:
        evil = evil.replace(f'"{name}"', '"evil"')
    assert names
    (audited.work / "evil.json").write_text(evil)
    (audited.work / "evil.toml").write_text("kernels = \"__import__('evil')\"\n")
    (audited.work / "trace.json").write_text(
        json.dumps({"traceEvents": [{"name": "evil", "cat": "kernel", "ph": "X"}]})
    )
    seen = []
    for command in (
        ("show", "./evil.json", "--all"), ("export", "./evil.json"), ("predict", "evil.toml"),
        ("diagnose", "trace.json"),
    ):  # fmt: skip
        seen += audited.run(*command, codes=(0, 2, 3, 4))
    assert not [what for event, what in seen if event == "pickle.find_class"]
    assert not (audited.work / "imported").exists()


def test_nothing_is_unpickled_or_evaluated() -> None:
    """But for the one place that reads a name of the user's own function in its own names."""
    found = []
    for path in (ROOT / "microbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                found += [f"{path.name}: {name}" for name in names if name in ("pickle", "marshal", "shelve", "dill")]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                found.append(f"{path.relative_to(ROOT / 'microbench')}: {node.func.id}")
    assert found == ["capture/proof.py: eval"]


def test_no_setting_of_a_gpu_is_changed() -> None:
    setting = re.compile(
        r"nvml(Device|GpuInstance|Unit|System)\w*(Set|Reset|Clear|Create|Destroy)[A-Z]\w*|\[\"nvidia-smi"
    )
    for path in [*(ROOT / "microbench").rglob("*.py"), *(ROOT / "microbench").rglob("*.c")]:
        assert not setting.search(path.read_text()), path


def test_it_needs_no_root(audited: Audited) -> None:
    """Root without its capabilities has the rights of any user who owns the files."""
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    if bare and shutil.which("setpriv") is None:
        pytest.skip("no setpriv here")
    rights = subprocess.run([*bare, "grep", "CapEff", "/proc/self/status"], capture_output=True, text=True, check=True)
    assert int(rights.stdout.split()[1], 16) == 0
    before = sorted((audited.folder / "home").rglob("*.json"))
    audited.run("run", "launch_kind", "--quick", "--device", "fake", before=bare)
    audited.run("watch", "--", "true", before=bare)
    assert len(sorted((audited.folder / "home").rglob("*.json"))) == len(before) + 1


def test_folders_of_watch_are_readable_by_the_user_alone(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of root's others may only reach the folder in which they leave reasons, and not list it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "program.py").write_text(
        "import glob, os\nfor path in sorted(glob.glob('microbench-*') + glob.glob('microbench-*/*')):\n"
        "    print(oct(os.stat(path).st_mode & 0o7777))"
    )
    line = [sys.executable, "-m", "microbench", "watch", "--", sys.executable, "program.py"]
    modes = subprocess.run(line, capture_output=True, text=True, check=False).stdout.split()
    assert modes[0] == ("0o711" if os.getuid() == 0 else "0o700")
    assert os.getuid() != 0 or modes[1] == "0o1733"
    assert not list(tmp_path.glob("microbench-*"))


@pytest.mark.parametrize("arguments", [["--version"], ["show", "nvidia-h200"], ["watch", "--", "true"]])
def test_the_command_imports_nothing_from_the_working_folder(tmp_path: Path, arguments: list[str]) -> None:
    for name in ("rich", "json", "typer", "msgspec", "numpy", "platformdirs", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open('{name} was imported', 'w').close()")
    (tmp_path / "microbench").mkdir()
    (tmp_path / "microbench" / "__init__.py").write_text("open('microbench was imported', 'w').close()")
    started = f"import sys; sys.path[0] = {str(ROOT)!r}; sys.argv[1:] = {arguments!r}; import cuda_microbench; "
    command = tmp_path.parent / "bin" / "microbench"
    command.parent.mkdir(exist_ok=True)
    command.write_text(started + "sys.exit(cuda_microbench.main())")
    ended = subprocess.run([sys.executable, command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not list(tmp_path.glob("*imported"))
