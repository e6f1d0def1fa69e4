"""One quantity has one figure: on every screen, page and topic, and in every prediction, of the recorded runs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path

import pytest
from command_line import call

from microbench.analysis.graph_steps import LITTLE

DATA = Path(__file__).parent / "data"
RUNS = {"reference": "nvidia-h200", "quiet": str(DATA / "quiet-h200.json.xz"), "busy": str(DATA / "busy-h200.json.xz")}
TOPICS = ("launch", "graphs", "queue", "traffic", "pinned", "clocks", "tensor")
COUNTS = (0, 1, 4, 16, 64)
KERNELS, KERNEL_S = 100, 2e-6
STEP = ("--kernels", str(KERNELS), "--duration")
STEPS = {
    **{f"loop, {count}": (*STEP, "0", "--arguments", str(count)) for count in COUNTS},
    **{
        f"{layer}, {count}": (*STEP, "2us", "--layer", layer, "--arguments", str(count))
        for layer in ("cuda.core", "cupy", "numba")
        for count in (0, 4, 16)
    },
    "PyTorch": (*STEP, "2us", "--layer", "torch"), "PyTorch out=": (*STEP, "2us", "--layer", "torch_out"),
    "two streams": (*STEP, "2us", "--streams", "2"),
    "copies": (*STEP, "2us", "--copy-in", "1MiB", "--copy-out", "4KiB"),
    "decode-7b": ("decode-7b",), "small-image-training": ("small-image-training",),
    "streaming-pipeline": ("streaming-pipeline",),
}  # fmt: skip
FEW = (*(f"loop, {count}" for count in COUNTS), "cuda.core, 0", "cuda.core, 4", "cuda.core, 16", "PyTorch", "copies")
SCALES = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
F = r"(\d[\d.]* (?:[nµm]?s)\b)"  # a time
BAR = "[█░▓▌▐▎▏▍▋▊▉]+"

# Every way in which screens, pages, topics and predictions name a quantity. A table of measured rows has names of its
# own: its benchmark's and metric's.
NAMED = {
    "a launch from a compiled loop": (
        rf"launch {F} a launch ·", rf"A launch takes the host {F}", rf"A launch costs the host {F}",
        rf"The call takes {F};", rf", a launch {F}", rf"instead of {F}: a long loop", rf"the launch call {F}",
        rf"compiled loop {BAR} [\d.]+ [nµm]?s [^µ]*? {F}", rf"launch call of loop, 0 arguments {F}",
        rf"(?:call|submit) {F} {BAR}",
    ),
    "the same with four arguments": (
        rf"A compiled loop takes {F}", rf"compiled loop {BAR} {F}", rf"launch call of loop, 4 arguments {F}",
    ),
    "cuda.core, four arguments": (
        rf"4 arguments: cuda.core {F}", rf"cuda.core launches cheapest: {F}", rf"cuda.core {BAR} {F} [^µ]*? [\d.]+×",
        rf"{F} through cuda.core", rf"a call from cuda.core, four arguments {F}",
        rf"launch call of cuda_core, 4 arguments {F}",
    ),
    "CuPy, four arguments": (
        rf"CuPy RawKernel {F} ·", rf"CuPy RawKernel {BAR} {F} [^µ]*? [\d.]+×", rf"{F} through CuPy",
        rf"a call from CuPy, four arguments {F}", rf"launch call of cupy_raw, 4 arguments {F}",
    ),
    "Numba, four arguments": (
        rf"· Numba {F}", rf"{F} through Numba", rf"a call from Numba, four arguments {F}",
    ),
    "Numba, configured before, four arguments": (
        rf"Numba \(configured before\) {BAR} {F} [^µ]*? [\d.]+×",
        rf"launch call of numba_configured, 4 arguments {F}",
    ),
    "an operation of PyTorch": (
        rf"PyTorch eager {F} ·", rf"PyTorch eager {BAR} {F} ±", rf"an operation of PyTorch {F}",
        rf"{F} through PyTorch", rf"a launch takes {F} \(bare call\)",
        rf"launch call of torch_eager, \d arguments? {F}",
    ),
    "an operation of PyTorch with out=": (
        rf"PyTorch out= {F} ·", rf"PyTorch out= {BAR} {F}", rf"launch call of torch_out, \d arguments? {F}",
    ),
    "the limit of launch-bound kernels": (
        rf"launch-bound below {F}", rf"Kernels shorter than {F} are launch-bound", rf"(?:call|submit) − gap = {F}",
        rf"kernels shorter than {F} it idles", rf"shorter kernels leave the GPU idle {F}",
    ),
    "the gap of a stream behind a kernel that writes": (
        rf"the GPU needs {F} between kernels", rf"kernels of a stream the GPU needs {F}",
        rf"idle behind a kernel of a stream {F}",
    ),
    "the gap of a stream, kernels that do not write": (rf"stream gap[:,] (?:period|kernels)[^µ]*? {F}",),
    "making a graph of 100 kernels": (
        rf"capture takes {F};", rf"Making the graph takes {F} ±", rf"instantiate and upload take {F}",
        rf"building the graph {F}", rf"capture, instantiate and upload this step's graphs? {F}",
        rf", {F} ±[\d.]+ % for the driver",
    ),
    "the gain of 100 empty kernels, measured": (
        r"runs 100 empty kernels ([\d.]+×)", r"100 empty kernels runs ([\d.]+×)", r"gain with empty kernels ([\d.]+×)",
    ),
    "replays until a graph of 100 empty kernels pays": (
        r"as fast and pays after (\d+) replay", r"the graph has paid after (\d+) replay",
        r"replays until the graph pays (\d+) replay", r"±[\d.]+ % and pays off after (\d+) step",
    ),
}  # fmt: skip
# The predictions in which a quantity is named so; a prediction of another step has another figure of it.
EMPTY = ("loop, 0",)
HUNDRED = (*EMPTY, *(name for name in STEPS if name.startswith(("cuda.core", "cupy", "numba", "PyTorch"))))
ONLY = {
    "making a graph of 100 kernels": HUNDRED,
    "replays until a graph of 100 empty kernels pays": EMPTY,
    "an operation of PyTorch": ("PyTorch", "decode-7b", "small-image-training"),
}
# A row of the table of constants: its name, what it is, its value.
CONSTANT = re.compile(r"^ ([a-z_][a-z_0-9.]*)  +\S.*?  +(\d[\d.]* (?:[nµm]?s|[GT]?B/s))\b", re.MULTILINE)
NO_GAIN = re.compile(r"never pays|never faster|does not pay|within the noise|nothing measurable")
GAIN = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)×")


def shown(*command: str) -> str:
    result = call(*command, COLUMNS="140")
    assert result.exit_code in (0, 1), result.output
    return result.output


@cache
def screens(run: str) -> dict[str, str]:
    """Everything that shows figures of a run, by what shows it, as it is printed."""
    name = RUNS[run]
    texts = {"show": shown("show", name)}
    texts |= {suite: shown("show", name, suite, "--all") for suite in ("launch", "graph")}
    texts |= {
        f"topic {topic}": shown("explain", topic, "--run", name)
        for topic in TOPICS[: 4 if run != "reference" else None]
    }
    steps = {step: options for step, options in STEPS.items() if run == "reference" or step in FEW}
    texts |= {f"step {step}": shown("predict", *options, "--run", name, "--all") for step, options in steps.items()}
    return texts


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(texts: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each named quantity with where it is said and its figure."""
    for where, text in texts.items():
        step = where.partition("step ")[2]
        flat = " ".join(text.split())
        for name, patterns in NAMED.items():
            if not step or step in ONLY.get(name, (step,)):
                for pattern in patterns:
                    yield from ((name, where, figure) for figure in re.findall(pattern, flat))
        if step:
            known = CONSTANT.findall(text)
            yield from ((f"constant {name}", where, figure) for name, figure in known if name != "make")


def disagreements(texts: dict[str, str]) -> dict[str, dict[str, set[str]]]:
    """Quantities with more than one figure, each with where it has which."""
    figures: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, where, figure in said(texts):
        figures[name][figure].add(where)
    return {name: dict(several) for name, several in figures.items() if len(several) > 1}


def test_every_quantity_has_one_figure(run: str) -> None:
    assert disagreements(screens(run)) == {}


def test_every_quantity_is_said_in_several_places() -> None:
    times = Counter(name for name, _, _ in said(screens("reference")))
    assert [name for name in NAMED if times[name] < 2] == []


@pytest.mark.parametrize(("name", "texts"), [
    ("a launch from a compiled loop", {
        "show": "launch 3.13 µs a launch · 8.84 µs launch and wait",
        "step loop, 0": " call.loop.0         launch call of loop, 0 arguments                      3.43 µs ±16 %",
    }),
    ("a launch from a compiled loop", {
        "launch": "compiled loop █████  3.14 µs ±16 %      ○          3.10 µs host ████ submit 3.13 µs ████░░",
    }),
    ("an operation of PyTorch", {
        "show": "PyTorch eager 8.31 µs · PyTorch out= 9.22 µs · CuPy",
        "step PyTorch": "a launch takes 10.3 µs (bare call)",
    }),
    ("the limit of launch-bound kernels", {
        "show": "launch-bound below 2.22 µs kernels", "topic launch": "so with kernels shorter than 2.57 µs it idles",
    }),
    ("the gap of a stream behind a kernel that writes", {
        "launch": "the GPU needs 910 ns between kernels", "topic launch": "idle behind a kernel of a stream 864 ns",
    }),
    ("making a graph of 100 kernels", {
        "show": "capture takes 225 µs; faster", "step loop, 0": "Making the graph takes 289 µs ±51 % and pays off",
    }),
    ("replays until a graph of 100 empty kernels pays", {
        "topic graphs": "4.5× as fast and pays after 1 replay",
        "step loop, 0": "Making the graph takes 289 µs ±51 % and pays off after 2 steps.",
    }),
    ("constant gap_stream", {
        "step PyTorch": " gap_stream   stream gap   864 ns ±11 %",
        "step loop, 0": " gap_stream   stream gap  1.49 µs ±2 %",
    }),
])  # fmt: skip
def test_what_disagreed_before_is_found(name: str, texts: dict[str, str]) -> None:
    assert len(disagreements(texts)[name]) == 2


def test_nothing_says_that_a_gain_does_not_pay(run: str) -> None:
    for where, text in screens(run).items():
        for sentence in re.split(r"(?<=[a-zµ%×]\.) |\n", text):
            if NO_GAIN.search(sentence):
                assert [gain for gain in GAIN.findall(sentence) if float(gain) > LITTLE] == [], (where, sentence)


def test_more_arguments_take_no_less_and_none_less_than_the_shortest_call(run: str) -> None:
    for layer, name, counts in (("loop", "loop", COUNTS), ("cuda.core", "cuda_core", (0, 4, 16))):
        calls_s = []
        for count in counts:
            figure = dict(CONSTANT.findall(screens(run)[f"step {layer}, {count}"]))[f"call.{name}.{count}"]
            number, unit = figure.split()
            calls_s.append(float(number) * SCALES[unit])
        assert calls_s == sorted(calls_s), (layer, calls_s)


def test_predictions_turn_launch_bound_at_the_limit(run: str) -> None:
    (limit,) = {figure for name, _, figure in said(screens(run)) if name == "the limit of launch-bound kernels"}
    number, unit = limit.split()
    bound = []
    for factor in (0.97, 1.03):
        length = f"{float(number) * SCALES[unit] * factor * 1e9:.0f}ns"
        text = shown("predict", "--kernels", "1000", "--duration", length, "--run", RUNS[run], "--all")
        bound.append("In the stream the step is launch-bound" in text)
    assert bound == [True, False]


def test_no_constant_is_zero(run: str) -> None:
    for where, text in screens(run).items():
        assert "0 s" not in [figure for _, figure in CONSTANT.findall(text) if where.startswith("step")], where


def test_the_page_has_the_figures_of_the_screens(run: str, tmp_path: Path) -> None:
    """The page is drawn from the same report: its sentences are walked like those of the terminal."""
    page = tmp_path / "run.html"
    assert call("report", RUNS[run], "-o", str(page)).exit_code == 0
    html = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = unescape(re.sub(r"<[^>]+>", " ", html))
    found = [name for name, where, _ in said({"page": text})]
    assert {"a launch from a compiled loop", "the limit of launch-bound kernels"} <= set(found)
    assert disagreements({**screens(run), "page": text}) == {}
