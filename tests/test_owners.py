"""Tests of whose the host code is in which a GPU idles, and of the stacks of functions that idle time passes in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call
from make_trace import Recorder, kineto
from test_diagnose import costs, diagnosed

from microbench.core.errors import ExitCode
from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.idle import BETWEEN, Idle
from microbench.diagnosis.owners import (
    BUILT_IN,
    ELSEWHERE,
    GARBAGE,
    IMPORTS,
    LIBRARY,
    NAMELESS,
    OPERATORS,
    OWN,
    Owner,
    owner_of,
    owners,
)  # fmt: skip
from microbench.diagnosis.words import owner_words
from microbench.report.sheets.diagnosis import answer
from microbench.traces.trace import Samples


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("train.py:88 step", OWN),
        ("models/net.py:3 conv2", OWN),
        ("train.py(88): step", OWN),
        ("/home/me/project/train.py(88): step", OWN),
        ("torch/nn/modules/module.py Module._call_impl", "torch.nn modules"),
        ("torch/nn/modules/module.py(1747): _call_impl", "torch.nn modules"),
        ("/usr/lib/python3/dist-packages/torch/nn/functional.py(88): linear", "torch.nn modules"),
        ("nn.Module: Linear_0", "torch.nn modules"),
        ("torch/optim/adam.py Adam.step", "torch.optim"),
        ("torch/_inductor/utils.py call", "torch.compile"),
        ("torch/functional.py(48): broadcast_tensors", "torch"),
        ("transformers/models/vit/modeling_vit.py(407): forward", "transformers"),
        ("diffrax/_integrate.py diffeqsolve", "diffrax"),
        ("library.py wait", "library"),
        ("aten::addmm", OPERATORS),
        ("autograd::engine::evaluate_function: AddmmBackward0", OPERATORS),
        ("AddmmBackward0", OPERATORS),
        ("<built-in method astype of numpy.ndarray object at 0x7cbf780f01b0>", BUILT_IN),
        ("threading.py(1016): _bootstrap", "Python's threading"),
        ("python3.12/queue.py Queue.get", "waiting in a lock or a queue"),
        ("python3.12/threading.py Condition.wait", "waiting in a lock or a queue"),
        ("threading.py(355): wait", "waiting in a lock or a queue"),
        ("<built-in method acquire of _thread.lock object at 0x7cbf>", "waiting in a lock or a queue"),
        ("self.lock.acquire at train.py:7 Loader.next", "waiting in a lock or a queue"),
        ("time.sleep at train.py:88 step", "waiting in a sleep"),
        ("<built-in function sleep>", "waiting in a sleep"),
        ("sock.recv at train.py:8 step", "waiting in a socket or a pipe"),
        ("/usr/lib/python3.12/selectors.py(468): select", "waiting in a socket or a pipe"),
        ("python3.12/multiprocessing/connection.py wait", "waiting in a socket or a pipe"),
        ("os.write at log.py:3 tell", "waiting in a file"),
        ("python3.12/subprocess.py Popen._wait", "waiting in a process"),
        ("python3.12/threading.py Thread.start", "Python's threading"),
        ("<frozen importlib._bootstrap>(1390): _handle_fromlist", IMPORTS),
        ("<frozen runpy>(88): _run_code", LIBRARY),
        ("/usr/lib/python3.12/json/decoder.py(353): raw_decode", "Python's json"),
        ("main thread at train.py:90 step", ELSEWHERE),
        ("forward", "forward"),
    ],
)
def test_a_name_has_an_owner(name: str, owner: str) -> None:
    assert owner_of([name]) == (owner, name)


@pytest.mark.parametrize(
    ("names", "owner", "most"),
    [
        (["train.py(3): load", "<built-in function perf_counter>"], OWN, "train.py(3): load"),
        (["torch/nn/functional.py(9): linear", "<built-in function linear>", "aten::addmm"], OPERATORS, "aten::addmm"),
        (["train.py(3): load", "json/__init__.py(299): loads", "re/__init__.py(8): sub"],
         "Python's json", "re/__init__.py(8): sub"),
        (["train.py:3 load", "json/decoder.py JSONDecoder.decode", GARBAGE], GARBAGE, GARBAGE),
        (["train.py:3 load", "python3.12/queue.py Queue.get", "python3.12/queue.py Queue._get"],
         "Python's queue", "python3.12/queue.py Queue._get"),
        (["train.py:3 load", "<frozen importlib._bootstrap> _find_and_load", "inspect.py <module>"],
         IMPORTS, "train.py:3 load"),
        ([], NAMELESS, ""),
    ],
)  # fmt: skip
def test_a_stack_has_the_owner_that_can_change_it(names: list[str], owner: str, most: str) -> None:
    assert owner_of(names) == (owner, most)


def test_owners_have_the_sum_of_their_code_and_name_its_largest_piece() -> None:
    pieces = {"aten::mm": 2, "train.py:8 step": 4, "aten::add": 3}
    stacks = {(BETWEEN, "step", name): round(seconds * 1e9) for name, seconds in pieces.items()}
    stacks["launch calls", "cudaLaunchKernel"] = 9_000_000_000
    assert owners(Idle(0, 20.0, 2.0, {}, (), 1, stacks_ns=stacks)) == [
        Owner(OPERATORS, 5.0, "aten::add", 3.0),
        Owner(OWN, 4.0, "train.py:8 step", 4.0),
    ]


def nested() -> Recorder:
    """Steps whose host time lies in functions of functions, and that wait."""
    made = Recorder()
    for step in range(12):
        with made.range(f"step#{step}", "annotation"):
            made.runs(1000)
            with made.range("train.py(8): step", "python"):
                for kernel in range(5):
                    with made.range("torch/nn/modules/linear.py(130): forward", "python"):
                        made.runs(20_000)
                        with made.range("aten::addmm"):
                            made.runs(10_000)
                            made.launch(f"kernel_{kernel}", 2000)
                made.runs(30_000)
        made.wait()
    return made


def test_stacks_add_up_to_the_idle_time_and_name_all_functions() -> None:
    found = diagnosed(nested())
    stacks = found.idle.stacks_ns
    assert sum(stacks.values()) == round(found.idle.idle_s * 1e9)
    for cause, seconds in found.idle.causes.items():
        assert sum(ns for stack, ns in stacks.items() if stack[0] == cause) == round(seconds * 1e9)
    between, steps = BETWEEN, found.steps.count
    own, module = "train.py(8): step", "torch/nn/modules/linear.py(130): forward"
    assert stacks[between, "step", own, module] == pytest.approx(steps * 5 * 20_000, rel=0.2), "less the kernels"
    assert stacks[between, "step", own, module, "aten::addmm"] == steps * 5 * 10_000
    launches = next(ns for stack, ns in stacks.items() if stack[-1] == "cudaLaunchKernel")
    assert launches == steps * 5 * 3000


def test_a_range_that_ends_after_the_one_in_which_it_began_is_not_of_it() -> None:
    """PyTorch's profiler begins an annotation within the function that begins it."""
    made = Recorder()
    for _ in range(12):
        enter_ns = made.now_ns
        made.runs(2000)
        with made.range("annotated", "annotation"):
            made.runs(1000)
            made.ranges.append((enter_ns, made.now_ns, made.name("enter.py(1): enter"), made.thread, 2))
            made.launches(5, between_ns=20_000)
    stacks = diagnosed(made).idle.stacks_ns
    assert any(stack[1:] == ("annotated",) for stack in stacks)
    assert not any(stack[1:3] == ("enter.py(1): enter", "annotated") and ns > 12_000 for stack, ns in stacks.items())


def test_speedscope_has_a_weighted_stack_for_each_piece(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.json", tmp_path / "idle.speedscope.json"
    trace.write_bytes(kineto(nested().trace()))
    assert call("diagnose", str(trace), "--speedscope", str(file)).exit_code == ExitCode.MEASURED
    written = json.loads(file.read_text())
    (profile,) = written["profiles"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "seconds", 0)
    assert len(profile["samples"]) == len(profile["weights"]) > 5
    assert profile["endValue"] == pytest.approx(sum(profile["weights"]))
    names = [frame["name"] for frame in written["shared"]["frames"]]
    assert {names[place] for stack in profile["samples"] for place in stack} == set(names)
    assert call("diagnose", str(trace), "--speedscope", str(file)).exit_code == ExitCode.USAGE, "it is there already"
    assert call("diagnose", str(trace), str(trace), "--speedscope", "x").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("duration_ns", "then_us"), [(2000, 70), (18_000, 94)])
def test_a_step_without_an_owner_is_played(duration_ns: int, then_us: float) -> None:
    """Five launches, each with 20 us of a slow function and 11 us of other code; then the GPU may be the limit."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(5):
            with made.range("train.py(8): step", "python"):
                made.runs(11_000)
                with made.range("hooks/slow.py(3): hook", "python"):
                    made.runs(20_000)
                made.launch(f"kernel_{kernel}", duration_ns)
    found = diagnosed(made, step_s=5 * 34e-6)
    without = found.without["hooks"]
    assert without.step_s == pytest.approx(then_us * 1e-6, rel=0.03)
    assert without.speedup == pytest.approx(170 / then_us, rel=0.03)
    assert without.speedup_low <= without.speedup <= without.speedup_high < 1.1 * without.speedup
    (hooks,) = (one for one in owners(found.idle) if one.name == "hooks")
    assert ("then the GPU is the limit" in owner_words(found, hooks)) == (duration_ns > 2000)
    assert max(one["without"]["speedup"] for one in answer(found)["owners"] if one["without"]) == without.speedup


def test_few_samples_leave_the_gain_unsure() -> None:
    made = Recorder()
    for _ in range(12):
        made.runs(500_000)
        for kernel in range(5):
            with made.range("hooks/slow.py hook", "function"):
                made.runs(200_000)
            made.launch(f"kernel_{kernel}", 2000)
    surely = diagnosed(made, step_s=1515e-6).without["hooks"]
    sampled = made.trace(format="microbench recording", samples=Samples(6, 0, 2_000_000))
    unsure = diagnose(sampled, costs(), 1515e-6).without["hooks"]
    assert unsure.speedup == pytest.approx(surely.speedup)
    assert unsure.speedup_low < 0.9 * surely.speedup_low
    assert unsure.speedup_high > 1.1 * surely.speedup_high


def test_of_steps_at_the_pace_of_something_else_only_waiting_can_be_left_out() -> None:
    made = Recorder()
    for step in range(30):
        with made.range("aten::op"):
            made.runs(500_000 + 40_000 * (step % 5))
        made.launch("kernel", 2000)
        with made.range("threading.py(355): wait", "python"):
            made.runs(3_000_000 - 40_000 * (step % 5))
        made.launch("other", 2000)
    found = diagnosed(made)
    assert found.recorded.paced_s is not None
    assert set(found.without) == {"waiting in a lock or a queue"}
    assert found.without["waiting in a lock or a queue"].speedup > 4
