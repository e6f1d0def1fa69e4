"""`microbench graph`: what stops a capture is named, wrong graphs are refused, sound ones proved and handed over.

PyTorch's graphs are played on the CPU; the same functions run on a GPU in lab/graph_traps.py.
"""

from __future__ import annotations

import contextvars
import copy
import datetime
import enum
import gc
import importlib
import importlib.util
import io
import itertools
import logging
import os
import pickle
import random
import re
import subprocess
import sys
import weakref
from collections import Counter, UserDict, defaultdict, deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import numpy as np
import pytest

from microbench.capture.handover import change, change_parts, why_not_applied

torch = pytest.importorskip("torch", reason="needs PyTorch")
from played_graphs import PlayedGraph, played  # noqa: E402, F401

LAB = Path(__file__).parent.parent / "lab"
spec = importlib.util.spec_from_file_location("graph_traps", LAB / "graph_traps.py")
assert spec is not None
assert spec.loader is not None
graph_traps: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(graph_traps)
graph_traps.DEVICE = "cpu"
# What only a GPU shows: copies between two memories, GPU generators, batch norm's state, Adam's state on the GPU.
OF_A_GPU = {
    "random_of_the_host", "makes_a_tensor_from_a_list", "copies_to_the_host", "batch_norm", "adam_capturable",
    "adamw_fused", "rmsprop_capturable", "rate_on_the_gpu", "prints", "tensor_of_the_host",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("played", "short")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.capture import making, proof

    monkeypatch.setattr(proof, "CALLS", 24)
    monkeypatch.setattr(making, "ROUND_S", 0.001)
    torch.manual_seed(1)


def test_a_tensor_of_one_number_is_varied_too() -> None:
    from microbench.capture.proof import draw, generator

    rate = torch.tensor(1e-3)
    drawn = {draw(rate, generator(seed)).item() for seed in range(20)}
    assert draw(rate, generator(1)).shape == rate.shape
    numbers = torch.arange(3)
    with torch.device("meta"):  # as torch.set_default_device("cuda") makes it another one
        assert draw(rate, generator(1)).is_cpu == draw(numbers, generator(1)).is_cpu is True
    assert len(drawn) > 10
    assert 0.499e-3 <= min(drawn) < max(drawn) <= 1.501e-3


@pytest.mark.parametrize("name", [one for one in graph_traps.TRAPS if one not in OF_A_GPU])
def test_a_function_whose_graph_is_wrong_is_refused_with_its_reason(name: str) -> None:
    maker, wanted = graph_traps.TRAPS[name]
    report = graph_traps.report_of(maker)
    assert not report.proved
    assert re.search(wanted, graph_traps.said(report)), graph_traps.said(report)


@pytest.mark.parametrize("name", [one for one in graph_traps.SOUND if one not in OF_A_GPU])
def test_a_sound_function_is_proved_and_bit_by_bit(name: str) -> None:
    report = graph_traps.report_of(graph_traps.SOUND[name])
    assert report.proved, graph_traps.said(report)
    assert report.exact
    assert report.counts["replays"] >= 20


@pytest.mark.parametrize("name", [one for one in graph_traps.SETTINGS if one not in OF_A_GPU])
def test_a_setting_that_the_caller_changes_between_calls_is_noticed(name: str) -> None:
    report = graph_traps.report_of(graph_traps.SETTINGS[name])
    assert report.proved, graph_traps.said(report)
    assert report.exact
    assert graph_traps.notices(graph_traps.SETTINGS[name])


def examined(function: Any, *arguments: Any) -> Any:
    return graph_traps.report_of(lambda: (function, arguments))


def load_module(path: Path, text: str) -> Any:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def test_every_call_in_the_way_is_named_with_its_line() -> None:
    def step(a: Any) -> Any:
        if a.sum().item() > 1e9:
            return a
        b = a[a > 0]
        torch.cuda.synchronize()
        return b.sum()

    report = examined(step, torch.randn(8))
    assert [one.kind for one in report.blockers] == ["item", "sizes", "wait"]
    assert ["test_capture.py" in one.line for one in report.blockers] == [True] * 3
    assert report.rest is not None
    assert report.rest.why == "", "without them it can be captured"


@pytest.mark.parametrize(("each", "kinds"), [(1, ["item", "setting"]), (1000, ["item"])])
def test_a_rate_that_the_step_sets_anew_is_named_beside_the_other_calls(each: int, kinds: list[str]) -> None:
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    held = Space(calls=0)

    def step(a: Any) -> float:
        held.calls += 1
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + held.calls // each)
        optimizer.zero_grad()
        loss = (weight * a).square().sum()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    report = examined(step, torch.ones(8))
    assert [one.kind for one in report.blockers] == kinds
    if each == 1:
        assert report.blockers[1].call == "SGD's lr"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda group, calls: group.update(lr=group["lr"] * 0.9), True),
        (lambda group, calls: group.update(lr=0.5 if calls == 1 else torch.tensor(0.5)), True),
        (lambda group, calls: group.update(betas=(0.9 / calls, 0.99)), True),
        (lambda group, calls: group.setdefault("initial_lr", 0.1), False),
        (lambda group, calls: group.update(foreach=calls > 1), False),
        (lambda group, calls: group.update(weight_decay=float("nan")), False),
        (
            lambda group, calls: group.update(lr=1 / calls) or [][calls - 1 :][0] if calls > 1 else group.update(lr=2),
            False,
        ),
    ],
)
def test_what_a_step_does_to_settings_ends_no_look_for_blockers(change: Any, named: bool) -> None:
    from microbench.capture.blockers import blockers

    optimizer = torch.optim.SGD([{"params": [torch.ones(2, requires_grad=True)], "betas": (0.5, 0.9)}], lr=1)
    held = Space(calls=0)

    def step() -> None:
        held.calls += 1
        change(optimizer.param_groups[0], held.calls)

    assert [one.kind for one in blockers(step, step, [optimizer]).blockers] == ["setting"] * named


def test_a_call_of_a_library_or_of_a_backward_pass_is_named_with_what_helps(tmp_path: Path) -> None:
    text = "def without(a):\n    return a[a > 0]\n"
    loops = load_module(tmp_path / "site-packages" / "torch_geometric" / "loops.py", text)
    weight = torch.ones(8, requires_grad=True)

    def step(a: Any) -> Any:
        kept = loops.without(a).sum()
        (a * weight)[a > 0].sum().backward()
        return kept

    report = examined(step, torch.ones(8))
    assert "add_self_loops=False" in report.blockers[0].advice
    assert "kept = loops" in report.blockers[0].line
    assert report.blockers[0].within == "torch_geometric/loops.py:2 without"
    assert ["backward()" in one.line for one in report.blockers[1:]] == [True, True]


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("of_an_operation", r"cos at test_capture.py:\d+ in of_an_operation: .*, fast_layers/layers.py:2 turned"),
        ("of_a_backward_pass", r"sin at test_capture.py:\d+ in of_a_backward_pass: .*backward\(\)"),
        ("of_another_library", r"append at test_capture.py:\d+ in of_another_library: .*allocate\(1\)"),
    ],
)
def test_what_ends_a_capture_is_named_with_its_line(
    name: str, says: str, blocked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import played_graphs

    from microbench.capture import blockers, graphed

    layers = load_module(
        tmp_path / "site-packages" / "fast_layers" / "layers.py", "def turned(a):\n    return a.cos()\n"
    )
    ended: list[Any] = []
    weight = torch.ones(8, requires_grad=True)

    class Breaking(played_graphs.Recording):
        def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if ended:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            result = super().__torch_dispatch__(function, kinds, args, kwargs)
            if function.overloadpacket.__name__ == ("sin" if name == "of_a_backward_pass" else "cos"):
                ended.append(function)
            return result

    def of_an_operation(a: Any) -> Any:
        return layers.turned(a) + 1

    def of_a_backward_pass(a: Any) -> Any:
        (a * weight).cos().sum().backward()
        return a * 2

    def of_another_library(a: Any) -> Any:
        allocate = ended.append if torch.cuda.is_current_stream_capturing() else [].append
        b = a * 2
        allocate(1)
        return b + 1

    def step(a: Any) -> Any:
        ended.clear()
        if blocked:
            a = a[a > -9]
        return locals_of[name](a)

    locals_of = {one.__name__: one for one in (of_an_operation, of_a_backward_pass, of_another_library)}
    monkeypatch.setattr(played_graphs, "Recording", Breaking)
    monkeypatch.setattr(blockers, "broken", lambda stream: bool(ended))
    monkeypatch.setattr(graphed, "after_failure", lambda stream: ended.clear())
    report = examined(step, torch.randn(8))
    assert not report.proved
    assert re.search(says, report.rest.why if blocked else report.why), report


def test_a_trial_that_breaks_the_gpu_leaves_the_calls_that_were_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the calls in the way a step may read beyond its data. That is no fault of the function."""
    import msgspec

    from microbench.capture import blockers, making

    (tmp_path / "site-packages" / "layers").mkdir(parents=True)
    (tmp_path / "site-packages" / "layers" / "masks.py").write_text("def kept(a):\n    return a[a > 0]\n")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom layers.masks import kept\ndef step():\n    return kept(torch.ones(8))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")

    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(blockers, "rest", broken)
    asked = tmp_path / "asked.json"
    asked.write_bytes(msgspec.json.encode(making.Asked(f"{tmp_path / 'train.py'}::step")))
    making.main(asked)
    report = msgspec.json.decode(asked.read_bytes(), type=making.Report)
    assert (report.error, report.rest) == ("", None)
    assert [(one.kind, one.within) for one in report.blockers] == [("sizes", "layers/masks.py:2 kept")]
    assert report.blockers[0].advice.startswith("look in layers for an option")


def test_the_checks_of_a_distribution_are_named_with_what_turns_them_off() -> None:
    def step(a: Any) -> Any:
        return torch.distributions.Normal(a, 1.0).sample()

    blocker = examined(step, torch.ones(8)).blockers[0]
    assert "validate_args=False" in blocker.advice
    assert blocker.within.startswith("torch/distributions/")


def test_an_installed_microbench_is_not_the_library_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from microbench.capture import blockers

    monkeypatch.setattr(blockers, "HERE", str(tmp_path / "site-packages" / "microbench" / "capture"))
    text = "import sys\ndef asked(library):\n    return library(sys._getframe())\n"
    ours = load_module(tmp_path / "site-packages" / "microbench" / "capture" / "ours.py", text)
    theirs = load_module(
        tmp_path / "site-packages" / "torch_geometric" / "loops.py",
        "def call(asked, library):\n    return asked(library)\n",
    )
    assert ours.asked(blockers.library) == ""
    assert theirs.call(ours.asked, blockers.library) == "torch_geometric"
    theirs = load_module(
        tmp_path / "site-packages" / "torch_geometric" / "nn" / "aggr" / "base.py",
        "def call(asked, library):\n    return asked(library)\n",
    )
    assert "dim_size" in blockers.SWITCHES[theirs.call(ours.asked, blockers.library)]


def test_a_function_that_differs_from_itself_by_more_than_rounding_is_not_repeatable() -> None:
    from microbench.capture.proof import NOT_REPEATABLE, Both

    turn = itertools.count()
    both = Both(lambda a: a * 2 if next(turn) % 2 else a * 1, lambda a: a * 1)
    for _ in range(5):
        both.call((torch.randn(8),), {})
    assert both.why == "", "each call of the graph equals the function's first one"
    assert both.over_scatter()[0] == NOT_REPEATABLE


@pytest.mark.parametrize(("apart", "says"), [(1.0, ""), (5.0, "the graph computes something else")])
def test_noise_that_a_function_leaves_is_compared_with_its_own(apart: float, says: str) -> None:
    from microbench.capture.proof import Both

    # As the bias before a batch norm, whose gradient is a sum of terms that cancel out.
    state, turn = {f"weight{number}": torch.ones(4) for number in range(40)}, itertools.count()

    def step(a: Any, of: float = 1.0) -> Any:
        state["weight7"].copy_(torch.tensor([1.0, -1.0, 1.0, -1.0]) * (of if next(turn) % 2 else 0.5))
        return a * state["weight3"]

    both = Both(step, lambda a: step(a, apart))
    for _ in range(6):
        both.call((torch.randn(4),), {})
        assert both.why == ""
    assert both.over_scatter()[0] == says
    assert (both.noise, both.widest) == (["state['weight7']"], 0.0)
    turns = iter([0, 0, 1, *[0, 1, 0, 0], 1])  # the function, again, its graph; four calls that show noise; the graph
    both = Both(lambda a: noisy(a), lambda a: noisy(a))

    def noisy(a: Any) -> Any:
        state["weight7"].fill_(1.0 + next(turns))
        return a

    both.call((torch.ones(4),), {})
    assert (both.why, both.noise) == ("", ["state['weight7']"]), "two calls may be alike by chance"
    turns = iter([0, 0.0008, 0.0015, *[0] * 4, 0.0015])
    both = Both(noisy, noisy)
    both.call((torch.ones(4),), {})
    assert (both.why, both.noise) == ("", []), "one is rounding, the other is not, and they are near"
    assert both.over_scatter() == ("", None)
    calls = itertools.count()
    both = Both(lambda a: a * (1 + 6e-4 * (next(calls) % 2)), lambda a: a * 1.0015)
    both.call((torch.ones(4),), {})
    assert both.why == "the graph computes something else", "what it returns is no noise"
    outer = Both(lambda a: a * step(a)[0] * (1 + next(turn) % 2), step)
    outer.call((torch.ones(4),), {})
    assert outer.noise == [], "what it returns is no noise"


def test_noise_is_not_taken_for_a_value_that_a_graph_has_frozen() -> None:
    """Its size differs by far from run to run, so that two runs of the function say little of it."""
    generator, held = torch.Generator().manual_seed(6), Space(scale=2.0, offset=1.0, power=1.0, least=-9.0, most=9.0)
    draw = partial(next, (torch.rand(4, generator=generator) for _ in itertools.count()))  # of a state out of reach
    state = {f"weight{number}": torch.ones(4) for number in range(40)}

    def step(a: Any) -> Any:
        state["weight7"].copy_((14 * draw()[0]).exp())
        return ((a * state["weight3"] * held.scale + held.offset) ** held.power).clamp(held.least, held.most)

    report = examined(step, torch.rand(4))
    assert (report.proved, report.why, report.difference) == (True, "", "")
    assert "noise in 1 value, such as state['weight7']" in report.scatter
    assert "held.scale" in report.varied


def test_runs_that_are_alike_by_chance_are_made_again() -> None:
    from microbench.capture.proof import CHANGE_CALLS, Base, Ran
    from microbench.capture.state import After

    def ran(of_weight: float) -> Ran:
        return Ran({CHANGE_CALLS - 1: []}, After({"weight": torch.tensor([1.0, 1.0 + of_weight])}, {}))

    plan = Space(run=lambda *_: ran(0.0))
    base = Base(plan, lambda: None, False, ())
    assert base.feels(ran(0.5))
    later = iter([0.5, 0.52, 0.5])
    assert base.unlike_in(ran(0.5), ran(0.51), lambda: ran(next(later))) == [], "0.01 is less than 0.02"
    assert next(later) == 0.5, "no more runs than needed"
    assert base.feels(ran(0.02)), "what is noise after one change need not be after another"
    runs = iter([ran(0.5)] * 2)
    assert base.unlike_in(ran(0.5), ran(0.8), lambda: next(runs))[0].name == "weight"
    assert next(runs, None) is None, "two that repeat it are enough"
    assert Base(plan, lambda: None, True, ()).unlike_in(ran(0.5), ran(0.51), lambda: ran(0.5))


def test_random_numbers_of_the_host_are_no_noise() -> None:
    """Two calls differ in one tensor. Two replays do not, so the graph has frozen it."""
    from microbench.capture.making import Report, examine
    from microbench.capture.proof import FROZEN_NOISE

    layers, drawn = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)]), torch.zeros(4)

    def step(a: Any) -> Any:
        result = layers(a + drawn).detach()
        drawn.copy_(torch.from_numpy(np.random.default_rng().normal(size=4)).float())
        return result

    report = Report()
    examine(step, ((torch.ones(2, 4),), {}), [], report, lambda stage: None)
    assert (report.proved, report.why) == (False, FROZEN_NOISE)


def test_nothing_of_a_call_is_kept_that_would_break_the_capture() -> None:
    from microbench import graphed
    from microbench.capture.blockers import blockers

    weight, made = torch.ones(4, requires_grad=True), []

    def step(a: Any) -> Any:
        loss = (a * weight).sum()
        made.append(weakref.ref(loss))
        return loss.item() + 1

    gc.disable()
    try:
        blockers(step, lambda: step(torch.ones(4)), [])
        assert made[0]() is None
    finally:
        gc.enable()
    assert not graphed(lambda a: a * weight)(torch.ones(4)).requires_grad, "its gradient belongs to a stream"


def test_a_mask_keeps_its_infinities_when_values_are_drawn() -> None:
    from microbench.capture.proof import draw, generator

    mask = torch.triu(torch.full((8, 8), float("-inf")), 1)
    assert torch.equal(draw(mask, generator(1)), mask)
    nowhere = torch.full((4,), float("nan"))
    assert draw(nowhere, generator(1)).isnan().all()
    mask[0, 0], mask[1, 0] = 1.0, 2.0
    drawn = draw(mask, generator(1))
    assert torch.equal(drawn.isinf(), mask.isinf())
    assert not torch.equal(drawn, mask)
    report = examined(lambda a: (a + mask).softmax(-1), torch.randn(8, 8))
    assert report.proved, graph_traps.said(report)


def test_tensors_of_inference_mode_are_put_back_and_varied() -> None:
    with torch.inference_mode():
        table, counts = torch.randn(16, 4), torch.zeros(16)

    @torch.inference_mode()
    def step(a: Any) -> Any:
        counts.add_(1)
        return a @ table.T + counts

    with torch.inference_mode():
        given = torch.randn(3, 4)
    report = examined(step, given)
    assert report.proved, graph_traps.said(report)
    assert report.varied == ["a", "counts", "table"]
    assert counts.tolist() == [2.0] * 16, "as after the two calls before"


@pytest.mark.parametrize(("seen", "scatter"), [(True, 1.2e-7), (False, 1.2e-7), (True, 1.5e-3)])
def test_scatter_that_shows_before_a_value_changes_does_not_come_from_the_value(
    seen: bool, scatter: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from microbench.capture import graphed, proof

    held, run, turn = Space(rate=2.0), proof.Plan.run, itertools.cycle([0.0, scatter])

    def scattered(plan: Any, call: Any, calls: int, change: Any = None) -> Any:
        ran = run(plan, call, calls, change)
        more = 1 + next(turn) if change is not None or scatter > 1e-3 else 1.0
        return ran._replace(kept={at: [(name, one * more) for name, one in each] for at, each in ran.kept.items()})

    monkeypatch.setattr(proof.Plan, "run", scattered)
    if not seen:
        monkeypatch.setattr(graphed.Reads, "_of_object", lambda *_: None)
    report = examined(lambda a: a * held.rate, torch.randn(64))
    assert report.proved == seen, graph_traps.said(report)
    assert seen or "frozen" in report.why


def test_a_function_that_rounds_differently_each_time_is_compared_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.capture import proof

    monkeypatch.setattr(proof, "CALLS", 60)
    # What turns is out of reach of what is put back.
    turn = partial(next, itertools.cycle([True, False, False, True, False, False, True]))
    weight = torch.ones(64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step(a: Any) -> Any:
        optimizer.zero_grad()
        loss = ((a * weight) if turn() else (a.flip(1) * weight.flip(0))).sum().square()
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = examined(step, torch.randn(32, 64) * 1e-3)
    assert report.proved, graph_traps.said(report)
    assert not report.exact
    assert 0 < float(re.search(r"scatter \((.*)\)", report.scatter)[1]) < 1e-3  # type: ignore[index]
    assert proof.FEW < report.calls < 45, "of the 60 replays some are compared"
    assert report.counts["replays"] >= 55


def attention(a: Any, weight: Any, otherwise: Any) -> Any:
    """Like a library that takes another kernel during a capture."""
    return otherwise(a, weight) if torch.cuda.is_current_stream_capturing() else a @ weight


def in_another_order(a: Any, weight: Any) -> Any:
    return (a.flip(1) * weight.flip(0)).sum(1)


def test_a_library_may_take_another_kernel_under_capture_that_rounds_otherwise() -> None:
    weight, total = torch.randn(512), torch.zeros(32)

    def step(a: Any) -> Any:
        total.add_(attention(a, weight, in_another_order))  # what differs by rounding stays in the state
        return total.clone()

    report = examined(step, torch.randn(32, 512))
    assert report.proved, graph_traps.said(report)
    assert not report.exact
    assert "rounding" in report.scatter


@pytest.mark.parametrize(
    ("otherwise", "by"),
    [
        (lambda a, weight: a @ weight * 1.001, 1),
        (lambda a, weight: a @ weight + 1e-3, 1),
        (lambda a, weight: -(a @ weight), 0),  # an infinity of the other sign
        (lambda a, weight: a @ weight * 0, 0),  # no number
    ],
)
def test_a_library_that_computes_something_else_under_capture_is_refused(otherwise: Any, by: float) -> None:
    weight = torch.randn(512)
    report = examined(lambda a: attention(a, weight, otherwise) / by, torch.randn(32, 512))
    assert not report.proved
    assert "something else" in report.why


def test_a_rare_change_by_hidden_state_is_no_rounding() -> None:
    due = partial(next, itertools.cycle([1] * 3 + [2]))
    report = examined(lambda a: a * due(), torch.ones(4))
    assert not report.proved
    assert "something else" in report.why


def test_what_a_function_does_in_other_ways_now_and_then_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of 4 calls are equal. Two runs of 90 calls are not."""
    from microbench.capture import proof

    monkeypatch.setattr(proof, "CALLS", 90)
    monkeypatch.setattr(proof, "FEW", 4)
    due = partial(next, itertools.cycle([1] * 40 + [2] + [1] * 90))
    report = examined(lambda a: a * due(), torch.ones(4))
    assert (report.proved, report.why) == (False, proof.NOT_REPEATABLE)


def test_of_the_values_at_which_a_graph_looks_settings_of_the_optimizer_are_changed_first() -> None:
    held = Space(**{f"value{number}": float(number + 1) for number in range(30)})
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(a: Any) -> Any:
        optimizer.zero_grad()
        loss = (a * weight).sum() * sum([getattr(held, f"value{number}") for number in range(30)])
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = examined(step, torch.randn(4))
    assert report.proved, graph_traps.said(report)
    assert "optimizer.param_groups[0]['lr']" in report.varied
    assert 0 < sum("held.value" in one for one in report.varied) < 16
    assert sum("more values of the host" in one for one in report.left) == 1


def test_what_a_library_leaves_out_under_capture_is_not_in_the_way() -> None:
    def step(a: Any) -> Any:
        if not torch.cuda.is_current_stream_capturing() and a.isnan().any().item():
            raise ValueError
        return a * 2

    report = examined(step, torch.ones(4))
    assert report.proved, graph_traps.said(report)


DROPPED = """
import torch
def dropped(a):
    drawn = torch.rand(3 if torch.cuda.is_current_stream_capturing() else 4)
    return a + drawn[0]
"""


@pytest.mark.parametrize("folder", ["site-packages/attention", "mine"])
def test_a_library_that_draws_other_random_numbers_under_capture_is_told(folder: str, tmp_path: Path) -> None:
    module = load_module(tmp_path / folder / "layers.py", DROPPED)
    weight = torch.randn(512)
    report = examined(lambda a: module.dropped(a @ weight), torch.randn(32, 512))
    assert report.proved == (folder != "mine"), graph_traps.said(report)
    assert ("draws other random numbers" in report.scatter) == report.proved


def test_a_function_that_repeats_itself_with_deterministic_algorithms_is_compared_bit_by_bit() -> None:
    turn = partial(next, itertools.cycle([True, False, False, True, False, False, True]))
    weight = torch.randn(512)

    def step(a: Any) -> Any:
        ordered = torch.are_deterministic_algorithms_enabled() or turn()
        return a @ weight if ordered else in_another_order(a, weight)

    report = examined(step, torch.randn(32, 512))
    assert (report.proved, report.exact) == (True, True), graph_traps.said(report)
    assert "deterministic" in report.scatter
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_value_that_the_module_names_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "settings_step.py"
    file.write_text(
        "class Config:\n    pass\nconfig = Config()\nconfig.inner = Config()\nconfig.inner.scale = 2.0\n"
        "name = 'sca'\ndef step(a):\n    return a * getattr(config.inner, name + 'le')\n"
    )
    spec = importlib.util.spec_from_file_location("settings_step", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = examined(module.step, torch.randn(8))
    assert report.proved
    assert report.also == ["config.inner.scale"]
    made = change(file, "step", report.also)
    assert made is not None
    assert "+@graphed(also=lambda: (config.inner.scale,))\n" in made.diff


WRITING = """
import csv, io, logging, os, pathlib, sqlite3, subprocess, sys, warnings
import torch
rows = csv.writer(io.StringIO())
table = sqlite3.connect(":memory:")
table.execute("create table steps (number)")
ends = os.pipe()
log = logging.getLogger("a step")
log.addHandler(logging.StreamHandler())
def step(x):
    WRITES
    return x * 2
"""


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("sys.stderr.write('step')", "write"),
        ("log.warning('step')", "write"),
        ("rows.writerow([1])", "writerow"),
        ("table.execute('insert into steps values (1)')", "execute"),
        ("os.write(ends[1], b'1')", "write"),
        ("subprocess.run(['true'])", "fork_exec"),
        ("open('/dev/null', 'w').close()", "open"),
        ("torch.save({'step': 1}, '/dev/null')", "save" if sys.version_info[:2] == (3, 12) else "write_record"),
        ("pathlib.Path('/dev/null').read_text()", "read"),
        ("os.path.exists('/a/stop')", "stat"),
        ("warnings._showwarnmsg_impl(warnings.WarningMessage('old', UserWarning, 'a.py', 1))", ""),
        ("io.StringIO().write('a text of its own')", ""),
    ],
)
def test_what_a_step_does_outside_of_its_process_is_in_the_way(line: str, call: str, tmp_path: Path) -> None:
    module = load_module(tmp_path / "step" / "writes.py", WRITING.replace("WRITES", line))
    report = examined(module.step, torch.randn(8))
    told = {(one.kind, one.call, one.line) for one in report.blockers}
    assert told >= ({("file", call, f"writes.py:11 in step: {line}")} if call else set())
    assert report.proved is not bool(call)
    module.table.close()
    for end in module.ends:
        os.close(end)


STAYS = """
import torch
history = []
weight = torch.randn(8, 8)
config = {"scale": 2.0}
def step(x, rounds=2):
    y = x @ weight
    for _ in range(rounds):
        y = torch.relu(y) @ weight * config["scale"]
    # what comes in between
    total = y.sum()
    if total.item() > 1e9:
        return y
    y = [each * 2 for each in (y, y + 1)]
    y = torch.sin(y[0] + y[1]) * total
    history.append(y.mean().item())
    out = y.cos().exp()
    out += rounds
    return out.sum() + out.mean() * 3, y
"""


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        (("", ""), ""),
        (("out += rounds", "out += len(history)"), "frozen|something else|replayed"),
        (("y.mean().item())", 'y.mean().item()); config["scale"] += 1'), "the host|replayed|frozen"),
    ],
)
def test_parts_between_calls_that_stay_are_graphs(tmp_path: Path, instead: tuple[str, str], why: str) -> None:
    from microbench.capture import making
    from microbench.capture.proof import Parted, unparted
    from microbench.experiments.own.callables import load

    file = tmp_path / f"stays{abs(hash(instead))}.py"
    file.write_text(STAYS.replace(*instead))
    report = examined(load(f"{file}::step"), torch.randn(4, 8))
    assert [one.at for one in report.blockers] == [12, 16]
    made = change_parts(file, "step", {one.at for one in report.blockers}, report.operations)
    assert made is not None
    assert made.parts == ("_step_part1", "_step_part2", "_step_part3")
    changed = tmp_path / "changed" / file.name.replace("stays", "parted")
    changed.parent.mkdir()
    changed.write_text(made.text)
    (changed.parent / "cuda_graph.py").write_text(made.helper)
    function = load(f"{changed}::step")
    eager = unparted(function, file.read_text(), "step")
    again = making.Report()
    making.examine(
        eager, ((torch.randn(4, 8),), {}), [], again, lambda stage: None, lambda: Parted(function, made.parts), False
    )
    assert again.proved == (not why), graph_traps.said(again)
    assert re.search(why, again.why)
    assert why or (again.exact and again.counts["replays"] >= 20)


def test_a_graphed_function_counts_and_falls_back() -> None:
    from microbench import graphed

    step = graphed(lambda a, b: (a + b).relu(), warm_up=2, most=1)
    given, other = [torch.randn(4, 3) for _ in range(8)], torch.randn(4, 3)
    for one in given:
        assert torch.equal(step(one, other), (one + other).relu())
    assert step.counts == {"warm-ups": 2, "captures": 1, "replays": 6}
    wide = torch.randn(5, 3)
    assert torch.equal(step(wide, wide * 2), (wide * 3).relu())
    assert step.counts["eager"] == 1
    assert list(step.reasons) == ["an input has another shape, type or device, or an argument another value"]


def test_with_check_a_wrong_graph_is_an_error_at_its_first_replay() -> None:
    from microbench import graphed

    state, rate = {number: [0] for number in range(100)}, torch.tensor(0.5)  # too large to be looked at

    def counts(a: Any) -> Any:
        state[99][0] += 1
        return a * state[99][0]

    step = graphed(counts, check=8)
    for _ in range(3):
        step(torch.ones(2))
    assert state[99] == [3], "what the function does besides is done once"
    with pytest.raises(RuntimeError, match=r"values of the host .* state\[99\]\[0\]"):
        [step(torch.ones(2)) for _ in range(3)]
    sound = graphed(check=8)(lambda a: a * rate)
    for number in range(20):
        assert sound(torch.full((2,), float(number))).tolist() == [number / 2] * 2


class Doubled(torch.nn.Module):
    """A layer of the user's with a parameter, a setting, and a layer of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = torch.nn.Parameter(torch.ones(4)), 2.0
        self.last = torch.nn.Sequential(torch.nn.ReLU())

    def forward(self, a: Any) -> Any:
        return self.last(a * self.weight * self.scale)


def held_by_a_model(change: Any) -> Any:
    model = torch.nn.Sequential(Doubled())
    return torch.no_grad()(lambda a: model(a)), lambda: change(model[0])


def read_from(held: Any, function: Any, change: Any) -> Any:
    return (lambda a: function(a, held)), lambda: change(held)


class Way(enum.Enum):
    PLUS = 1
    MINUS = 2


class Written(Space):
    """Its attributes are set in a loop, as Python's specialised code does."""

    def write(self, other: Any = None, d: float = 0.0) -> None:
        for _ in range(50):
            if other is not None:
                self.other = other
            else:
                self.d = d


def many() -> Written:
    held = Written(a=2.0, b=2.0, c=2.0, d=2.0)
    held.write(d=2.0)
    held.write(other=0)
    return held


def sum_of_many(a: Any, held: Any) -> Any:
    return a * (held.a + held.b + held.c + held.d)


def of_a_class(function: Any, change: Any) -> Any:
    """A class whose constructor reads a setting, as its methods do, and one that inherits all."""

    class Made:
        mode = Way.PLUS

        def __init__(self, held: Any) -> None:
            self.by = held.by

        def of(self, a: Any) -> Any:
            return a * self.by if type(self).mode is Way.PLUS else -a

        @classmethod
        def twice(cls, a: Any) -> Any:
            return a * 2

    class Inherits(Made):
        pass

    setting = Space(by=2.0)
    held = Inherits(setting)
    return (lambda a: function(a, held, Made, setting)), lambda: change(Made, Inherits, setting)


class Entries(UserDict[str, float]):
    """With an attribute beside its entries."""

    by = 2.0


def appended(a: Any, held: Any) -> Any:
    values = []
    for one in held:
        values.append(one(a) if callable(one) else a * one)
    return torch.stack(values)


def patched(a: Any, held: Any) -> Any:
    return held(a)


def in_place_of_another(layer: Any) -> None:
    layer.removed.remove()
    layer.register_forward_hook(lambda *given: given[2] * 3)


def hooked() -> Any:
    layer = torch.nn.Identity()
    layer.removed = layer.register_forward_hook(lambda *given: given[2] * 2)
    return layer


LATER: dict[str, Any] = {
    "one of a list beside an append": read_from([torch.ones(4), torch.ones(4)], appended,
                                                lambda held: held.__setitem__(0, torch.zeros(4))),
    "a function beside an append": read_from([torch.relu, torch.abs], appended,
                                             lambda held: held.__setitem__(0, torch.neg)),
    "a class": read_from(Space(kind=torch.nn.ReLU), lambda a, held: held.kind()(a),
                         lambda held: setattr(held, "kind", torch.nn.Tanh)),
    "an enum of a class": of_a_class(lambda a, held, *_: held.of(a), lambda made, *_: setattr(made, "mode", Way.MINUS)),
    "what a constructor reads": of_a_class(lambda a, _, made, setting: made(setting).of(a),
                                           lambda *held: setattr(held[2], "by", 3.0)),
    "a method that is inherited": of_a_class(lambda a, held, *_: held.of(a),
                                             lambda _, kind, __: setattr(kind, "of", lambda self, a: a * 9)),
    "a method of a class": of_a_class(lambda a, held, *_: held.twice(a),
                                      lambda made, *_: setattr(made, "twice", classmethod(lambda cls, a: a * 3))),
    "an attribute that a layer lacked": read_from(torch.nn.Identity(), lambda a, held: a * getattr(held, "by", 1.0),
                                                  lambda held: setattr(held, "by", 3.0)),
    "a layer's own forward": read_from(torch.nn.Identity(), patched,
                                       lambda held: setattr(held, "forward", lambda a: a * 3)),
    "a hook in place of another": read_from(hooked(), patched, in_place_of_another),
    "a buffer of a library's layer": read_from(torch.nn.BatchNorm1d(4).eval(), lambda a, held: held(a[None]),
                                               lambda held: setattr(held, "running_mean", torch.ones(4))),
    "an attribute beside entries": read_from(Entries(a=1.0), lambda a, held: a * held.by * held["a"],
                                             lambda held: setattr(held, "by", 3.0)),
    "keywords of a partial": read_from(partial(torch.clamp, min=0.5), patched,
                                       lambda held: held.keywords.update(min=1.0)),
    "a setting": held_by_a_model(lambda layer: setattr(layer, "scale", 3.0)),
    "a layer": held_by_a_model(lambda layer: layer.last.__setitem__(0, torch.nn.Tanh())),
    "a parameter": held_by_a_model(lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.zeros(4)))),
    "a key": read_from({"by": 2.0}, lambda a, held: a * held["by"] + held.get("more", 0),
                       lambda held: held.update(more=1)),
    "a set": read_from({"relu"}, lambda a, held: a.relu() if "relu" in held else a,
                       lambda held: (held.clear(), held.add("none"))),
    "a deque": read_from(deque([2.0, 3.0]), lambda a, held: a * held[0], lambda held: held.rotate()),
    "bytes": read_from(bytearray([2, 3]), lambda a, held: a * held[0], lambda held: held.reverse()),
    "an array": read_from(np.ones(2), lambda a, held: a * float(held[0]), lambda held: held.fill(3.0)),
    "an attribute": read_from(Space(by=2.0), lambda a, held: a * held.by + getattr(held, "more", 0),
                              lambda held: setattr(held, "more", 1)),
    "any attribute": read_from(Space(by=2.0), lambda a, held: a * sum(vars(held).values()),
                               lambda held: setattr(held, "by", 3.0)),
    "one of many": read_from(many(), sum_of_many, lambda held: held.write(d=3.0)),
    "one of many in its dictionary": read_from(many(), sum_of_many, lambda held: vars(held).update(d=3.0)),
    "one of many, behind another": read_from(many(), sum_of_many,
                                             lambda held: (held.write(other=1), held.write(d=3.0))),
    "grad mode": read_from(None, lambda a, held: a * (2 if torch.is_grad_enabled() else 3),
                           lambda held: torch.set_grad_enabled(False)),
    "autocast": read_from(None, lambda a, held: a * (2 if torch.is_autocast_enabled() else 3),
                          lambda held: torch.set_autocast_enabled("cuda", True)),
    "the default type": read_from(None, lambda a, held: a.sum() * torch.ones(2),
                                  lambda held: torch.set_default_dtype(torch.float64)),
}  # fmt: skip


@pytest.mark.parametrize("what", LATER)
def test_what_the_caller_binds_later_is_noticed(what: str) -> None:
    from microbench import graphed

    function, change = LATER[what]
    steps, a = [graphed(function), graphed(function)], torch.linspace(-1.0, 2.0, 4)
    before = [step(a) for _ in range(6) for step in steps][-1]
    assert steps[0]._last._looks() is True
    steps[1]._last._looks = lambda: None  # as where looking.c cannot be had
    try:
        change()
        assert steps[0]._last._looks() is False or not steps[0]._last.fits(*steps[0]._last._kind)
        wanted = function(a)
        for step in steps:
            for _ in range(6):
                assert torch.equal(step(a), wanted)
            assert wanted.dtype != before.dtype or not torch.equal(before, wanted)
            assert step.counts["captures"] == 2
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cuda", False)


def test_a_dictionary_that_changes_elsewhere_is_looked_at_entry_by_entry() -> None:
    from microbench import graphed

    held = many()
    step = graphed(lambda a: sum_of_many(a, held))
    for number in range(20):
        held.write(other=number)
        assert step(torch.ones(1)).item() == 8.0
    assert step.counts == {"warm-ups": 3, "captures": 1, "replays": 17}
    held.write(d=3.0)
    assert step(torch.ones(1)).item() == 9.0


def of_a_layer(change: Any) -> tuple[Any, Any]:
    layers = torch.nn.ModuleDict({"one": torch.nn.Linear(4, 4), "two": torch.nn.LayerNorm(4)})

    def step(a: Any) -> Any:
        layers.zero_grad()
        layers["two"](layers["one"](a)).square().sum().backward()
        return layers["one"].weight.grad

    return step, lambda: change(layers)


PAST: dict[str, Any] = {
    "an entry of vars()": lambda layers: vars(layers["two"]).update(eps=9.0),
    "the memory of a parameter": lambda layers: setattr(layers["two"].weight, "data", torch.zeros(4)),
    "a precision": lambda layers: torch.set_float32_matmul_precision("high"),
    "whether one learns": lambda layers: layers["two"].bias.requires_grad_(False),
    "a layer that goes": lambda layers: layers.pop("two"),
    "a hook that goes": lambda layers: layers["one"]._forward_hooks.clear(),
}


def test_a_capture_has_nodes_of_its_own_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench import graphed
    from microbench.capture.graphed import renew

    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", one.grad * 2))
    place = weight.data_ptr()
    old = torch.autograd.graph.get_gradient_edge(weight).node

    def is_old() -> bool:
        return torch.autograd.graph.get_gradient_edge(weight).node is old

    renew([weight])
    assert is_old(), "who holds it may have hooks there"
    monkeypatch.setattr(gc, "get_objects", list)  # as if only a result held it
    with monkeypatch.context() as several:
        several.setattr(torch.distributed, "is_initialized", lambda: True)
        renew([weight])
        assert is_old()
    step = graphed(lambda a: (a * weight).sum().backward())
    for _ in range(6):
        weight.grad = None
        step(torch.ones(2))
        assert weight.grad.tolist() == [2, 2], "a hook on the leaf stays"
    assert step.counts["replays"] == 3
    assert not is_old()
    assert (weight.data_ptr(), weight.dtype) == (place, torch.float32)


def test_what_a_call_changes_in_many_entries_is_seen_by_the_capture() -> None:
    from microbench import graphed

    window, table, array = deque([torch.zeros(())] * 100, maxlen=100), dict.fromkeys(range(100), 0.0), np.zeros(500)

    def of_window(a: Any) -> Any:
        window.append(a.mean())
        return torch.stack([*window]).sum()

    def of_table(a: Any) -> Any:
        table[3] += 1
        return a * table[3]

    def of_array(a: Any) -> Any:
        array[7] += 1
        return a * float(array[7])

    for function, name in ((of_window, "window"), (of_table, "table"), (of_array, "array")):
        step = graphed(function)
        for _ in range(12):
            step(torch.ones(2))
        assert [*step.reasons] == [f"each call changes {name}, and a replay would not"]
    assert (len(window), table[3], array[7]) == (100, 12, 12)


def test_data_that_comes_anew_is_told_by_what_it_holds() -> None:
    from microbench import graphed

    class Batch:
        def __init__(self, number: float, weight: float) -> None:
            self.a, self.weight = torch.full((2,), number), weight

        def weighted(self) -> Any:
            return self.a * self.weight

    step = graphed(lambda batch: Space(b=batch.weighted()))
    results = [step(Batch(float(number), 1 + number // 10)).b.tolist() for number in range(20)]
    assert results == [[number * (1 + number // 10)] * 2 for number in range(20)]
    assert step.counts["captures"] == 2
    assert step.counts["replays"] == 20 - step.counts["warm-ups"]
    kept = [Batch(0.0, 1.0), Batch(1.0, 1.0)]
    for known in (lambda batch: batch is kept[0], {kept[0]: True}.get):  # it tells them by identity
        told = graphed(lambda batch, known=known: batch.a + 3 if known(batch) else batch.a * 2)
        assert [told(kept[number % 2]).tolist() for number in range(12)] == [[3.0] * 2, [2.0] * 2] * 6
    by_class = {Batch: 2.0}
    several = [Batch(float(number), 1.0) for number in range(5)]
    told = graphed(lambda batch: batch.a * by_class[type(batch)] if batch in several else batch.a)
    assert [told(several[number % 5]).tolist() for number in range(12)] == [[2.0 * (n % 5)] * 2 for n in range(12)]


def test_data_that_an_object_keeps_of_a_call_may_come_anew() -> None:
    from microbench import graphed

    class Batch:
        def __init__(self, number: float) -> None:
            self.a = torch.full((2,), number)

    class Trainer:
        special: Any = None

        def step(self, batch: Batch) -> Any:
            self.batch = batch
            return self.batch.a * 2

        def asks(self, batch: Batch) -> Any:
            return batch.a * 3 if batch is self.special else batch.a

    trainer = Trainer()
    step = graphed(trainer.step)
    assert [step(Batch(float(number))).tolist() for number in range(12)] == [[2.0 * number] * 2 for number in range(12)]
    assert step.counts["replays"] > 5
    asks = graphed(trainer.asks)
    for number in range(24):
        batch = Batch(float(number))
        trainer.special = batch if number in (8, 16) else trainer.special
        assert asks(batch).tolist() == [number * (3.0 if number in (8, 16) else 1.0)] * 2
    assert len(asks._came.get("argument[0][0]") or ()) <= 3, "not all batches are kept"


def test_data_with_slots_or_of_c_is_told_by_identity() -> None:
    from microbench import graphed

    class Slotted:
        __slots__ = ("by",)

    class Partly(Slotted):
        def __init__(self, by: float) -> None:
            self.by, self.a = by, torch.full((2,), by)

    class Queue(deque):  # type: ignore[type-arg]
        pass

    def queue(by: float) -> Any:
        made = Queue([by])
        made.a = torch.full((2,), by)
        return made

    for make, function in ((Partly, lambda one: one.a * one.by), (queue, lambda one: one.a * one[0])):
        step = graphed(function)
        assert [step(make(float(by))).tolist() for by in range(10)] == [[by**2] * 2 for by in range(10)]


def test_dictionaries_whose_entries_are_attributes_are_read_and_returned() -> None:
    from microbench import graphed

    class Entries(dict):  # type: ignore[type-arg]
        __getattr__ = dict.__getitem__

    config = Entries({f"key{number}": number for number in range(100)})
    step = graphed(lambda a: Entries(loss=a * config.key3))
    assert [step(torch.full((2,), float(by))).loss.tolist() for by in range(10)] == [[3.0 * by] * 2 for by in range(10)]
    assert step.counts["replays"] == 7


def test_what_python_alone_moves_on_is_state() -> None:
    from microbench import graphed

    class Model(torch.nn.Module):
        previous = current = None

        def forward(self, a: Any) -> Any:
            self.previous = self.current
            self.current = a * 2
            return a.sum()

    for model in (Model(), Space(previous=None, current=None)):
        step = graphed(partial(Model.forward, model))
        for number in range(12):
            step(torch.full((2,), float(number)))
            assert number == 0 or model.previous.tolist() == [2 * number - 2] * 2
        assert step.counts["replays"] == 0


def test_what_python_asks_of_an_old_value_is_looked_at() -> None:
    from microbench import graphed

    class Keeps:
        last: Any = torch.ones(2)

        def step(self, a: Any) -> Any:
            times = 1 if self.last is None else len(self.last)
            self.last = a * 2
            return a * times

    keeps = Keeps()
    step = graphed(keeps.step)
    for number in range(16):
        if number in (8, 12):
            keeps.last = None if number == 8 else torch.ones(5)
        assert step(torch.ones(2)).tolist() == [{8: 1.0, 12: 5.0}.get(number, 2.0)] * 2


def test_what_an_object_keeps_of_a_call_and_reads_in_it_is_no_state() -> None:
    from microbench import graphed

    class Trainer:
        def step(self, a: Any) -> Any:
            self.made = {"twice": a * 2}
            self.all = Space(loss=self.made["twice"].sum())
            self.loss = self.all.loss
            return self.loss + 1

    trainer = Trainer()
    step = graphed(trainer.step)
    for number in range(12):
        assert step(torch.full((2,), float(number))).item() == 4 * number + 1
        assert (trainer.loss.item(), trainer.made["twice"].tolist()) == (4 * number, [2 * number] * 2)
    assert step.counts["replays"] == 12 - step.counts["warm-ups"]
    trainer.loss = torch.zeros(())
    assert step(torch.ones(2)).item() == 5


def test_a_model_that_learns_in_turn_has_a_graph_for_each() -> None:
    from microbench import graphed

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    step = graphed(lambda a: model(a).sum().backward())
    for call in range(20):
        for one in model[1].parameters():
            one.requires_grad = call % 2 == 0
            one.grad = None
        step(torch.ones(2, 4))
        assert (model[1].weight.grad is not None) == (call % 2 == 0)
    assert step.counts["captures"] == 2
    assert step.counts["replays"] > 10


class Doubles:
    by = 2.0

    def of(self, a: Any) -> Any:
        return a * 2


class Triples(Doubles):
    def of(self, a: Any) -> Any:
        return a * 3


def helped(a: Any) -> Any:
    return a * 2


@pytest.mark.parametrize("what", ["class", "dictionary", "code"])
def test_what_changes_behind_a_name_is_an_error_some_calls_later(what: str) -> None:
    from microbench import graphed

    held, code = Doubles(), helped.__code__
    held.by = 2.0
    step = graphed(lambda a: held.of(a) * held.by + helped(a))
    for _ in range(20):
        step(torch.ones(2))
    try:
        if what == "class":
            held.__class__ = Triples
        elif what == "dictionary":
            held.__dict__ = {"by": 5.0}
        else:
            helped.__code__ = (lambda a: a * 5).__code__
        with pytest.raises(RuntimeError, match="replays did not see it"):
            [step(torch.ones(2)) for _ in range(500)]
    finally:
        helped.__code__ = code


@dataclass(slots=True)
class Narrow:
    value: Any


@dataclass
class Wide:
    value: Any


def leaves(a: Any, held: Any) -> Any:
    held["last"] = a * 2
    return a


RESULTS: dict[str, Any] = {
    "slots": (lambda a: Narrow(a * 2), "returns a Narrow"),
    "a result within a result": (lambda a: Wide(Wide(a * 2)), "returns a Wide"),
    "a partial": (lambda a: partial(torch.add, a * 2), "returns a partial"),
    "a deque": (lambda a: deque([a * 2]), "returns a deque"),
    "a generator": (lambda a: (a * number for number in range(3)), "returns a generator"),
    "a written argument": (partial(leaves, held={}), "changes its arguments"),
    "a gradient": (lambda a: (a * a).sum().backward(), "changes the gradient of an input"),
    "an attribute": (lambda a: setattr(a, "twice", a * 2), "changes the attributes of an input"),
}


@pytest.mark.parametrize("what", RESULTS)
def test_what_a_replay_does_not_hand_over_is_not_replayed(what: str) -> None:
    from microbench import graphed

    function, says = RESULTS[what]
    step = graphed(function)
    for _ in range(8):
        given = torch.ones(2, requires_grad=what == "a gradient")
        step(given, held={"last": None}) if what == "a written argument" else step(given)
    assert step.counts["replays"] == 0
    assert says in str(step.reasons)


def test_results_are_copies() -> None:
    from microbench import graphed

    step = graphed(lambda a: (Wide(a * 2), defaultdict(list, kept=[a])))
    results = [step(torch.full((2,), float(number))) for number in range(8)]
    assert [one.value[0].item() for one, _ in results] == [2.0 * number for number in range(8)]
    assert [kept["kept"][0][0].item() for _, kept in results] == [*range(8)]
    assert step.counts["replays"] == 5


def test_an_object_that_a_call_takes_and_returns_is_the_same_one() -> None:
    from microbench import graphed

    weight = torch.nn.Parameter(torch.ones(4))
    state = Space(weight=Space(by=weight), optimizer=torch.optim.SGD([weight], lr=0.1))

    def step(held: Any, a: Any) -> Any:
        held.optimizer.zero_grad()
        loss = (held.weight.by * a).sum()
        loss.backward()
        held.optimizer.step()
        return held, loss.detach()

    made = graphed(step)
    found = [made(state, torch.ones(4)) for _ in range(8)]
    assert all(one is state for one, _ in found)
    assert [round(loss.item(), 3) for _, loss in found] == [round(4 - 0.4 * number, 3) for number in range(8)]
    assert made.counts["replays"] == 5


class Refusing(dict[str, Any]):
    """As those of transformers: it refuses update()."""

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError


def test_a_dictionary_of_a_library_is_copied_as_it_is_made() -> None:
    from microbench import graphed

    step = graphed(lambda a: (Refusing(kept=a * 2), Counter(loss=a.sum())))
    for number in range(8):
        output, counted = step(torch.full((2,), float(number)))
        assert (type(output), output["kept"][0].item()) == (Refusing, 2.0 * number)
        assert counted["loss"].item() == 2.0 * number
    assert step.counts["replays"] == 5


left: Any = None


def test_a_tensor_that_a_call_leaves_in_an_attribute_is_not_overwritten_by_the_next() -> None:
    from microbench import graphed

    global left
    trainer, kept = Space(loss=None, log=None), []

    def step(a: Any) -> None:
        global left
        left = (a * 2).sum()
        trainer.loss = left_of = (a * 2).sum()
        trainer.log = {"of it": left_of, "all": [a * 3]}

    made = graphed(step)
    for number in range(8):
        made(torch.full((2,), float(number)))
        kept.append((trainer.loss, left, trainer.log["of it"], trainer.log["all"][0]))
        trainer.log = None
    assert [[one.max().item() for one in each] for each in kept] == [
        [4.0 * number, 4.0 * number, 4.0 * number, 3.0 * number] for number in range(8)
    ]
    assert made.counts["replays"] == 5


class Trainer:
    """Its step is a graph."""

    def __init__(self) -> None:
        self.by = 2.0

    def step(self, a: Any) -> Any:
        return a * self.by


class Longer(Trainer):
    def step(self, a: Any) -> Any:
        return super().step(a) + 1


def test_a_method_has_graphs_for_each_object_and_is_no_attribute_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench import graphed

    monkeypatch.setattr(Trainer, "step", graphed(Trainer.step))
    one, a = Longer(), torch.ones(2)
    assert [one.step(a)[0].item() for _ in range(6)] == [3.0] * 6
    other = copy.copy(one)
    other.by = 5.0
    assert [other.step(a)[0].item() for _ in range(6)] == [6.0] * 6
    assert one.step(a)[0].item() == 3.0
    stored = pickle.loads(pickle.dumps(one))
    assert [stored.step(a)[0].item() for _ in range(6)] == [3.0] * 6
    assert [copy.deepcopy(one).step(a)[0].item() for _ in range(6)] == [3.0] * 6


NOTHING_CHANGED: dict[str, Any] = {
    "copies of settings": lambda held: (copy.deepcopy(held.own), pickle.dumps(held.own)),
    "a note on a layer": lambda held: setattr(held.layer, "epoch", 3),
    "a note on a function": lambda held: setattr(helped, "calls", 3),
    "another order": lambda held: held.settings.update(a=held.settings.pop("a")),
    "a group's note": lambda held: held.optimizer.param_groups[0].update(initial_lr=0.1),
    "a hook that goes": lambda held: held.layer.register_forward_hook(print).remove(),
    "a method of another name": lambda held: vars(held.layer).update({"graphed 1": None}),
}


@pytest.mark.parametrize("what", NOTHING_CHANGED)
def test_what_no_code_reads_forbids_no_replay(what: str) -> None:
    from microbench import graphed

    layer = torch.nn.Linear(2, 2)
    held = Space(layer=layer, own=Doubles(), settings={"a": 2.0, "b": 3.0},
                 optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))  # fmt: skip

    def step(a: Any) -> None:
        held.optimizer.zero_grad()
        held.own.of(helped(held.layer(a)) * held.settings["a"]).sum().backward()
        held.optimizer.step()

    made = graphed(step)
    for number in range(600):
        made(torch.ones(2))
        if number == 10:
            NOTHING_CHANGED[what](held)
    assert (made.counts["captures"], made.counts["eager"]) == (1, 0)


def test_a_long_list_is_looked_at_by_its_length_alone() -> None:
    """Above 256 Python makes a new object for each number, so a length is compared by value."""
    from microbench import graphed

    held = [1.0] * 300
    made = graphed(lambda a: a * len(held))
    for _ in range(6):
        assert made(torch.ones(1)).item() == 300
    looked, graph = 0, made._last

    def parted() -> None:
        nonlocal looked
        looked += 1

    graph._part = parted
    made(torch.ones(1))
    assert looked == 0
    held.append(1.0)
    assert made(torch.ones(1)).item() == 301


def test_two_graphs_in_turn_are_each_looked_at_as_before() -> None:
    from microbench import graphed

    held = Space(by=1.0)
    made = graphed(lambda a: a * held.by)
    for number in range(60):
        held.by = float(number % 2)
        assert made(torch.ones(1)).item() == number % 2
    assert (made.counts["captures"], made.counts["eager"]) == (2, 0)


def test_a_graph_of_an_object_is_made_anew_for_its_copy() -> None:
    from microbench import graphed

    class Holder:
        def __init__(self) -> None:
            self.by, self.step = 2.0, graphed(self.times)

        def times(self, a: Any) -> Any:
            return a * self.by

    one = Holder()
    other = copy.deepcopy(one)
    other.by = 3.0
    assert [one.step(torch.ones(1)).item() for _ in range(6)] == [2.0] * 6
    assert [other.step(torch.ones(1)).item() for _ in range(6)] == [3.0] * 6


def test_an_optimizer_without_its_state_is_captured_anew() -> None:
    from microbench import graphed

    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step(a: Any) -> None:
        optimizer.zero_grad()
        (weight * a).sum().backward()
        optimizer.step()

    made = graphed(step)
    for _ in range(8):
        made(torch.ones(4))
    assert made.counts["captures"] == 1
    optimizer.state.clear()
    for _ in range(8):
        made(torch.ones(4))
    assert made.counts["captures"] == 2


def test_scatter_in_one_of_two_tries_is_no_frozen_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may differ once in some hundred calls. A frozen value shows in each try."""
    from microbench.capture import proof

    held, run, tried = Space(rate=2.0), proof.Plan.run, 0

    def scattered(plan: Any, call: Any, calls: int, change: Any = None) -> Any:
        nonlocal tried
        ran = run(plan, call, calls, change)
        tried += change is not None
        if tried != 1:
            return ran
        last = max(ran.kept)
        return ran._replace(kept={**ran.kept, last: [(name, one * (1 + 1.2e-7)) for name, one in ran.kept[last]]})

    monkeypatch.setattr(proof.Plan, "run", scattered)
    report = examined(lambda a: a * held.rate, torch.randn(64))
    assert report.proved, graph_traps.said(report)
    assert tried == 4, "both once more"


def test_what_is_named_and_not_there_or_not_taken_forbids_no_replay() -> None:
    from microbench import graphed

    held, rate = (
        Space(loader=iter(range(9)), log=logging.Logger("a", logging.WARNING)),
        contextvars.ContextVar[float]("rate"),
    )
    held.log.addHandler(logging.StreamHandler(io.StringIO()))

    def step(a: Any) -> Any:
        held.log.debug("a step")
        return a * next(held.loader) if a.shape[0] == 1 else a * rate.get(2.0)

    made = graphed(step)
    assert [made(torch.ones(2))[0].item() for _ in range(8)] == [2.0] * 8
    assert made.counts["captures"] == 1
    rate.set(3.0)
    assert made(torch.ones(2))[0].item() == 3.0


@pytest.mark.parametrize("what", PAST)
def test_what_changes_in_a_layer_past_its_methods_is_an_error_some_calls_later(what: str) -> None:
    from microbench import graphed

    function, change = of_a_layer(PAST[what])
    step, a = graphed(function), torch.randn(2, 4)
    function.__closure__[0].cell_contents["one"].register_forward_hook(lambda *_: None)
    for _ in range(50):
        step(a)
    assert step.counts["captures"] == 1
    change()
    try:
        with pytest.raises(RuntimeError, match="replays did not see it: name it in also"):
            [step(a) for _ in range(500)]
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_tensor_of_the_host_is_read_anew_when_it_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench import graphed

    rate = torch.tensor(2.0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: self is not rate))
    step = graphed(lambda a: a * rate)
    for number in range(20):
        rate.fill_(2.0 + number // 8)
        assert step(torch.ones(2)).tolist() == [2.0 + number // 8] * 2
    assert step.counts["captures"] == 3


@pytest.mark.parametrize("every", [1, 3])
def test_gradients_that_the_caller_drops_are_made_anew(every: int) -> None:
    from microbench import graphed

    weight, same = (torch.ones(4, requires_grad=True) for _ in range(2))
    step = graphed(lambda a: (a * weight).sum().backward(), most=8)
    for number in range(24):
        if number % every == 0:
            weight.grad = same.grad = None
        a = torch.randn(4)
        step(a)
        (a * same).sum().backward()
        assert torch.equal(weight.grad, same.grad)
    assert step.counts["replays"] > 8


class Taken:
    def __init__(self, loader: Any) -> None:
        self.loader, self.batches = loader, iter(loader)

    def step(self, a: Any) -> Any:
        try:
            return a * next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return a * next(self.batches)


def drawn_from(batches: Any) -> Any:
    return lambda a: a * next(batches)


def written(held: Any, change: Any) -> Any:
    return lambda a: (change(held), a * len(held))[1]


ONCE: dict[str, tuple[Any, str]] = {
    "an iterator": (drawn_from(iter([torch.tensor(float(one)) for one in range(20)])), "iterator batches"),
    "a generator": (drawn_from(torch.tensor(float(one)) for one in range(20)), "iterator batches"),
    "its method": ((lambda draw: lambda a: a * draw())(itertools.count(1).__next__), "iterator draw"),
    "of an object": (Taken([torch.tensor(float(one)) for one in range(40)]).step, "iterator self.batches"),
    "Python's random numbers": (lambda a: a * random.random(), "random numbers of random"),
    "its own": ((lambda own: lambda a: a * own.random())(random.Random(1)), "random numbers of a Random"),
    "a dictionary that grows": (written({}, lambda held: held.setdefault(len(held), 1)), "len(held)"),
    "a set that grows": (written(set(), lambda held: held.add(len(held))), "len(held)"),
    "a set that turns": ((lambda held: lambda a: (held.add(max(held) + 1), held.discard(min(held)), a * max(held))[-1])(
        {0, 1}), "held"),
    "a window": ((lambda held: lambda a: (held.append(held[-1] + 1), a * held[0])[-1])(deque([0, 1], 2)), "held"),
}  # fmt: skip


@pytest.mark.parametrize("what", ONCE)
def test_what_each_call_takes_or_changes_is_found_by_its_capture(what: str) -> None:
    from microbench import graphed

    function, why = ONCE[what]
    step = graphed(function)
    results = [step(torch.ones(2))[0].item() for _ in range(12)]
    assert len(set(results)) == 12, "each call has its own"
    assert step.counts["replays"] == 0
    assert why in next(iter(step.reasons))


def test_a_set_that_replays_would_not_turn_is_no_proof() -> None:
    seen = {0}

    def step(a: Any) -> Any:
        seen.add(max(seen) + 1)
        seen.discard(min(seen))
        return a * 2

    report = examined(step, torch.randn(4))
    assert (report.proved, "seen" in report.why + report.difference) == (False, True), graph_traps.said(report)


def test_an_input_keeps_its_strides_under_capture() -> None:
    from microbench import graphed

    step = graphed(lambda a: a * (2 if a.is_contiguous() else 3))
    assert [step(torch.ones(4, 8)[:, ::2])[0, 0].item() for _ in range(6)] == [3.0] * 6


def test_an_iterator_that_is_an_argument_is_not_captured() -> None:
    from microbench import graphed

    step, batches = graphed(lambda batches: next(batches) * 2), iter(torch.arange(8.0))
    assert [step(batches).item() for _ in range(8)] == [2.0 * one for one in range(8)]
    assert "iterator" in next(iter(step.reasons))


@dataclass
class Output:
    loss: Any
    parts: list[Any]


def test_tensors_of_a_dataclass_are_copied_and_compared() -> None:
    from microbench import graphed

    step = graphed(lambda a: Output(a.sum(), [a * 2]))
    results = [step(torch.full((2,), float(number))) for number in range(8)]
    assert [one.parts[0][0].item() for one in results] == [2.0 * number for number in range(8)]
    weight = torch.randn(512)
    right = examined(lambda a: Output(a @ weight, []), torch.randn(4, 512))
    assert (right.proved, right.outputs) == (True, 2)
    wrong = examined(lambda a: Output(attention(a, weight, lambda a, b: a @ b + 1), []), torch.randn(4, 512))
    assert not wrong.proved


def test_state_is_compared_although_memory_ends_the_keeping_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.capture import proof

    free, total = itertools.count(4000, -500), torch.zeros(2)
    monkeypatch.setattr(proof, "free_bytes", lambda: next(free))

    def step(a: Any) -> Any:
        total.add_(a.sum(0) * (2 if torch.cuda.is_current_stream_capturing() else 1))
        return a * 2

    report = examined(step, torch.randn(64, 2))
    assert not report.proved, graph_traps.said(report)


def test_models_that_are_arguments_each_have_a_graph_that_knows_their_settings() -> None:
    from microbench import graphed

    step, a = graphed(torch.no_grad()(lambda model, a: model(a)), warm_up=1), torch.randn(4)
    models = [torch.nn.Sequential(Doubled()), torch.nn.Sequential(Doubled())]
    for _ in range(6):
        for model in models:
            assert torch.equal(step(model, a), model(a))
    assert step.counts == {"warm-ups": 2, "captures": 2, "replays": 10}
    models[1][0].scale = 5.0
    for model in models:
        assert torch.equal(step(model, a), model(a))
    assert step.counts["warm-ups"] == 3, "only of the model that has changed"


CACHE = """
import torch

class Cache:
    ready = False
    def update(self, a):
        if not self.ready: self.store, self.ready = torch.zeros_like(a), True
        return self.store.add_(a)

class Growing(Cache):
    def update(self, a):
        if not self.ready: self.store, self.ready = torch.zeros_like(a), True
        self.store = self.store + a
        return self.store

def model(a, cache): return cache.update(a) * 2
"""


def test_what_a_librarys_object_holds_is_looked_at_though_only_the_library_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from microbench import graphed

    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "cache_library.py").write_text(CACHE)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    library = importlib.import_module("cache_library")
    cache = library.Cache()
    step = graphed(lambda a: library.model(a, cache))
    a = torch.ones(2)
    assert [step(a)[0].item() for _ in range(8)] == [2.0 * number for number in range(1, 9)]
    assert (step.counts["captures"], step.counts["replays"]) == (1, 4), step.reasons
    cache.store = torch.zeros(2)
    assert [step(a)[0].item() for _ in range(2)] == [2.0, 4.0], "the graph has the other store"
    cache.ready = False
    assert [step(a)[0].item() for _ in range(2)] == [2.0, 4.0]
    growing = library.Growing()  # binds another tensor in each call, which a replay would not
    step = graphed(lambda a: library.model(a, growing))
    assert [step(a)[0].item() for _ in range(12)] == [2.0 * number for number in range(1, 13)]
    assert step.counts["replays"] == 0
    assert "each call changes growing.store" in next(iter(step.reasons))


def test_what_also_returns_may_be_a_tensor_or_unlike_itself() -> None:
    from microbench import graphed

    for also in (torch.tensor([True, False, True]), float("nan")):
        step = graphed(torch.sin, also=partial(lambda one: one, also))
        for _ in range(8):
            step(torch.ones(2))
        assert step.counts == {"warm-ups": 3, "captures": 1, "replays": 5}


def test_an_equal_value_that_is_another_object_is_replayed() -> None:
    from microbench import graphed

    held = {"rate": 0.5, "limits": (-1.0, 1.0)}
    step = graphed(lambda a: (a * held["rate"]).clamp(*held["limits"]))
    for number in range(10):
        held.update(rate=float(f"0.{5}"), limits=(-float("1"), float("1")))
        assert step(torch.full((2,), float(number))).tolist() == [min(number / 2, 1.0)] * 2
    assert step.counts == {"warm-ups": 3, "captures": 1, "replays": 7}
    held["rate"] = 1
    step(torch.ones(2))
    assert step.counts["warm-ups"] == 4, "an integer makes another tensor than a float"


def test_what_no_graph_looks_at_is_said() -> None:
    names, turn = ["relu"] * 100, partial(next, itertools.cycle([1.0]))

    def step(a: Any) -> Any:
        return (a * turn()).relu() if names[99] == "relu" else a

    report = examined(step, torch.randn(4))
    assert report.proved
    assert report.left == ["names, of more than 64 entries", "what the iterator turn yields"]


def test_the_results_of_two_calls_are_two_tensors() -> None:
    from microbench import graphed

    step = graphed(lambda a: a * 2)
    results = [step(torch.full((2,), float(number))) for number in range(8)]
    assert [one[0].item() for one in results] == [2.0 * number for number in range(8)]


def test_a_method_has_graphs_of_its_own_object() -> None:
    from microbench import graphed

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @graphed
        def step(self, a: Any) -> Any:
            return a * self.by

    one, two, a = Scale(2.0), Scale(3.0), torch.randn(4)
    for _ in range(6):
        assert torch.equal(one.step(a), a * 2)
        assert torch.equal(two.step(a), a * 3)
    one.by = 5.0
    assert torch.equal(one.step(a), a * 5)


def test_whoever_passes_another_tensor_for_one_that_is_read_where_it_is_gets_its_values() -> None:
    from microbench import graphed

    step, one = graphed(lambda a: a + 1), torch.zeros(3)
    for _ in range(6):
        step(one)
    for number in range(8):
        assert torch.equal(step(torch.full((3,), float(number))), torch.full((3,), number + 1.0))
    assert torch.equal(one, torch.zeros(3))


def test_counting_changes_of_layers_makes_nothing_compile_anew() -> None:
    from microbench import graphed

    class Keeps(torch.nn.Linear):
        def forward(self, a: Any) -> Any:
            self.last = a
            return super().forward(a)

    compiled: list[Any] = []
    layer = Keeps(4, 4)
    step = torch.compile(layer, backend=lambda made, inputs: compiled.append(made) or made.forward, fullgraph=True)
    for _ in range(6):
        graphed(torch.no_grad()(torch.nn.Linear(4, 4).forward))(torch.randn(2, 4))
        layer.requires_grad_(requires_grad=True)
        step(torch.randn(2, 4))
    assert len(compiled) == 1


def test_the_helper_needs_pytorch_alone(tmp_path: Path) -> None:
    from microbench.capture.handover import HELPER, helper

    (tmp_path / HELPER).write_text(helper())
    code = "import sys, cuda_graph; print([name for name in sys.modules if name.startswith('microbench')])"
    said = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.'); {code}"], cwd=tmp_path,
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert said.strip() == "[]"


def test_a_played_graph_runs_nothing_while_it_is_captured() -> None:
    graph, total = PlayedGraph(), torch.zeros(2)
    with torch.cuda.graph(graph):
        total.add_(1)
    assert total.tolist() == [0, 0]
    graph.replay()
    graph.replay()
    assert total.tolist() == [2, 2]


def test_only_a_committed_file_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def step():\n    pass\n")
    assert "not in a git repository" in why_not_applied(file)


def test_torch_compile_is_timed_with_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    from microbench.capture.making import compiled

    def compile(function: Any, mode: str) -> Any:
        counters["graph_break"]["print"] += 2
        counters["inductor"]["cudagraph_skips"] += mode == "reduce-overhead"
        return function

    monkeypatch.setattr(torch, "compile", compile)
    sets = [((torch.ones(2),), {}), ((torch.zeros(2),), {})]
    default, reduced = (compiled(torch.sin, sets, mode, lambda stage: None) for mode in ("default", "reduce-overhead"))
    breaks = "graph breaks of 1 kind"
    assert (default.why, reduced.why) == (breaks, f"{breaks}, 1 without a CUDA graph")
    assert default.median_s > 0
    assert 0.1 < reduced.ratio < 10
    refused = compiled(lambda a: a.item(), sets[:1], "default", lambda stage: None)
    assert refused.median_s == 0
    assert refused.why.startswith("RuntimeError: ")


def test_what_one_kind_of_call_does_not_compute_with_may_be_state_in_another() -> None:
    from microbench import graphed

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = torch.zeros(4)

        def forward(self, a: Any, learns: bool) -> Any:
            self.kept = 0.9 * self.kept + a if learns else a + 1
            return self.kept * 2

    eager, replayed = Mean(), Mean()
    graph = graphed(torch.no_grad()(lambda a, learns: replayed(a, learns)))
    for number in range(24):
        a, learns = torch.full((4,), float(number)), number % 2 == 0
        with torch.no_grad():
            assert torch.equal(graph(a, learns), eager(a, learns))


def test_of_kernels_that_pytorch_does_not_see_nobody_knows_what_they_compute_with() -> None:
    from microbench import graphed

    class Jitted:
        def __call__(self, a: Any) -> Any:
            return a * 2

    Jitted.__module__ = "triton.runtime.jit"
    kernel, log = Jitted(), {"made": torch.zeros(4)}

    def step(a: Any) -> Any:
        log["made"] = kernel(a)
        return a + 1

    def without(a: Any) -> Any:
        log["made"] = a * 2
        return a + 1

    for function, replays in ((step, 0), (without, 5)):
        graph = graphed(function)
        for _ in range(8):
            graph(torch.ones(4))
        assert graph.counts["replays"] == replays


class Counted(dict[str, Any]):
    """A dictionary with a constructor of its own."""

    def __init__(self, name: str, **values: Any) -> None:
        super().__init__(values)
        self.name = name


class Pair(tuple[Any, ...]):
    def __new__(cls, first: Any, second: Any) -> Pair:
        return super().__new__(cls, (first, second))


def test_results_of_classes_with_constructors_of_their_own_are_copied() -> None:
    from microbench import graphed

    step = graphed(lambda a: (Counted("loss", value=a * 2), Pair(a, a + 1), a.max(0)))
    for number in range(8):
        counted, pair, most = step(torch.full((2,), float(number)))
        assert (type(counted), counted.name, counted["value"][0].item()) == (Counted, "loss", 2.0 * number)
        assert (type(pair), [one[0].item() for one in pair]) == (Pair, [number, number + 1])
        assert most.values.item() == number
    assert step.counts["replays"] == 5


def test_a_plain_object_reads_what_the_call_has_left_in_it() -> None:
    from microbench import graphed

    class Trainer:
        def __init__(self) -> None:
            self.loss, self.mean = None, torch.zeros(())

        def step(self, a: Any) -> Any:
            self.loss = (a * 2).sum()
            return self.loss + 1

        def smoothed(self, a: Any) -> Any:
            self.mean = 0.5 * self.mean + a.sum()
            return self.mean * 2

    trainer, eager = Trainer(), Trainer()
    step, smoothed = graphed(trainer.step), graphed(trainer.smoothed)
    for number in range(8):
        a = torch.full((2,), float(number))
        assert step(a).item() == 4.0 * number + 1
        assert trainer.loss.item() == 4.0 * number
        assert smoothed(a).item() == eager.smoothed(a).item()
    assert smoothed.counts["replays"] == 0


def test_two_kinds_of_call_in_turn_have_notes_of_their_own() -> None:
    from microbench import graphed

    def step(a: Any, b: Any = None) -> Any:
        return a.add_(1) if b is None else a + b

    made = graphed(step)
    for number in range(16):
        a, b = torch.full((4,), float(number)), torch.ones(4)
        assert made(a).tolist() == [number + 1.0] * 4
        assert a.tolist() == [number + 1.0] * 4
        assert made(a, b).tolist() == [number + 2.0] * 4


REBOUND = {
    "data": "held.weight.data = held.weight.data - a.mean() * 0.1",
    "the gradient's data": "held.weight.grad.data = held.weight.grad.data + a.mean()",
    "what is returned": "made, held.past = held.past, a * 2",
    "a list of numbers": "held.rates.append(held.rates.pop(0)); made = a * held.rates[0]",
    "a day": "held.day = held.day + datetime.timedelta(held.day.day); made = a * held.day.day",
}


@pytest.mark.parametrize("what", REBOUND)
def test_what_a_call_binds_anew_without_computing_with_it_is_state(what: str, tmp_path: Path) -> None:
    from microbench import graphed

    lines = ["import datetime", "def step(held, a):", "    made = a + 1", f"    {REBOUND[what]}", "    return made"]
    text = "\n".join(lines)
    function = load_module(tmp_path / "state" / f"by_{len(what)}.py", text).step

    def held() -> Any:
        weight = torch.nn.Parameter(torch.ones(4))
        weight.grad = torch.zeros(4)
        return Space(weight=weight, past=torch.zeros(4), rates=[1.0, 2.0, 3.0], day=datetime.date(2026, 1, 1))

    one, other = held(), held()
    replayed, eager = graphed(partial(function, one)), partial(function, other)
    for number in range(16):
        a = torch.full((4,), float(number))
        assert torch.equal(replayed(a), eager(a))
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.weight.grad, other.weight.grad)


def test_a_hook_that_comes_and_goes_in_every_other_call_is_seen() -> None:
    from microbench import graphed

    layer = torch.nn.Linear(4, 4)
    step = graphed(torch.no_grad()(lambda a: layer(a)))
    for number in range(40):
        a = torch.full((4,), float(number))
        hook = layer.register_forward_hook(lambda *given: given[-1] + 1) if number % 2 else None
        with torch.no_grad():
            assert torch.equal(step(a), layer(a))
        if hook is not None:
            hook.remove()


def test_weights_that_autocast_around_a_call_has_cast_are_cast_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench import graphed
    from microbench.capture import graphed as module

    cached: list[bool] = []
    capture = torch.cuda.graph

    def noted(graph: Any) -> Any:
        cached.append(torch.is_autocast_cache_enabled())
        return capture(graph)

    monkeypatch.setattr(torch.cuda, "graph", noted)
    for around in (True, False):
        monkeypatch.setattr(module, "is_autocast_enabled", lambda around=around: around)
        step = graphed(lambda a: a * 2)
        for _ in range(6):
            step(torch.ones(4))
        assert step.counts["replays"] == 3
        assert torch.is_autocast_cache_enabled()
    assert cached == [False, True]


def test_a_method_of_a_class_runs_as_it_is() -> None:
    from microbench import graphed

    class Step:
        scale = 2

        @classmethod
        @graphed
        def of(cls, a: Any) -> Any:
            return a * cls.scale

    assert [Step.of(torch.ones(2)).tolist() for _ in range(5)] == [[2.0, 2.0]] * 5


class Entries(dict[str, Any]):
    """A dictionary whose entries are its attributes."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.__dict__ = self


def test_a_dictionary_whose_entries_are_attributes_has_the_calls_own_tensors() -> None:
    from microbench import graphed

    step = graphed(lambda batch: Entries(loss=batch.x * 2))
    found = [step(Entries(x=torch.full((2,), float(number)))) for number in range(8)]
    assert [one.loss[0].item() for one in found] == [2.0 * number for number in range(8)]
    assert all(one.loss is one["loss"] for one in found)


def test_files_that_a_librarys_layer_or_a_thread_writes_are_in_the_way(tmp_path: Path) -> None:
    text = f"""
import threading, torch
class Layer(torch.nn.Module):
    def forward(self, a):
        open({str(tmp_path / "log")!r}, "a").close()
        return a * 2
layer = Layer()
def of_layer(a):
    return layer(a)
def of_thread(a):
    thread = threading.Thread(target=lambda: open({str(tmp_path / "log")!r}, "w").close())
    thread.start()
    thread.join()
    return a * 2
"""
    module = load_module(tmp_path / "site-packages" / "layers.py", text)
    for function in (module.of_layer, module.of_thread):
        report = examined(function, torch.ones(4))
        assert not report.proved
        assert "file" in {one.kind for one in report.blockers}


def test_looking_goes_on_beside_a_profiler_of_c() -> None:
    import cProfile

    with cProfile.Profile():
        assert examined(lambda a: a * 2, torch.ones(4)).proved


def test_parameters_in_a_list_that_a_call_leaves_stay_these_parameters() -> None:
    from microbench import graphed

    weight = torch.nn.Parameter(torch.ones(4))
    held = Space(params=None)

    def step(a: Any) -> Any:
        held.params = [weight]
        return a * weight.detach()

    made = graphed(step)
    for _ in range(8):
        made(torch.ones(4))
        assert held.params[0] is weight


def test_a_stream_of_another_library_beside_pytorchs_forbids_a_graph() -> None:
    """Its work runs while the capture goes on, and in no replay."""
    from played_cupy import installed

    from microbench.capture.graphed import Graphed

    with installed() as cupy:
        stream, into = cupy.cuda.Stream(), cupy.asarray([0.0])

        def step(a: Any) -> Any:
            with stream:
                cupy.add(into, 1, out=into)
            return a * 2

        graph = Graphed(step)
        for _ in range(10):
            graph(torch.ones(2))
        assert float(into[0]) == 10
        assert [*graph.reasons] == ["it uses a stream of another library beside PyTorch's, and a capture sees one"]
