"""Explains the rest of link_state: errors that rose, and settings on the way to the GPU that cost something."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, listed
from microbench.explain.finding import Finding
from microbench.explain.link_facts import TOLERATED_ERRORS, LinkFacts, link_facts, shares_memory

USUAL_PAYLOAD_BYTES = 256


def errors(evidence: Evidence) -> list[Finding]:
    """Counters of damaged packets that rose while the link was busy."""
    facts = link_facts(evidence)
    risen = facts.risen()
    if not risen:
        return []
    counted = listed([f"{name.replace('_', ' ')} rose by {count}" for name, count in risen.items()])
    title = "The link's error counters rise under load"
    meaning = (
        "Damaged packets are sent again, which costs bandwidth and latency, and a link that goes on like this falls "
        "back to a lower speed: check riser, cable and seat."
    )
    if not facts.damaging():
        title = "Few errors on the link, as many as a sound one may have"
        meaning = "Damaged packets are sent again. Measure link_state again: only a count that keeps rising means more."
    return [
        Finding(
            rule="link.errors",
            severity="problem" if facts.damaging() else "note",
            title=title,
            text=f"While copies ran, {counted}. {meaning}",
            threshold=(
                f"a problem over {TOLERATED_ERRORS} (one bit in 10^12 may be wrong); rollovers, nonfatal and fatal "
                "errors at once"
            ),
            rests_on=tuple(f"{name}_risen" for name in risen),
            suite="link",
        )
    ]


def settings(evidence: Evidence) -> list[Finding]:
    """What the way to the GPU is set to, where it costs something."""
    facts = link_facts(evidence)
    if shares_memory(evidence, facts) is not None:
        return []
    several = len(evidence.environment.gpus) > 1
    found = [one for one in (_payload(facts), _ordering(facts), _bar(facts), _acs(facts, several)) if one is not None]
    if not found:
        return []
    return [
        Finding(
            rule="link.settings",
            severity="advice" if any(advice for _, _, advice in found) else "note",
            title=f"On the way to the GPU: {listed([short for short, _, _ in found])}",
            text=" ".join(words for _, words, _ in found),
            threshold="payload under 256 B, no relaxed ordering, no resizable BAR, ACS redirecting with several GPUs",
            rests_on=("max_payload_bytes", "relaxed_ordering", "resizable_bar", "acs"),
            suite="link",
        )
    ]


# What is set, what that means, whether something should be done.
Setting = tuple[str, str, bool]


def _payload(facts: LinkFacts) -> Setting | None:
    payload_bytes = facts.number("max_payload_bytes")
    if payload_bytes is None or payload_bytes >= USUAL_PAYLOAD_BYTES:
        return None
    words = (
        f"Packets carry {payload_bytes} bytes at most, so headers take more of the link: the firmware may allow 256."
    )
    return f"a payload of {payload_bytes} B", words, True


def _ordering(facts: LinkFacts) -> Setting | None:
    if facts.flag("relaxed_ordering") is not False:
        return None
    return "relaxed ordering off", "Without relaxed ordering a packet may have to wait for the one before it.", True


def _bar(facts: LinkFacts) -> Setting | None:
    if facts.flag("resizable_bar") is not False:
        return None
    words = "The host reaches only a part of the GPU's memory directly (BAR1); copies do not need it."
    return "no resizable BAR", words, False


def _acs(facts: LinkFacts, several: bool) -> Setting | None:
    if facts.flag("acs") is not True or not several:
        return None
    words = (
        "ACS sends traffic between GPUs up to the root port and back, past the switch that could join them: turn it "
        "off where no virtual machine needs it."
    )
    return "ACS redirects peers", words, True
