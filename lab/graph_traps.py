"""Functions whose CUDA graph is wrong or impossible, and sound ones: what `microbench graph` must say of each.

``python lab/graph_traps.py [OUT.csv] [NAME…]`` on a GPU prints a line for each: refused with the right reason, or
proved. A maker returns a function and its arguments; TRAPS names what the report must say. In SETTINGS it also returns
what changes a setting between calls: the graph must notice.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import itertools
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from types import MappingProxyType, ModuleType
from types import SimpleNamespace as Space
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from traps import Functions, main, notices, report_of, said  # noqa: F401 - tests take these from here

DEVICE = "cuda"
FUNCTIONS = Functions()
TRAPS, SETTINGS, SOUND = FUNCTIONS.traps, FUNCTIONS.settings, FUNCTIONS.sounds
trap, setting, sound = FUNCTIONS.trap, FUNCTIONS.setting, FUNCTIONS.sound
RATE, OFFSET, HIDDEN, STEPS = 0.5, None, None, 0
KEPT: list[Any] = []


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (64, 16)), device=DEVICE)


def mlp(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *more, nn.Linear(32, 4)).to(DEVICE)


# ---- values of the host that a graph freezes


@trap("host|replay")
def counter_in_a_dictionary() -> Any:
    state = {"calls": 0}

    def step(a: torch.Tensor) -> torch.Tensor:
        state["calls"] += 1
        return a * state["calls"]

    return step, (x(),)


@trap("STEPS|host")
def counter_in_a_global() -> Any:
    def step(a: torch.Tensor) -> torch.Tensor:
        global STEPS
        STEPS += 1
        return a / STEPS

    return step, (x(),)


@trap("random")
def random_of_python() -> Any:
    return lambda a: a * random.random(), (x(),)


@trap("random")
def random_of_numpy() -> Any:
    return lambda a: a + float(np.random.rand()), (x(),)  # noqa: NPY002


@trap("random|torch")
def random_of_the_host() -> Any:
    return lambda a: a + torch.rand(1)[0], (x(),)


@trap("repeatable|differ|frozen|something else")
def clock() -> Any:
    return lambda a: a * (time.perf_counter() % 1), (x(),)


@trap("repeatable|something else|host")
def iterator_of_the_host() -> Any:
    numbers = itertools.count(1)
    return lambda a: a * next(numbers), (x(),)


@trap("repeatable|something else|host|in the way")
def loader_inside() -> Any:
    batches = itertools.cycle([x() for _ in range(7)])
    return lambda: next(batches) * 2, ()


@trap("host|replay|step")
def schedule_inside() -> Any:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

    def step(a: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(a).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return step, (x(),)


@trap("host|replay")
def warm_up_of_a_rate() -> Any:
    model = mlp()
    held = Space(calls=0)

    def step(a: torch.Tensor) -> torch.Tensor:
        held.calls += 1
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1 - 0.01 * min(1.0, held.calls / 50))
        return model(a)

    return torch.no_grad()(step), (x(),)


@trap("every|host|replay")
def work_in_every_tenth_call() -> Any:
    held, total = Space(calls=0), x(16)

    def step(a: torch.Tensor) -> torch.Tensor:
        held.calls += 1
        if held.calls % 10 == 0:
            total.zero_()
        total.add_(a.sum(0))
        return total.clone()

    return step, (x(),)


# ---- memory that moves


@trap("hidden|h |replay|host")
def state_bound_anew() -> Any:
    held = Space(hidden=x(64, 16))

    def step(a: torch.Tensor) -> torch.Tensor:
        held.hidden = torch.tanh(held.hidden + a)
        return held.hidden * 2

    return step, (x(),)


@trap("something else|replay|state|nested")
def state_bound_deeper() -> Any:
    held = Space(inner={"nested": x(64, 16)})

    def step(a: torch.Tensor) -> torch.Tensor:
        held.inner["nested"] = torch.tanh(held.inner["nested"] + a)
        return held.inner["nested"] * 2

    return step, (x(),)


@trap("HIDDEN|replay")
def state_in_a_global() -> Any:
    global HIDDEN
    HIDDEN = x(64, 16)

    def step(a: torch.Tensor) -> torch.Tensor:
        global HIDDEN
        HIDDEN = HIDDEN * 0.9 + a
        return HIDDEN + 1

    return step, (x(),)


@trap("cache|only without|shape|something else|host")
def cache_that_grows() -> Any:
    cache: list[torch.Tensor] = []

    def step(a: torch.Tensor) -> torch.Tensor:
        cache.append(a.mean(0))
        return torch.stack(cache[-3:]).sum(0)

    return step, (x(),)


@trap("each call changes|went on|something else")
def averages_by_name() -> Any:
    """The moving averages of most repositories."""
    model = mlp()
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    @torch.no_grad()
    def step(a: torch.Tensor) -> torch.Tensor:
        for name, one in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * one
        return model(a) + shadow["0.bias"].sum()

    return step, (x(),)


@trap("each call changes|went on|something else")
def buffer_that_is_bound_anew() -> Any:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(16, device=DEVICE))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * a.mean(0)
            return a - self.mean

    model = Mean()
    return torch.no_grad()(lambda a: model(a)), (x(),)


@trap("each call changes|went on|something else|has another value")
def optimizer_that_counts_in_python() -> Any:
    class Counting(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for one in self.param_groups[0]["params"]:
                state = self.state[one]
                state["step"] = state.get("step", 0) + 1
                one.sub_(one.grad, alpha=0.1 / state["step"])

    weight = nn.Parameter(x(16))
    optimizer = Counting([weight], {})

    def step(a: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        (weight * a).sum().backward()
        optimizer.step()
        return weight.detach() + 0

    return step, (x(),)


@trap("random|each call changes|does not repeat|not repeat")
def random_state_of_numpy() -> Any:
    drawn = np.random.RandomState(0)
    return lambda a: a * drawn.uniform(), (x(),)


@trap("shape|something else|given back|each call changes")
def tensor_that_grows() -> Any:
    held = {"keys": x(1, 16)}

    def step(a: torch.Tensor) -> torch.Tensor:
        held["keys"] = torch.cat([held["keys"], a[:1]])
        return held["keys"].sum(0)

    return step, (x(),)


@trap("something else|ping|host|replay|swap")
def buffers_that_swap() -> Any:
    held = {"front": x(64, 16), "back": x(64, 16)}

    def step(a: torch.Tensor) -> torch.Tensor:
        held["front"], held["back"] = held["back"], held["front"]
        held["front"].add_(a)
        return held["front"].clone()

    return step, (x(),)


# ---- waits and copies within


@trap("item|keep the tensor")
def reads_the_loss() -> Any:
    return lambda a: a * (2.0 if a.sum().item() > 0 else 0.5), (x(),)


@trap("in the way")
def decides_by_a_tensor() -> Any:
    def step(a: torch.Tensor) -> torch.Tensor:
        return a * 2 if a.sum() > 0 else a * 3

    return step, (x(),)


@trap("in the way")
def selects_by_a_mask() -> Any:
    return lambda a: a[a > 0].sum(), (x(),)


@trap("in the way")
def makes_a_tensor_from_a_list() -> Any:
    return lambda a: a + torch.tensor([1.0, 2.0], device=DEVICE).sum(), (x(),)


@trap("in the way")
def copies_to_the_host() -> Any:
    seen: list[Any] = []

    def step(a: torch.Tensor) -> torch.Tensor:
        seen[:] = [(a * 2).mean(0).cpu()]
        return a * 2

    return step, (x(),)


@trap("in the way")
def waits_for_the_gpu() -> Any:
    def step(a: torch.Tensor) -> torch.Tensor:
        b = a * 2
        torch.cuda.synchronize()
        return b + 1

    return step, (x(),)


@trap("in the way|capturable")
def adam_of_the_host() -> Any:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())

    def step(a: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(a).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (x(),)


@trap("in the way|print")
def prints() -> Any:
    def step(a: torch.Tensor) -> torch.Tensor:
        print("a step")
        return a * 2

    return step, (x(),)


# ---- what a graph cannot give


@trap("backward")
def backward_outside() -> Any:
    model = mlp()
    return lambda a: model(a).square().mean(), (x(),)


@trap("captured|something else|repeatable")
def work_of_another_thread() -> Any:
    out = x(64, 16)

    def step(a: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: out.copy_(a * 2))
        thread.start()
        thread.join()
        return out + 1

    return step, (x(),)


@trap("repeatable|something else|captured")
def not_repeatable() -> Any:
    draws = itertools.count(1)

    def step(a: torch.Tensor) -> torch.Tensor:
        noise = torch.Generator(device=DEVICE).manual_seed(next(draws) * 7919)
        return a + torch.randn(a.shape, generator=noise, device=DEVICE)

    return step, (x(),)


@trap("repeatable|something else|host|yields")
def generator_in_a_closure() -> Any:
    batches = (x() for _ in range(10_000))
    return lambda: next(batches) * 2, ()


@trap("something else|host|repeatable|random")
def random_numbers_of_its_own() -> Any:
    own = random.Random(1)
    return lambda a: a * own.random(), (x(),)


# ---- settings that the caller changes between calls


@setting
def dictionary_of_a_layer() -> Any:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept, self.kinds = {"by": torch.ones(16, device=DEVICE)}, {"plain"}

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return -a * self.kept["by"] if "negative" in self.kinds else a * self.kept["by"]

    model = Cached()
    return lambda a: model(a), (x(),), lambda: model.kept.update(by=torch.full((16,), 3.0, device=DEVICE))


@setting
def set_of_a_layer() -> Any:
    step, given, _ = dictionary_of_a_layer()
    model = step.__closure__[0].cell_contents
    return step, given, lambda: model.kinds.add("negative")


@setting
def models_by_name_beside_a_write() -> Any:
    models = {"student": mlp(), "teacher": mlp()}

    @torch.no_grad()
    def step(a: torch.Tensor) -> Any:
        made = {}
        for name, model in models.items():
            made[name] = model(a)
        return sum(made.values())

    return step, (x(),), lambda: models.update(teacher=nn.Sequential(mlp(), nn.ReLU()))


@setting
def names_in_a_tuple() -> Any:
    held = Space(by=2.0, plus=1.0)

    def step(a: torch.Tensor) -> torch.Tensor:
        for name in ("by", "plus"):
            a = a * getattr(held, name)
        return a

    return step, (x(),), lambda: setattr(held, "plus", 3.0)


@setting
def what_a_hook_of_a_tensor_reads() -> Any:
    weight, held = nn.Parameter(x(16)), Space(by=2.0)
    weight.register_hook(lambda grad: grad * held.by)

    def step(a: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        (weight * a).sum().backward()
        return weight.grad + 0

    return step, (x(),), lambda: setattr(held, "by", 3.0)


@setting
def attribute_of_a_class_that_comes_later() -> Any:
    class Switch(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return -a if getattr(self, "negative", False) else a + 0

    model = Switch()
    return lambda a: model(a), (x(),), lambda: setattr(Switch, "negative", True)


@setting
def rates_that_a_scheduler_lists() -> Any:
    optimizer = torch.optim.SGD([nn.Parameter(x(16))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)

    def change() -> None:
        optimizer.step()
        scheduler.step()

    return lambda a: a * scheduler.get_last_lr()[0], (x(),), change


@setting
def tuple_of_a_layer() -> Any:
    model = nn.Conv1d(4, 4, 3, padding=1).to(DEVICE)
    return torch.no_grad()(lambda a: model(a)), (x(2, 4, 16),), lambda: setattr(model, "dilation", (2,))


@setting
def hook_that_is_added_later() -> Any:
    model = mlp()
    change = lambda: model[0].register_forward_hook(lambda layer, given, made: made * 2)  # noqa: E731
    return torch.no_grad()(lambda a: model(a)), (x(),), change


@setting
def parameters_that_no_longer_learn() -> Any:
    model = mlp()

    def step(a: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        model(a).square().mean().backward()
        return sum(
            (one.grad.sum() for one in model.parameters() if one.grad is not None), torch.zeros((), device=DEVICE)
        )

    return step, (x(),), lambda: model[0].requires_grad_(False)


@setting
def chain_of_dictionaries() -> Any:
    chain = collections.ChainMap({}, {"by": 2.0})
    return lambda a: a * chain["by"], (x(),), lambda: chain.update(by=3.0)


@setting
def dictionary_that_is_read_only() -> Any:
    held = {"by": 2.0}
    shown = MappingProxyType(held)
    return lambda a: a * shown["by"], (x(),), lambda: held.update(by=3.0)


@setting
def attribute_of_a_tensor() -> Any:
    weight: Any = x(16)
    weight.scale = 2.0
    return lambda a: a * weight * weight.scale, (x(),), lambda: setattr(weight, "scale", 3.0)


@setting
def sign_of_zero() -> Any:
    held = Space(by=0.0)
    return lambda a: a.abs() / held.by, (x(),), lambda: setattr(held, "by", -0.0)


@setting
def tensor_of_the_host() -> Any:
    rate = torch.tensor(2.0)
    return lambda a: a * rate, (x(),), lambda: rate.fill_(3.0)


@setting
def nested_setting() -> Any:
    holder = Space(inner=Space(scale=2.0))
    return lambda a: a * holder.inner.scale, (x(),), lambda: setattr(holder.inner, "scale", 3.0)


@setting
def setting_in_a_list() -> Any:
    settings = [0.5, 2.0]
    return lambda a: a * settings[1], (x(),), lambda: settings.__setitem__(1, 3.0)


@setting
def setting_of_a_layer() -> Any:
    model = mlp(nn.LayerNorm(32))
    return torch.no_grad()(lambda a: model(a)), (x(),), lambda: setattr(model[2], "eps", 0.5)


@setting
def layer_that_no_longer_trains() -> Any:
    model = mlp(nn.Dropout(0.5))
    return torch.no_grad()(lambda a: model(a)), (x(),), lambda: model[2].eval()


@setting
def class_attribute_that_an_object_hides() -> Any:
    class Trainer:
        scale = 2.0

        def step(self, a: torch.Tensor) -> torch.Tensor:
            return self.scaled(a) + 1

        def scaled(self, a: torch.Tensor) -> torch.Tensor:
            return a * self.scale

    trainer = Trainer()
    return trainer.step, (x(),), lambda: setattr(trainer, "scale", 3.0)


@setting
def slot() -> Any:
    class Config:
        __slots__ = ("limits",)

    config = Config()
    config.limits = (-0.5, 0.5)
    return lambda a: a.clamp(*config.limits), (x(),), lambda: setattr(config, "limits", (-0.5, 0.2))


@setting
def attribute_of_a_module() -> Any:
    config: Any = ModuleType("config")
    config.RATE = 2.0
    return lambda a: a * config.RATE, (x(),), lambda: setattr(config, "RATE", 3.0)


@setting
def context_variable() -> Any:
    rate = contextvars.ContextVar("rate", default=2.0)
    return lambda a: a * rate.get(), (x(),), lambda: rate.set(3.0)


@setting
def variable_of_the_environment() -> Any:
    os.environ["TRAP_RATE"] = "2"
    return lambda a: a * float(os.environ["TRAP_RATE"]), (x(),), lambda: os.environ.update(TRAP_RATE="3")


@setting
def behind_a_weak_reference() -> Any:
    model = nn.Linear(16, 16).to(DEVICE)
    model.scale = 2.0
    KEPT.append(model)
    held = weakref.ref(model)
    return torch.no_grad()(lambda a: a * held().scale), (x(),), lambda: setattr(held(), "scale", 3.0)


@setting
def list_that_grows() -> Any:
    rates = [0.5, 2.0]
    return lambda a: sum(a * each for each in rates), (x(),), lambda: rates.append(3.0)


@setting
def mode_that_is_no_number() -> Any:
    class Mode(enum.Enum):
        RELU = 1
        TANH = 2

    held = Space(inner=Space(mode=Mode.RELU, bias=None, dtype=torch.float32))

    def step(a: torch.Tensor) -> torch.Tensor:
        made = (a.relu() if held.inner.mode is Mode.RELU else a.tanh()).to(held.inner.dtype)
        return made if held.inner.bias is None else made + held.inner.bias

    return step, (x(),), lambda: vars(held.inner).update(mode=Mode.TANH, bias=1.0, dtype=torch.bfloat16)


# ---- sound ones


@sound
def settings_with_strict_attributes() -> Any:
    class Strict(dict[str, Any]):
        __getattr__ = dict.__getitem__

    held = Strict(by=2.0)
    return lambda a: a * held.by, (x(),)


@sound
def attention_that_is_kept_to_look_at() -> Any:
    class Attention(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            self.weights = (a @ a.T).softmax(-1)
            return self.weights @ a

    model = Attention()
    return torch.no_grad()(lambda a: model(a)), (x(),)


@sound
def a_product() -> Any:
    weight = x(16, 16)
    return lambda a: a @ weight, (x(),)


@sound
def two_inputs_by_name() -> Any:
    return lambda a, b: {"sum": a + b, "parts": (a * 2, b * 3)}, (x(), x())


@sound
def inference() -> Any:
    model = mlp().eval()
    return torch.no_grad()(lambda a: model(a)), (x(),)


@sound
def inference_with_dropout() -> Any:
    model = mlp(nn.Dropout(0.2)).train()
    return torch.no_grad()(lambda a: model(a)), (x(),)


@sound
def batch_norm() -> Any:
    model = mlp(nn.BatchNorm1d(32)).train()
    return torch.no_grad()(lambda a: model(a)), (x(),)


def training(make: Callable[[Any], torch.optim.Optimizer], *more: nn.Module) -> Any:
    model = mlp(*more)
    optimizer = make(model.parameters())

    def step(a: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(a), target)
        loss.backward()
        optimizer.step()
        return loss

    return step, (x(), torch.randint(0, 4, (64,), device=DEVICE))


@sound
def sgd() -> Any:
    return training(lambda given: torch.optim.SGD(given, lr=0.05))


@sound
def sgd_with_momentum() -> Any:
    return training(lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9), nn.Dropout(0.1))


@sound
def adam_capturable() -> Any:
    return training(lambda given: torch.optim.Adam(given, lr=1e-3, capturable=True))


@sound
def adamw_fused() -> Any:
    return training(lambda given: torch.optim.AdamW(given, lr=1e-3, fused=True, capturable=True))


@sound
def rmsprop_capturable() -> Any:
    return training(lambda given: torch.optim.RMSprop(given, lr=1e-3, capturable=True))


@sound
def rate_on_the_gpu() -> Any:
    return training(lambda given: torch.optim.Adam(given, lr=torch.tensor(1e-3, device=DEVICE), capturable=True))


@sound
def gradients_are_kept() -> Any:
    model = mlp()

    def step(a: torch.Tensor) -> torch.Tensor:
        model.zero_grad(set_to_none=False)
        loss = model(a).square().mean()
        loss.backward()
        return loss.detach()

    return step, (x(),)


@sound
def state_in_place() -> Any:
    hidden = x(64, 16)

    def step(a: torch.Tensor) -> torch.Tensor:
        hidden.copy_(torch.tanh(hidden + a))
        return hidden * 2

    return step, (x(),)


@sound
def counter_on_the_gpu() -> Any:
    calls = torch.zeros((), device=DEVICE)

    def step(a: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        return a / calls

    return step, (x(),)


@sound
def ring_of_a_cache() -> Any:
    cache, place = x(8, 16), torch.zeros(1, dtype=torch.long, device=DEVICE)

    def step(a: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, place, a.mean(0, keepdim=True))
        place.copy_((place + 1) % 8)
        return cache.sum(0)

    return step, (x(),)


@sound
def without_arguments() -> Any:
    a, weight = x(), x(16, 16)
    return lambda: torch.relu(a @ weight), ()


@sound
def writes_to_its_input() -> Any:
    def step(a: torch.Tensor) -> torch.Tensor:
        a.mul_(0.99).add_(0.01)
        return a.sum(1)

    return step, (x(),)


@sound
def a_global_setting() -> Any:
    return lambda a: a * RATE, (x(),)


@sound
def attention() -> Any:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v), tuple(x(2, 4, 32, 16) for _ in range(3))


@sound
def attention_in_bf16() -> Any:
    return lambda q, k: F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), k.bfloat16()), (
        x(2, 4, 32, 16),
        x(2, 4, 32, 16),
    )


@sound
def convolution() -> Any:
    model = nn.Conv2d(8, 16, 3, padding=1).to(DEVICE)
    return torch.no_grad()(lambda a: model(a)), (x(4, 8, 16, 16),)


@sound
def recurrent() -> Any:
    model = nn.GRUCell(16, 16).to(DEVICE)

    def step(a: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros_like(a)
        for _ in range(5):
            hidden = model(a, hidden)
        return hidden

    return torch.no_grad()(step), (x(),)


@sound
def embedding() -> Any:
    table = nn.Embedding(100, 16).to(DEVICE)
    return torch.no_grad()(lambda tokens: table(tokens).sum(1)), (torch.randint(0, 100, (8, 12), device=DEVICE),)


@sound
def greedy_token() -> Any:
    model = mlp().eval()
    return torch.no_grad()(lambda a: model(a).argmax(1)), (x(),)


@sound
def sums_by_atomics() -> Any:
    index = torch.randint(0, 7, (4096,), device=DEVICE)
    return lambda a: torch.zeros(7, device=DEVICE).index_add_(0, index, a), (x(4096),)


@sound
def scatter_of_edges() -> Any:
    edges = torch.randint(0, 64, (2, 512), device=DEVICE)
    return lambda a: torch.zeros_like(a).index_add_(0, edges[1], a[edges[0]]), (x(),)


@sound
def autocast() -> Any:
    model = mlp()

    def step(a: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return model(a)

    return torch.no_grad()(step), (x(),)


@sound
def masks_without_selection() -> Any:
    return lambda a: torch.where(a > 0, a, a * 0.1).masked_fill(a > 2, 2.0).sum(), (x(),)


@sound
def random_numbers_of_the_gpu() -> Any:
    return lambda a: a + torch.randn_like(a) * 0.1, (x(),)


@sound
def sorts() -> Any:
    return lambda a: torch.topk(a, 5, dim=1).values.cumsum(1), (x(),)


if __name__ == "__main__":
    main(TRAPS, SETTINGS, SOUND, lambda: torch.manual_seed(1))
