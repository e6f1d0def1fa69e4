"""A workload from a command line: a name with what is changed of it, or kernels of one length with copies and waits."""

from __future__ import annotations

import msgspec

from microbench.errors import UsageError
from microbench.ops import LOOP_LAYER
from microbench.workload import MOST_KERNELS, MOST_STREAMS, Copies, Kernels, Part, Wait, Workload
from microbench.workloads import fields
from microbench.workloads.file import MOST_REPLAYS, checked
from microbench.workloads.named import examples, read
from microbench.workloads.parts import MOST_ARGUMENTS, MOST_PARTS


class Options(msgspec.Struct, frozen=True):
    """What was typed of each option, None where it was left out."""

    kernels: int | None = None
    duration: str | None = None
    layer: str | None = None
    arguments: int | None = None
    syncs_per_step: int | None = None
    copy_in: str | None = None
    copy_out: str | None = None
    streams: int | None = None
    replays: int | None = None


# What a named workload can be given besides.
OVER_A_NAME = ("layer", "streams", "replays")
ONE_WAIT = 1


def described(name: str | None, options: Options) -> Workload:
    """The named workload with its layer, streams and replays as given, or the one that the options describe.

    Raises UsageError.
    """
    if name is None:
        return _uniform(options)
    given = [one for one in options.__struct_fields__ if getattr(options, one) is not None and one not in OVER_A_NAME]
    if given:
        raise UsageError(
            f"a named workload says itself what --{given[0].replace('_', '-')} is",
            "give either a workload or options for its kernels; --layer, --streams and --replays go with both",
        )
    return msgspec.structs.replace(read(name), **_common(options))


def _common(options: Options) -> dict[str, object]:
    """Who launches, on how many streams, how often."""
    found: dict[str, object] = {}
    if options.layer is not None:
        found["layer"] = fields.layer_named(options.layer, "--layer")
    if options.streams is not None:
        found["streams"] = fields.whole(options.streams, "--streams", 1, MOST_STREAMS)
    if options.replays is not None:
        found["replays"] = fields.whole(options.replays, "--replays", 1, MOST_REPLAYS)
    return found


def _uniform(options: Options) -> Workload:
    """Copy in, kernels in as many runs as there are waits, copy out before the last wait."""
    if options.kernels is None or options.duration is None:
        causes = {(True, False): "nothing says how many kernels", (False, True): "nothing says how long a kernel runs"}
        raise UsageError(
            causes.get((options.kernels is None, options.duration is None), "nothing says what the step does"),
            f"give --kernels and --duration, a .toml file, or one of {', '.join(examples())}",
        )
    count = fields.whole(options.kernels, "--kernels", 1, MOST_KERNELS)
    waits = ONE_WAIT if options.syncs_per_step is None else options.syncs_per_step
    fields.whole(waits, "--syncs-per-step", 0, min(count, MOST_PARTS))
    kernels = Kernels(
        count,
        (fields.seconds(options.duration, "--duration"),),
        arguments=fields.whole(options.arguments or 0, "--arguments", 0, MOST_ARGUMENTS),
    )
    parts: list[Part] = []
    for run in _runs(count, max(waits, 1)):
        parts += [msgspec.structs.replace(kernels, count=run), Wait()]
    last = parts.pop()
    if options.copy_in is not None:
        parts.insert(0, Copies("h2d", fields.size_bytes(options.copy_in, "--copy-in", least=1)))
    if options.copy_out is not None:
        parts.append(Copies("d2h", fields.size_bytes(options.copy_out, "--copy-out", least=1)))
    if waits:
        parts.append(last)
    workload = Workload(parts=tuple(parts), layer=LOOP_LAYER)
    return checked(msgspec.structs.replace(workload, **_common(options)), "the step")


def _runs(count: int, waits: int) -> list[int]:
    """``count`` kernels as evenly as it goes."""
    each, more = divmod(count, waits)
    return [each + 1] * more + [each] * (waits - more)
