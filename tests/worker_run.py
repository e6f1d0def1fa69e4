"""Runs the benchmarks of worker_benchmarks on the devices of worker_backend, in real worker processes: for tests."""

from microbench.core.model import Outcome, Settings
from microbench.session.messages import Event
from microbench.session.process import Patience
from microbench.session.request import RunRequest
from microbench.session.session import RunResult, Seams, execute

PATIENT = Patience(silent_s=20, busy_s=20, leave_s=5, killed_s=5)


class Recorder:
    def __init__(self, interrupt_at: type | None = None) -> None:
        self.events: list[Event] = []
        self.interrupt_at = interrupt_at

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.interrupt_at is not None and isinstance(event, self.interrupt_at):
            raise KeyboardInterrupt

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def run(
    *names: str,
    listener: Recorder | None = None,
    patience: Patience = PATIENT,
    how: str | None = None,
    backend: str = "worker_backend",
    **more: object,
) -> RunResult:
    overrides = {"how": tuple(how.split(","))} if how else {}
    preset = str(more.pop("preset", "quick" if names and "resume" not in more else "default"))
    where = {name: more.pop(name) for name in ("out", "into", "resume") if name in more}
    settings = Settings(preset, names, overrides, **more)  # type: ignore[arg-type]
    request = RunRequest(settings, **where)  # type: ignore[arg-type]
    seams = Seams("worker_benchmarks", backend, patience)
    return execute(request, listener or Recorder(), seams)


def outcomes(result: RunResult) -> list[Outcome]:
    return list(result.run.outcomes)


def only(result: RunResult) -> Outcome:
    assert len(result.run.outcomes) == 1
    return result.run.outcomes[0]


def fact(outcome: Outcome, name: str) -> object:
    return next(one.value for one in outcome.facts if one.name == name)
