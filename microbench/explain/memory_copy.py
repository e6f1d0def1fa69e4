"""Explains memory_copy: the driver's copies and memset over size, T = a + V / b, against a kernel's copy."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.explain.memory_stream import NATIVE, streams
from microbench.fits import Line, line
from microbench.stats import Row
from microbench.units import about_size, as_time, percent, quantity, round_percent, size

WAYS = {"copy": "cuMemcpyDtoD", "copy_2d": "2D copy", "memset": "memset"}
HALF = 0.5
LOSS = 0.1


class Engine(NamedTuple):
    """T = a + V / b of one call, V the bytes it reads and writes."""

    way: str
    line: Line
    points: tuple[tuple[int, Row], ...]

    @property
    def fixed_s(self) -> float:
        """a: what a call takes on the device however little it moves."""
        return self.line.constant

    @property
    def bandwidth(self) -> float:
        """b, in bytes a second."""
        return 1 / self.line.slope

    @property
    def half_bytes(self) -> float:
        """Bytes moved at which a call reaches half of b."""
        return self.fixed_s * self.bandwidth * HALF / (1 - HALF)


def curve(evidence: Evidence, way: str) -> list[tuple[int, Row]]:
    """Rates over the bytes of the destination, ascending."""
    found = evidence.curve("memory_copy", "bandwidth", "size_bytes", way=way)
    return [(size_bytes, row) for size_bytes, row in found if row.value > 0 and row.measurement.work.bytes > 0]


def engine(evidence: Evidence, way: str) -> Engine | None:
    """The fit by relative least squares; None with too few sizes, or where time does not grow with them."""
    points = tuple(curve(evidence, way))
    moved = ((row.measurement.work.bytes, row.measurement.work.bytes / row.value) for _, row in points)
    found = line(moved)
    return Engine(way, found, points) if found is not None and found.slope > 0 else None


def engines(evidence: Evidence) -> list[Finding]:
    """What a call of the driver costs however small, where it ends, and whether a kernel copies faster."""
    found = [one for way in WAYS if (one := engine(evidence, way)) is not None]
    against, lost, rows = _against(evidence)
    if not found and not against:
        return []
    words, rowwise = [_words(one) for one in found], _rows_apart(evidence)
    words += [one for one in (against, rowwise) if one]
    title = f"{WAYS['copy']} within the GPU reaches {percent(1 - lost)} of a kernel's copy"
    if found:
        first = found[0]
        (least, small), (most, large) = first.points[0], first.points[-1]
        small_s = small.measurement.work.bytes / small.value
        title = (
            f"{WAYS[first.way]} within the GPU: {as_time(small_s)} at {size(least)}, "
            f"{quantity(large.value, 'B/s')} at {size(most)}"
        )
    heavy = lost > LOSS
    advice = " Copy large arrays by a kernel where the copy matters." if heavy else ""
    return [
        Finding(
            rule="memory.copy",
            severity="advice" if heavy or rowwise else "note",
            title=title,
            text=f"{' '.join(words)}{advice}",
            threshold=(
                "T = a + V / b by the least relative residuals, V read plus written; advice where the driver's copy "
                f"loses over {round_percent(LOSS)} against a kernel, or its 2D copy against the plain one"
            ),
            rests_on=rests_on(*(row for one in found for _, row in one.points), *rows),
            suite="memory",
        )
    ]


def _words(one: Engine) -> str:
    bend = ""
    if one.line.misfit.largest > LOSS:
        bend = " Some sizes are far off that line: take theirs from the table."
    return (
        f"{WAYS[one.way]} takes {as_time(one.fixed_s)} + V / {quantity(one.bandwidth, 'B/s')}, half of that rate at "
        f"V = {about_size(one.half_bytes)} (misfit {percent(one.line.misfit.median)}, at most "
        f"{percent(one.line.misfit.largest)}).{bend}"
    )


def _rows_apart(evidence: Evidence) -> str:
    """What the 2D copy loses against the plain one on the largest blocks of both; nothing where it is as fast."""
    plain, rowwise = dict(curve(evidence, "copy")), dict(curve(evidence, "copy_2d"))
    common = max((size_bytes for size_bytes in rowwise if size_bytes in plain), default=None)
    if common is None or rowwise[common].value >= (1 - LOSS) * plain[common].value:
        return ""
    return (
        f"Rows that lie apart cost much: at {size(common)} the 2D copy reaches "
        f"{percent(rowwise[common].value / plain[common].value)} of the plain one. Keep what is copied often in one "
        "piece, or copy its rows by a kernel."
    )


def _against(evidence: Evidence) -> tuple[str, float, tuple[Row, ...]]:
    """The driver's copy and a kernel's over arrays of one size: words, what the driver's loses, rows."""
    driver = dict(curve(evidence, "copy"))
    kernel = {row.params.get("size_bytes"): row for row in streams(evidence, kernel="copy", implementation=NATIVE)}
    common = max((size_bytes for size_bytes in driver if size_bytes in kernel), default=None)
    if common is None:
        return "", 0.0, ()
    call, best = driver[common], kernel[common]
    words = (
        f"At {size(common)} the call reaches {quantity(call.value, 'B/s')}, a kernel's copy "
        f"{quantity(best.value, 'B/s')} ({percent(call.value / best.value)} of it)."
    )
    return words, 1 - call.value / best.value, (call, best)
