"""Findings on how to move data, and between which places: copies, pieces, NUMA nodes, uplinks and pairs of GPUs."""

from collections.abc import Iterable, Sequence

from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, listed, rule, said, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, counted, percent, quantity, round_percent, size, times
from microbench.explain import link_facts as links
from microbench.model.constants import BATCHED

WIDE = 0.25  # the error at one size above which a fit counts as poor
TAKES_TURNS = 0.65  # as a share of both directions alone; below it they do not overlap
GIVES_WAY = 0.05  # how much less of its rate one direction keeps than the other
WORTH = 0.1  # the least share of a step that pieces must save
FAULTS_LOSE = 0.2
ACCESS_LOSS = 0.05


@rule("link.copy_size", "T = a + V / b by the least relative residuals; half at a × b, 90 % at 9 × a × b")
def copy_size(evidence: Evidence) -> Finding | None:
    """From which size on a copy uses the link."""
    each = ((way, links.copy_fit(evidence, links.DEVICE, way, "pinned")) for way in links.DIRECTIONS)
    fits = [(way, fit) for way, fit in each if fit is not None]
    if not fits:
        return None
    direction, fit = fits[0]
    text = f"Half of its bandwidth takes {about_size(fit.size_for(links.HALF))}."
    if any(fit.line.most_off > WIDE for _, fit in fits):
        text += " Some sizes are far off the fit: read the curve for them."
    title = (
        f"A copy {links.DIRECTIONS[direction]} needs {about_size(fit.size_for(links.MOST))} to reach "
        f"{round_percent(links.MOST)} of its bandwidth"
    )
    advice = "Gather smaller copies into one buffer."
    return said(title, text, advice, rows=(row for _, fit in fits for _, row in fit.points), severity="note")


@rule(
    "link.pin",
    f"advice where pageable memory loses over {round_percent(links.PAGEABLE_LOSS)}; paid after (pin + release, "
    "less what new pageable memory costs) / (pageable copy − pinned copy)",
)
def pinned(evidence: Evidence) -> Finding | None:
    """What copies of pageable memory lose against pinned, and after how many copies pinning has paid."""
    compared = links.pageable_against_pinned(evidence)
    if not compared:
        return None
    shares = {direction: pageable.value / row.value for direction, (_, pageable, row) in compared.items()}
    rows = [row for _, *pair in compared.values() for row in pair]
    worst = min(shares, key=lambda direction: shares[direction])
    heavy = shares[worst] < 1 - links.PAGEABLE_LOSS
    priced = links.choices(evidence)
    largest = max(priced, key=lambda choice: choice.size_bytes, default=None)
    text = f"Copies of {size(compared[worst][0])} were compared, each with a wait."
    title = f"Pageable copies {links.DIRECTIONS[worst]} reach {percent(shares[worst])} of pinned ones"
    text = _paid(largest) if largest is not None else text
    advice = _pin(largest, priced, worst) if largest is not None else "Pin what is copied often." if heavy else ""
    rows += [row for choice in priced for row in choice.rows]
    return said(title, text, advice, rows=rows, severity="advice" if heavy else "note")


def _paid(choice: links.Choice) -> str:
    """After how many copies pinning has paid, once for both directions where they agree."""
    buffer = f"Registering a buffer of {size(choice.size_bytes)}"
    if choice.way == links.ALLOCATE:
        buffer = f"Allocating a pinned buffer of {size(choice.size_bytes)} instead of a new pageable one"
    if not choice.paid:
        return f"{buffer} does not pay."
    if choice.never or len({*choice.paid.values()}) > 1:
        several = listed(
            [f"{counted(count, 'copy', 'copies')} {links.DIRECTIONS[way]}" for way, count in choice.paid.items()]
        )
        never = listed([links.DIRECTIONS[way] for way in choice.never])
        return f"{buffer} has paid after {several}{f', but never {never}' if never else ''}."
    return f"{buffer} has paid after {counted(next(iter(choice.paid.values())), 'copy', 'copies')}."


def _pin(choice: links.Choice, priced: Sequence[links.Choice], worst: str) -> str:
    """Advice for buffers of this size, by the copies after which pinning has paid in the direction that loses most."""
    buffers = f"buffers of {size(choice.size_bytes)}"
    if not choice.paid:
        return f"Leave {buffers} pageable."
    way = worst if worst in choice.paid else next(iter(choice.paid))
    count = choice.paid[way]
    often = "even for a single copy" if count == 1 else f"if they are copied at least {count} times"
    alone = choice.never or len({*choice.paid.values()}) > 1
    advice = f"Pin {buffers} {often}{f' {links.DIRECTIONS[way]}' if alone else ''}"
    alike = (other for other in priced if other.way == choice.way and other.size_bytes < choice.size_bytes)
    later = not choice.never and any(other.paid.get(way, 0) > count for other in alike)
    return f"{advice}, and smaller ones if they are copied more often." if later else f"{advice}."


@rule("link.both", f"warning under {round_percent(TAKES_TURNS)} of both alone; the sum counts while both are busy")
def both(evidence: Evidence) -> Finding | None:
    """The sum of both directions against twice one, and which direction suffers."""
    ways = links.both_directions(evidence)
    total = links.both_total(ways)
    if len(ways) < len(links.DIRECTIONS) or total is None:
        return None
    share = total.value / sum(single.value for single, _, _ in ways.values())
    ended = [direction for direction, (_, together, _) in ways.items() if links.others_ended_first(together)]
    kept = {direction: together.value / single.value for direction, (single, together, _) in ways.items()}
    weak, strong = sorted(kept, key=kept.__getitem__)
    severity: Severity = "note" if ended else "good"
    text, advice = "Both directions give way about equally.", "Overlap copies in both directions."
    if share < TAKES_TURNS:
        severity, text = "warning", "The directions take turns instead of overlapping."
        advice = "Look for a memory channel, an uplink or a processor link that carries both."
    elif kept[strong] - kept[weak] >= GIVES_WAY:
        text = f"Copies {links.DIRECTIONS[weak]} give way: they keep {percent(kept[weak])} of their rate."
    if ended:
        late = listed([links.DIRECTIONS[way] for way in ended])
        text += f" The other direction ended before copies {late} did, so these were partly alone."
    title = f"Both directions at once carry {quantity(total.value, 'B/s')}, {percent(share)} of their sum alone"
    rows = (row for way in ways.values() for row in way)
    return said(title, text, advice, rows=rows, names=[links.OTHERS_BUSY] if ended else [], severity=severity)


@rule("link.chunks", f"advice where the best pieces save over {round_percent(WORTH)}; at most half can be saved")
def chunks(evidence: Evidence) -> Finding | None:
    """Whether cutting a copy into pieces pays, with a kernel on each piece."""
    step, plain = links.pieces(evidence, "copy_and_kernel"), links.pieces(evidence, "copy")
    if step is None:
        return None
    count, streams = step[1].params.get("chunks"), step[1].params.get("streams")
    saved = 1 - step[0].value / step[1].value
    pays = saved > WORTH
    # Copy and kernels take equally long, so that hiding one behind the other halves the step at best.
    title = f"In {count} pieces a step of copy and kernels takes {percent(saved)} less time"
    text = f"Overlap can save {round_percent(0.5)} at most."
    if not pays:
        title = "Cutting copies into pieces does not pay"
        text = f"{'In one stream a copy waits' if streams == 1 else 'Copies wait'} for the kernel before it."
    if plain is not None and 1 - plain[0].value / plain[1].value <= WORTH:
        text += " Copies alone gain nothing from pieces."
    advice = f"Cut large copies into {count} pieces on {streams} streams, a kernel after each." if pays else ""
    return said(title, text, advice, rows=(*step, *(plain or ())))


@rule(
    "link.batch", f"advice where one call or kernel for all pieces saves over {round_percent(WORTH)} of a loop's time"
)
def batch(evidence: Evidence) -> Finding | None:
    """Many small pieces by one batched call or a kernel that gathers them, against a copy for each."""
    rows = [row for row in evidence.rows("link_batch", "bandwidth") if row.value > 0]
    by_case = {(str(row.params["way"]), whole(row, "pieces_copied"), whole(row, "piece_bytes")): row for row in rows}
    loops = {case[1:]: row.value for case, row in by_case.items() if case[0] == "loop"}
    gains = {case: row.value / loops[case[1:]] for case, row in by_case.items() if case[1:] in loops}
    way, count, piece_bytes = best = max(
        (case for case in gains if case[0] in BATCHED), key=gains.__getitem__, default=("", 0, 0)
    )
    if best not in gains:
        return None
    beats = []
    for other, (name, _) in BATCHED.items():
        if sizes := sorted(at for one, pieces, at in gains if (one, pieces) == (other, count)):
            won = [size(at) for at in sizes if gains[other, count, at] > 1]
            where = "every tested size" if len(won) == len(sizes) else listed(won) or "no tested size"
            beats.append(f"{name} at {where}")
    text = f"Faster than a copy for each piece: {'; '.join(beats)}."
    counts = {case[1]: gain > 1 for case, gain in gains.items() if case[::2] == best[::2]}
    loses = max((pieces for pieces, faster in counts.items() if not faster), default=0)
    if len(counts) > 1 and loses < max(counts):
        fewest = min(pieces for pieces in counts if pieces > loses)
        text += f" With pieces of {size(piece_bytes)}, {BATCHED[way][0]} is faster from {fewest} pieces on."
    pays = [how for other, (_, how) in BATCHED.items() if 1 - 1 / gains.get((other, *best[1:]), 1.0) > WORTH]
    limit, rate = evidence.ceiling(by_case[best]), quantity(by_case[best].value, "B/s")
    title = f"{count} pieces of {size(piece_bytes)} reach {rate} by {BATCHED[way][0]}"
    title += f", {times(gains[best])} a loop of copies"
    title += f" and {percent(by_case[best].value / limit.value)} of the ceiling" if limit is not None else ""
    compared = [row for case, row in by_case.items() if case[1] == count or case[2] == piece_bytes]
    advice = f"Copy small pieces by {'; where the SMs are busy, by '.join(pays)}." if pays else ""
    return said(title, text, advice, rows=compared)


@rule("link.managed", f"advice where faults lose over {round_percent(FAULTS_LOSE)} against a prefetch")
def managed(evidence: Evidence) -> Finding | None:
    """Managed memory that moves by faults, against prefetches that do the same."""
    ways: list[tuple[str, list[Row]]] = []  # faults and prefetches to each place, at the largest size
    for target, place in (("device", "GPU"), ("host", "host")):
        curves = (
            evidence.curve("link_managed", "bandwidth", "size_bytes", way=f"{way}_to_{target}")[-1:]
            for way in ("fault", "prefetch")
        )
        rows = [row for curve in curves for _, row in curve if row.value > 0]
        ways += [(place, rows)] if len(rows) == 2 else []
    if not ways:
        return None
    place, (fault, prefetch) = max(ways, key=lambda way: way[1][1].value / way[1][0].value)
    ratio = prefetch.value / fault.value
    heavy = 1 - 1 / ratio > FAULTS_LOSE
    title = "Managed memory moves by faults nearly as fast as by a prefetch"
    title = f"Managed memory takes {times(ratio)} as long by faults as by a prefetch" if heavy else title
    moved = f"Faults move {quantity(fault.value, 'B/s')} to the {place}"
    text = f"{moved}, a prefetch moves {quantity(prefetch.value, 'B/s')}."
    advice = "Prefetch (cuMemPrefetchAsync) what a kernel will touch, or copy it." if heavy else ""
    return said(title, text, advice, rows=(row for _, rows in ways for row in rows))


@rule("link.zero_copy", f"advice where narrow or split accesses lose over {round_percent(ACCESS_LOSS)}")
def zero_copy(evidence: Evidence) -> Finding | None:
    """How fast kernels reach mapped host memory, in which packets, and what width and offset lose."""
    aligned = {access: widths for access in links.COUNTED if (widths := links.aligned_rates(evidence, access))}
    rates = {access: max(widths.values(), key=lambda row: row.value) for access, widths in aligned.items()}
    if not rates:
        return None
    verbs = {"read": "read host memory at", "write": "write it at" if "read" in rates else "write host memory at"}
    reached = listed([f"{verbs[access]} {quantity(row.value, 'B/s')}" for access, row in rates.items()])
    packets = {access: count for access in rates if (count := links.packet_bytes(evidence, access)) is not None}
    same = len(set(packets.values())) == 1
    shown = [f"{count} B{'' if same else f' for {access}s'}" for access, count in packets.items()]
    text = f"Byte counters show packets of {listed(shown[:1] if same else shown)}." if packets else ""
    losses = []  # of the narrowest access against the fastest, and of each offset against the same width without it
    for access, widths in aligned.items():
        losses.append((1 - widths[min(widths)].value / rates[access].value, access, False))
        for row in evidence.rows("link_zero_copy", "bandwidth", access=access):
            usual = widths.get(whole(row, "width_bytes"))
            if whole(row, "offset_bytes") and usual is not None:
                losses.append((1 - row.value / usual.value, access, True))
    share, access, by_offset = max(losses, key=lambda loss: loss[0])
    advice = f"Move 16 bytes a thread: narrower accesses cost {access}s up to {percent(share)}."
    if by_offset:
        advice = f"Begin buffers on a 128-byte line: other offsets cost {access}s up to {percent(share)}."
    if share <= ACCESS_LOSS:
        text, advice = f"{text} Memory that is touched once can stay on the host.", ""
    title = f"Kernels {reached} without a copy"
    return said(title, text.strip(), advice, rows=evidence.rows("link_zero_copy"))


SLOW = 0.9
NAMED = 4


@rule("link.numa", f"advice where a far node loses over {round_percent(links.FAR_LOSS)}")
def numa(evidence: Evidence) -> Finding | None:
    """What copies lose with memory of a far node."""
    losses, rows = [], []
    for direction in links.DIRECTIONS:
        rates = links.nodes(evidence, direction)
        near = links.near_node(evidence, rates)
        if len(rates) > 1 and near is not None:
            losses.append((max(1 - row.value / rates[near].value for row in rates.values()), near))
            rows += list(rates.values())
    if not losses:
        return None
    (loss, near), own = max(losses), links.own_node(evidence)
    far = loss > links.FAR_LOSS
    text = f"Node {near} is near."
    if not far:
        text = "It does not matter on which node a buffer lies." if own is None else f"The GPU is on node {own}."
    elif own not in (None, near):
        text = f"Node {near} is the fastest, though the GPU reports node {own}."
    title = "Copies are as fast with memory of every NUMA node"
    title = f"Memory of a far NUMA node costs copies {percent(loss)}" if far else title
    advice = f"Keep buffers near: `numactl --cpunodebind={near} --membind={near}`." if far else ""
    return said(title, text, advice, rows=rows, severity="advice" if far else "good")


@rule("link.concurrent", f"a GPU that keeps under {round_percent(links.SHARED_BELOW)} of its rate shares an uplink")
def concurrent(evidence: Evidence) -> Finding | None:
    """Which GPUs slow each other down."""
    cases = links.contentions(evidence)
    if not cases:
        return None
    lost = links.shared_uplinks(evidence)
    ended = [contention for contention in cases if links.others_ended_first(contention.together)]
    least = min(cases, key=lambda contention: contention.share)
    text = (
        f"The lowest is GPU {least.gpu_index}: with {least.others_words} copying, its copies "
        f"{links.DIRECTIONS.get(least.direction, least.direction)} reach {quantity(least.together.value, 'B/s')} of "
        f"{quantity(least.alone.value, 'B/s')}."
    )
    if ended:
        text += f" In {len(ended)} of {len(cases)} cases the others ended first, so the share may look too good."
    advice = "Spread large copies over time, or place jobs on GPUs with separate uplinks." if lost else ""
    title = _sharing(lost) if lost else f"Every GPU keeps {percent(least.share)} of its rate while others copy"
    rows = (row for contention in cases for row in (contention.alone, contention.together))
    severity: Severity = "warning" if lost else "note" if ended else "good"
    return said(title, text, advice, rows=rows, names=[links.OTHERS_BUSY] if ended else [], severity=severity)


def _sharing(lost: Sequence[links.Contention]) -> str:
    """Which GPUs share uplinks: pairs where they were measured in pairs."""
    couples = sorted({tuple(sorted((one.gpu_index, int(one.others)))) for one in lost if one.others.isdecimal()})
    names = [f"{first}–{second}" for first, second in couples[:NAMED]]
    names = names or [str(index) for index in sorted({contention.gpu_index for contention in lost})]
    share = min(contention.share for contention in lost)
    return f"Uplinks are shared (GPU {listed(names)}): a copy keeps {percent(share)} of its rate"


@rule("link.peers", f"a pair under {round_percent(SLOW)} of the fastest is slow; one that fails is a problem")
def peers(evidence: Evidence) -> Finding | None:
    """How fast pairs of GPUs exchange data, which are slow, skipped or failed, and what peer access brings."""
    way, (refused, failed) = links.usual_way(evidence), links.lacking(evidence)
    if way is None and not refused and not failed:
        return None
    rates = links.pairs(evidence, way) if way is not None else {}
    best, worst = (choose(rates, key=lambda pair: rates[pair].value, default=None) for choose in (max, min))
    slow = [pair for pair, row in rates.items() if best is not None and row.value < SLOW * rates[best].value]
    title, advice = "No rate between GPUs was measured", ""
    told = (("Failed", failed), ("Not measured", refused))
    words = [f"{verb}: {reasons_named(why)[0]}." for verb, why in told if why]
    if best is not None and worst is not None:
        title, limit = f"GPU to GPU: {quantity(rates[best].value, 'B/s')}", evidence.ceiling(rates[best])
        if slow:
            title += f" at best, {quantity(rates[worst].value, 'B/s')} from {worst.words}"
            advice = f"Keep traffic off {named(slow)}: other pairs are faster."
        elif limit is not None:
            words.append(f"That is {percent(rates[best].value / limit.value)} of the ceiling.")
        for other in links.PEER_WAYS:
            on, off = links.pairs(evidence, other), links.pairs(evidence, other, "off")
            if ratios := [on[pair].value / row.value for pair, row in off.items() if pair in on]:
                words.append(f"Without peer access copies go through host memory, up to {times(max(ratios))} slower.")
                break
    if failed:
        advice = "Do not use peer access between pairs that failed."
    for why, verb in ((refused, "not measured"), (failed, "failed")):
        lost = {pair for members in why.values() for pair in members} - (rates.keys() if why is refused else set())
        title += f"; {len(lost)} pair{'s' * (len(lost) != 1)} {verb}" if lost else ""
    text = " ".join(words[:2])
    rows = (*rates.values(), *links.pairs(evidence, links.LATENCY).values())
    severity: Severity = "problem" if failed else "advice" if slow else "note" if refused else "good"
    return said(title, text, advice, rows=rows, severity=severity)


def named(members: Iterable[links.Pair]) -> str:
    """Pairs by name, the first few of many."""
    words = [pair.words for pair in members]
    more = [f"{len(words) - NAMED} more"] if len(words) > NAMED else []
    return listed([*words[:NAMED], *more])


def reasons_named(reasons: links.Reasons) -> list[str]:
    """Each reason behind the pairs that it holds for."""
    return [f"{named(members)}: {reason}" for reason, members in reasons.items()]


RULES: tuple[Rule, ...] = (copy_size, pinned, both, zero_copy, chunks, batch, managed, numa, concurrent, peers)
