"""Gives each part of the idle time the functions in which the host was then, for a flame graph."""

from __future__ import annotations

import msgspec

from microbench.diagnosis.diagnosis import Diagnosis

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


def speedscope(diagnosis: Diagnosis) -> bytes:
    """The idle time as a profile of speedscope: a stack for each cause, functions and call, weighted in s."""
    stacks = diagnosis.idle.stacks_ns if diagnosis.idle is not None else {}
    frames = {name: place for place, name in enumerate(dict.fromkeys(name for stack in stacks for name in stack))}
    seconds = [ns * 1e-9 for ns in stacks.values()]
    title = f"GPU idle, by cause: {diagnosis.trace.source}"
    profile = {
        "type": "sampled", "name": title, "unit": "seconds", "startValue": 0, "endValue": sum(seconds),
        "samples": [[frames[name] for name in stack] for stack in stacks], "weights": seconds,
    }  # fmt: skip
    shared = {"frames": [{"name": name} for name in frames]}
    whole = {"$schema": SPEEDSCOPE, "exporter": "microbench", "name": title, "shared": shared, "profiles": [profile]}
    return msgspec.json.encode(whole)
