"""Proves that a graph of a function computes what the function computes: same start, same inputs, call by call.

Both run 200 times from one state, with inputs that differ and other work and allocations between the calls. Outputs,
inputs and all state that the function reaches are compared. Of a function that does not repeat itself the graph's calls
are compared one by one, some of them. Then values of the host are changed between calls.
"""

from __future__ import annotations

import enum
import inspect
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial, update_wrapper, wraps
from types import CodeType
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np

from microbench.capture.blockers import library
from microbench.capture.graphed import (
    CALLED,
    SCALARS,
    TENSOR,
    Graphed,
    Part,
    arrays,
    aside,
    bind,
    described,
    holds,
    is_tensor,
    mapped,
    marked,
    now,
    of_library,
    torch,
    was_written,
)
from microbench.capture.state import After, Kept, after, reached
from microbench.capture.tensors import clone, equal, fill, free_bytes, give_back, on_host, take, untouched, viewed
from microbench.core.units import counted
from microbench.experiments.own.culprit import attempt

CALLS = 200  # of each run
FEW, SOME = 20, 0.25  # calls that show whether a function repeats itself; the share of the others that is compared
INPUTS = 5  # sets of inputs that are drawn
OVER_NUDGED = 16.0  # a sum of K products in another order moves by up to sqrt(K) times what a last bit of each does
MOST_CHANGES, MOST_NOTICED = 40, 16  # values of the host that are changed; of those at which every graph looks
CHANGE_AT, CHANGE_CALLS = 6, 12  # after a capture and replays, and long enough for another capture
# A function's own scatter is rounding only if it is less than this share of the values, by bytes of a number.
ROUNDING = {1: 2e-1, 2: 3e-2, 4: 1e-3, 8: 1e-9}
OVER_SCATTER = 3.0
LITTLE = 0.1  # of what is compared, which may be noise: the bias of the keys is one of 16 tensors of a layer
RANDOM, USER = "random numbers of ", "your code"
OTHERS = "memory that others have"
FROZEN_NOISE = "two calls of the function differ there, and two replays do not: what varies is frozen in the graph"
# Calls or runs of the function that show whether what a graph leaves is noise, and equal ones that show that it is not.
MORE, FEW_ALIKE = 4, 2
SURE = 8  # such calls, which come by chance once in 256
FROZEN_HOST = "values of the host change in each call, and a replay runs no code of the host"
OTHER = "the graph computes something else"
NOT_REPEATABLE = "the function itself is not repeatable from the same start"
HOW = ("capturable", "foreach", "fused", "differentiable")  # settings of optimizers that no program changes
KEPT_SHARE = 0.25  # of the free memory, for outputs that are kept

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class Parted:
    """A function of which parts are graphs, to be proved like a Graphed: its counts are those of its parts."""

    def __init__(self, function: Callable[..., Any], parts: Sequence[str], **options: Any) -> None:
        names = inspect.unwrap(function).__globals__
        self.function, self._names = function, parts
        self._parts: list[Graphed] = [names[name] for name in parts]
        for one in self._parts:  # the same objects, as new
            vars(one).update(vars(type(one)(one.function, **{**one.options, **options})))
        self.options = {**self._parts[0].options, "parts": parts}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    @property
    def counts(self) -> Counter[str]:
        """Those of the part that was replayed least."""
        return min((one.counts for one in self._parts), key=lambda one: one["replays"])

    @property
    def reasons(self) -> Counter[str]:
        """Why a part was not replayed."""
        return sum((one.reasons for one in self._parts), Counter())


def unparted(function: Callable[..., Any], source: str, name: str) -> Callable[..., Any]:
    """The same function in the same module, with the code that it has in ``source``."""
    inner: Any = inspect.unwrap(function)
    whole = compile(source, inner.__code__.co_filename, "exec")
    before = next(one for one in whole.co_consts if isinstance(one, CodeType) and one.co_name == name)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        code, inner.__code__ = inner.__code__, before
        try:
            return function(*arguments, **named)
        finally:
            inner.__code__ = code

    return called


class Difference(NamedTuple):
    """The first thing that differs: its name, the call (from 1), and how."""

    name: str
    call: int
    how: str


class Proof(NamedTuple):
    """What was shown, or why it was not."""

    proved: bool
    why: str  # "" if proved
    difference: Difference | None
    exact: bool  # bit by bit
    scatter: str
    calls: int  # that were compared
    outputs: int
    state: int
    varied: tuple[str, ...]
    left: tuple[str, ...]  # inputs and state that were not varied
    counts: dict[str, int]
    also: tuple[str, ...] = ()  # expressions that the graph must be told to look at


class Ran(NamedTuple):
    """A run: what calls returned and left in their inputs by call, and the state at its end."""

    kept: dict[int, list[tuple[str, Any]]]
    end: After


def prove(
    function: Callable[..., Any],
    other: Graphed | Parted,
    inputs: Sequence[Inputs],
    moved: Sequence[Any] = (),
    names: Sequence[str] = (),
    host: bool = True,
) -> Proof:
    """Whether ``other`` does what ``function`` does.

    ``inputs`` are the calls' arguments, in turn. ``moved`` are lists of values, one for each set of inputs, for the
    tensors that the function reads where they are: pairs of a tensor and its values. ``host`` says whether values of
    the host are changed between calls, too.
    """
    start = Kept(function, inputs[0])
    plan = Plan(function, inputs, moved, start)
    if plan.needs_backward:
        why = (
            "it returns a tensor whose backward() is outside of it, which a replay cannot give: call backward() in it, "
            "use torch.no_grad(), or take torch.cuda.make_graphed_callables"
        )
        return Proof(False, why, None, False, "", 0, 0, 0, (), (), {})
    began = after(function, inputs[0])
    compared: Callable[..., Any] = other
    with ExitStack() as settings:
        eager, graph, scatter = _runs(plan, other, settings)
        start.restore()
        outputs = sum(name != OTHERS for name, _ in next(iter(eager.kept.values()), []))

        def proof(why: str, difference: Difference | None = None, exact: bool = False) -> Proof:
            varied, left = plan.varied(names)
            state = len(eager.end.values)
            counts = dict(other.counts)
            return Proof(not why, why, difference, exact, scatter, calls, outputs, state, varied, left, counts)

        exact, extra, calls, noise = False, 0, CALLS, list[str]()
        if graph is None:
            both = plan.step_by_step(Both(function, other))
            scatter, extra, calls, noise = both.scatter, both.extra, both.compared, both.noise
            if both.why:
                return proof(both.why, both.difference)
        else:
            grown, found = changed_on_host(eager.end, graph.end), differences(eager, graph)
            exact = not grown and not found
            if not exact:
                # Libraries ask whether a capture is going on, and take other kernels.
                asked = AsCaptured(function, other.options["warm_up"])
                captured = plan.run(asked, CALLS)
                if not differences(captured, graph) and changed_on_host(captured.end, graph.end) is None:
                    compared, grown = AsCaptured(function), changed_on_host(eager.end, captured.end)
                    exact = grown is not None and grown.name.startswith(RANDOM) and asked.by not in ("", USER)
                start.restore()
                if grown and not exact:
                    return proof(FROZEN_HOST, grown)
            if exact and grown:
                scatter = f"what {asked.by} computes under capture, where it draws other random numbers"
            elif not exact:
                moves = {id(one) for one, _ in (moved or [[]])[0]}
                changes = state_differs(began, eager.end, start, moves)  # if not, no call hangs on those before
                if compared is other and (changes or not all(map(is_rounding, found))):
                    return proof(OTHER, found[0].told)
                both = plan.step_by_step(Both(function, compared, nudged=True))
                calls = both.compared
                if both.why:
                    return proof(both.why, both.difference)
                scatter = f"rounding ({both.found:.1g}; a last bit of what it reads gives {both.widest:.1g})"
        if other.counts.get("replays", 0) - extra < CALLS // 2:
            reason = other.reasons.most_common(1)[0][0] if other.reasons else "nothing was captured"
            return proof(f"calls cannot be replayed: {reason}")
        counts = dict(other.counts)  # parts are made anew from here on
        exactly, as_captured = exact or compared is not other, compared is not other
        if host and (frozen := plan.frozen(other, exactly, as_captured, noise)) is not None:
            return proof("a value of the host is frozen in the graph", frozen)
        return proof("", exact=exact)._replace(also=tuple(plan.also), counts=counts)


def _runs(plan: Plan, other: Graphed | Parted, settings: ExitStack) -> tuple[Ran, Ran | None, str]:
    """A run of the function, and one of its graph if the function repeats itself; with which settings, in words.

    Otherwise what differs would grow from call to call.
    """
    scatter = ""
    if plan.apart(FEW):
        settings.enter_context(_deterministic())
        scatter = "with deterministic algorithms"
        if plan.apart(FEW):
            settings.close()
            return plan.run(plan.function, FEW), None, ""
    eager, graph = plan.run(plan.function, CALLS), plan.run(other, CALLS)
    if not differences(eager, graph) or not plan.apart(CALLS):
        return eager, graph, scatter
    _renew(other)  # it repeats itself in a few calls, and not in all: none of them is left out
    plan.compared = 1.0
    if not scatter:
        settings.enter_context(_deterministic())
        if not plan.apart(CALLS):
            return plan.run(plan.function, CALLS), plan.run(other, CALLS), "with deterministic algorithms"
    settings.close()
    return eager, None, ""


def _renew(one: Graphed | Parted) -> None:
    """The same object as it was made: without graphs and counts."""
    vars(one).update(vars(type(one)(one.function, **one.options)))


def state_differs(one: After, other: After, start: Kept, moves: set[int]) -> bool:
    """Whether a run has changed any tensor that the function reaches, but those that the proof itself moves."""
    return any(
        deviation_of(name, value, other.values.get(name), 0) is not None
        for name, value in one.values.items()
        if is_tensor(value) and id(start.reached.ends.get(name)) not in moves
    )


@contextmanager
def _deterministic() -> Iterator[None]:
    """Use algorithms that give the same bits each time, where PyTorch has them."""
    if not torch:
        yield
        return
    torch_settings = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn, filled = torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory = True, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(torch_settings[0], warn_only=torch_settings[1])
        torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory = cudnn, filled


class Plan:
    """How both runs go: the same start, inputs, and work between calls."""

    def __init__(
        self, function: Callable[..., Any], inputs: Sequence[Inputs], moved: Sequence[Any], start: Kept
    ) -> None:
        self.function, self._inputs, self._moved, self._start = function, inputs, moved, start
        self._changed: list[str] = []
        self.also: list[str] = []
        self.compared = SOME  # of the calls that are made step by step
        self.left = dict.fromkeys(start.reached.left)
        self._written: set[int] = set()
        _, tensors = _flat(inputs[0])
        marks = [marked(one) for one in tensors]
        result = function(*inputs[0][0], **inputs[0][1])
        self.needs_backward = any(_goes_back(one) for _, one in _values(result, "output", detached=False))
        self._written = {place for place, one in enumerate(tensors) if was_written(one, marks[place])}
        start.restore()
        for given in self._inputs[1:] if any(isinstance(one, arrays()) for one in tensors) else ():
            own = [anew(one, clone(one)) for one in _flat(given)[1]]
            marks = [marked(one) for one in own]
            arguments, named = mapped(given, iter(own).__next__)
            function(*arguments, **named)  # of CuPy's arrays only values show it, which some calls leave as they are
            self._written |= {place for place, one in enumerate(own) if was_written(one, marks[place])}
            start.restore()

    def run(self, call: Callable[..., Any], calls: int, change: tuple[Any, Any, Any] | None = None) -> Ran:
        """Call it so often from the start; ``change`` is a holder, a key and a value that come in the middle."""
        self._start.restore()
        random = np.random.default_rng(1)
        kept: dict[int, list[tuple[str, Any]]] = {}
        held_bytes, most_bytes, taken = 0, KEPT_SHARE * free_bytes(), list[Any]()
        for number in range(calls):
            if change is not None and number == CHANGE_AT:
                holder, key, value = change
                bind(holder, key, clone(value) if is_tensor(value) else value)
            (arguments, named), tensors = self._fresh(number)
            self._move(number)
            result = call(*arguments, **named)
            if held_bytes < most_bytes or number < 2:
                kept[number] = [*_values(result, "output"), *((f"input {i}", clone(one)) for i, one in tensors)]
                kept[number] += [(OTHERS, untouched(taken))] * bool(arrays())
                held_bytes += sum(one.nbytes for _, one in kept[number] if is_tensor(one))
            del result
            if calls > CHANGE_CALLS:
                taken = between(random, number)
        end = after(self.function, self._inputs[0])
        return Ran(kept, end)

    def _move(self, number: int) -> None:
        """Other values into the tensors that the function reads where they are."""
        for tensor, values in self._moved[number % len(self._moved)] if self._moved else ():
            fill(tensor, values)

    def apart(self, calls: int) -> list[Deviation]:
        """What differs between two runs of the function itself."""
        return differences(self.run(self.function, calls), self.run(_aside(self.function), calls))

    def step_by_step(self, both: Both) -> Both:
        """Make all calls by the graph, and compare some of them: the first few, and others at random.

        A compared call is made by the function and by the graph from the same state, which takes several times as long.
        Returns what it got, with ``why`` if they differ.
        """
        self._start.restore()
        random = np.random.default_rng(1)
        for number in range(CALLS):
            (arguments, named), _ = self._fresh(number)
            self._move(number)
            if number < FEW or random.random() < self.compared:
                both.call(arguments, named)
            else:
                both.only_graph(arguments, named)
            if both.why:
                return both
            between(random, number)
        self._start.restore()
        both.why, both.difference = both.over_scatter()
        return both

    def _fresh(self, number: int) -> tuple[Inputs, list[tuple[int, Any]]]:
        """The inputs of a call: new tensors, except for those that the function writes to, which stay the same."""
        given, first = self._inputs[number % len(self._inputs)], self._inputs[0]
        _, tensors = _flat(given)
        _, kept = _flat(first)
        fresh = [kept[place] if place in self._written else anew(one, clone(one)) for place, one in enumerate(tensors)]
        places = iter(fresh)
        return mapped(given, places.__next__), [(place, one) for place, one in enumerate(fresh)]

    def varied(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What differed between calls, and which inputs did not, in words."""
        _, first = _flat(self._inputs[0])
        varied: list[str] = []
        left: list[str] = []
        for place, one in enumerate(first):
            differs = any(not equal(one, _flat(each)[1][place]) for each in self._inputs[1:])
            name = names[place] if place < len(names) else f"input {place}"
            (varied if differs or place in self._written else left).append(name)
        return tuple(dict.fromkeys((*varied, *self._changed))), (*left, *self.left)

    def frozen(
        self, proved: Graphed | Parted, exact: bool, as_captured: bool, unlike: Collection[str]
    ) -> Difference | None:
        """The first value of the host that changes what calls do, and that a graph cannot be told to look at.

        Those that it can be told to look at, because the function's module names them, are added to ``also``. With
        ``exact`` the graph is equal bit by bit; ``as_captured`` says to what. Names in ``unlike`` are noise.
        """
        names = getattr(inspect.unwrap(self.function), "__globals__", {})
        way: Any = AsCaptured if as_captured else lambda one: one
        function = way(self.function)
        base = Base(self, function, exact, unlike)
        found = list[Deviation]()
        for name, holder, key, value, changed in self._changes(self.function):
            change = holder, key, value, changed
            ended = attempt(partial(self._changed_run, function, *change))
            if ended.error is not None:  # the value does not suit the function
                continue
            eager: Any = ended.result
            if not base.feels(eager):
                continue
            given = proved.options["also"]
            for number, also in enumerate((given, given, _looking(name, value, names))):
                if also is None:
                    break
                if number == 1:  # a function that rounds otherwise now and then does so elsewhere the next time
                    eager = self._changed_run(function, *change)
                other = type(proved)(proved.function, **{**proved.options, "most": 2, "also": also})
                try:
                    graph = self._changed_run(way(other), *change)
                except RuntimeError:  # it cannot be captured then, which nobody overlooks
                    found = []
                    break
                found = base.unlike_in(eager, graph, partial(self._changed_run, _aside(function), *change))
                if not found:
                    if also is not given:
                        self.also.append(name)
                    break
            if found:
                told = f"{value!r:.20} became {changed!r:.20}, and the graph went on with {value!r:.20}"
                return Difference(name, found[0].told.call, told)
            self._changed.append(name)
        return None

    def _changed_run(self, call: Callable[..., Any], holder: Any, key: Any, before: Any, value: Any) -> Ran:
        """A run in whose middle a value of the host changes; it is as before when that ends."""
        try:
            return self.run(call, CHANGE_CALLS, (holder, key, value))
        finally:
            bind(holder, key, before)
            self._start.restore()

    def _changes(self, function: Callable[..., Any]) -> Iterable[tuple[str, Any, Any, Any, Any]]:
        """Values of the host that a user may change between calls: name, holder, key, value, another value."""
        found, reached = {True: 0, False: 0}, self._start.reached
        looked_at = {(id(holder), key) for _, holder, key in reached.places}
        settings_first = sorted(reached.bindings.items(), key=lambda one: "param_groups[0]" not in one[0])
        for name, (holder, key) in settings_first:
            value = now(holder, key)
            # Every graph looks at what layers hold; other values there may break work of the GPU.
            of_layer = isinstance(key, Part) or (isinstance(holder, dict) and "_parameters" in holder)
            bound = key is not CALLED or isinstance(
                getattr(getattr(holder, "func", None), "__self__", None), ContextVar
            )
            other = another(value) if bound and not of_layer and key not in HOW else None
            noticed = (id(holder), key) in looked_at  # by every graph: a few are tried
            if other is None:
                continue
            found[noticed] += 1
            most = MOST_NOTICED if noticed else MOST_CHANGES
            if found[noticed] > most:
                if found[noticed] == most + 1:
                    self.left[f"more values of the host, such as {name}"] = None
                continue
            yield name, holder, key, value, other


class Base:
    """How far runs of a function lie apart from one another while no value of the host is changed.

    With ``exact`` any difference counts. What is noise, by the names in ``unlike``, is not compared.
    """

    def __init__(self, plan: Plan, function: Callable[..., Any], exact: bool, unlike: Collection[str]) -> None:
        self._apart, self._exact, self._own = partial(differences, unlike=unlike), exact, dict[str, Deviation]()
        self._run = plan.run(function, CHANGE_CALLS)
        if not exact:
            self._widen(self._own, self._run, plan.run(_aside(function), CHANGE_CALLS))

    def feels(self, changed: Ran) -> bool:
        """Whether a run with another value differs by more than those with the same."""
        return bool(self._over(self._apart(self._run, changed), self._own))

    def unlike_in(self, eager: Ran, graph: Ran, again: Callable[[], Ran]) -> list[Deviation]:
        """What differs, by more than that, between the function and its graph in runs in which a value has changed. The
        function runs ``again`` with that change if anything does: two runs may be alike by chance."""
        own, alike = dict(self._own), 0  # what is noise after this change need not be after another
        for _ in range(0 if self._exact else MORE):
            if alike == FEW_ALIKE or not self._unlike(eager, graph, own):
                break
            other = attempt(again)
            if other.error is not None:
                break
            alike += not self._widen(own, eager, cast("Ran", other.result))
        return self._unlike(eager, graph, own)

    def _widen(self, own: dict[str, Deviation], one: Ran, other: Ran) -> list[Deviation]:
        found = self._apart(one, other)
        for deviation in found:
            _keep(own, deviation)
        return found

    def _over(self, found: Iterable[Deviation], own: dict[str, Deviation], least: float = 0.0) -> list[Deviation]:
        noise = max(_widest(filter(is_rounding, own.values())), least)
        wide = {name: one.relative for name, one in own.items() if not is_rounding(one)}
        return [one for one in found if one.relative > OVER_SCATTER * wide.get(one.name, noise)]

    def _unlike(self, eager: Ran, graph: Ran, own: dict[str, Deviation]) -> list[Deviation]:
        found = self._apart(eager, graph, CHANGE_AT)  # what differs before the change does not come from it
        if not all(map(is_rounding, self._over(found, own))):
            return found
        before = _widest(one for one in found if one.name not in own or is_rounding(own[one.name]))
        over = self._over(self._apart(eager, graph), own, before)
        return [one for one in over if self._exact or not is_rounding(one)]


def another(value: Any) -> Any:
    """Another value of the same kind; None if there is none that a function is likely to take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) and value == value and not isinstance(value, enum.Enum):
        if isinstance(value, float):
            return value * 0.9 if value else 0.5
        # Kernels of one's own do not look whether their arrays are large enough.
        return value - 1 if value > 0 and "cupy" in sys.modules else value + 1
    if isinstance(value, TENSOR):
        if value.is_floating_point() and not isinstance(value, torch.nn.Parameter):
            return value.detach().flip(-1).clone().requires_grad_(value.requires_grad) * 1.25
        return None
    if isinstance(value, arrays()):
        return value[..., ::-1] * 1.25 if value.dtype.kind == "f" and value.ndim else None
    if isinstance(value, enum.Enum):
        return next((each for each in type(value) if each is not value), None)
    if torch and isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.bfloat16 if value is torch.float32 else torch.float32
    if type(value) is tuple and all(isinstance(each, int | float) for each in value):
        return tuple(map(another, value)) or None
    return None


class Both:
    """Makes each call by a function and by its graph, from the same state, and compares what they return and leave."""

    def __init__(self, function: Callable[..., Any], graph: Callable[..., Any], nudged: bool = False) -> None:
        self._function, self._graph, self._calls, self.compared = function, graph, 0, 0
        self._again = _nudging(function) if nudged else _aside(function)
        self._over = OVER_NUDGED if nudged else OVER_SCATTER
        self._scatter: dict[str, Deviation] = {}
        self._tensors = 0
        # Noise that differs between two replays, too; by name, in how many calls it did not; replays for that.
        self._moves, self._still, self.extra = set[str](), Counter[str](), 0
        self._near: set[str] = set()  # more than rounding apart, and at most OVER_SCATTER times as far as two calls
        self._found: dict[str, Deviation] = {}
        self.why = ""
        self.difference: Difference | None = None

    @property
    def widest(self) -> float:
        """How far two calls of the function itself lie apart at most, but for ``noise``; nudged, the second reads other
        last bits."""
        noise = self.noise
        return _widest(one for one in self._scatter.values() if one.name not in noise)

    @property
    def scatter(self) -> str:
        """How far two calls of the function itself lie apart, in words."""
        noise = self.noise  # which tells little of the graph
        others = f"; noise in {counted(len(noise), 'value')}, such as {noise[0]}" if noise else ""
        return f"the function's own scatter ({self.widest:.1g}{others})"

    @property
    def noise(self) -> list[str]:
        """Names of what two calls of the function leave apart by more than rounding, such as a gradient whose terms
        cancel out and the parameter that follows it. Empty if that is more than a little, or what it returns."""
        found = [one for one in self._scatter.values() if not is_rounding(one)]
        known = not any(one.name.startswith("output") or math.isinf(one.relative) for one in found)
        few = known and len(found) <= LITTLE * self._tensors and self._over == OVER_SCATTER
        return [one.name for one in found] if few else []

    @property
    def found(self) -> float:
        """How far the graph lies apart at most."""
        return _widest(self._found.values())

    def call(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the graph returns. ``why`` says from then on whether it is wrong."""
        here, turns, result = Kept(self._function, (arguments, named)), [], None
        self._calls, self.compared = self._calls + 1, self.compared + 1
        for one in (self._function, self._again, self._graph):
            result = None  # a gradient would keep nodes that belong to this stream, which breaks a capture
            ran, result = self._turn(one, here, arguments, named)
            turns.append(ran)
        eager, again, graph = turns
        compared = (*eager.end.values.values(), *(one for each in eager.kept.values() for _, one in each))
        self._tensors = sum(map(is_tensor, compared))
        own = differences(eager, again)
        for deviation in own:
            _keep(self._scatter, deviation)
        if (grown := changed_on_host(eager.end, graph.end)) is not None:
            self.why, self.difference = FROZEN_HOST, grown._replace(call=self._calls)
            return result
        if (noise := self.noise) and not self._moves.issuperset(noise):
            self._replay_again(here, arguments, named, graph, {one.name for one in own})
        apart = differences(eager, graph)
        for deviation in apart:
            _keep(self._found, deviation)
        unlike = self._unlike(apart)
        if unlike and self._over == OVER_SCATTER:
            for _ in range(MORE):  # two calls may be alike by chance
                for deviation in differences(eager, self._turn(self._again, here, arguments, named)[0]):
                    _keep(self._scatter, deviation)
            most = {name: OVER_SCATTER * one.relative for name, one in self._scatter.items()}
            near = {one.name for one in unlike if one.relative <= most.get(one.name, 0.0) < math.inf}
            self._near |= {name for name in near if not name.startswith("output")}
            unlike = self._unlike(unlike)
            _, result = self._turn(self._graph, here, arguments, named)  # goes on from what the graph leaves
            self.extra += 1
        if unlike:
            scatter = self._scatter.get(unlike[-1].name)
            repeats = scatter is None or is_rounding(scatter) or self._over == OVER_NUDGED
            self.why, self.difference = OTHER if repeats else NOT_REPEATABLE, unlike[-1].told
        return result

    def _unlike(self, found: Iterable[Deviation]) -> list[Deviation]:
        """Those that are neither rounding nor noise, nor near where only a little is."""
        few = len(self._near) <= max(LITTLE * self._tensors, 1)
        known = {*self.noise, *(self._near if few else ())}
        return [one for one in found if not is_rounding(one) and one.name not in known]

    def _turn(self, one: Callable[..., Any], here: Kept, arguments: Any, named: Any) -> tuple[Ran, Any]:
        """A call from that state: what it returned and left, and the result itself."""
        here.restore()
        result = one(*arguments, **named)
        kept = {self._calls - 1: list(_values(result, "output"))}
        return Ran(kept, after(self._function, (arguments, named), here.reached)), result

    def only_graph(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A call of the graph that is not compared."""
        self._graph(*arguments, **named)
        self._calls += 1

    def _replay_again(self, here: Kept, arguments: Any, named: Any, graph: Ran, apart: set[str]) -> None:
        """Replay once more from the same state. Note which values differ between the two replays, of those that are
        ``apart`` between two calls of the function."""
        before = Counter(getattr(self._graph, "counts", {}))
        second, _ = self._turn(self._graph, here, arguments, named)
        self.extra += 1
        if (Counter(getattr(self._graph, "counts", {})) - before).keys() - {"replays"}:
            return  # it was captured, or ran without a graph
        moved = {one.name for one in differences(graph, second)}
        self._moves |= moved
        self._still.update((apart & {*self.noise}) - moved)

    def over_scatter(self) -> tuple[str, Difference | None]:
        """Why the graph is wrong, "" if it differs by no more than the function's own scatter.

        That is the widest of all it returns and leaves, but for other last bits, which each value feels in its own way.
        """
        nudged, noise = self._over == OVER_NUDGED, self.noise
        unlike = [one for one in self._scatter.values() if not (nudged or is_rounding(one) or one.name in noise)]
        if unlike:
            return NOT_REPEATABLE, unlike[0].told
        for one in self._scatter.values():
            if one.name in noise and one.name not in self._moves and self._still[one.name] >= SURE:
                return FROZEN_NOISE, one.told
        alone = {*noise, *self._near}  # compared with their own scatter
        own = {one.name: one.relative for one in self._scatter.values() if nudged or one.name in alone}
        least = 0.0 if nudged else self.widest
        wide = [one for one in self._found.values() if one.relative > self._over * own.get(one.name, least)]
        if not wide:
            return "", None
        how = f"{wide[0].told.how} ({wide[0].relative:.1g} of all; {self.widest:.1g} lie two of its own calls apart)"
        return OTHER, wide[0].told._replace(how=how)


def checked(function: Callable[..., Any], graph: Graphed, calls: int) -> Callable[..., Any]:
    """The graph, of which the first calls are also made by the function, from the same state.

    Raises RuntimeError at the first call that differs.
    """
    both = Both(function, graph)
    left = calls

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        if not left:
            return graph(*arguments, **named)
        left -= 1
        result = both.call(arguments, named)
        why, difference = (both.why, both.difference) if both.why else both.over_scatter()
        if why:
            raise RuntimeError(f"{why}: {difference.name}, {difference.how}" if difference else why)
        return result

    return called


def _looking(name: str, value: Any, names: dict[str, Any]) -> Callable[[], Any] | None:
    """What looks at a value by its name; None if the function's module does not know it by that name."""
    looking: Callable[[], Any] | None = attempt(lambda: eval(f"lambda: ({name},)", names)).result  # type: ignore[assignment]
    seen: Any = attempt(looking).result if looking is not None else None
    return looking if seen and seen[0] is value else None


class Deviation(NamedTuple):
    """A difference with its size: the share of the values' size, and the bytes of a number; relative is infinite where
    no number says how far apart they are."""

    name: str
    relative: float
    itemsize: int
    told: Difference


def is_rounding(one: Deviation) -> bool:
    """Whether a difference is so small that sums in another order can make it."""
    return one.relative <= ROUNDING.get(one.itemsize, 0.0)


def differences(one: Ran, other: Ran, before: int | None = None, unlike: Collection[str] = ()) -> list[Deviation]:
    """What differs between two runs, or between their calls ``before`` one, by name, each at its largest; in the order
    of the calls. Names in ``unlike`` are left out."""
    found: dict[str, Deviation] = {}
    for number in sorted(set(one.kept) & set(other.kept)):
        if number == before:
            return list(found.values())
        mine, theirs = one.kept[number], other.kept[number]
        if [name for name, _ in mine] != [name for name, _ in theirs]:
            told = Difference("output", number + 1, f"{len(mine)} values, then {len(theirs)}")
            return [Deviation("output", float("inf"), 0, told)]
        for (name, value), (_, against) in zip(mine, theirs, strict=True):
            _add(found, name, value, against, number + 1)
    for name, value in one.end.values.items():
        if name in other.end.values and name not in unlike and (isinstance(value, np.ndarray) or is_tensor(value)):
            _add(found, name, value, other.end.values[name], max(one.kept) + 1)
    return list(found.values())


def _add(found: dict[str, Deviation], name: str, value: Any, against: Any, call: int) -> None:
    if (deviation := deviation_of(name, value, against, call)) is not None:
        _keep(found, deviation)


def _keep(found: dict[str, Deviation], one: Deviation) -> None:
    """Keep the largest deviation of each name, as told by the first."""
    before = found.get(one.name)
    if before is None or one.relative > before.relative:
        found[one.name] = one if before is None else one._replace(told=before.told)


def deviation_of(name: str, value: Any, against: Any, call: int) -> Deviation | None:
    """How two values of one thing differ; None if they are equal bit by bit."""
    if isinstance(value, arrays()):
        return _deviation_of_array(name, value, against, call)
    if not isinstance(value, TENSOR):
        same = (
            np.array_equal(value, against)
            if isinstance(value, np.ndarray)
            else type(value) is type(against) and (value == against or value != value)
        )
        return (
            None
            if same
            else Deviation(name, float("inf"), 0, Difference(name, call, f"{value!r:.40}, then {against!r:.40}"))
        )
    if not isinstance(against, TENSOR) or value.shape != against.shape or value.dtype != against.dtype:
        shape = tuple(against.shape) if isinstance(against, TENSOR) else against
        return Deviation(name, float("inf"), 0, Difference(name, call, f"shape {tuple(value.shape)}, then {shape}"))
    if torch.equal(value, against):
        return None
    if not value.is_floating_point() and not value.is_complex():
        return Deviation(name, float("inf"), 0, Difference(name, call, "whole numbers differ"))
    finite = torch.isfinite(value) & torch.isfinite(against)
    lost = ~(finite | (value == against) | (value.isnan() & against.isnan()))
    one, other = (torch.view_as_real(each) if each.is_complex() else each.double() for each in (value, against))
    one, other = (torch.where(torch.isfinite(each), each, 0) for each in (one, other))
    size, apart = (each.square().mean().sqrt().item() for each in (one, one - other))
    if apart == 0 and not lost.any():  # NaN at the same places, or signs of zero
        return None
    apart = float("inf") if lost.any() or not size else apart / size
    place = int((one - other).abs().flatten().argmax())
    told = f"{one.flatten()[place].item():.7g}, then {other.flatten()[place].item():.7g} at element {place}"
    return Deviation(name, apart, value.element_size(), Difference(name, call, told))


def _deviation_of_array(name: str, value: Any, against: Any, call: int) -> Deviation | None:
    """The same for arrays of CuPy, on the host."""
    one, other = np.asarray(on_host(value)), np.asarray(on_host(against))
    if one.shape != other.shape or one.dtype != other.dtype:
        return Deviation(name, math.inf, 0, Difference(name, call, f"shape {one.shape}, then {other.shape}"))
    if one.tobytes() == other.tobytes():
        return None
    if one.dtype.kind not in "fc":
        return Deviation(name, math.inf, 0, Difference(name, call, "whole numbers differ"))
    size, wide = one.dtype.itemsize, np.complex128 if one.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    with np.errstate(all="ignore"):
        lost = ~((np.isfinite(one) & np.isfinite(other)) | (one == other) | (np.isnan(one) & np.isnan(other)))
        gap = np.abs(np.where(np.isfinite(one) & np.isfinite(other), one - other, 0))
        rms = np.sqrt(np.mean(np.square(np.abs(np.where(np.isfinite(one), one, 0)))))
        apart = float(np.sqrt(np.mean(np.square(gap))))
    if apart == 0 and not lost.any():  # NaN at the same places, or signs of zero
        return None
    place = int(np.where(lost, np.inf, gap).argmax())
    told = f"{one.flat[place]:.7g}, then {other.flat[place]:.7g} at element {place}"
    relative = math.inf if lost.any() or not rms else apart / float(rms)
    return Deviation(name, relative, size, Difference(name, call, told))


def changed_on_host(eager: After, graph: After) -> Difference | None:
    """Plain values and random states that calls have changed and replays have not."""
    for name, value in eager.values.items():
        if isinstance(value, SCALARS) and name in graph.values and graph.values[name] != value and value == value:
            return Difference(
                name, CALLS, f"{value!r:.40} after {CALLS} calls, {graph.values[name]!r:.40} with the graph"
            )
    for name in eager.values.keys() ^ graph.values.keys():
        return Difference(name, CALLS, f"it is there only {'without' if name in eager.values else 'with'} the graph")
    for name, state in eager.randoms.items():
        if graph.randoms.get(name) != state:
            return Difference(name, CALLS, "their state is another after as many calls")
    return None


def between(random: np.random.Generator, number: int) -> list[Any]:
    """Other work between two calls: memory is taken, filled with NaN and given back, random numbers are drawn. Of
    CuPy every other time it is kept, and the result: nobody may write to it."""
    taken = take(random)
    kept = [one for one in taken if isinstance(one, arrays())] if number % 2 else []
    if number % 50 == 49:
        del taken
        give_back()
    return kept


def _nudging(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which first gets other last bits, at random, in all numbers that it reads."""

    def called(*arguments: Any, **named: Any) -> Any:
        for one in reached(function, (arguments, named)).ends.values():
            if isinstance(one, arrays()) and one.dtype.kind in "fc":
                bits = np.random.default_rng().integers(-1, 2, one.shape)
                fill(one, on_host(one) * (1 + np.finfo(one.dtype).eps * bits))
            elif isinstance(one, TENSOR) and one.is_floating_point():
                bits = torch.randint(-1, 2, one.shape, device=one.device).to(one.dtype)
                fill(one, one.detach() * (1 + torch.finfo(one.dtype).eps * bits))
        return function(*arguments, **named)

    return called


class AsCaptured:
    """The function, as libraries run it that ask whether a capture is going on, in all calls ``after`` so many."""

    def __init__(self, function: Callable[..., Any], after: int = 0) -> None:
        self._function, self._left, self.by = function, after, ""  # who asked
        update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left >= 0:
            return self._function(*arguments, **named)
        with mock.patch.object(torch.cuda, "is_current_stream_capturing", self._answer) if torch else nullcontext():
            return self._function(*arguments, **named)

    def _answer(self) -> bool:
        asking = sys._getframe(1)
        if self.by != USER:
            self.by = (library(asking) or "PyTorch") if of_library(asking.f_code) else USER
        return True


def _widest(found: Iterable[Deviation]) -> float:
    return max((one.relative for one in found), default=0.0)


def anew(given: Any, values: Any) -> Any:
    """Other values as a new input: with a gradient if the given one has one."""
    return values.requires_grad_(given.requires_grad) if isinstance(given, TENSOR) else values


def generator(seed: int) -> np.random.Generator:
    """What draws inputs, on the host, so that every GPU gets the same."""
    return np.random.default_rng(seed)


def _draw_array(value: Any, random: np.random.Generator) -> Any:
    """Other values for an array of CuPy, as draw() does."""
    known = np.asarray(on_host(value))
    one = known.view(known.real.dtype) if known.dtype.kind == "c" and known.flags.c_contiguous else known
    finite = one[np.isfinite(one)] if one.dtype.kind == "f" else one
    if finite.size == 0 or one.dtype.kind not in "fiub":
        return value.copy()
    if one.dtype.kind == "b":
        drawn = random.random(one.shape) < one.mean()
    elif one.dtype.kind == "f":
        low, high, spread = (float(each) for each in (finite.min(), finite.max(), finite.std()))
        numbers = (float(finite.mean()) + spread * random.standard_normal(one.shape)).clip(low, high)
        if finite.size == 1:  # such as a rate
            numbers = (0.5 + random.random()) * one
        drawn = np.where(np.isfinite(one), numbers, one)
    else:
        drawn = random.integers(finite.min(), finite.max(), one.shape, dtype=one.dtype, endpoint=True)
    fresh = value.copy(order="K")
    fresh.set(np.asarray(drawn, one.dtype).reshape(one.shape).view(known.dtype))
    return fresh


def draw(value: Any, random: np.random.Generator) -> Any:
    """Other values for a tensor: numbers as far apart and within the same range, whole numbers within their range."""
    if value.size == 0 if isinstance(value, arrays()) else value.numel() == 0:
        return value
    if isinstance(value, arrays()):
        return _draw_array(value, random)
    if value.dtype == torch.bool:
        share = value.double().mean().item()
        return torch.from_numpy(np.asarray(random.random(value.shape) < share)).to(value.device)
    if value.is_complex():
        return value.flip(-1)
    finite = value[torch.isfinite(value)].double() if value.is_floating_point() else value
    if finite.numel() == 0:
        return value
    low, high = finite.min(), finite.max()
    if value.is_floating_point():  # a mask keeps its infinities
        values = torch.from_numpy(np.asarray(random.standard_normal(value.shape))).to(value.device)
        spread = finite.std(correction=min(finite.numel() - 1, 1))
        drawn = (finite.mean() + spread * values).clamp(low, high)
        if finite.numel() == 1:  # such as a rate
            drawn = (0.5 + random.random()) * value.double()
        return torch.where(torch.isfinite(value), drawn, value.double()).to(value.dtype)
    drawn = torch.from_numpy(np.asarray(random.integers(int(low), int(high), value.shape, endpoint=True)))
    return drawn.to(value.device, value.dtype)


def _flat(value: Any) -> tuple[Any, list[Any]]:
    tensors: list[Any] = []
    return described(value, tensors), tensors


def _aside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in a stream of its own, as captures have one: libraries keep a workspace for each stream."""

    def called(*arguments: Any, **named: Any) -> Any:
        with aside():
            return function(*arguments, **named)

    return called


def _goes_back(one: Any) -> bool:
    """Whether backward() can still be called on an output: its graph has not been used."""
    if not isinstance(one, TENSOR) or one.grad_fn is None:
        return False
    try:
        one.sum().backward(retain_graph=True)
    except RuntimeError:
        return False
    return True


def _values(value: Any, path: str, detached: bool = True) -> Iterable[tuple[str, Any]]:
    """The values of a result, each with its place; as copies unless ``detached`` is False."""
    if is_tensor(value):
        yield path, clone(value) if detached else value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _values(each, f"{path}[{key!r}]", detached)
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _values(each, f"{path}[{number}]", detached)
    elif (view := viewed(value)) is not None:  # memory of Numba or cuda.core
        yield from _values(view, path, detached)
    elif isinstance(value, (*SCALARS, np.ndarray)):
        yield path, value
    elif holds(value):
        for key, each in vars(value).items():
            yield from _values(each, f"{path}.{key}", detached)
