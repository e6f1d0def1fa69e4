"""Constants of a machine that other libraries read: the figures that screens and predictions quote, by name.

A crossover is a size, or a number of kernels, from which on one way is better than others (infinity: never), or up to
which it is (0: never). Between two tested sizes times are straight lines.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, rests_on, whole
from microbench.analysis.stats import Row
from microbench.core.units import axis_value, counted
from microbench.explain import compute_units, launch_rules, link_facts, memory_levels
from microbench.model.constants import Constant, latency_and_rate
from microbench.model.fit import fit, missing
from microbench.model.forecast import forecast
from microbench.model.model import CONSTANTS, WAYS, replay_name, told
from microbench.model.words import used
from microbench.model.workload import Kernels, Wait, Workload


class Named(NamedTuple):
    """A constant with its name, its SI unit, and what it is."""

    name: str
    constant: Constant
    unit: str
    what: str


# Benchmarks that give constants, with patterns of the names of these.
SOURCES = {
    "launch_cost": "launch.loop.0 launch.latency launch.complete launch.empty",
    "launch_layers": "launch.*.*",
    "launch_gap": "launch.gap* launch.*_stream graph.*_graph graph.wide_blocks",
    "launch_queue": "launch.queue graph.pays_from.*",
    "launch_sync": "launch.sync launch.wait.*",
    "graph_gain": "graph.pays_from.* graph.replay.* graph.replay_way",
    "graph_lifecycle": "graph.make.* graph.capture.* graph.instantiate.* graph.memory.* graph.replay_node",
    "graph_library": "graph.make.*.*",
    "graph_shape": "graph.replay_root graph.front_end",
    "graph_transitions": "graph.transition.* graph.memset_graph graph.h2d_small_graph",
    "link_copy": "link.*_rate link.*_latency link.*_90_from link.*_pinned_from link.*_registered_from",
    "link_latency": "link.*_call link.*_way",
    "link_pinning": "link.pin.* link.unpin.* link.*_register_from.* link.*_allocate_pinned_from.*",
    "link_chunks": "link.h2d_chunked_from.*",
    "link_batch": "link.h2d_batched_up_to.* link.h2d_batched_from.* link.h2d_gathered_up_to.*",
    "memory_allocate": "memory.allocate.* memory.free.* memory.pool_from",
    "memory_stream": "memory.*.fp* memory.*.int8*",
    "gemm_throughput": "compute.*",
}
# The model's constants: other names, and those that are no property of a machine or stand under another name.
RENAMED = {"way": "launch.latency", "wide_blocks": "graph.wide_blocks"}
LEFT_OUT = ("watched", "memory")
# Constants that are rows of a benchmark: their name with the values of its axes, the benchmark and the metric.
ROWS = (
    ("launch.wait.{wait}.{duration_ns}", "launch_sync", "from_kernel"),
    ("graph.capture.{nodes}", "graph_lifecycle", "capture"),
    ("graph.instantiate.{nodes}", "graph_lifecycle", "instantiate"),
    ("graph.memory.{nodes}", "graph_lifecycle", "device_memory"),
    ("graph.transition.{transition}.{submitted}", "graph_transitions", "around"),
    ("graph.make.{submitter}.{nodes}", "graph_library", "make"),
    ("link.pin.{way}.{size_bytes}", "link_pinning", "pin"),
    ("link.unpin.{way}.{size_bytes}", "link_pinning", "release"),
    ("memory.allocate.{way}.{size_bytes}", "memory_allocate", "allocate"),
    ("memory.free.{way}.{size_bytes}", "memory_allocate", "free"),
)


COPIES, BATCH = ("link_copy", "bandwidth_host", "size_bytes"), ("link_batch", "bandwidth", "piece_bytes")
Way = Mapping[str, str | int]
# A way of a benchmark that is better than others over an axis of bytes, as values of other axes.
CROSSOVERS: tuple[tuple[str, tuple[str, str, str], Way, tuple[Way, ...], str], ...] = (
    (
        "link.{direction}_pinned_from", COPIES, {"memory": "pinned"}, ({"memory": "pageable"},),
        "copies from which on memory that is pinned already is faster than pageable",
    ),
    (
        "link.{direction}_registered_from", COPIES, {"memory": "registered"}, ({"memory": "pageable"},),
        "copies from which on memory that is registered already is faster than pageable",
    ),
    (
        "link.h2d_chunked_from.{work}", ("link_chunks", "bandwidth", "size_bytes"), {"chunks": 16, "streams": 2},
        ({"chunks": 1, "streams": 1},), "buffers from which on 16 pieces on two streams are faster than one",
    ),
    (
        "link.h2d_batched_up_to.{pieces_copied}", BATCH, {"way": "batched"}, ({"way": "loop"},),
        "pieces up to which one batched call is faster than a call for each",
    ),
    (
        "link.h2d_batched_from.{pieces_copied}", BATCH, {"way": "batched"}, ({"way": "loop"},),
        "pieces from which on one batched call is faster than a call for each",
    ),
    (
        "link.h2d_gathered_up_to.{pieces_copied}", BATCH, {"way": "gather"}, ({"way": "loop"}, {"way": "batched"}),
        "pieces up to which a kernel that gathers them is faster than one batched call and a call for each",
    ),
    (
        "memory.pool_from", ("memory_allocate", "allocate", "size_bytes"), {"way": "pool"}, ({"way": "malloc"},),
        "blocks from which on a stream-ordered pool is faster than the driver's allocation",
    ),
)  # fmt: skip
# After how many copies of a buffer pinning it may have paid.
COPIED = (1, 10, 100)
# How many kernels a step has whose graph may pay, and how long each runs, in us.
COUNTS, DURATIONS_US = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256), (2, 5, 20)


def constants(evidence: Evidence) -> Iterator[Named]:
    """All that a GPU's run shows, without what only stands in for a measurement."""
    for part in (_fitted, _rows, _graphs_that_pay, crossovers, _pinned, _rates):
        yield from (one for one in part(evidence) if not one.constant.assumed and one.constant.rests_on)


def lacking(evidence: Evidence) -> dict[str, str]:
    """The benchmarks without rows, each with the names of the constants that it would give."""
    return {benchmark: names for benchmark, names in SOURCES.items() if not evidence.rows(benchmark)}


def _fitted(evidence: Evidence) -> Iterator[Named]:
    """The model's constants, the gap that screens name, and copies of memory that the model does not know."""
    fitted = fit(evidence)
    for name, constant in fitted.constants.items():
        kind, _, rest = name.partition(".")
        if kind not in LEFT_OUT:
            suite = "graph" if name.endswith("_graph") else CONSTANTS.get(name, ("", "", ""))[2].split("_")[0]
            own = {"call": f"launch.{rest}", "replay": f"graph.replay.{rest}"}.get(kind, f"{suite}.{name}")
            yield Named(RENAMED.get(name, own), constant, *told(name))
    if (gap := launch_rules.stream_gap(evidence)) is not None:
        yield Named("launch.gap", gap, "s", "stream gap, kernels that write, one stream")
    for nodes, constant in fitted.made:
        yield Named(f"graph.make.{nodes}", constant, "s", "capture, instantiate and upload a graph of so many nodes")
    for direction, to in link_facts.DIRECTIONS.items():
        points = link_facts.copies(evidence, link_facts.DEVICE, direction, "registered")
        for name, constant in latency_and_rate(f"{direction}_registered", points):
            unit, about = told(name.replace("_registered", ""))
            yield Named(f"link.{name}", constant, unit, about.replace("pinned", "registered"))
        copied = link_facts.copy_fit(evidence, link_facts.DEVICE, direction, "pinned")
        if copied is not None and f"{direction}_rate" in fitted.constants:
            fixed, rate = (fitted.constants[f"{direction}_{name}"] for name in ("latency", "rate"))
            low = link_facts.size_for(link_facts.MOST, fixed.low, rate.low)
            high = link_facts.size_for(link_facts.MOST, fixed.high, rate.high)
            rows = rests_on(*(row for _, row in copied.points))
            least = Constant(copied.size_for(link_facts.MOST), low, high, rows)
            yield Named(f"link.{direction}_90_from", least, "B", f"a pinned copy {to} that reaches 90 % of its rate")


def _rows(evidence: Evidence) -> Iterator[Named]:
    for pattern, benchmark, metric in ROWS:
        for name, row in _by_name(pattern, evidence.rows(benchmark, metric)).items():
            if row.params.get("way") != "host_pinned":  # which link_pinning measures as well
                yield Named(name, _of(row), row.metric.unit, row.metric.about)


def _of(row: Row) -> Constant:
    """A row's value and its interval as tables and exports have it."""
    return Constant(row.value, row.interval.low, row.interval.high, rests_on(row))


def _by_name(pattern: str, rows: Iterable[Row]) -> dict[str, Row]:
    """Rows that have the axes of a name, by it with their values: sizes as "4KiB", times as "30us"."""
    axes, found = re.findall(r"{(\w+)}", pattern), {}
    for row in rows:
        if row.params.keys() >= {*axes}:
            name = pattern.format_map({axis: axis_value(axis, row.params[axis]) for axis in axes})
            found[re.sub(r"[^A-Za-z0-9_.]", "", name.replace("µ", "u"))] = row
    return found


# A tested size or number: whether something is so there, whether it may be, and whether it surely is.
Tested = tuple[int, bool, bool, bool]


def _first(tested: Sequence[Tested], rows: Iterable[str], before: float = 0.0, never: float = math.inf) -> Constant:
    """The first from which on all are so, else ``never``. It lies behind the last that is surely not so, or
    ``before`` all, and not behind the first from which on all surely are."""
    ends = [before, *(float(at) for at, *_ in tested), never]
    low, high = sorted((ends[_last_without(tested, 2)], ends[_last_without(tested, 3) + 1]))
    return Constant(ends[_last_without(tested, 1) + 1], low, high, tuple(dict.fromkeys(rows)))


def _last_without(tested: Sequence[Tested], flag: int) -> int:
    """The place of the last without a flag, counted from 1; 0 if all have it."""
    return next((place for place in range(len(tested), 0, -1) if not tested[place - 1][flag]), 0)


def _between(found: Constant, tested: Sequence[Tested], gained: Sequence[float]) -> Constant:
    """The crossover between two tested sizes: where a straight line between their gains is 0."""
    place = _last_without(tested, 1)
    if not 0 < place < len(tested):
        return found
    (before, *_), (behind, *_) = tested[place - 1 : place + 1]
    lost, won = -gained[place - 1], gained[place]
    value = before + (behind - before) * (lost / (lost + won) if lost + won else 1.0)
    return Constant(float(round(min(max(value, found.low), found.high))), found.low, found.high, found.rests_on)


def _graphs_that_pay(evidence: Evidence) -> Iterator[Named]:
    """The fewest kernels of a length whose graph pays within the planned steps, as predictions have it, by the layers
    whose replay is known. Its interval is that in which the predicted speed-up's has both sides of 1."""
    fitted = fit(evidence)
    for layer, us in itertools.product(fitted.layers, DURATIONS_US):
        steps = [Workload((Kernels(count, (us * 1e-6,)), Wait()), layer=layer) for count in COUNTS]
        if replay_name(layer) not in fitted.constants or missing(fitted, steps[0], WAYS):
            continue
        tested = []
        for count, found in zip(COUNTS, (forecast(step, fitted) for step in steps), strict=True):
            pays, (low, high) = (found.break_even or math.inf) <= found.workload.replays, found.speedup_between
            tested.append((count, pays, high > 1, pays and low > 1))
        what = f"fewest kernels of {us} us from {layer} before a wait whose graph pays in {steps[0].replays} steps"
        least = _first(tested, found.fit.rests_on(used(found)), before=1.0)
        yield Named(f"graph.pays_from.{layer}.{us}us", least, "1", what)


def crossovers(evidence: Evidence) -> Iterator[Named]:
    """From which size on, or up to which one, one way is better than others."""
    for pattern, (benchmark, metric, axis), better, others, what in CROSSOVERS:
        for name, named in _by_name(pattern, evidence.rows(benchmark, metric, **others[0])).items():
            same = {each: named.params[each] for each in re.findall(r"{(\w+)}", pattern)}
            curves = [dict(evidence.curve(benchmark, metric, axis, **same, **way)) for way in (better, *others)]
            up_to, timed = "_up_to" in name, named.metric.kind == "time"
            tested, gained, rows = [], list[float](), list[Row]()
            for at in sorted(set.intersection(*map(set, curves)), reverse=up_to):
                seconds = [curve[at].value if timed else at / curve[at].value for curve in curves]
                best = min(range(1, len(curves)), key=seconds.__getitem__)
                alike = curves[0][at].interval.overlaps(curves[best][at].interval)
                gained.append(seconds[best] - seconds[0])
                wins = gained[-1] > 0
                tested.append((at, wins, wins or alike, wins and not alike))
                rows += [curve[at] for curve in curves]
            found = _first(tested, rests_on(*rows), *((math.inf, 0.0) if up_to else (0.0, math.inf)))
            yield Named(name, _between(found, tested, gained), "B", what)


def _pinned(evidence: Evidence) -> Iterator[Named]:
    """From which size on pinning a buffer has paid once it was copied so often."""
    choices = link_facts.choices(evidence)
    for way, direction, often in itertools.product(link_facts.PINNING, link_facts.DIRECTIONS, COPIED):
        known = [one for one in choices if one.way == way and direction in one.saved_s]
        gained = [often * one.saved_s[direction] - one.extra_s for one in known]
        pays = [one.paid.get(direction, math.inf) <= often for one in known]
        tested = [(one.size_bytes, so, so, so) for one, so in zip(known, pays, strict=True)]
        found = _first(tested, rests_on(*(row for one in known for row in one.rows)))
        to, name = link_facts.DIRECTIONS[direction], {"allocate": "allocate_pinned"}.get(way, way)
        copied = f"{counted(often, 'copy', 'copies')} {to}"
        what = f"buffers from which on memory {link_facts.PINNING[way]} has paid after {copied}"
        yield Named(f"link.{direction}_{name}_from.{often}", _between(found, tested, gained), "B", what)


def _rates(evidence: Evidence) -> Iterator[Named]:
    """The best rates of memory and of products by type, and from which size on 90 % of each are reached."""
    curves: list[tuple[str, str, str, list[Row]]] = []
    in_dram = [row for row in memory_levels.streams(evidence) if row.measurement.bound == memory_levels.IN_DRAM]
    for kernel, dtype in dict.fromkeys((row.params.get("kernel"), row.params.get("dtype")) for row in in_dram):
        rows = [row for row in in_dram if row.params.get("kernel") == kernel and row.params.get("dtype") == dtype]
        words = f"{kernel} of arrays of {dtype} in device memory"
        curves.append((f"memory.{kernel}.{dtype}", words, "size_bytes", rows))
    for row in compute_units.best_products(evidence):
        dtype, library = compute_units.dtype_of(row), str(row.params["library"])
        rows = compute_units.rates(evidence, row.benchmark, dtype=dtype, library=library)
        curves.append((f"compute.{dtype}", f"square products of {dtype} by {library}", "size", rows))
    for name, what, axis, rows in curves:
        by_size = dict(sorted({whole(row, axis): row for row in sorted(rows, key=attrgetter("value"))}.items()))
        best = max(rows, key=attrgetter("value"))
        least, ends = link_facts.MOST * best.value, attrgetter("value", "interval.high", "interval.low")
        tested = [(at, *(end >= least for end in ends(row))) for at, row in by_size.items()]
        yield Named(name, _of(best), best.metric.unit, what)
        of = f"{what}: the smallest measured {axis} from which on 90 % of the rate are reached"
        yield Named(f"{name}_90_from", _first(tested, rests_on(*by_size.values())), "B" if "bytes" in axis else "1", of)
