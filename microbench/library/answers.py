"""Answers for the command and for programs: two runs compared, a step predicted, traces diagnosed."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from microbench.analysis.stats import STABLE_HALF_WIDTH
from microbench.comparison.compare import BETTER, COUNTED, WORSE, Comparison, compare
from microbench.comparison.words import Side as ComparedSide
from microbench.core.errors import UsageError
from microbench.core.model import Run
from microbench.core.units import plain
from microbench.diagnosis.changed import Side as Recording
from microbench.diagnosis.changed import side
from microbench.diagnosis.counts import are_counts, read_counts
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.window import between
from microbench.gpu.layers.base import layer_names
from microbench.library.runs import REFERENCE_RUN, adding_to, consistent, grows, is_reference, last_with, load
from microbench.model import step_file
from microbench.model.constants import Fit
from microbench.model.fit import fit_for, suits, with_model_code_of
from microbench.model.forecast import forecast
from microbench.model.unknowns import unknown_host
from microbench.model.workload import Kernels, StepOptions, Wait, Workload
from microbench.report.document import Report, Screen
from microbench.report.sheets import comparison as comparison_sheet
from microbench.report.sheets import diagnosis as diagnosis_sheet
from microbench.report.sheets.prediction import Side
from microbench.traces.reading import read

HEAD_BYTES = 400
# Files of a folder that may be traces.
ENDINGS = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".pb", ".pb.gz", ".rows")
# The verdicts that each limit of --fail-on covers. SUSPECTED also covers changes for the worse that nothing confirms.
SUSPECTED = "suspected"
LIMITS = {"slower": WORSE, SUSPECTED: WORSE, "faster": BETTER, "any": (*WORSE, *BETTER, *COUNTED)}


class Compared(NamedTuple):
    """A comparison, and what its two runs are called."""

    comparison: Comparison
    base: ComparedSide
    new: ComparedSide

    def sheet(self, *, everything: bool = False) -> Report:
        """The comparison as a report; ``everything`` also lists figures that are the same or unclear."""
        return comparison_sheet.sheet(self.comparison, self.base, self.new, everything=everything)


def compared(base: str, new: str | None, within: float) -> Compared:
    """The named runs compared; NEW is the last run if it has no name. Raises UsageError, RunUnreadableError."""
    (base_path, before), (new_path, after) = load(base), load(new)
    if base_path.resolve() == new_path.resolve():
        raise UsageError("BASE and NEW are the same run", "name another run; `microbench history` lists them")
    with consistent(before), consistent(after):
        sides = ComparedSide(base, grows(base_path)), ComparedSide(new or after.run_id, grows(new_path))
        return Compared(compare(before, after, within), *sides)


def share_of(text: str) -> float:
    """The share of a percentage like "3%". Raises UsageError unless it is above 0 and at most 10 %."""
    with suppress(ValueError):
        share = float(text.strip().removesuffix("%")) / 100
        if 0 < share <= STABLE_HALF_WIDTH:
            return share
    raise UsageError(f"--same-within {plain(text, 20)} is no percentage above 0 and up to 10 %", "give one like 3%")


def fails(comparison: Comparison, limit: str) -> bool:
    """True if the limit (--fail-on) applies to a figure or a suite; a figure that NEW failed to measure is slower.

    Raises UsageError if no figure can be compared, or if there is no such limit.
    """
    if limit not in LIMITS:
        raise UsageError(f"there is no limit {plain(limit, 20)}", f"choose one of {', '.join(LIMITS)}")
    if comparison.lost and limit != "faster":
        return True
    if not comparison.changes:
        raise UsageError("the two runs have no figure in common", "measure the same benchmarks in both")
    if comparison.nothing_comparable:
        raise UsageError("no figure of the two runs can be compared", "the banners of `microbench compare` say why")
    if limit == SUSPECTED and any(change.costs_more for change in comparison.unconfirmed):
        return True
    return comparison.has_changed(*LIMITS[limit])


def described(name: str | Path | None, options: StepOptions) -> Workload:
    """The step that is named, or that the options describe. Raises UsageError."""
    return step_file.described(None if name is None else str(name), options, layer_names())


def predicted(step: Workload, name: str | None) -> Side:
    """The prediction of a step from the costs in the named run, or in the newest run that has them.

    Where a run of a real GPU measured no model code, the bundled reference shows what model code takes.
    """
    path, run = load(name) if name is not None else last_with(lambda run: suits(run, step))
    reference, adding = is_reference(path), adding_to(name, path, run)
    with consistent(run):
        evidence, fit = fit_for(run, step, adding)
    if unknown_host(step) and not fit.model_code and not reference and not run.simulated:
        _, bundled = load(REFERENCE_RUN)
        with consistent(bundled):
            fit = with_model_code_of(fit, bundled)
    with consistent(run):
        return Side(forecast(step, fit), evidence, reference, adding)


class Costs(NamedTuple):
    """Constants of a run, the name of their GPU, their origin in words, whether they are from a bundled run, and the
    option of the command that names the run."""

    fit: Fit
    gpu: str
    words: str
    elsewhere: bool
    option: str


# A step whose costs are those that most need.
USUAL = Workload((Kernels(10, (1e-6,)), Wait()))


def recorded(name: str | None) -> tuple[Path, Run]:
    """The named run, or the newest with the usual costs, else a bundled one. Raises RunUnreadableError."""
    return load(name) if name is not None else last_with(lambda run: suits(run, USUAL))


def costs_of(name: str | None) -> Costs:
    """The constants of the named run, or of the newest that has them."""
    path, run = recorded(name)
    with consistent(run):
        evidence, fit = fit_for(run, USUAL)
    reference = is_reference(path)
    whose = "another machine, bundled" if reference else f"run {run.run_id}"
    words = f"{'SIMULATED ' if run.simulated else ''}costs of {whose}"
    option = "" if name is None else f" --run {shlex.quote(name)}"
    return Costs(fit, evidence.gpu.name if evidence.gpu is not None else "", words, reference, option)


class Diagnosed(NamedTuple):
    """The diagnoses of ``files``, the origin of the costs that they use, and the errors of files of a folder that were
    left out."""

    several: list[Diagnosis]
    files: list[Path]
    costs: Costs
    left_out: list[UsageError]

    def screen(self, *, everything: bool = False) -> Screen:
        """One diagnosis on one screen, several beside each other."""
        if len(self.several) > 1:
            return diagnosis_sheet.ranks_screen(self.several, self.costs.words, everything=everything)
        command = f"microbench diagnose {shlex.quote(str(self.files[0]))}{self.costs.option}"
        return diagnosis_sheet.screen(self.several[0], self.costs.words, command, everything=everything)

    def answers(self) -> list[dict[str, object]]:
        """An object for JSON of each trace; ``reference`` says that the costs are those of a bundled run."""
        return [{"reference": self.costs.elsewhere, **diagnosis_sheet.answer(one)} for one in self.several]


def diagnosed(
    traces: Sequence[Path],
    run: str | None = None,
    step: str | None = None,
    from_s: float | None = None,
    to_s: float | None = None,
) -> Diagnosed:
    """The diagnosis of each of these traces, which may be folders, with the costs of the named run.

    ``step`` is as in `typed_step`; ``from_s`` and ``to_s`` cut the part of the trace to diagnose. Of the files of a
    folder some may have no work of a GPU; they are left out if others have. Raises UsageError.
    """
    (step_s, asked), files, costs = step_file.typed_step(step), files_of(traces), costs_of(run)
    several, used, left_out = [], [], []
    for path in files:
        try:
            trace = read(path)
            part = trace if from_s is None and to_s is None else between(trace, from_s, to_s)
            several.append(diagnose(part, costs.fit, step_s, costs.gpu, elsewhere=costs.elsewhere, asked=asked))
            used.append(path)
        except UsageError as error:
            if path in traces:
                raise
            left_out.append(error)
    if not several:
        raise left_out[0]
    return Diagnosed(several, used, costs, left_out)


def recorded_side(path: Path, **options: Any) -> Recording:
    """A trace with its counts, or counts alone. ``options`` are those of ``diagnosed``. Raises UsageError."""
    if is_file_of_counts(path):
        return Recording(path.name, read_counts(path.read_bytes(), path.name))
    found = diagnosed([path], **options)
    return side(path.name, found.several[0])


def is_file_of_counts(path: Path) -> bool:
    """Whether a file holds counts that microbench wrote."""
    with suppress(OSError), path.open("rb") as file:
        return are_counts(file.read(HEAD_BYTES))
    return False


def files_of(named: Sequence[Path]) -> list[Path]:
    """The files that are named, and those of named folders that may be traces. Raises UsageError."""
    files: list[Path] = []
    for path in named:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if one.name.endswith(ENDINGS) and one.is_file())
        if not inside:
            raise UsageError(f"the folder {path} has no trace", f"traces end in {', '.join(ENDINGS)}")
        files += inside
    return files
