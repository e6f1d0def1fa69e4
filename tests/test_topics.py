"""Topics: every number in a text is a figure of the run, and the command prints text, figures and the next step."""

import ast
import io
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import changed_run
import pytest
import snapshots
from changed_run import bundled, with_gpu
from command_line import call
from hypothesis import assume, given
from hypothesis import strategies as st
from make_link_run import make_link_run, state, two_switches
from make_run import make_run
from msgspec.structs import replace
from recorded_runs import real, write

from microbench.analysis.evidence import Evidence, evidence_by_device, row_name
from microbench.analysis.stats import Row, rows
from microbench.archive import store
from microbench.core.bench import discover
from microbench.core.errors import ExitCode
from microbench.core.model import Run
from microbench.core.units import quantity
from microbench.explain.topics import catalogue, launch, topic
from microbench.explain.topics.catalogue import TOPICS
from microbench.explain.topics.topic import Figure, Topic, compose, plain_words, slots
from microbench.model.constants import SPINNING, WRITING
from microbench.report.document import Phrase, Prose
from microbench.report.sheets import topic as sheets
from microbench.report.terminal import layout, terminal

# Names, not numbers: no run could change them.
NAMES = re.compile(r"\b(?:fp(?:8|16|32|64)|bf16|tf32|int8|PCIe [0-9]|L[12])\b")
NARROW, FEWEST_LINES, MOST_LINES = 80, 5, 12
# What a figure is multiplied by: by a little, and by so much that no rounding up to whole replays can hide it.
FACTORS = (1.37, 60.0, 1 / 60)

each_topic = pytest.mark.parametrize("one", TOPICS, ids=lambda one: one.name)


def has_number(text: str) -> bool:
    return any(character.isdigit() for character in NAMES.sub("", text))


@cache
def recorded() -> tuple[Evidence, ...]:
    return tuple(evidence_by_device(store.read(path))[0] for path in store.bundled().values())


@cache
def reference(name: str) -> Evidence:
    """The bundled run that knows most of a topic, as the command chooses it, without what the topic does not use."""
    one = catalogue.find(name)
    evidence = max(recorded(), key=lambda evidence: len(figures_of(one, evidence)))
    used = {rest for figure in figures_of(one, evidence).values() for rest in figure.rests_on}
    names = {info.name for info in evidence.run.benchmarks if any(rest.startswith(info.name) for rest in used)}
    used_outcomes = tuple(one for one in evidence.run.outcomes if one.case.benchmark in names | {"link_state"})
    return evidence_by_device(replace(evidence.run, outcomes=used_outcomes))[0]


@cache
def made() -> tuple[Evidence, ...]:
    hopping = make_link_run(gpus=4, nodes=2, facts=two_switches())
    runs = (bundled("launch", "graph"), make_link_run(), hopping, bundled("compute"))
    return (*recorded(), *(evidence_by_device(run)[0] for run in runs))


def figures_of(one: Topic, evidence: Evidence) -> dict[str, Figure]:
    return one.figures(evidence).figures


def paragraphs(name: str, evidence: Evidence) -> list[str]:
    text = compose(catalogue.find(name), evidence)
    return [plain_words(pieces) for pieces in (text.headline, *text.paragraphs)]


def only(evidence: Evidence, rows: Iterable[Row]) -> Evidence:
    return Evidence(evidence.run, tuple(rows), evidence.device)


def with_row(evidence: Evidence, row: Row, factor: float) -> Evidence:
    """The same evidence with the samples of one row ``factor`` times as long."""
    return with_rows(evidence, [row], factor)


def with_rows(evidence: Evidence, several: Iterable[Row], factor: float) -> Evidence:
    new: dict[str, Row] = {}
    for row in several:
        outcomes = []
        for outcome in row.outcomes:
            (old,) = (one for one in outcome.measurements if one.metric == row.metric.name)
            outcomes.append(replace(outcome, measurements=(changed_run.times(old, factor),)))
        new |= {row_name(one): one for one in rows(replace(evidence.run, outcomes=tuple(outcomes)))}
    return only(evidence, (new.get(row_name(old), old) for old in evidence.all_rows()))


def scaled(name: str, factor: float, benchmark: str, metric: str, **params: int | str) -> Evidence:
    """A topic's reference with one of its rows ``factor`` times as long."""
    row = reference(name).row(benchmark, metric, **params)
    return with_row(reference(name), row, factor)


def on_gpu(name: str, **changes: object) -> Evidence:
    """A topic's reference on a GPU that reports other things of itself."""
    evidence = reference(name)
    run = with_gpu(evidence.run, lambda gpu: replace(gpu, **changes) if gpu.uuid == evidence.device else gpu)
    return Evidence(run, evidence.all_rows(), evidence.device)


def changed_slots(one: Topic, before: Evidence, after: Evidence) -> set[str]:
    old, new = figures_of(one, before), figures_of(one, after)
    before_text, after_text = ({slot: figure.text for slot, figure in known.items()} for known in (old, new))
    return {slot for slot in old | new if before_text.get(slot, "") != after_text.get(slot, "")}


def test_no_words_in_the_sources_hold_a_number() -> None:
    """Whatever is put together in code as well: any text with a space in it."""
    folder = Path(catalogue.__file__).parent
    wrong = []
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        described = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                text = re.sub(r"\{\w+\}", "", node.value)
                wrong += [text] if " " in text and has_number(text) and "1 / " not in text and "1 −" not in text else []
    assert wrong == []


@pytest.mark.parametrize("text", ["about 100 launches", "2 µs", "fp12", "bf16 gives 4"])
def test_a_planted_number_is_found(text: str) -> None:
    assert has_number(text)


@each_topic
def test_only_figures_bring_numbers_into_a_text(one: Topic) -> None:
    for evidence in made():
        text = compose(one, evidence)
        for pieces in (text.headline, *text.paragraphs):
            assert [piece for piece in pieces if isinstance(piece, str) and has_number(piece)] == []


@each_topic
def test_a_measured_figure_is_its_row_as_units_write_it(one: Topic) -> None:
    evidence = reference(one.name)
    known = {row_name(row): row for row in evidence.all_rows()}
    measured = [figure for figure in figures_of(one, evidence).values() if figure.kind == "measured"]
    assert measured
    for figure in measured:
        (name,) = figure.rests_on
        assert figure.row == known[name]
        assert figure.text == quantity(known[name].value, known[name].metric.unit)


@each_topic
def test_a_row_changes_the_figures_that_rest_on_it_and_no_others(one: Topic) -> None:
    evidence = reference(one.name)
    figures = figures_of(one, evidence)
    fits = {name for figure in figures.values() if figure.origin.startswith("fitted") for name in figure.rests_on}
    joint = {slot for slot, figure in figures.items() if fits & {*figure.rests_on}}  # any step may change them
    resting = {
        row_name(row): {slot for slot, figure in figures.items() if row_name(row) in figure.rests_on}
        for row in evidence.all_rows()
    }
    others = [row for row in evidence.all_rows() if not resting[row_name(row)]]
    assert changed_slots(one, evidence, with_rows(evidence, others, FACTORS[0])) <= joint
    for row in (row for row in evidence.all_rows() if resting[row_name(row)]):
        changed = set().union(*(changed_slots(one, evidence, with_row(evidence, row, factor)) for factor in FACTORS))
        assert changed - joint == resting[row_name(row)] - joint, row_name(row)


@pytest.mark.parametrize(("name", "value"), [("sm_clock_max_hz", 2.5e9), ("power_limit_w", 450.0)])
def test_a_fact_changes_the_figures_that_rest_on_it_and_no_others(name: str, value: float) -> None:
    one, evidence = catalogue.find("clocks"), reference("clocks")
    resting = {slot for slot, figure in figures_of(one, evidence).items() if f"GPU {name}" in figure.rests_on}
    assert resting
    assert changed_slots(one, evidence, on_gpu("clocks", **{name: value})) == resting


def test_the_link_changes_what_launches_are_held_against() -> None:
    link = reference("traffic").gpu
    slower = on_gpu("traffic", link=replace(link.link, generation_max=3))
    assert changed_slots(catalogue.find("traffic"), reference("traffic"), slower) == {"link", "share"}


@each_topic
def test_every_slot_can_be_filled(one: Topic) -> None:
    known: set[str] = set()
    for evidence in made():
        known |= figures_of(one, evidence).keys()
    passages = itertools.chain(one.headline, *one.paragraphs)
    templates = [template for passage in passages for template in (passage.template, *passage.items)]
    assert {slot for template in templates for slot in slots(template)} - known <= {topic.ITEMS}
    assert set(one.needs) <= known


@each_topic
def test_the_reference_has_a_short_text_of_several_paragraphs(one: Topic) -> None:
    text = compose(one, reference(one.name))
    drawn = layout.prose(Prose("", "", tuple(map(phrases, text.paragraphs))), NARROW)
    assert len(text.paragraphs) >= 3
    assert FEWEST_LINES <= len([line for line in drawn if line]) <= MOST_LINES
    assert set(one.needs) <= figures_of(one, reference(one.name)).keys()
    assert any(isinstance(piece, Figure) for piece in text.headline)
    assert len(plain_words(text.headline)) + len("  REFERENCE") <= NARROW


@each_topic
def test_without_any_row_a_text_is_left_and_the_benchmarks_are_named(one: Topic) -> None:
    text = compose(one, evidence_by_device(make_run(gpu=False))[0])
    words = " ".join(plain_words(pieces) for pieces in (text.headline, *text.paragraphs))
    assert text.paragraphs
    assert text.headline
    assert text.used == {}
    assert not has_number(words)
    assert "{" not in words
    assert text.lacking
    assert set(text.lacking) <= set(discover())


@each_topic
def test_what_a_text_needs_is_what_its_benchmarks_give(one: Topic) -> None:
    suites = {benchmark.suite for benchmark in discover().values()}
    assert set(one.suites) <= suites
    assert set(one.related) <= {other.name for other in TOPICS} - {one.name}


def test_one_gpu_lacks_nothing_about_other_gpus() -> None:
    def lacking(run: Run) -> tuple[str, ...]:
        return compose(catalogue.find("topology"), evidence_by_device(run)[0]).lacking

    several = make_link_run(gpus=4)
    state_only = tuple(one for one in several.outcomes if one.case.benchmark == "link_state")
    assert lacking(make_link_run()) == ()
    assert lacking(several) == ()
    assert lacking(replace(several, outcomes=state_only)) == (
        "link_copy", "link_latency", "link_concurrent", "link_peer",
    )  # fmt: skip


def settled_hz() -> float:
    return figures_of(catalogue.find("clocks"), reference("clocks"))["settled"].value


def longest_burst() -> Evidence:
    bursts = reference("clocks").rows("gemm_sustained", "burst")
    return with_row(reference("clocks"), max(bursts, key=lambda row: int(row.params["duration_s"])), 2)


def without(name: str, **params: tuple[str, ...]) -> Evidence:
    """A topic's reference without the rows that have another value of these parameters."""
    left = (
        row for row in reference(name).all_rows()
        if all(row.params.get(key, values[0]) in values for key, values in params.items())
    )  # fmt: skip
    return only(reference(name), left)


def made_link(**facts: int) -> Evidence:
    return evidence_by_device(make_link_run(facts=two_switches(**facts)))[0]


# How each machine differs from the reference, and the topic whose text must say so.
MACHINES: dict[str, tuple[str, Callable[[], Evidence]]] = {
    "a host that keeps up": ("launch", lambda: scaled("launch", 1 / 3, "launch_cost", "submit")),
    "no Python layers": ("launch", lambda: without("launch", layer=("loop",))),
    "a graph that saves nothing": ("graphs",
        lambda: scaled("graphs", 60, "graph_gain", "graph", submitter="loop", kernels=100, duration_ns=0)),
    "a gap that no graph shortens": ("graphs",
        lambda: scaled("graphs", 60, "launch_gap", "graph", **(SPINNING | WRITING))),
    "arguments that take no room": ("queue", lambda: scaled("queue", 2, "launch_queue", "depth", argument_bytes=4096)),
    "launches that fill the link": ("traffic",
        lambda: scaled("traffic", 60, "launch_traffic", "received", work="launch", duration_ns=0, argument_bytes=0)),
    "counters that miss bytes": ("traffic",
        lambda: scaled("traffic", 1 / 60, "launch_traffic", "received_per_byte", work="pinned_h2d")),
    "pageable copies that lose nothing": ("pinned",
        lambda: scaled("pinned", 1 / 3, "link_copy", "bandwidth_host", **PAGEABLE, size_bytes=64 << 20)),
    "registering that takes several copies to pay": ("pinned",
        lambda: scaled("pinned", 60, "link_pinning", "pin", way="register", size_bytes=64 << 20)),
    "a link below its full speed": ("topology", lambda: made_link(generation_now=3)),
    "switches that can be seen": ("topology", made_link),
    "a shared uplink": ("topology",
        lambda: scaled("topology", 3, "link_concurrent", "together", beside="all", direction="h2d", gpu_index=0)),
    "products at the highest clock": ("clocks", lambda: on_gpu("clocks", sm_clock_max_hz=settled_hz())),
    "sustained work at its burst": ("clocks", longest_burst),
    "no wgmma": ("tensor", lambda: without("tensor", path=("mma",))),
}  # fmt: skip
PAGEABLE = {"direction": "h2d", "memory": "pageable"}


def test_the_texts_of_the_references() -> None:
    texts = (
        "\n".join(
            (f"== {one.name}", *(textwrap.fill(words, 116) for words in paragraphs(one.name, reference(one.name))))
        )
        for one in TOPICS
    )
    snapshots.same("topics", "\n\n".join(texts))


def test_a_text_follows_the_machine() -> None:
    """The snapshot has the paragraphs that differ from the reference's."""
    texts = []
    for what, (name, evidence) in MACHINES.items():
        usual = paragraphs(name, reference(name))
        differing = [textwrap.fill(words, 116) for words in paragraphs(name, evidence()) if words not in usual]
        texts.append("\n".join((f"== {name}: {what}", *(differing or ["(fewer paragraphs)"]))))
    snapshots.same("topics-machines", "\n\n".join(texts))


@pytest.mark.parametrize("what", ["no Python layers", "no wgmma"])
def test_what_a_machine_cannot_run_is_not_lacking(what: str) -> None:
    name, evidence = MACHINES[what]
    assert compose(catalogue.find(name), evidence()).lacking == ()


def phrases(pieces: topic.Pieces) -> tuple[Phrase, ...]:
    return tuple(
        Phrase(piece.text, whole=True) if isinstance(piece, Figure) else Phrase(piece) for piece in pieces
    )  # fmt: skip


def drawn(one: Topic, run: Run, *, width: int = NARROW, encoding: str = "utf-8", **about: Any) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal.draw(sheets.sheet(one, run, **about), terminal.open_console(stream, width=width))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@each_topic
@pytest.mark.parametrize("width", [40, NARROW, 120])
def test_a_sheet_keeps_to_the_page(one: Topic, width: int) -> None:
    text = drawn(one, reference(one.name).run, width=width, reference=True)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("REFERENCE") >= 4
    assert sheets.FIGURES in text


def test_a_sheet_is_ascii_where_the_page_is() -> None:
    text = drawn(launch.TOPIC, reference("launch").run, encoding="ascii")
    assert "us" in text
    assert "?" not in text


def test_the_table_shows_each_figure_of_the_text_with_its_row() -> None:
    text = drawn(launch.TOPIC, reference("launch").run, width=120)
    for figure in compose(launch.TOPIC, reference("launch")).used.values():
        line = next(line for line in text.splitlines() if line.startswith(f" {figure.what} "))
        assert figure.text in line
        assert figure.origin in line
    assert "graph_lifecycle relaunch    nodes 100" in drawn(
        catalogue.find("graphs"), reference("graphs").run, width=120
    )


def test_a_run_that_lacks_something_says_what_to_run() -> None:
    text = drawn(catalogue.find("graphs"), make_run(), adding=("--into", "run", "--device", "fake"))
    assert "This run lacks figures that would say more here:" in text
    assert "microbench run graph_lifecycle graph_gain --into run --device fake" in text
    assert "SIMULATED" in text


def test_a_reference_says_how_to_measure_this_machine() -> None:
    assert "microbench run launch graph" in drawn(catalogue.find("graphs"), reference("graphs").run, reference=True)


def test_the_gpu_with_the_most_figures_is_described() -> None:
    run = make_link_run(gpus=2)
    other = replace(state(two_switches()), device=run.sessions[0].gpus[0].uuid[:-1] + "1")
    both = replace(run, outcomes=(other, *run.outcomes))
    assert "copies reach" in drawn(catalogue.find("topology"), both)


WORDS = st.text("abc", min_size=1, max_size=9)
PHRASES = st.lists(
    st.one_of(
        st.lists(WORDS, min_size=1).map(lambda words: Phrase(" ".join(words) + " ")),
        WORDS.map(lambda text: Phrase(f"1.23 {text}", whole=True)),
        st.just(Phrase(", ")),
    )
)


@given(PHRASES, st.integers(40, 130))
def test_prose_keeps_every_word_and_breaks_no_figure(written: list[Phrase], width: int) -> None:
    assume(
        not any(before.whole and after.whole for before, after in itertools.pairwise(written))
    )  # no text has two in a row
    one = Prose("", "", (tuple(written),))
    lines = ["".join(text for text, _ in line) for line in layout.prose(one, width)]
    text = "".join(phrase.text for phrase in written)
    unbroken = "".join(phrase.text.replace(" ", "_") if phrase.whole else phrase.text for phrase in written).split()
    longest = max(map(len, unbroken), default=0)
    if longest <= min(width, layout.WIDEST_PROSE):  # a longer word is cut
        assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    for phrase in written:
        assert not phrase.whole or any(phrase.text in line for line in lines)
    assert all(len(line) <= max(min(width, layout.WIDEST_PROSE), longest + 1) for line in lines)


@pytest.mark.parametrize("name", ["launch", "topology", "tensor"])
def test_without_a_run_a_reference_that_knows_is_shown_and_marked(name: str, data: Path) -> None:
    result = call("explain", name)
    assert result.exit_code == ExitCode.MEASURED
    assert "REFERENCE" in result.stdout
    assert sheets.FIGURES in result.stdout


def test_this_machines_run_comes_first_where_it_has_the_figures(data: Path) -> None:
    write(data / "20250102T030405Z-aaaaaaaa.json", make_run())
    assert "REFERENCE" in call("explain", "launch").stdout, "a simulated run is shown only where it is named"
    write(data / "20250102T030405Z-aaaaaaaa.json", real(make_run()))
    text = call("explain", "launch").stdout
    assert "REFERENCE" not in text
    assert "REFERENCE" in call("explain", "tensor").stdout


def test_a_run_can_be_named(data: Path) -> None:
    write(data / "20250102T030405Z-aaaaaaaa.json", make_run())
    text = call("explain", "launch", "--run", "nvidia-h200").stdout
    assert "REFERENCE" in text
    text = call("explain", "tensor", "--run", "aaaa").stdout
    assert "microbench run tensor_ceiling gemm_throughput --into aaaa --device fake" in text


def test_a_topic_can_be_drawn_into_a_new_file(data: Path) -> None:
    path = data / "launch.svg"
    assert call("explain", "launch", "--svg", str(path)).exit_code == ExitCode.MEASURED
    assert path.read_text(encoding="utf-8").startswith("<svg")
    assert call("explain", "launch", "--svg", str(path)).exit_code == ExitCode.USAGE
