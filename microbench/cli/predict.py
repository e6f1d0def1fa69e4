"""The commands predict, whatif, timeline and explain. Heavy imports stay inside the commands."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from microbench.cli.options import ANSWER, COSTS, LAST_OR_BUNDLED, WHY, WORKLOAD, Picture, Without
from microbench.cli.output import draw, draw_tables, print_json
from microbench.core.errors import UsageError
from microbench.core.options import argument, flag, option
from microbench.library.runs import adding_to, consistent, is_reference, last_with, load
from microbench.model.workload import ChangeOptions, StepOptions

# Kernels that timeline draws by default, and at most.
DRAWN_KERNELS = 8
MOST_KERNELS = 10_000


def predict(
    *,
    workload: str | None = WORKLOAD,
    step: StepOptions,
    run: str | None = COSTS,
    json: bool = ANSWER,
    everything: bool = flag("Add pictures, findings and the constants that it rests on.", "--all"),
    why: bool = WHY,
    picture: Picture,
) -> None:
    """Predict how long a step of work takes.

    Gives the time in a stream and as a graph, what limits it, and what to change first.
    """
    from microbench.library.answers import described, predicted
    from microbench.report.sheets import prediction

    side = predicted(described(workload, step), run)
    if json:
        print_json(prediction.answer(side))
    else:
        draw(prediction.sheet(side) if everything or why else prediction.screen(side), picture, brief=True, why=why)


def whatif(
    *,
    workload: str | None = WORKLOAD,
    step: StepOptions,
    changed: ChangeOptions,
    run: str | None = COSTS,
    against: str | None = option("RUN", "Predict the step on the machine of this run instead of changing it."),
    why: bool = WHY,
    picture: Picture,
) -> None:
    """Predict a step with something changed.

    Give changes such as --submit 2us, or two recorded machines: --run A --against B.
    """
    from microbench.gpu.layers.base import layer_names
    from microbench.library.answers import described, predicted
    from microbench.model import step_file
    from microbench.report.sheets import prediction as drawing

    changes = step_file.changes(changed, layer_names())
    if bool(changes) == (against is not None):
        cause = "--against cannot be combined with changes" if changes else "no change is given"
        raise UsageError(cause, "give changes, such as --submit 2us, or --against RUN")
    asked = described(workload, step)
    before = predicted(asked, run)
    if against is not None:
        sheet = drawing.against_sheet(before, predicted(asked, against))
    else:
        sheet = drawing.changed_sheet(before, changes)
    draw(sheet, picture, brief=True, why=why)


def timeline(
    *,
    workload: str | None = WORKLOAD,
    step: Annotated[StepOptions, Without("replays")],
    run: str | None = COSTS,
    why: bool = WHY,
    picture: Picture,
) -> None:
    """Draw a predicted step to scale.

    Shows host, queue, GPU and link, in a stream and as a graph.
    """
    from microbench.library.answers import described, predicted
    from microbench.report.sheets import prediction as drawing

    if step.kernels is None and workload is None:
        step = replace(step, kernels=DRAWN_KERNELS)
    drawn = described(workload, step)
    if drawn.kernels > MOST_KERNELS:
        cause = f"a step of {drawn.kernels} kernels is too long to draw"
        raise UsageError(cause, f"draw at most {MOST_KERNELS}, or use microbench predict")
    draw(drawing.timeline_sheet(predicted(drawn, run)), picture, brief=True, why=why)


def explain(
    *,
    topic: str | None = argument("[TOPIC]", "What to explain; default: list the topics.", None),
    run: str | None = option("RUN", f"The run with the figures; {LAST_OR_BUNDLED}"),
    picture: Picture,
) -> None:
    """Explain a topic with this machine's numbers."""
    from microbench.explain.topics import catalogue
    from microbench.report.sheets import topic as drawing

    if topic is None:
        if run is not None or picture.svg is not None:
            raise UsageError("no topic is given", "give one; `microbench explain` lists them")
        draw_tables([drawing.listing()])
        return
    chosen = catalogue.find(topic)
    covers, known = partial(drawing.covers, chosen), partial(drawing.known, chosen)
    path, recorded = load(run) if run is not None else last_with(covers, known)
    with consistent(recorded):
        sheet = drawing.sheet(chosen, recorded, reference=is_reference(path), adding=adding_to(run, path, recorded))
    draw(sheet, picture, brief=not sheet.grades)
