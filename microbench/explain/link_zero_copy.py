"""Explains link_zero_copy: kernels on host memory against copies: widths, split lines, packets on the wire."""

from __future__ import annotations

import math

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.explain.link_copies import DIRECTIONS, fastest
from microbench.limits import COMPLETION_HEADER_BYTES, WRITE_HEADER_BYTES
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent

# What a kernel does, which copy does the same, and which counter holds its payload with how many header bytes.
SAME = {"read": "h2d", "write": "d2h"}
COUNTED = {"read": ("received_per_byte", COMPLETION_HEADER_BYTES), "write": ("sent_per_byte", WRITE_HEADER_BYTES)}
WORDS = {"read": "reads", "write": "writes"}
SPLIT_LOSS = 0.05
NARROW_LOSS = 0.05
POWER_MARGIN = 0.06
MOST_PAYLOAD_BYTES = 4096  # of any PCIe packet: what counts as more was counted wrong


def best(evidence: Evidence, access: str) -> Row | None:
    """The fastest aligned rate."""
    found = [
        row for row in evidence.rows("link_zero_copy", "bandwidth", access=access, offset_bytes=0) if row.value > 0
    ]
    return max(found, key=lambda row: row.value, default=None)


def zero_copy(evidence: Evidence) -> list[Finding]:
    """Reads and writes of mapped host memory against copies, with what width and offset lose."""
    found = {access: row for access in SAME if (row := best(evidence, access)) is not None}
    if not found:
        return []
    words = [_against(evidence, access, row) for access, row in found.items()]
    packets = [one for access in found if (one := _packets(evidence, access))]
    narrow, split = _narrow(evidence, found), _split(evidence, found)
    advice = [one for one in (narrow, split) if one]
    title = " and ".join(f"{WORDS[access]} {quantity(row.value, 'B/s')}" for access, row in found.items())
    closing = (
        ""
        if advice
        else " Kernels may stream host memory that they touch once; what is touched again belongs on the GPU."
    )
    return [
        Finding(
            rule="link.zero_copy",
            severity="advice" if advice else "note",
            title=f"Kernels reach host memory without a copy: {title}",
            text=" ".join([*words, *packets, *advice]) + closing,
            threshold=f"advice where narrow or split accesses lose over {round_percent(SPLIT_LOSS)}",
            rests_on=rests_on(*evidence.rows("link_zero_copy")),
            suite="link",
        )
    ]


def _against(evidence: Evidence, access: str, row: Row) -> str:
    limit = evidence.ceiling(row)
    share = f", {percent(row.value / limit.value)} of the ceiling for its packets" if limit is not None else ""
    words = f"{WORDS[access].capitalize()} {row.params['width_bytes']} bytes wide {quantity(row.value, 'B/s')}{share}"
    peak = fastest(evidence, SAME[access])
    if peak is not None:
        words += f"; a copy {DIRECTIONS[SAME[access]]} {quantity(peak[1].value, 'B/s')}"
    return f"{words}."


def payload_bytes(access: str, per_byte: float) -> float | None:
    """The payload of a packet from the bytes counted for each byte of payload: header / (counted - 1).

    None where that is no packet: nothing counted beside the payload, or more payload than PCIe allows.
    """
    header_bytes = COUNTED[access][1]
    found = header_bytes / (per_byte - 1) if per_byte > 1 else math.inf
    return found if found < MOST_PAYLOAD_BYTES * (1 + POWER_MARGIN) else None


def _packets(evidence: Evidence, access: str) -> str:
    """The size of packets that the byte counters show."""
    metric, header_bytes = COUNTED[access]
    row = next((one for one in evidence.rows("link_zero_copy", metric, access=access, offset_bytes=0)), None)
    packet = payload_bytes(access, row.value) if row is not None else None
    if row is None or packet is None:
        return ""
    near = 1 << max(round(packet).bit_length() - 1, 0)
    near = min((near, 2 * near), key=lambda one: abs(one - packet))
    shown = near if abs(near - packet) < POWER_MARGIN * packet else round(packet)
    return (
        f"{WORDS[access].capitalize()} count {row.value:.3f} bytes on the wire for each byte of payload: packets of "
        f"{shown} bytes with {header_bytes} of header."
    )


def _narrow(evidence: Evidence, found: dict[str, Row]) -> str:
    """What the narrowest access loses."""
    words = []
    for access, row in found.items():
        curve = evidence.curve("link_zero_copy", "bandwidth", "width_bytes", access=access, offset_bytes=0)
        if len(curve) > 1 and (loss := 1 - curve[0][1].value / row.value) > NARROW_LOSS:
            words.append(f"{WORDS[access]} {curve[0][0]} bytes wide lose {percent(loss)}")
    return f"Move 16 bytes a thread: {' and '.join(words)}." if words else ""


def _split(evidence: Evidence, found: dict[str, Row]) -> str:
    """What the worst offset loses against the same width without one."""
    words = []
    for access in found:
        aligned = dict(evidence.curve("link_zero_copy", "bandwidth", "width_bytes", access=access, offset_bytes=0))
        losses = [
            (1 - row.value / aligned[width].value, row)
            for row in evidence.rows("link_zero_copy", "bandwidth", access=access)
            if row.params.get("offset_bytes") and isinstance(width := row.params.get("width_bytes"), int)
            and width in aligned and aligned[width].value > 0
        ]  # fmt: skip
        loss, worst = max(losses, key=lambda one: one[0], default=(0.0, None))
        if worst is not None and loss > SPLIT_LOSS:
            words.append(
                f"{WORDS[access]} {percent(loss)} ({worst.params['offset_bytes']} bytes off, "
                f"{worst.params['width_bytes']} wide)"
            )
    return f"Begin buffers on a 128-byte line: split lines cost {' and '.join(words)}." if words else ""
