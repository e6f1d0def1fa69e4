"""Tests of whose the host code is in which a GPU idles, and of the stacks of functions that idle time passes in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call
from make_trace import Recorder, kineto
from test_diagnose import diagnosed

from microbench.core.errors import ExitCode
from microbench.diagnosis.idle import BETWEEN, Idle, Where
from microbench.diagnosis.owners import BUILT_IN, ELSEWHERE, LIBRARY, OPERATORS, OWN, Owner, owner_of, owners
from microbench.diagnosis.stacks import idle_stacks


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
        ("threading.py(1016): _bootstrap", LIBRARY),
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
        ("python3.12/threading.py Thread.start", LIBRARY),
        ("<frozen importlib._bootstrap>(1390): _handle_fromlist", LIBRARY),
        ("main thread at train.py:90 step", ELSEWHERE),
        ("forward", "forward"),
    ],
)
def test_a_name_has_an_owner(name: str, owner: str) -> None:
    assert owner_of(name) == owner


def test_owners_have_the_sum_of_their_code_and_name_its_largest_piece() -> None:
    pieces = {"aten::mm": 2.0, "train.py:8 step": 4.0, "aten::add": 3.0}
    places = tuple(Where(BETWEEN, name, seconds) for name, seconds in pieces.items())
    other = Where("launch calls", "cudaLaunchKernel", 9.0)
    assert owners(Idle(0, 20.0, 2.0, {}, (*places, other), 1)) == [
        Owner(OPERATORS, 5.0, "aten::add"),
        Owner(OWN, 4.0, "train.py:8 step"),
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
    stacks = idle_stacks(found)
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
    stacks = idle_stacks(diagnosed(made))
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
