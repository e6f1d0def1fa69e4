"""Answers the questions that people run microbench for: a line of figures for each, and the findings that matter most.

The lines name only what was measured; ``missing`` says what a line would need.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import SEVERITIES, Evidence, Finding, Severity, whole
from microbench.analysis.graph_steps import kernels_in_words, layer_titles, title_of, usual_kernels
from microbench.analysis.stats import Row
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, counted, percent, quantity, times
from microbench.explain import compute_verdict, link_facts, link_verdict, memory_levels, memory_verdict, own
from microbench.explain.compute_units import POWER_LIMIT, USUAL_VARIANTS, best_products, dtype_of, figure, held_by
from microbench.explain.compute_units import reached as product_reached
from microbench.explain.graph_rules import break_even
from microbench.explain.launch_rules import call, crossover_s, libraries, unmeasured
from microbench.explain.memory_levels import latency_levels
from microbench.explain.rules import NOISE
from microbench.model.constants import Pair, pairs

# The kernels that the graph line speaks of: the measured duration nearest to this one.
USUAL_DURATION_S = 2.6e-6
MOST_FINDINGS = 3
# Advice that helps most people, in this order; other advice follows in the order of the report.
FIRST_ADVICE = (
    "own.graph", "launch.starving", "link.pin", "memory.python", "link.chunks", "graph.update", "graph.upload",
    "memory.allocate", "launch.wait",
)  # fmt: skip


class Part(NamedTuple):
    """A figure in words, and the row that it comes from; None for words that no single row stands behind."""

    text: str
    row: Row | None = None


class Answer(NamedTuple):
    """One line: what it is about, its figures, and how the suite was judged."""

    name: str
    parts: tuple[Part, ...]
    verdict: Severity | None = None


def answers(evidence: Evidence) -> list[Answer]:
    """The lines of one GPU in the order of the screen; what was not measured has no line."""
    every = (launch(evidence), python(evidence), graph(evidence), link(evidence), memory(evidence), compute(evidence))
    mine = [Answer(name, tuple(Part(*part) for part in parts)) for name, parts in own.lines(evidence)]
    return [*mine, *(answer for answer in every if answer is not None)]


def host(evidence: Evidence) -> Answer | None:
    """What the CPU side costs: the line of a machine without a GPU."""
    named = {
        "a clock reading": evidence.row("host_timer", "call"),
        "a Python call": evidence.row("host_call", "call", how="python"),
        "waking a thread": evidence.row("host_wakeup", "round_trip", how="pipe"),
    }
    parts = [Part(f"{name} {as_time(row.value)}", row) for name, row in named.items() if row is not None]
    for threads, words in (("one", "one core reads and writes"), ("all", "all cores")):
        curve = evidence.curve("host_memory", "rate", "size_bytes", threads=threads)
        parts += [Part(f"{words} {quantity(row.value, 'B/s')}", row) for _, row in curve[-1:]]
    return Answer("host", tuple(parts)) if parts else None


def launch(evidence: Evidence) -> Answer | None:
    """What a launch costs, and below which kernel duration a program is launch-bound."""
    submit, trip = evidence.row("launch_cost", "submit"), evidence.row("launch_cost", "round_trip")
    if submit is None:
        return None
    fitted = call(evidence)
    parts = [Part(f"{as_time(fitted.value if fitted else submit.value)} a launch", submit)]
    parts += [Part(f"{as_time(trip.value)} launch and wait", trip)] if trip is not None else []
    shortest_s = crossover_s(evidence)
    if shortest_s is not None:
        bound = f"launch-bound below {as_time(shortest_s)} kernels"
        parts.append(Part(bound if shortest_s > 0 else "even empty kernels keep the GPU busy"))
    return Answer("launch", tuple(parts))


def python(evidence: Evidence) -> Answer | None:
    """What a launch costs through each Python library, the same kernel first and then one operation, cheapest first.

    Of several ways to launch through a library the cheapest is shown. Libraries that were not measured are named.
    """
    parts: list[Part] = []
    known = libraries(evidence)
    for family, each in itertools.groupby(known, key=lambda library: library.row.params["family"]):
        before = "x + 1: " if family == "one_op" else ""
        for name, row, launch in each:
            before = before or (f"{row.params['arguments']} arguments: " if not parts else "")
            parts.append(Part(f"{before}{name} {as_time(launch.value)}", row))
            before = ""
    if not parts:
        return None
    for why, names in unmeasured(evidence, "same_kernel", "one_op").items():
        others = dict.fromkeys(short for name in names if (short := _short(name)) not in {one.name for one in known})
        parts += [Part(f"{why}: {', '.join(others)}")] if others else []
    return Answer("from Python", tuple(parts))


def _short(name: str) -> str:
    return name.partition(" (")[0]


def graph(evidence: Evidence) -> Answer | None:
    """What a graph gains over a stream of launches, from the compiled loop and from Python, and when it pays."""
    submitters = dict.fromkeys(str(row.params.get("submitter")) for row in evidence.rows("graph_gain", "stream"))
    chosen = {name: pair for name in submitters if (pair := _usual_pair(evidence, name)) is not None}
    loop = chosen.pop(LOOP_LAYER, None)
    if loop is None:
        return None
    kernels = whole(loop.stream, "kernels")
    words = kernels_in_words(kernels, 0.0 if loop.empty else loop.duration_s)
    parts = [Part(f"{words}: {times(loop.speedup)}", loop.stream)]
    alike = {name: pair for name, pair in chosen.items() if pair.duration_s == loop.duration_s}
    parts += [
        Part(f"from {_short(title_of(name, layer_titles(evidence.run)))} {times(pair.speedup)}", pair.stream)
        for name, pair in sorted(alike.items(), key=lambda item: item[1].speedup)
    ]
    if (even := break_even(evidence, loop)) is not None:
        making_s, replays = even
        pays = "never faster" if replays is None else f"pays off after {counted(replays, 'replay')}"
        parts.append(Part(f"capture takes {as_time(making_s)}; {pays}"))
    return Answer("graph", tuple(parts))


def _usual_pair(evidence: Evidence, submitter: str) -> Pair | None:
    """The submitter's pair with the usual count of kernels and the duration nearest to USUAL_DURATION_S."""
    counts = [whole(row, "kernels") for row in evidence.rows("graph_gain", "stream", submitter=submitter)]
    kernels = usual_kernels(counts)
    measured = [] if kernels is None else pairs(evidence, submitter, kernels)
    return min(
        (pair for pair in measured if not pair.empty),
        key=lambda pair: abs(math.log(pair.duration_s / USUAL_DURATION_S)),
        default=next(iter(measured), None),
    )


def link(evidence: Evidence) -> Answer | None:
    """How fast copies cross the link, against its ceiling."""
    finding = link_verdict.link_verdict(evidence)
    parts = []
    for direction, words in (("h2d", "to the GPU"), ("d2h", "from it")):
        best = link_facts.fastest(evidence, direction)
        if best is not None:
            limit = evidence.ceiling(best[1])
            share = f" ({percent(best[1].value / limit.value)})" if limit is not None else ""
            parts.append(Part(f"{quantity(best[1].value, 'B/s')} {words}{share}", best[1]))
    both = link_facts.both_total(link_facts.both_directions(evidence))
    compared = link_facts.pageable_against_pinned(evidence).get("h2d")
    reads = link_facts.host_reads(evidence)
    parts += [Part(f"both ways {quantity(both.value, 'B/s')}", both)] if both is not None else []
    parts += [Part(f"pageable {quantity(compared[1].value, 'B/s')}", compared[1])] if compared is not None else []
    parts += [Part(f"latency {as_time(reads[0][1].value)}", reads[0][1])] if reads else []
    if not parts:
        return None
    verdict = finding.severity if finding else None
    return Answer("link", (*([Part("healthy")] if verdict == "good" else []), *parts), verdict)


def memory(evidence: Evidence) -> Answer | None:
    """What device memory gives against its ceiling, what Python loses, and how long a read takes."""
    parts = [
        Part(f"{each.what} {quantity(each.row.value, 'B/s')} ({percent(each.share)})", each.row)
        for each in memory_verdict.reached(evidence)
        if each.what in ("read", "copy", "triad")
    ]
    for name, words in memory_levels.IMPLEMENTATIONS.items():
        lost = memory_levels.losses(evidence, name) if name != memory_levels.NATIVE else []
        if lost:
            worst = max(lost, key=lambda loss: loss.share)
            parts.append(Part(f"{words} loses up to {percent(worst.share)} ({worst.kernel})", worst.row))
    for level in latency_levels(evidence):
        if level.name in ("L2", "DRAM"):
            parts.append(Part(f"{level.name} latency {as_time(level.value)}", level.points[0][1]))
    finding = memory_verdict.verdict(evidence)
    return Answer("memory", tuple(parts), finding.severity if finding else None) if parts else None


def compute(evidence: Evidence) -> Answer | None:
    """The rate of matrix products in each type, and what the main one lacks of the data sheet.

    Of the variants of a type the one that the topic "tensor" shows as well is shown, or else the fastest.
    """
    products = best_products(evidence)
    if not products:
        return None
    variants: dict[str, list[Row]] = {}
    for row in products:
        variants.setdefault(dtype_of(row).partition("_")[0], []).append(row)
    shown = product_reached(evidence, products[0])
    lowered = shown.clock_share is not None and shown.clock_share < 1 - CLOCK_LOSS
    by = held_by(evidence, products[0]) if lowered else None
    share = shown.of_data_sheet if shown.of_data_sheet is not None else shown.of_highest
    about = [percent(share)] if share is not None else []
    watts = evidence.gpu.power_limit_w if evidence.gpu is not None and by == POWER_LIMIT else None
    about += [f"{by.removeprefix('the ')}{f' {watts:.0f} W' if watts else ''}"] if by else []
    parts = []
    for name, several in variants.items():
        row = max(several, key=lambda row: (dtype_of(row) == USUAL_VARIANTS.get(name), row.value))
        parts.append(Part(f"{name} {figure(row)}", row))
    if about:
        parts[0] = Part(f"{parts[0].text} ({', '.join(about)})", parts[0].row)
    finding = compute_verdict.verdict(evidence)
    return Answer("compute", tuple(parts), finding.severity if finding else None)


def most_important(findings: Sequence[Finding], most: int = MOST_FINDINGS) -> list[Finding]:
    """Problems and warnings first, then advice, in the order in which it helps most people; noise is said last."""
    chosen = [each for each in findings if each.severity in ("problem", "warning", "advice")]
    places = {rule: place for place, rule in enumerate(FIRST_ADVICE, -len(FIRST_ADVICE))}
    first = sorted(chosen, key=lambda each: (-SEVERITIES.index(each.severity), places.get(each.rule, 0)))[:most]
    return sorted(first, key=lambda each: each.rule.endswith(NOISE))
