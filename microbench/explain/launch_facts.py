"""Works out the figures of the launch suite that rules, pictures and topics share: crossover, layers, link traffic."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.graph_steps import layer_titles
from microbench.analysis.stats import Row
from microbench.core.ops import COMPILED_LAYERS, LOOP_LAYER
from microbench.model.constants import WRITING, Constant, combined, gap, gaps, own_s
from microbench.model.fit import fit
from microbench.model.model import Way, call_name

# Names on launch_layers' axes.
NATIVE = "loop"
FOUR_ARGUMENTS = 4
# Launches that use less than this share of the link's raw rate cost latency, not bandwidth.
BANDWIDTH_SHARE = 0.05
# A pinned copy of known size is counted as its payload and packet headers.
PLAUSIBLE_WIRE_BYTES = (1.0, 1.4)


def usual_gap(evidence: Evidence, way: Way) -> Constant | None:
    """The GPU's idle time behind a kernel that writes memory: its period less its duration as profilers report it.

    The program has launched into two streams. Older runs have the gap of kernels that write nothing.
    """
    return gap(evidence, way, **WRITING, launch_streams="two") or dict(gaps(evidence)).get(f"gap_{way}")


def stream_gap(evidence: Evidence) -> Constant | None:
    """The same gap in a program of one stream, which is how predictions count it."""
    known = fit(evidence).constants
    names = {"gap_stream": 1.0, "write_stream": 1.0, "one_stream_stream": -1.0}
    if any(name not in known for name in names):
        return None
    return combined([(factor, known[name]) for name, factor in names.items()], least=-math.inf)


def call(evidence: Evidence, name: str = LOOP_LAYER, arguments: int = 0) -> Constant | None:
    """A layer's launch call as it was fitted to all that the run measured: the one figure of it that is quoted."""
    return fit(evidence).constants.get(call_name(name, arguments))


def call_of(evidence: Evidence, row: Row) -> Constant:
    """The fitted launch call of a row of launch_layers."""
    return fit(evidence).constants[call_name(layer(row), whole(row, "arguments"))]


def crossover_s(evidence: Evidence, launch: Constant | None = None) -> float | None:
    """The kernel duration (s), as profilers report it, below which the GPU waits for the host: call - gap.

    ``launch`` is the launch call, by default that of the compiled loop.
    """
    launch, between = launch or call(evidence), stream_gap(evidence)
    return launch.value - between.value if launch and between else None


def sweep(evidence: Evidence, metric: str) -> list[tuple[float, Row]]:
    """launch_duration's rows of a metric by the kernels' duration in s, as profilers report it."""
    points = evidence.curve("launch_duration", metric, "duration_ns")
    return [(own_s(evidence, duration_ns), row) for duration_ns, row in points]


def layer(row: Row) -> str:
    """The layer that a row of launch_layers measured, by its name on the axis."""
    return str(row.params.get("layer"))


def title(evidence: Evidence, row: Row) -> str:
    """A row's layer as its authors write it."""
    return layer_titles(evidence.run).get(layer(row), layer(row))


def layer_rows(evidence: Evidence, family: str, arguments: int | None = None) -> list[Row]:
    """Submit rows of a family of layers, the cheapest call first; only those with this number of arguments if given."""
    chosen = {} if arguments is None else {"arguments": arguments}
    rows = [row for row in evidence.rows("launch_layers", "submit", family=family, **chosen) if row.value > 0]
    return sorted(rows, key=lambda row: call_of(evidence, row).value)


def same_kernel_rows(evidence: Evidence) -> list[Row]:
    """Submit rows of the same empty kernel, cheapest first: with four arguments or, if not measured so, with none."""
    return layer_rows(evidence, "same_kernel", FOUR_ARGUMENTS) or layer_rows(evidence, "same_kernel", 0)


class Library(NamedTuple):
    """A Python library's cheapest way to launch: its name, the row that measured it, and the fitted call."""

    name: str
    row: Row
    call: Constant


def libraries(evidence: Evidence) -> list[Library]:
    """Each Python library once, those that launch the same kernel first and then those of one operation."""
    found: dict[str, Library] = {}
    for row in (*same_kernel_rows(evidence), *layer_rows(evidence, "one_op")):
        name = title(evidence, row).partition(" (")[0]
        if layer(row) not in COMPILED_LAYERS:
            found.setdefault(name, Library(name, row, call_of(evidence, row)))
    return list(found.values())


def unmeasured(evidence: Evidence, *families: str) -> dict[str, list[str]]:
    """Python layers of these families without any figure: "not installed" and "not measured" with their titles."""
    outcomes = [each for each in evidence.outcomes("launch_layers") if each.case.params.get("family") in families]
    measured = {str(each.case.params.get("layer")) for each in outcomes if each.status == "ok"}
    titles, missing = layer_titles(evidence.run), dict[str, dict[str, None]]()
    for outcome in outcomes:
        name = str(outcome.case.params.get("layer"))
        if name not in measured and name not in COMPILED_LAYERS:
            why = "not installed" if (outcome.reason or "").startswith("needs ") else "not measured"
            missing.setdefault(why, {})[titles.get(name, name)] = None
    return {why: list(names) for why, names in missing.items()}


def slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Least-squares slope through points; None with fewer than two different x."""
    mean_x = sum(x for x, _ in points) / max(len(points), 1)
    mean_y = sum(y for _, y in points) / max(len(points), 1)
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else None
