"""The constants that other libraries read: each is the figure of screens and predictions, in every format."""

import fnmatch
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import call

import microbench as mb
from microbench.core.errors import ExitCode
from microbench.core.units import about_size, as_time, quantity
from microbench.explain.constants import SOURCES, _between, _first

SCHEMA = Path(__file__).parent.parent / "docs" / "constants.schema.json"
RUN = "nvidia-h200"


@pytest.fixture(scope="module")
def known() -> mb.MachineConstants:
    return mb.constants(RUN)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "run.json"
    result = call("run", "link_batch", "graph_transitions", "--device", "fake", "--quick", "--out", str(path))
    assert result.exit_code == ExitCode.MEASURED, result.output
    return path


@pytest.mark.parametrize(
    "step",
    [
        ("--duration", "5us", "--layer", "torch", "--arguments", "1"),
        ("--duration", "2us", "--layer", "cupy", "--arguments", "4", "--blocks", "2000"),
        ("--duration", "0", "--arguments", "4", "--copy-in", "1MiB", "--copy-out", "4KiB"),
    ],
)
def test_constants_are_those_of_predictions(known: mb.MachineConstants, step: tuple[str, ...]) -> None:
    answer = json.loads(call("predict", "--kernels", "100", *step, "--run", RUN, "--json").stdout)
    told = {name: one for name, one in answer["constants"].items() if not one["assumed"] and name != "make"}
    assert len(told) > 8
    for name, one in told.items():
        renamed = {"way": "launch.latency"}.get(name, name.replace("call.", "launch."))
        (own,) = [known[each] for each in known if each in (renamed, *(f"{of}.{renamed}" for of in SUITES))]
        for end in ("value", "low", "high"):
            assert getattr(own, end) == pytest.approx(one[end], rel=1e-6), name


SUITES = ("launch", "graph", "link")


def test_constants_are_those_of_the_screens(known: mb.MachineConstants) -> None:
    screen, link, launch = (
        " ".join(call(*words).stdout.split()) for words in (("show", RUN), ("show", RUN, "link"), ("explain", "launch"))
    )
    assert f"{as_time(known['launch.loop.0'].value)} a launch" in screen
    assert f"of a stream the GPU needs {as_time(known['launch.gap'].value)}," in launch
    assert f"read {quantity(known['memory.read.fp64'].value, 'B/s')}" in screen
    assert f"bf16 {quantity(known['compute.bf16'].value, 'FLOP/s')}" in screen
    assert f"capture takes {as_time(known['graph.make.100'].value)}" in screen
    assert f"A copy to the GPU needs {about_size(known['link.h2d_90_from'].value)} to reach 90 %" in link


def test_rows_have_the_figures_of_the_export(known: mb.MachineConstants) -> None:
    run = mb.load(RUN)
    for name, benchmark, metric, params in (
        ("launch.wait.blocking.30us", "launch_sync", "from_kernel", {"wait": "blocking", "duration_ns": 30_000}),
        ("graph.make.torch_eager.100", "graph_library", "make", {"submitter": "torch_eager", "nodes": 100}),
        ("memory.allocate.pool.1MiB", "memory_allocate", "allocate", {"way": "pool", "size_bytes": 1 << 20}),
    ):
        (row,), own = run.rows(benchmark, metric, **params), known[name]
        assert (own.value, own.low, own.high) == pytest.approx((row.median, row.ci_low, row.ci_high), rel=1e-6)
        assert (own.benchmark, own.rounds, own.grade, own.unit) == (benchmark, row.rounds, row.trust, row.unit)
    assert known["launch.wait.blocking.30us"].busy == 2


def test_a_graph_pays_from_where_predictions_say_so(known: mb.MachineConstants) -> None:
    for layer, duration in (("torch", "5us"), ("cuda.core", "5us"), ("loop", "20us")):
        name = {"torch": "torch_eager", "cuda.core": "cuda_core"}.get(layer, layer)
        own = known[f"graph.pays_from.{name}.{duration}"]
        steps = {n: mb.predict(kernels=n, duration=duration, layer=layer, run=RUN) for n in (1, 2, 3, 4, 6, 8, 12, 256)}
        assert own.value == next(n for n, step in steps.items() if (step.break_even_steps or math.inf) <= 1000)
        sure = {n: step.to_dict()["speedup_between"][0] > 1 for n, step in steps.items()}
        assert own.high == (next(n for n, one in sure.items() if one) if all([*sure.values()][-3:]) else math.inf)


def test_pinning_pays_from_the_size_that_the_table_has(known: mb.MachineConstants) -> None:
    table = call("show", RUN, "link", "--all").stdout
    rows = re.findall(r"registered in place +(\d+) (KiB|MiB) .*s +(\d+|never) .*s +(\d+|never)", table, re.M)
    assert len(rows) == 3
    for place, direction in ((2, "h2d"), (3, "d2h")):
        for often in (1, 10, 100):
            paid = [row for row in rows if row[place] != "never" and int(row[place]) <= often]
            first = rows.index(paid[0]) if paid else len(rows)
            sizes = [int(row[0]) << {"KiB": 10, "MiB": 20}[row[1]] for row in rows]
            one = known[f"link.{direction}_register_from.{often}"]
            assert (one.low, one.high) == ([0, *sizes][first], [*sizes, math.inf][first])
            assert one.low < one.value <= one.high
            assert (one.value in sizes) == (first == 0)


@pytest.mark.parametrize(("flags", "value", "low", "high"), [
    (((1, 1, 1), (1, 1, 1), (1, 1, 1)), 1, 0, 1),
    (((0, 0, 0), (0, 1, 0), (1, 1, 1)), 4, 1, 4),
    (((1, 1, 1), (0, 0, 0), (1, 1, 0)), 4, 2, math.inf),
    (((1, 1, 1), (1, 1, 1), (0, 0, 0)), math.inf, 4, math.inf),
])  # fmt: skip
def test_a_crossover_is_where_all_that_follows_agrees(flags: Any, value: float, low: float, high: float) -> None:
    found = _first([(at, *map(bool, three)) for at, three in zip((1, 2, 4), flags, strict=True)], ["row", "row"])
    assert (found.value, found.low, found.high, found.rests_on) == (value, low, high, ("row",))


def test_a_crossover_may_be_one_up_to_a_size(simulated: Path) -> None:
    batched = mb.constants(simulated)["link.h2d_batched_up_to.256"]
    assert (batched.value, batched.low, batched.high) == (4096, 4096, math.inf)  # nothing larger was measured


@pytest.mark.parametrize(("gained", "value"), [
    ((-3, -1, 1, 5), 30),
    ((-3, 2, -1, 4), 48),  # the last that gains nothing counts
    ((1, 2, 3, 4), 10),
    ((-1, -2, -3, -4), math.inf),
])  # fmt: skip
def test_a_crossover_lies_on_a_line_between_two_sizes(gained: tuple[int, ...], value: float) -> None:
    tested = [(at, won > 0, won > 0, won > 0) for at, won in zip((10, 20, 40, 80), gained, strict=True)]
    assert _between(_first(tested, ["row"]), tested, gained).value == value


def test_intervals_hold_their_values_and_every_name_has_a_source(known: mb.MachineConstants) -> None:
    patterns = " ".join(SOURCES.values()).split()
    assert len(known) > 200
    for name, one in known.items():
        assert one.low <= one.value <= one.high or one.value == one.low == one.high, name
        assert any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns), name
        assert all((one.unit, one.what, one.benchmark)), name


def test_each_format_gives_the_same_constants(known: mb.MachineConstants, tmp_path: Path) -> None:
    for ending in ("toml", "json"):
        path = tmp_path / f"machine.{ending}"
        result = call("constants", RUN, "-o", str(path))
        assert (result.exit_code, result.stdout) == (0, f"{path}: {len(known)} constants of {known.source}\n")
        read = mb.constants(path)
        assert dict(read) == dict(known)
        assert (read.source, read.machine, read.missing) == (known.source, known.machine, known.missing)
        assert call("constants", str(path)).stdout == known.to_toml()
    assert call("constants", RUN, "--json").stdout == path.read_text()
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text()))


def test_the_header_has_a_macro_for_each(known: mb.MachineConstants) -> None:
    first, *lines = call("constants", RUN, "--format", "h").stdout.splitlines()
    assert first.startswith("/* bundled nvidia-h200, another machine, NVIDIA H200, 9.0, ")
    defined = [re.fullmatch(r"#define (MICROBENCH_\w+) (\S+) /\* [^*]+ \*/", line) for line in lines[2:]]
    macros = {one[1]: one[2] for one in defined if one}
    assert len(macros) == len(lines) - 2 == len(known)
    assert float(macros["MICROBENCH_LAUNCH_LOOP_0_S"]) == known["launch.loop.0"].value
    assert macros["MICROBENCH_LINK_D2H_REGISTER_FROM_1_B"] == "INFINITY"
    assert "MICROBENCH_LINK_H2D_RATE_B_PER_S" in macros


def test_what_was_not_measured_is_missing_and_named(simulated: Path) -> None:
    found = mb.constants(simulated)
    assert found.source.startswith("SIMULATED run ")
    run = found.machine["run"]
    assert found.missing["launch.queue graph.pays_from.*"] == f"microbench run launch_queue --into {run} --device fake"
    assert str(simulated.parent) not in found.to_toml()
    with pytest.raises(KeyError, match=f"launch.queue was not measured: microbench run launch_queue --into {run}"):
        _ = found["launch.queue"]
    with pytest.raises(KeyError, match=r"pays_from\.loop\.2us was not measured: microbench run launch_queue"):
        _ = found["graph.pays_from.loop.2us"]
    with pytest.raises(KeyError, match=r"near it are graph\.transition\.memset\.graph"):
        _ = found["graph.transition.memsets.graph"]
    assert {one.benchmark for one in found.values()} == {"graph_transitions", "link_batch"}
    assert not any("link_batch" in command for command in found.missing.values())


def test_one_command_measures_what_is_missing(simulated: Path, tmp_path: Path) -> None:
    lines = call("constants", str(simulated), "-o", str(tmp_path / "machine.toml")).stdout.splitlines()
    found = mb.constants(tmp_path / "machine.toml")
    benchmarks = " ".join(command.split()[2] for command in found.missing.values())
    assert len(lines) == 2
    run = found.machine["run"]
    assert lines[1] == f"next: microbench run {benchmarks} --into {run} --device fake measures the rest"


def test_nothing_tells_which_machine_it_was(known: mb.MachineConstants) -> None:
    session = mb.load(RUN)._run.sessions[-1]
    text = known.to_toml()
    for secret in (session.gpus[0].uuid, session.gpus[0].pci_bus_id, str(Path.home()), "GPU-"):
        assert secret not in text
    assert known.machine.keys() == {"card", "compute_capability", "driver", "cuda", "processor", "date", "run"}


def test_without_a_run_the_bundled_card_speaks_unless_that_is_refused(data: Path) -> None:
    assert mb.constants().source == "bundled nvidia-h200, another machine"
    with pytest.raises(mb.RunUnreadableError, match="no run of this machine has the costs of launches"):
        mb.constants(nearest=False)


INFINITE = """schema = 1
microbench = ""
source = ""
machine = {}
missing = {}
constants = { a = { value = 1, low = 1, high = 1, unit = "s", what = "", benchmark = "", grade = "", rounds = inf } }
"""


@pytest.mark.parametrize(("text", "cause"), [
    (INFINITE, "is no file of constants"),
    ("schema = 2", "has schema 2, not 1"), ("schema = ", "is no file of constants"),
    ('schema = 1\nmicrobench = ""\nsource = ""\nmachine = 3', "is no file of constants"),
    ('schema = 1\nmicrobench = ""\nsource = ""\n[machine]\n[missing]\n[constants]\na = { value = "x" }', "is no file"),
])  # fmt: skip
def test_another_file_is_refused(text: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(mb.RunUnreadableError, match=cause):
        mb.constants(path)


def test_exit_codes(tmp_path: Path, data: Path) -> None:
    taken = tmp_path / "machine.toml"
    taken.write_text("mine")
    for code, *arguments in (
        (ExitCode.UNREADABLE_RUN, "no-such-run"),
        (ExitCode.UNREADABLE_RUN, str(tmp_path / "none.toml")),
        (ExitCode.USAGE, RUN, "-o", str(taken)),
        (ExitCode.USAGE, RUN, "-o", str(tmp_path / "machine.csv")),
        (ExitCode.MEASURED, RUN, "-o", str(taken), "--force"),
    ):
        assert call("constants", *arguments).exit_code == code, arguments
    assert mb.constants(taken).source.startswith("bundled")


def test_reading_a_file_imports_nothing_but_a_parser(known: mb.MachineConstants, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(known.to_toml())
    program = f"import sys, microbench as mb; mb.constants({str(path)!r})['launch.loop.0']; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "msgspec", "rich", "typer", "dataclasses"} & {*loaded}
    assert {one for one in loaded if one.startswith("microbench.")} == {
        "microbench.core", "microbench.core.version", "microbench.library", "microbench.library.constants",
        "microbench.library.surface",
    }  # fmt: skip
