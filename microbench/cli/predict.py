"""The commands predict, whatif, timeline and explain. Heavy imports stay inside the commands."""

from __future__ import annotations

from functools import partial

from microbench.cli import options
from microbench.cli.output import draw, print_bytes
from microbench.core.errors import UsageError
from microbench.library.runs import adding_to, consistent, is_reference, last_with, load

# Kernels that timeline draws by default, and at most.
DRAWN_KERNELS = 8
MOST_KERNELS = 10_000


def predict(
    workload: options.WorkloadName = None,
    kernels: options.StepKernels = None,
    duration: options.StepDuration = None,
    layer: options.StepLayer = None,
    arguments: options.Arguments = None,
    syncs_per_step: options.SyncsPerStep = None,
    copy_in: options.CopyIn = None,
    copy_out: options.CopyOut = None,
    streams: options.Streams = None,
    replays: options.Replays = None,
    host: options.StepHost = None,
    blocks: options.StepBlocks = None,
    sm_share: options.StepShare = None,
    run: options.PredictedRun = None,
    json: options.PredictedJson = False,
    why: options.Why = False,
    svg: options.Svg = None,
    force: options.Force = False,
) -> None:
    """Predict how long a step of work takes.

    Gives the time in a stream and as a graph, what limits it, and what to change first.
    """
    from microbench.gpu.layers.base import layer_names
    from microbench.library.answers import predicted
    from microbench.model import step_file
    from microbench.report.sheets import prediction

    step = step_file.Options(
        kernels, duration, layer, arguments, syncs_per_step, copy_in, copy_out, streams, replays, host, blocks, sm_share
    )
    side = predicted(step_file.described(workload, step, layer_names()), run)
    if json:
        print_bytes(prediction.encoded(side))
    else:
        draw(prediction.sheet(side), svg, force=force, brief=True, why=why)


def whatif(
    workload: options.WorkloadName = None,
    kernels: options.StepKernels = None,
    duration: options.StepDuration = None,
    layer: options.StepLayer = None,
    arguments: options.Arguments = None,
    syncs_per_step: options.SyncsPerStep = None,
    copy_in: options.CopyIn = None,
    copy_out: options.CopyOut = None,
    streams: options.Streams = None,
    replays: options.Replays = None,
    host: options.StepHost = None,
    blocks: options.StepBlocks = None,
    sm_share: options.StepShare = None,
    submit: options.Submit = None,
    to_layer: options.ToLayer = None,
    gap: options.Gap = None,
    graph_gap: options.GraphGap = None,
    replay: options.Replay = None,
    memory: options.Memory = None,
    pcie_gen: options.PcieGen = None,
    lanes: options.Lanes = None,
    kernel_time: options.KernelTime = None,
    host_time: options.HostTime = None,
    run: options.PredictedRun = None,
    against: options.Against = None,
    why: options.Why = False,
    svg: options.Svg = None,
    force: options.Force = False,
) -> None:
    """Predict a step with something changed.

    Give changes such as --submit 2us, or two recorded machines: --run A --against B.
    """
    from microbench.gpu.layers.base import layer_names
    from microbench.library.answers import predicted
    from microbench.model import step_file
    from microbench.report.sheets import prediction as drawing

    step = step_file.Options(
        kernels, duration, layer, arguments, syncs_per_step, copy_in, copy_out, streams, replays, host, blocks, sm_share
    )
    changes = step_file.changes(
        {
            "submit_s": submit,
            "gap_s": gap,
            "graph_gap_s": graph_gap,
            "replay_s": replay,
            "memory_rate": memory,
            "pcie_generation": pcie_gen,
            "lanes": lanes,
            "kernel_time": kernel_time,
            "host_time": host_time,
        },
        to_layer,
        layer_names(),
    )
    if bool(changes) == (against is not None):
        cause = "--against cannot be combined with changes" if changes else "no change is given"
        raise UsageError(cause, "give changes, such as --submit 2us, or --against RUN")
    described = step_file.described(workload, step, layer_names())
    before = predicted(described, run)
    if against is not None:
        sheet = drawing.against_sheet(before, predicted(described, against))
    else:
        sheet = drawing.changed_sheet(before, changes)
    draw(sheet, svg, force=force, brief=True, why=why)


def timeline(
    workload: options.WorkloadName = None,
    kernels: options.StepKernels = None,
    duration: options.StepDuration = None,
    layer: options.StepLayer = None,
    arguments: options.Arguments = None,
    syncs_per_step: options.SyncsPerStep = None,
    copy_in: options.CopyIn = None,
    copy_out: options.CopyOut = None,
    streams: options.Streams = None,
    host: options.StepHost = None,
    blocks: options.StepBlocks = None,
    sm_share: options.StepShare = None,
    run: options.PredictedRun = None,
    why: options.Why = False,
    svg: options.Svg = None,
    force: options.Force = False,
) -> None:
    """Draw a predicted step to scale.

    Shows host, queue, GPU and link, in a stream and as a graph.
    """
    from microbench.gpu.layers.base import layer_names
    from microbench.library.answers import predicted
    from microbench.model import step_file
    from microbench.report.sheets import prediction as drawing

    count = DRAWN_KERNELS if kernels is None and workload is None else kernels
    typed = step_file.Options(
        count, duration, layer, arguments, syncs_per_step, copy_in, copy_out, streams, None, host, blocks, sm_share
    )
    step = step_file.described(workload, typed, layer_names())
    if step.kernels > MOST_KERNELS:
        cause = f"a step of {step.kernels} kernels is too long to draw"
        raise UsageError(cause, f"draw at most {MOST_KERNELS}, or use microbench predict")
    draw(drawing.timeline_sheet(predicted(step, run)), svg, force=force, brief=True, why=why)


def explain(
    topic: options.Topic = None,
    run: options.ExplainedRun = None,
    svg: options.Svg = None,
    force: options.Force = False,
) -> None:
    """Explain a topic with this machine's numbers."""
    from microbench.explain.topics import catalogue
    from microbench.report.sheets import topic as drawing
    from microbench.report.terminal import terminal

    if topic is None:
        if run is not None or svg is not None:
            raise UsageError("no topic is given", "give one; `microbench explain` lists them")
        terminal.draw_tables([drawing.listing()], terminal.open_console())
        return
    chosen = catalogue.find(topic)
    covers, known = partial(drawing.covers, chosen), partial(drawing.known, chosen)
    path, recorded = load(run) if run is not None else last_with(covers, known)
    with consistent(recorded):
        sheet = drawing.sheet(chosen, recorded, reference=is_reference(path), adding=adding_to(run, path, recorded))
    draw(sheet, svg, force=force, brief=not sheet.grades)


# In the order of --help, each with the example at the end of its own help.
COMMANDS = (
    (predict, "microbench predict --kernels 1100 --duration 6us --layer torch"),
    (whatif, "microbench whatif --kernels 1100 --duration 6us --submit 2us"),
    (timeline, "microbench timeline --duration 3us --kernels 8"),
    (explain, "microbench explain launch"),
)
