"""Diagnoses of traces against true times: a row for each trace, tables of them, and the figures that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from programs import BY_NAME

Row = dict[str, Any]
WORTH = 0.03  # a graph that saves less than this share of the step must not be advised
NEAR = 1.05  # the change that is named first may be slower than the best one by this factor


def row(name: str, kind: str, truth: Mapping[str, float], steps: int, plain: Any, given: Any) -> Row:
    """One trace. Times are in s for one step of the program, also where the diagnosis found a part of it or several.

    ``truth`` has the times without a profiler by way, and as "here" that of the eager step in the recorded process.
    ``plain`` and ``given`` are the JSON objects that `diagnose` printed without and with ``--step``; where it refused,
    they have an "error". What is not known is absent.
    """
    program = BY_NAME[name]
    found: Row = {"program": name, "trace": kind, "true_eager_s": truth["eager"], "bound": plain.get("bound")}
    found["right_first"] = plain.get("bound") in program.bounds and first_rule(plain) == "diagnose.bound"
    if "graph" in truth:
        found |= {"true_graph_s": truth["graph"], "true_speedup": truth["eager"] / truth["graph"]}
        found["worth"] = 1 - truth["graph"] / truth["eager"] >= WORTH
        speedup_here = truth.get("here", truth["eager"]) / truth["graph"]
    if "error" in plain:
        return found | {"why": plain["error"]}
    if plain["step"] is None:
        return found | {"why": plain["why_no_graph"]}
    part = parts(plain, steps)
    found |= {"parts": part, "recorded_s": plain["step"]["watched_s"] * part, "likeness": plain["step"]["likeness"]}
    found["unwatched_s"] = plain["step"]["unwatched_s"] * part
    found["best_change"] = best_change(plain, truth)
    graph = plain["graph"]
    if graph is None:
        found["why"] = plain["why_no_graph"]
    else:
        found |= {key: graph[key] * part for key in ("step_s", "low_s", "high_s")}
        found |= {key: graph[key] for key in ("speedup", "speedup_low", "speedup_high")}
        found["right_blocker"] = program.blocker in {one["why"] for one in plain["blockers"]} or (
            not program.blocker and not plain["blockers"]
        )
    if "error" in given:
        found["why_given"] = given["error"]
    elif given["graph"] is not None:
        found["given_speedup"] = given["graph"]["speedup"]
    if "step_s" in found and "graph" in truth:
        found["error"] = found["step_s"] / truth["graph"] - 1
        found["inside"] = found["low_s"] <= truth["graph"] <= found["high_s"]
        found["speedup_error"] = found["speedup"] / speedup_here - 1
        found["speedup_inside"] = found["speedup_low"] <= speedup_here <= found["speedup_high"]
    if "given_speedup" in found and "graph" in truth:
        found["given_error"] = found["given_speedup"] / speedup_here - 1
    return found


def first_rule(answer: Any) -> str:
    return answer["findings"][0]["rule"] if answer.get("findings") else ""


def parts(answer: Any, steps: int) -> float:
    """How many of the steps that a diagnosis found make one step of the program: 16 for each of 16 equal products, 0.5
    where two steps were taken for one. ``steps`` of the program are in the trace."""
    ratio = answer["trace"]["work"] / steps / max(answer["step"]["work"], 1)
    return float(round(ratio)) if ratio >= 1 else 1 / round(1 / ratio)


def best_change(answer: Any, truth: Mapping[str, float]) -> str:
    """The first change that is advised, of those with a true time, and whether it is the best one: "waits: yes"."""
    known = {way: step_s for way, step_s in truth.items() if way not in ("eager", "here", "graph_without_waits")}
    advised = next((one["name"] for one in answer["advice"] if one["name"] in known), "none")
    known["none"] = truth["eager"]
    best = min(known, key=lambda way: known[way])
    best = best if known[best] <= (1 - WORTH) * truth["eager"] else "none"
    return f"{advised}: {'yes' if known[advised] <= NEAR * known[best] else f'no, {best}'}"


def us(value: float | None) -> str:
    return "" if value is None else f"{value * 1e6:.0f}" if value >= 1e-4 else f"{value * 1e6:.1f}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def speedup_range(found: Row) -> str:
    return f" ({found['speedup_low']:.2f}-{found['speedup_high']:.2f})" if "speedup_low" in found else ""


def yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "**no**"


def graph(found: Row) -> str:
    if "step_s" in found:
        return f"{us(found['step_s'])} ({us(found['low_s'])}-{us(found['high_s'])})"
    return f"none: {found['why']}"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "program": lambda row: row["program"] + (f" (x {row['parts']:g})" if row.get("parts", 1) != 1 else ""),
    "as recorded": lambda row: us(row.get("recorded_s")), "without profiler": lambda row: us(row.get("unwatched_s")),
    "true eager": lambda row: us(row["true_eager_s"]), "graph, interval": graph,
    "true graph": lambda row: us(row.get("true_graph_s")),
    "error": lambda row: f"{row['error']:+.1%}" if "error" in row else "", "inside": lambda row: yes(row.get("inside")),
    "speed-up": lambda row: times(row.get("speedup")) + speedup_range(row),
    "given": lambda row: times(row.get("given_speedup")) or row.get("why_given", ""),
    "true": lambda row: times(row.get("true_speedup")),
    "first finding": lambda row: f"{row['bound'] or 'none'}{'' if row['right_first'] else ' **wrong**'}",
    "best change": lambda row: row.get("best_change", ""), "blocker": lambda row: yes(row.get("right_blocker")),
}  # fmt: skip


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of a Markdown table; us a step."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for one in rows:
        yield f"| {' | '.join(column(one).replace('|', '/') for column in COLUMNS.values())} |"


def summary(rows: list[Row]) -> Iterator[str]:
    """The figures that are asked for, each in a line with what is wanted."""
    predicted = [abs(one["error"]) for one in rows if "error" in one and one["worth"]]
    expected = [one for one in rows if one.get("worth")]
    yield f"- graphs predicted: {len(predicted)} of {len(expected)} that save {WORTH:.0%} or more"
    if predicted:
        inside = sum(one["inside"] for one in expected if "error" in one)
        yield f"- graph step: median error {median(predicted):.1%} (wanted 4 %), worst {max(predicted):.1%} (10 %)"
        yield f"- inside the interval: {inside} of {len(predicted)}, {inside / len(predicted):.0%} (90 %)"
    for key, how, most in (("given_error", "with --step", 0.1), ("speedup_error", "without --step", 0.15)):
        errors = [abs(one[key]) for one in expected if key in one]
        if errors:
            within = sum(error <= most for error in errors)
            yield (
                f"- speed-up {how}: {within} of {len(errors)} within {most:.0%}, median {median(errors):.1%}, "
                f"worst {max(errors):.1%}"
            )
    ranges = [one["speedup_inside"] for one in expected if "speedup_inside" in one]
    if ranges:
        yield f"- true speed-up inside the range given without --step: {sum(ranges)} of {len(ranges)}"
    wrong = [one["program"] for one in rows if not one["right_first"]]
    yield f"- right first finding: {len(rows) - len(wrong)} of {len(rows)}{names(wrong)}"
    idle = [one for one in rows if one.get("worth") is False]
    advised = [one["program"] for one in idle if "step_s" in one or "given_speedup" in one]
    yield f"- graph advised where it saves less than {WORTH:.0%}: {len(advised)} of {len(idle)}{names(advised)}"
    changed = [one for one in rows if "best_change" in one]
    other = [one["program"] for one in changed if ": no" in one["best_change"]]
    yield f"- best change named first: {len(changed) - len(other)} of {len(changed)}{names(other)}"


def names(programs: list[str]) -> str:
    return f" ({', '.join(programs)})" if programs else ""
