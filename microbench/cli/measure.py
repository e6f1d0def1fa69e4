"""The command measure: a user's own kernel or function, as a benchmark whose parameters name it."""

from microbench.cli import share
from microbench.cli.options import JSON, WHY, Format
from microbench.cli.output import draw, print_bytes, progress
from microbench.core.options import argument, flag
from microbench.core.units import plain
from microbench.library.options import OwnOptions
from microbench.library.own import counts_of, measured_own
from microbench.library.runs import screen_of


def measure(
    what: str = argument("TARGET", "FILE.cu:KERNEL, FILE.py::FUNCTION or MODULE:FUNCTION, from the current folder."),
    *,
    asked: OwnOptions,
    counts: bool = flag("Also show the counts of a call: launches, kernels by family, copies."),
    json: bool = JSON,
    why: bool = WHY,
) -> int:
    """Measure a kernel or function of your own: its time, its launches, what limits it, what a graph gives.

    A function is timed, captured into a CUDA graph and compared with its replays; if the capture fails, the line that
    stops it is named. A kernel of a .cu file is compiled, timed and compared with the measured ceilings of this GPU.
    """
    from microbench.diagnosis.changed import Side
    from microbench.explain.own import OWN_PARAMETERS
    from microbench.report.sheets.counts import counts_screen
    from microbench.report.terminal import terminal

    with progress() as listener:
        result = measured_own(what, asked, listener)
    if json:
        print_bytes(share.exported(result.run, Format.JSON))
        return result.exit_code
    draw(screen_of(result.run, result.path), why=why)
    for name, counted in counts_of(result.run) if counts else ():
        draw(counts_screen(Side(name, counted)))
    lines = []  # which cases of the newest session have no figures
    for each in result.run.outcomes:
        if each.session == len(result.run.sessions) - 1 and each.status != "ok":
            axes = (f"{name}={value}" for name, value in each.case.params.items() if name not in OWN_PARAMETERS)
            words = (each.status.replace("_", " "), plain(" ".join(axes), 80), plain(each.reason, 400))
            lines.append(": ".join(filter(None, words)))
    terminal.tell((*dict.fromkeys(lines), f"saved: {result.path}"), terminal.open_console())
    return result.exit_code


COMMANDS = ((measure, "microbench measure train.py::step --setup train.py::setup --axis batch=1,8,64"),)
