"""The way from the processor to the GPU as a line: root port, switches, and the link on each stretch."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.explain.evidence import Evidence
from microbench.explain.link_facts import Hop, LinkFacts, Speed, link_facts, shares_memory
from microbench.explain.link_hops import Joint, bridges, joints
from microbench.report.document import Station, Stretch, Tone, Way

USUAL_DOMAIN = "0000:"


def path(evidence: Evidence) -> Way | None:
    """What lies between processor and GPU, as far as it can be seen; None where nothing is known of it."""
    facts = link_facts(evidence)
    hops = facts.hops()
    if not hops or shares_memory(evidence, facts) is not None:
        return None
    groups = bridges(facts)
    index = evidence.gpu.index if evidence.gpu is not None else 0
    stations = [_processor(facts), *(_bridge(group, facts) for group in groups)]
    stations.append(Station(f"GPU {index}", _short(hops[0].bus_id), "second"))
    stretches = [_root(facts), *(_stretch(one, idle=facts.idle) for one in joints(facts, groups))]
    return Way(
        title="The way to the GPU",
        about=_about(facts, hops[0].now or facts.now),
        stations=tuple(stations),
        stretches=tuple(stretches),
    )


def _processor(facts: LinkFacts) -> Station:
    node = facts.number("numa_node")
    return Station("CPU", "NUMA ?" if node is None or node < 0 else f"NUMA {node}", "first")


def _bridge(group: Sequence[Hop], facts: LinkFacts) -> Station:
    narrowest = facts.text("slot_limit_bus_id")
    tone: Tone = "warning" if narrowest and any(hop.bus_id == narrowest for hop in group) else "plain"
    kind = "switch" if len(group) > 1 else group[0].kind or "bridge"
    return Station(kind.replace("_", " "), _short(group[0].bus_id), tone)


def _root(facts: LinkFacts) -> Stretch:
    if facts.flag("virtual_bus"):
        return Stretch("hidden by the virtual machine", "quiet", hidden=True)
    return Stretch("", "quiet")


def _stretch(one: Joint, *, idle: bool) -> Stretch:
    """The link between two neighbours: what it runs at, and what both could do where that is more."""
    now, most = one.now, one.most
    if now is None:
        return Stretch(most.words if most else "?", "quiet")
    if one.slowed and most is not None:
        return Stretch(f"{now.words} of {most.words}", "quiet" if idle else "problem")
    return Stretch(now.words, "good")


def _about(facts: LinkFacts, now: Speed | None) -> str:
    if not facts.flag("virtual_bus"):
        when = "after copies had ended: an idle link slows down" if facts.idle else "while copies ran"
        return f"generation and lanes of each stretch {when}"
    link = f"; the GPU's own link runs at PCIe {now.words}" if now is not None else ""
    return f"bridges and slots show on the virtual machine's host only{link}"


def _short(bus_id: str) -> str:
    return bus_id.removeprefix(USUAL_DOMAIN)
