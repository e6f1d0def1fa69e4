"""Do the tests notice a wrong operator? Sixty mutations, chosen by a seed, each against the tests that execute it.

    python lab/mutation.py --choose lab/mutation.json --seed 38
    python lab/mutation.py --run lab/mutation.json --coverage /tmp/before/lines.jsonl -o before.csv

``--choose`` writes mutations of this checkout. ``--run`` finds them in this checkout, which may be a later one: first
in the same function, then in the room, then in another. If a statement is gone, one of its room and kind replaces it.
``--coverage`` holds which test executes which lines; the package coverage measures it first, one test file at a time. A
run that was interrupted goes on, and tests run in a copy of the checkout beside that file, so no file stays mutated.
What runs only in other processes counts as not executed.
"""

import argparse
import ast
import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("analysis", "model", "comparison", "diagnosis", "meter")
# The kinds of mutation that a room gets; others make up for a kind that it has too few of.
KINDS = ["arithmetic"] * 3 + ["comparison"] * 3 + ["boolean"] * 2 + ["constant"] * 2 + ["not", "extreme"]
PAIRS = ("Add Sub", "Mult Div", "Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or")
SWAPS = dict([*map(str.split, PAIRS), *(pair.split()[::-1] for pair in PAIRS)])
SWAPS |= {"FloorDiv": "Mult", "Mod": "Mult", "Pow": "Mult"}
# Test files that start processes, browsers, compilers or clusters, or check the repository: they hardly execute a room.
LEFT_OUT = "browser|campaign|crashes|fleet|interruptions|kernels_compile|library_imports|notebook|packaging|pictures"
LEFT_OUT += "|scripts|test_cuda|test_layers.py|test_twin|watch_injection"
# Of a test file, when lines are recorded; of the tests of one mutant, as recorded; of one mutant, on a busy machine.
FILE_LIMIT_S, TESTS_S, MUTANT_LIMIT_S = 300, 200, 600
Mutation = dict[str, Any]


def mutated(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The kinds of mutation of an expression, and what it becomes; where + joins texts or lists, it has none."""
    match node:
        case ast.BinOp(left, op, right) if type(op).__name__ in SWAPS:
            if not any(re.match("""[bf]?['"]|\\[""", ast.unparse(each)) for each in (left, right)):
                yield "arithmetic", ast.BinOp(left, swapped(op), right)
        case ast.Compare(left, ops, values):
            for index, op in enumerate(ops):
                yield "comparison", ast.Compare(left, [*ops[:index], swapped(op), *ops[index + 1 :]], values)
        case ast.BoolOp(op, values):
            yield "boolean", ast.BoolOp(swapped(op), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", operand
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            yield "constant", ast.Constant(value + 1 if isinstance(value, int) else 2 * value or 1.0)
        case ast.Call(ast.Name("min" | "max" as name), arguments, keywords):
            yield "extreme", ast.Call(ast.Name("max" if name == "min" else "min"), arguments, keywords)


def swapped(op: ast.AST) -> Any:
    """The operator that takes its place."""
    return getattr(ast, SWAPS[type(op).__name__])()


def mutations(path: Path) -> list[Mutation]:
    """All mutations of a file, where they are, and the lines whose execution executes them; None is the import."""
    name = path.relative_to(ROOT).as_posix()
    found: list[Mutation] = []

    def visit(node: Any, function: str, within: bool, statement: Any) -> None:
        if isinstance(node, ast.JoinedStr | ast.arg | ast.pattern):
            return
        if isinstance(node, ast.stmt | ast.match_case):
            statement = node
        for kind, after in mutated(node):
            header = next(line for line in ast.unparse(statement).split("\n") if line and not line.startswith("@"))
            noted = {"room": name.split("/")[1], "file": name, "function": function, "kind": kind, "statement": header}
            noted |= {"before": ast.unparse(node), "after": ast.unparse(after)}
            noted["nth"] = sum(noted.items() <= each.items() for each in found)
            first = getattr(statement, "pattern", statement).lineno
            last = statement.body[0].lineno - 1 if hasattr(statement, "body") else statement.end_lineno
            lines = (first, max(first, last)) if within else None
            at = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            found.append(noted | {"lines": lines, "at": at, "where": f"{name} {function} {header}"})
        defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for field, value in ast.iter_fields(node):
            inner, runs = function, within
            if defines and field == "body":
                inner, runs = f"{function}.{node.name}".lstrip("."), not isinstance(node, ast.ClassDef)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in ("annotation", "returns", "decorator_list"):
                    visit(child, inner, runs, statement)

    visit(ast.parse(path.read_text()), "", False, None)
    return found


def choose(every: list[Mutation], room: str, kinds: list[str], seed: str, used: set[str]) -> list[Mutation]:
    """A mutation of each of the kinds in a room, at most one of a statement."""
    order = [each for each in every if each["room"] == room]
    random.Random(seed).shuffle(order)
    chosen = []
    for kind in kinds:
        free = [each for each in order if each["where"] not in used]
        chosen.append(next((each for each in free if each["kind"] == kind), free[0]))
        used.add(chosen[-1]["where"])
    return chosen


def find(mutation: Mutation, every: list[Mutation]) -> Mutation | None:
    """The same mutation in this checkout: of the same statement, or else the only such change in the same function."""
    last = mutation["function"].rpartition(".")[2]
    same = [each for each in every if all(each[key] == mutation[key] for key in ("kind", "before", "after"))]
    there = [each for each in same if last and each["function"].rpartition(".")[2] == last]
    near = there + [each for each in same if each["room"] == mutation["room"]]
    found = [each for each in near if each["statement"] == mutation["statement"]]
    found, keys = found or (there if len(there) == 1 else []), ("function", "file", "room", "nth")
    return max(found, key=lambda each: [each[key] == mutation[key] for key in keys], default=None)


def located(chosen: list[Mutation], every: list[Mutation]) -> Iterator[tuple[Mutation, Mutation | None]]:
    """The chosen mutations and where they are now; a replacement follows each that is gone."""
    places = [find(mutation, every) for mutation in chosen]
    used = {place["where"] for place in places if place}
    for mutation, place in zip(chosen, places, strict=True):
        yield mutation, place
        if place is None:
            [instead] = choose(every, mutation["room"], [mutation["kind"]], mutation["id"], used)
            yield {"id": mutation["id"] + "b", **instead}, instead


def run_pytest(tree: Path, *arguments: str, limit_s: float, **variables: str) -> int:
    """Run pytest in the copy; its exit status, negative if it was stopped because it took too long."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{os.environ.get('PYTHONPATH', '')}", **variables}
    options = ["-q", "-p", "no:cacheprovider", "-p", "lab.mutation_plugin", "--hypothesis-seed=0", "--timeout=60"]
    command = ["timeout", "-s", "KILL", f"{limit_s:.0f}", "nice", "-n", "5", sys.executable, "-m", "pytest", *options]
    return subprocess.run([*command, *arguments], cwd=tree, env=environment, capture_output=True).returncode


def record(data: Path, tree: Path, moved: set[str]) -> list[dict[str, Any]]:
    """What each test executes, one process a test file, because tests of one process share computed results."""
    data.touch()
    done = {entry.get("file") for entry in map(json.loads, data.read_text().splitlines())}
    files = ",".join([*(f"microbench/{room}/*" for room in ROOMS), *sorted(moved)])
    variables = {"MUTATION_RECORD": str(data), "MUTATION_FILES": files, "COVERAGE_CORE": "ctrace"}
    names = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    for name in [name for name in names if name not in done and not re.search(LEFT_OUT, name)]:
        status = run_pytest(tree, name, limit_s=FILE_LIMIT_S, **variables)
        with data.open("a") as file:
            file.write(json.dumps({"file": name, "status": status}) + "\n")
        print(name, "status", status, flush=True)
    entries = map(json.loads, data.read_text().splitlines())
    return list({entry["test"]: entry for entry in entries if entry.get("passed")}.values())


def run_tests(tree: Path, names: list[str], limit_s: float, *options: str) -> tuple[int, list[str]]:
    """Run these tests in this order; the exit status, and which failed."""
    selection, failures = tree / ".mutation_tests", tree / ".mutation_failures"
    selection.write_text(json.dumps(names))
    failures.write_text("")
    files = dict.fromkeys(name.partition("::")[0] for name in names)
    variables = {"MUTATION_TESTS": str(selection), "MUTATION_FAILURES": str(failures)}
    status = run_pytest(tree, *options, *files, limit_s=limit_s, **variables)
    return status, failures.read_text().splitlines()


def batches(place: Mutation, recorded: list[dict[str, Any]]) -> list[list[str]]:
    """The tests that execute a mutation, five files at a time, then the rest of these files, up to TESTS_S.

    The rest, because a test may use what an earlier test of its process computed. What acts at import counts as
    executed by each test that executes anything in the file.
    """
    first, last = place["lines"] or (1, sys.maxsize)
    file_of = {entry["test"]: entry["test"].partition("::")[0] for entry in recorded}
    order = sorted(recorded, key=lambda entry: entry["seconds"])
    direct = [each for each in order if any(first <= line <= last for line in each["lines"].get(place["file"], ()))]
    executing = {entry["test"] for entry in direct}
    files = list(dict.fromkeys(file_of[test["test"]] for test in direct))
    near = [entry for entry in order if file_of[entry["test"]] in files and entry["test"] not in executing]
    totals_s = accumulate(entry["seconds"] for entry in [*direct, *near])
    kept = [entry["test"] for entry, total_s in zip([*direct, *near], totals_s, strict=True) if total_s < TESTS_S]
    groups = [files[index : index + 5] for index in range(0, len(files), 5)]
    parts = [[test for test in kept if test in executing and file_of[test] in group] for group in groups]
    return [part for part in [*parts, [test for test in kept if test not in executing]] if part]


def outcome(place: Mutation, tree: Path, parts: list[list[str]]) -> tuple[str, str]:
    """Whether a test fails with the mutation, and which."""
    lines = (ROOT / place["file"]).read_bytes().splitlines(keepends=True)
    line, column, end_line, end_column = place["at"]
    before = b"".join([*lines[: line - 1], lines[line - 1][:column]])
    after = b"".join([lines[end_line - 1][end_column:], *lines[end_line:]])
    (tree / place["file"]).write_bytes(before + f"({place['after']})".encode() + after)
    deadline = time.monotonic() + MUTANT_LIMIT_S
    try:
        for part in parts:
            status, failed = run_tests(tree, part, max(deadline - time.monotonic(), 1), "-x")
            if status:
                return ("too long", "") if status < 0 else ("yes", (failed or ["(import)"])[0])
    finally:
        shutil.copy2(ROOT / place["file"], tree / place["file"])
    return ("no" if parts else "no test runs it"), ""


def main() -> None:
    """Choose mutations, or run the tests on those that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=38)
    for names in (["--choose"], ["--run"], ["--coverage"], ["-o", "--output"]):
        parser.add_argument(*names, type=Path)
    options = parser.parse_args()
    files = [path for path in sorted(ROOT.glob("microbench/*/**/*.py")) if path.name != "words.py"]  # no phrases
    every = [mutation for path in files if "_kernels" not in path.parts for mutation in mutations(path)]
    if options.choose:
        chosen = [each for room in ROOMS for each in choose(every, room, KINDS, f"{options.seed} {room}", set())]
        chosen = [{"id": str(number), **each, "note": ""} for number, each in enumerate(chosen, 1)]
        options.choose.write_text(json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")
        return
    chosen = list(located(json.loads(options.run.read_text()), every))
    tree = (data := options.coverage.resolve()).with_suffix(".tree")
    # Times of files stay, so that compiled loops and bytecode stay valid.
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
    (tree / "microbench/_kernels").unlink(missing_ok=True)  # a link, which is not replaced
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    recorded = record(data, tree, {place["file"] for _, place in chosen if place})
    rows = list(csv.DictReader(options.output.open())) if options.output.exists() else []
    for mutation, place in chosen[len(rows) :]:
        start = time.monotonic()
        found, test = outcome(place, tree, batches(place, recorded)) if place else ("gone", "")
        at = mutation | (place or {}) | {"room": mutation["room"]}
        row = {key: at[key] for key in ("id", "room", "file", "function")}
        row |= {"mutation": f"{mutation['before']} -> {mutation['after']}", "found": found}
        row |= {"seconds": f"{time.monotonic() - start:.0f}", "test": test, "note": mutation.get("note", "")}
        rows.append(row)
        with options.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([row.keys(), *(row.values() for row in rows)])
        print(*row.values(), sep=" | ", flush=True)
    killers = sorted({row["test"] for row in rows if "::" in row["test"]})
    print("Tests that fail without a mutation too:", run_tests(tree, killers, 900)[1] or "none")
    for room in (*ROOMS, ""):
        found = [row["found"] == "yes" for row in rows if row["found"] != "gone" and row["room"].startswith(room)]
        print(f"{room or 'all'}: {sum(found)} of {len(found)} found")


if __name__ == "__main__":
    main()
