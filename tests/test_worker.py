"""Inside a worker: the boundary, one case, ticks, floors; and the protocol as a process speaks it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
import worker_backend

from microbench.core.bench import Benchmark, Measured, discover
from microbench.core.errors import DeviceAbsentError, MeasurementError, Skip, UsageError
from microbench.core.model import Case, Fact, Floors, Metric, Outcome, Telemetry
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import FakeHost, open_fake
from microbench.meter.floors import measure_floors
from microbench.meter.timer import Meter
from microbench.session import messages, worker
from microbench.session.worker import Device, both_ends, measure, open_device

JOB = messages.Job("host", None, "worker_benchmarks", "worker_backend", os.getpid())


def job(seam: str, device: str | None) -> messages.Job:
    return msgspec.structs.replace(JOB, seam=seam, device=device)


def order(case: Case, device: str | None = None) -> messages.Order:
    return messages.Order(case, session=1, round=2, device=device, seconds=0.01)


def lines(*orders: messages.Order) -> list[bytes]:
    return [msgspec.json.encode(one) for one in orders]


def refusal(error: BaseException) -> messages.Refused:
    def fail() -> None:
        raise error

    found = worker.guarded(fail)
    assert isinstance(found, messages.Refused)
    return found


def test_the_boundary_puts_every_error_into_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.guarded(lambda: 7) == 7
    assert refusal(Skip("needs 9.0")) == messages.Refused("skipped", "needs 9.0")
    assert refusal(MeasurementError("wrong")) == messages.Refused("failed", "wrong")
    assert refusal(DeviceAbsentError("gone", "look")) == messages.Refused("failed", "gone", "look", 3)
    assert refusal(UsageError("what", "ask")).exit_code == 2
    assert capsys.readouterr().err == ""
    odd = refusal(ZeroDivisionError("by zero"))
    assert odd.reason.startswith("ZeroDivisionError: by zero (test_worker.py:")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_the_boundary_does_not_hold_what_ends_a_process(error: BaseException) -> None:
    with pytest.raises(type(error)):
        refusal(error)


def test_a_case_is_measured_with_its_parameters() -> None:
    host = worker_backend.TinyHost()
    outcome = measure(
        discover("worker_benchmarks")["calm"], Device(host, host.clock), Meter(host.clock),
        order(Case("calm", {"size": 3})),
    )  # fmt: skip
    assert (outcome.status, outcome.session, outcome.round, outcome.device) == ("ok", 1, 2, None)
    assert outcome.measurements[0].values[0] == pytest.approx(3e-6)
    assert [fact.name for fact in outcome.facts] == ["process", "threads"]


def test_a_case_of_a_gpu_is_a_scope_with_telemetry_at_both_ends_even_if_it_fails() -> None:
    gpu = worker_backend.TinyGpu("GPU-one")

    def failing(device: object, meter: Meter) -> Iterator[Measured]:
        gpu.done.append("measured")
        yield Fact("one", 1)
        raise MeasurementError("wrong")

    benchmark = Benchmark("", (Metric("seconds", "time", "s", ""),), measure=failing, name="one")
    with pytest.raises(MeasurementError):
        measure(benchmark, Device(gpu, gpu.clock, gpu), Meter(gpu.clock), order(Case("one"), "GPU-one"))  # type: ignore[arg-type]
    assert gpu.done == ["begin", "telemetry", "measured", "end"]


def test_telemetry_joins_both_ends() -> None:
    before = Telemetry(sm_clock_begin_hz=1.98e9, temperature_c=40, throttle_reasons=("idle", "power"))
    after = Telemetry(sm_clock_begin_hz=1.80e9, temperature_c=60, power_w=300, throttle_reasons=("power", "brake"))
    joined = both_ends(before, after)
    assert (joined.sm_clock_begin_hz, joined.sm_clock_end_hz) == (1.98e9, 1.80e9)
    assert (joined.temperature_c, joined.power_w) == (60, 300)
    assert joined.throttle_reasons == ("idle", "power", "brake")


def test_ticks_are_seldom_and_the_first_comes_at_once() -> None:
    sent: list[messages.Message] = []
    tick = worker.throttled(sent.append, every_s=3600)
    for n in range(100):
        tick("submit", n, 1e-6)
    assert sent == [messages.Tick("submit", 0, 1e-6)]
    tick = worker.throttled(sent.append, every_s=0)
    tick("submit", 1, 1e-6)
    tick("submit", 2, 1e-6)
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("seam", "kind"),
    [("host", worker_backend.TinyHost), ("gpu", worker_backend.TinyGpu), ("cold", worker_backend.TinyCold)],
)
def test_a_seam_opens_its_own_device(seam: str, kind: type) -> None:
    device = open_device(job(seam, "GPU-one"))
    assert isinstance(device.target, kind)
    assert (device.gpu is not None) == (seam == "gpu")
    assert device.clock.now_ns() <= device.clock.now_ns()


@pytest.fixture(autouse=True)
def unpinned() -> Iterator[None]:
    """A worker pins itself; the process of the tests is not to stay so."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def served(one: messages.Job, *orders: messages.Order) -> list[messages.Message]:
    sent: list[messages.Message] = []
    worker.serve(one, iter(lines(*orders)), sent.append)
    return sent


def results(sent: list[messages.Message]) -> list[Outcome]:
    return [message.outcome for message in sent if isinstance(message, messages.CaseDone)]


def test_the_first_case_of_a_benchmark_says_that_it_may_be_long() -> None:
    sent = served(JOB, order(Case("calm", {"size": 1})), order(Case("calm", {"size": 2})))
    kinds = [type(message) for message in sent if not isinstance(message, messages.Tick)]
    assert kinds == [
        messages.Busy, messages.Ready, messages.Busy, messages.CaseDone, messages.CaseDone,
    ]  # fmt: skip


def test_a_worker_leaves_after_its_first_failure_but_not_after_a_skip() -> None:
    ways = ("skip", "nothing", "fail", "nothing")
    sent = served(JOB, *(order(Case("wild", {"how": how})) for how in ways))
    assert [outcome.status for outcome in results(sent)] == ["skipped", "ok", "failed"]


def test_a_worker_takes_the_next_order_only_when_it_has_answered() -> None:
    sent: list[messages.Message] = []
    answered: list[int] = []

    def orders() -> Iterator[bytes]:
        for size in (1, 2, 3):
            answered.append(len(results(sent)))
            yield lines(order(Case("calm", {"size": size})))[0]

    worker.serve(JOB, orders(), sent.append)
    assert answered == [0, 1, 2]


def test_a_device_that_does_not_open_is_refused() -> None:
    assert served(job("gpu", "GPU-refusing"))[-1] == messages.Refused("skipped", "this GPU does not like us")
    sent = served(msgspec.structs.replace(JOB, backend="no_such_module"))
    assert isinstance(sent[-1], messages.Refused)
    assert "no_such_module" in sent[-1].reason


def probed(device: str | None) -> list[messages.Message]:
    sent: list[messages.Message] = []
    worker.probe(job("probe", device), sent.append)
    return [message for message in sent if not isinstance(message, messages.Busy)]


def test_a_probe_tells_the_machine_then_the_floors_as_far_as_they_go() -> None:
    environment, floors, end = probed("one")  # the tiny GPU has nothing to measure its floors with
    assert isinstance(environment, messages.Probed)
    assert environment.environment.gpus[0].uuid == worker_backend.ONE
    assert isinstance(floors, messages.FloorsFound)
    assert floors.floors == Floors(timer_step_s=pytest.approx(30e-9), timer_call_s=pytest.approx(30e-9))
    assert end == messages.Ready()


def test_a_probe_passes_on_why_a_device_is_absent() -> None:
    assert probed("absent") == [messages.Refused("failed", "absent is not here", "plug it in", 3)]


def test_floors_find_the_costs_that_the_simulation_was_built_with() -> None:
    costs = FakeCosts()
    floors = measure_floors(FakeHost(costs, spread=0), open_fake(costs, spread=0))
    assert floors.timer_call_s == pytest.approx(costs.timer_call_ns * 1e-9, rel=0.1, abs=costs.timer_step_ns * 1e-9)
    assert floors.timer_step_s is not None
    for floor_s in (floors.empty_submit_s, floors.event_pair_s, floors.idle_sync_s):
        assert floor_s is not None
        assert 1e-8 < floor_s < 1e-4
    assert floors.idle_sync_s < floors.empty_submit_s  # type: ignore[operator]


class CoarseHost(worker_backend.TinyHost):
    def clock_stamps(self, count: int) -> worker_backend.IntArray:
        return super().clock_stamps(count) * 50 // 30 // 1000 * 1000


def test_a_coarse_clock_has_its_step_and_its_mean_cost() -> None:
    floors = measure_floors(CoarseHost())  # type: ignore[arg-type]
    assert floors.timer_step_s == pytest.approx(1e-6)
    assert floors.timer_call_s == pytest.approx(50e-9, rel=0.01)


def speak(one: messages.Job, *orders: bytes) -> tuple[list[dict[str, object]], str, int]:
    """Everything a real worker answers, what it says on standard error, and its exit code."""
    text = b"\n".join((msgspec.json.encode(one), *orders, b""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "microbench.session.worker"]
    ended = subprocess.run(command, input=text, capture_output=True, env=environment, timeout=60, check=False)
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    return answers, ended.stderr.decode(), ended.returncode


def test_a_worker_speaks_lines_of_json_and_nothing_else_on_its_stream() -> None:
    answers, errors, code = speak(JOB, *lines(order(Case("wild", {"how": "print"}))))
    kinds = [answer["type"] for answer in answers if answer["type"] != "tick"]
    assert kinds == ["busy", "ready", "busy", "done"]
    assert "rubbish without an end" in errors
    assert "from a child" in errors
    assert code == 0


def test_a_worker_does_not_outlive_the_parent_that_it_was_told_of() -> None:
    answers, errors, code = speak(msgspec.structs.replace(JOB, parent_pid=1))
    assert answers == []
    assert (code, "the parent is gone" in errors) == (1, True)


def test_a_case_that_was_never_ordered_right_ends_the_worker() -> None:
    answers, errors, code = speak(JOB, b'{"case":')
    assert [answer["type"] for answer in answers] == ["busy", "ready"]
    assert code == 1
    assert "DecodeError" in errors
