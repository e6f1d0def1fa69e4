"""How the model plays a step and submits a workload: order, streams, queue, engines, the law, the critical path."""

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import snapshots
from hypothesis import given
from hypothesis import strategies as st

from microbench.model import model
from microbench.model.workload import Copies, Event, HostMemory, HostWork, Kernels, Part, Wait, Workload

LAYERS = ("loop", "cuda_core")
MEMORY, LINK = 4e12, 50e9
# Every constant has a value of its own, so that none can stand for another.
KNOWN = {
    "way": 3e-6, "empty": 0.0, "complete": 2.5e-6, "sync": 0.2e-6, "gap_stream": 1.4e-6, "gap_graph": 0.6e-6,
    "replay_node": 2e-9, "write_stream": 0.11e-6, "write_graph": 0.13e-6, "code_graph": 0.19e-6,
    "one_stream_stream": 0.15e-6, "one_stream_graph": 0.17e-6, "wide_graph": 0.21e-6, "wide_blocks": 1056.0,
    "replay_way": 3.5e-6, "replay_root": 0.7e-6, "memset_graph": 1.2e-6, "h2d_graph": 6.8e-6, "h2d_small_graph": 0.8e-6,
    "d2h_graph": 7.4e-6, "branch_graph": 0.12e-6,
    "make": 30e-6, "queue": 1000.0, "front_end": 0.25e-6, "memory": MEMORY,
    "h2d_call": 1.9e-6, "h2d_way": 1.3e-6, "h2d_latency": 1.1e-6, "h2d_rate": LINK,
    "d2h_call": 1.7e-6, "d2h_way": 1.5e-6, "d2h_latency": 1.2e-6, "d2h_rate": LINK * 1.1,
    "h2d_pageable_latency": 5e-6, "h2d_pageable_rate": 12e9, "d2h_pageable_latency": 8e-6, "d2h_pageable_rate": 9e9,
    model.call_name("loop", 0): 2.3e-6, model.call_name("loop", 8): 2.6e-6, model.replay_name("loop"): 2.1e-6,
    model.call_name("cuda_core", 0): 2.9e-6, model.call_name("cuda_core", 8): 4.3e-6,
    model.replay_name("cuda_core"): 3.1e-6,
}  # fmt: skip
CLOSE_S = 1e-12
# Behind kernels that write, in a program of one stream.
GAPS = {way: KNOWN[f"gap_{way}"] + KNOWN[f"write_{way}"] - KNOWN[f"one_stream_{way}"] for way in model.WAYS}

seconds = st.floats(0, 1e-3)
zeros = (st.just(0.0),) * 4
kernel_work = st.builds(model.Work, st.just("gpu"), seconds, seconds, st.integers(0, 3), st.booleans(), *zeros)
copy_work = st.builds(
    model.Work, st.sampled_from(("h2d", "d2h")), seconds, st.just(0.0), st.just(0), st.booleans(), *zeros
)
events = st.builds(Event, st.integers(0, 3), st.integers(0, 3), st.booleans())
several = st.lists(kernel_work | copy_work | events, min_size=1, max_size=6).map(tuple)
none = st.just(())
no_wait = st.none()
launches = st.builds(
    model.Act, st.just("launch"), seconds, seconds, st.tuples(kernel_work | copy_work), st.integers(0, 2), no_wait
)
replays = st.builds(model.Act, st.just("replay"), seconds, seconds, several, st.integers(0, 2), no_wait)
waits = st.builds(model.Act, st.just("sync"), seconds, st.just(0.0), none, st.just(0), seconds)
host_acts = st.builds(model.Act, st.sampled_from(("host", "copy")), seconds, st.just(0.0), none, st.just(0), no_wait)
event_acts = events.map(lambda event: model.Act("event", 0.0, work=(event,)))
mixtures = st.lists(launches | replays | waits | host_acts | event_acts, max_size=30)
queues = st.integers(1, 40)

durations = st.lists(st.floats(0, 20e-6), min_size=1, max_size=3).map(tuple)
kernel_parts = st.builds(
    Kernels, st.integers(1, 8), durations, st.sampled_from((0.0, 40e6)), st.sampled_from((0, 8)),
    st.floats(0, 5e-6), st.sampled_from((None, *LAYERS)), st.none(), st.sampled_from((None, 4, 2000)),
)  # fmt: skip
copy_parts = st.builds(
    Copies, st.sampled_from(("h2d", "d2h")), st.integers(1, 1 << 22), st.integers(1, 3),
    st.sampled_from(("pinned", "pageable")), st.none(), st.sampled_from((0.0, 4e-6)),
)  # fmt: skip
parts = kernel_parts | copy_parts | st.just(Wait()) | st.builds(HostWork, st.floats(0, 1e-4)) | events
workloads = st.builds(
    Workload, st.lists(parts, min_size=1, max_size=8).map(tuple), st.sampled_from(LAYERS), st.integers(1, 4)
)


def step(*of: Part, **more: object) -> Workload:
    return Workload(of, **more)


def played(workload: Workload, way: str, **changed: float) -> model.Played:
    constants = KNOWN | changed
    front_end_s = constants["front_end"] if workload.streams > 1 else 0.0
    return model.play(model.acts(workload, constants, way), queue=int(constants["queue"]), front_end_s=front_end_s)


def works(of: Sequence[model.Act]) -> list[tuple[int, int, model.Work]]:
    """Everything submitted, in order: the act, the stream, the work."""
    return [
        (index, act.stream + work.branch, work)
        for index, act in enumerate(of)
        for work in act.work
        if isinstance(work, model.Work)
    ]


def gaps(spans: Sequence[model.Span]) -> list[float]:
    return [later.begin_s - earlier.end_s for earlier, later in itertools.pairwise(spans)]


@given(mixtures, queues, seconds)
def test_the_host_does_one_thing_after_another(of: list[model.Act], queue: int, front_end_s: float) -> None:
    found = model.play(of, queue=queue, front_end_s=front_end_s)
    acts = [index for index, act in enumerate(of) if act.kind != "event"]
    assert [span.act for span in found.host if span.lane == "host"] == acts
    assert all(gap >= -CLOSE_S for gap in gaps(found.host))
    assert all(
        span.end_s - span.begin_s == pytest.approx(of[span.act].host_s, abs=CLOSE_S)
        for span in found.host
        if span.lane == "host"
    )
    assert found.end_s == max((span.end_s for span in (*found.host, *found.work)), default=0.0)


@given(mixtures, queues, seconds)
def test_a_wait_is_for_all_streams_and_engines(of: list[model.Act], queue: int, front_end_s: float) -> None:
    found = model.play(of, queue=queue, front_end_s=front_end_s)
    for wait in (span for span in found.host if span.lane == "wait"):
        ends = [work.end_s for work in found.work if work.act < wait.act]
        assert wait.end_s == pytest.approx(max(wait.begin_s, max(ends) + (of[wait.act].wait_s or 0.0)))


@given(mixtures, queues, seconds)
def test_work_begins_behind_its_call_and_lasts_as_it_says(of: list[model.Act], queue: int, front_end_s: float) -> None:
    found = model.play(of, queue=queue, front_end_s=front_end_s)
    called = {span.act: span.end_s for span in found.host if span.lane == "host"}
    submitted = works(of)
    assert [(span.act, span.lane) for span in found.work] == [(act, work.lane) for act, _, work in submitted]
    for span, (act, _, work) in zip(found.work, submitted, strict=True):
        assert span.begin_s >= called[act] + of[act].way_s - CLOSE_S
        assert span.end_s - span.begin_s == pytest.approx(work.duration_s, abs=CLOSE_S)


@given(mixtures, queues, seconds)
def test_nothing_overlaps_in_a_stream_or_on_a_copy_engine(of: list[model.Act], queue: int, front_end_s: float) -> None:
    found = model.play(of, queue=queue, front_end_s=front_end_s)
    submitted = list(zip(found.work, works(of), strict=True))
    for stream in {one for _, (_, one, _) in submitted}:
        own = [(span, work) for span, (_, one, work) in submitted if one == stream]
        for (earlier, _), (later, work) in itertools.pairwise(own):
            assert later.begin_s >= earlier.end_s + work.gap_s - CLOSE_S
    for engine in ("h2d", "d2h"):
        assert all(gap >= -CLOSE_S for gap in gaps([span for span in found.work if span.lane == engine]))


@given(mixtures, queues, seconds)
def test_the_critical_path_adds_up_to_the_end(of: list[model.Act], queue: int, front_end_s: float) -> None:
    found = model.play(of, queue=queue, front_end_s=front_end_s)
    assert sum(found.shares.values()) == pytest.approx(found.end_s, rel=1e-9, abs=CLOSE_S)
    assert set(found.shares) <= set(model.LIMITS)
    assert all(share >= -CLOSE_S for share in found.shares.values())


@given(mixtures, queues, st.data())
def test_nothing_is_sooner_when_anything_takes_longer(of: list[model.Act], queue: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(of) - 1)) if of else 0
    more_s = data.draw(st.floats(0, 1e-3))
    slower = [act._replace(host_s=act.host_s + more_s) if at == index else act for at, act in enumerate(of)]
    before, after = model.play(of, queue=queue), model.play(slower, queue=queue)
    assert after.end_s >= before.end_s - CLOSE_S
    assert after.end_s <= before.end_s + more_s + CLOSE_S
    pairs = zip((*before.host, *before.work), (*after.host, *after.work), strict=True)
    assert all(later.begin_s >= sooner.begin_s - CLOSE_S for sooner, later in pairs)


@given(st.integers(1, 60), queues, seconds, seconds, seconds)
def test_a_full_queue_holds_the_call(kernels: int, queue: int, call_s: float, duration_s: float, gap_s: float) -> None:
    launch = model.Act("launch", call_s, 1e-6, (model.Work("gpu", duration_s, gap_s),))
    found = model.play([launch] * kernels, queue=queue)
    for index, call in enumerate(found.host):
        free_s = found.work[index - queue].begin_s if index >= queue else 0.0
        before_s = found.host[index - 1].end_s if index else 0.0
        assert call.begin_s == max(free_s, before_s)
        waiting = sum(work.begin_s > call.end_s for work in found.work[: index + 1])
        assert waiting <= queue
    roomy = model.play([launch] * kernels)
    # A queue of two never starves the GPU of kernels that take longer than call and way.
    if queue >= 2 and duration_s + gap_s >= call_s + 1e-6:
        ends = zip(found.work, roomy.work, strict=True)
        assert all(mine.end_s == pytest.approx(other.end_s, rel=1e-9) for mine, other in ends)


@given(st.integers(1, 8), st.lists(st.tuples(st.floats(0, 50e-6), st.floats(0, 50e-6)), min_size=1, max_size=40))
def test_streams_share_the_memory(streams: int, lengths: list[tuple[float, float]]) -> None:
    """All together no sooner than their bytes take, and no later than one stream with the same kernels."""
    works_of = [(model.Work("gpu", max(both), memory_s=both[1]),) for both in lengths]
    of = [model.Act("launch", 0.0, 0.0, work, index % streams) for index, work in enumerate(works_of)]
    found = model.play(of)
    assert found.end_s >= sum(memory_s for _, memory_s in lengths) - CLOSE_S
    assert found.end_s <= model.play([act._replace(stream=0) for act in of]).end_s + CLOSE_S
    assert sum(found.shares.values()) == pytest.approx(found.end_s, abs=CLOSE_S)


def test_memory_keeps_no_kernel_that_leaves_it_free() -> None:
    """A queue in one stream does not delay the other stream as long as the memory can move the bytes of both."""
    slow, quick = (model.Act("launch", 0.0, 0.0, (model.Work("gpu", length, memory_s=1e-6),), stream)
                   for stream, length in ((0, 100e-6), (1, 3e-6)))  # fmt: skip
    found = model.play([slow] * 20 + [quick] * 20)
    assert found.work[-1].end_s == pytest.approx(60e-6, rel=0.4)
    assert found.end_s == pytest.approx(2e-3)


@given(st.integers(1, 8), st.lists(st.tuples(st.floats(0, 50e-6), st.floats(0, 1)), min_size=1, max_size=40))
def test_streams_share_the_sms(streams: int, kernels: list[tuple[float, float]]) -> None:
    """No sooner than the SMs can run all blocks, no later than one stream; kernels that fill the GPU run in turn."""
    for full in (True, False):
        shares = [1.0 if full else share for _, share in kernels]
        of = [
            model.Act("launch", 0.0, 0.0, (model.Work("gpu", length, sms_s=length * share),), index % streams)
            for index, ((length, _), share) in enumerate(zip(kernels, shares, strict=True))
        ]
        found = model.play(of)
        assert found.end_s >= sum(act.work[0].sms_s for act in of) - CLOSE_S
        assert found.end_s <= model.play([act._replace(stream=0) for act in of]).end_s + CLOSE_S
        if full:
            assert found.end_s == pytest.approx(sum(length for length, _ in kernels), abs=CLOSE_S)


def in_turn(first_s: float, second_s: float, *between: Part) -> Workload:
    """A kernel in each of two streams, with other parts between them."""
    one, other = (Kernels(1, (length_s,), stream=stream) for stream, length_s in enumerate((first_s, second_s)))
    return step(one, *between, other, streams=3)


RECORDED, AWAITED = Event(5, 0), Event(5, 1, awaited=True)


@pytest.mark.parametrize("way", model.WAYS)
def test_work_behind_an_awaited_event_begins_behind_the_events_stream(way: str) -> None:
    gap_s = KNOWN[f"gap_{way}"] + KNOWN[f"write_{way}"]
    first, second = played(in_turn(90e-6, 5e-6, RECORDED, AWAITED), way).work
    assert second.begin_s == pytest.approx(first.end_s + gap_s)
    first, second = played(in_turn(90e-6, 5e-6), way).work
    assert second.begin_s < first.end_s
    through = (RECORDED, Event(5, 2, awaited=True), Event(6, 2), Event(6, 1, awaited=True))
    first, second = played(in_turn(90e-6, 5e-6, *through), way).work
    assert second.begin_s == pytest.approx(first.end_s + gap_s), "a stream without work hands the event on"


@pytest.mark.parametrize("way", model.WAYS)
def test_an_event_covers_only_the_work_before_it(way: str) -> None:
    """The next copy or kernel of that stream runs while the other stream waits for the previous one."""
    more = Kernels(1, (90e-6,), stream=0)
    first, later, second = played(in_turn(20e-6, 5e-6, RECORDED, more, AWAITED), way).work
    assert first.end_s < second.begin_s < later.end_s
    unrecorded = played(in_turn(90e-6, 5e-6, AWAITED), way).work
    assert unrecorded[1].begin_s < unrecorded[0].end_s


@given(st.integers(1, 80), st.floats(0, 20e-6), st.sampled_from(LAYERS))
def test_a_graph_takes_kernel_and_gap_behind_one_call(kernels: int, duration_s: float, layer: str) -> None:
    found = played(step(Kernels(kernels, (duration_s,), host_s=1e-3), Wait(), layer=layer), "graph")
    call_s = KNOWN[model.replay_name(layer)] + kernels * KNOWN["replay_node"]
    law_s = call_s + KNOWN["replay_way"] + kernels * duration_s + (kernels - 1) * GAPS["graph"] + KNOWN["complete"]
    assert found.end_s == pytest.approx(law_s, rel=1e-9)


@given(st.lists(st.floats(0, 20e-6), min_size=1, max_size=30).map(tuple))
def test_kernels_of_many_lengths_take_the_longest_way_through_calls_and_kernels(lengths: tuple[float, ...]) -> None:
    """Each kernel may be the last one that waited for its call; from there on only kernels and gaps count."""
    found = played(step(Kernels(len(lengths), lengths), Wait()), "stream")
    call_s, gap_s = KNOWN[model.call_name("loop", 0)], GAPS["stream"]
    count = len(lengths)
    ways = [(at + 1) * call_s + sum(lengths[at:]) + (count - at - 1) * gap_s for at in range(count)]
    assert found.end_s == pytest.approx(max(ways) + KNOWN["way"] + KNOWN["complete"], rel=1e-9)


@given(workloads, st.sampled_from(model.WAYS))
def test_the_needed_constants_are_known_names_and_suffice(workload: Workload, way: str) -> None:
    names = model.needed(workload, way)
    assert len(names) == len(set(names))
    assert all(name in model.CONSTANTS or name.startswith(("call.", "replay.")) for name in names)
    enough = {name: KNOWN[name] for name in names}
    assert model.acts(workload, enough, way) == model.acts(workload, KNOWN, way)
    unplayed = dict.fromkeys(model.UNPLAYED[way], math.nan)
    assert model.acts(workload, KNOWN | unplayed, way) == model.acts(workload, KNOWN, way)


@given(workloads)
def test_both_ways_do_the_same_work_in_the_same_order(workload: Workload) -> None:
    stream, graph = (model.acts(workload, KNOWN, way) for way in model.WAYS)
    of_stream, of_graph = ([(work.lane, work.duration_s) for _, _, work in works(of)] for of in (stream, graph))
    assert of_stream == of_graph
    assert sum(lane == "gpu" for lane, _ in of_stream) == workload.kernels
    replayed = [len(works([act])) for act in graph if act.kind == "replay"]
    assert replayed == model.graphs(workload)
    assert all(act.kind != "launch" for act in graph)
    assert sum(act.kind == "host" for act in stream) == sum(isinstance(part, HostWork) for part in workload.parts)


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_the_hosts_own_time_for_a_copy_is_paid_for_each_of_them_outside_of_graphs(memory: HostMemory) -> None:
    def step_s(way: str, host_s: float) -> float:
        copies = Copies("h2d", 4096, 3, memory, host_s=host_s)
        return played(step(copies, Kernels(1, (4e-6,)), Wait()), way).end_s

    captured = memory == "pinned"
    assert step_s("stream", 50e-6) - step_s("stream", 40e-6) == pytest.approx(3 * 10e-6)
    assert step_s("graph", 50e-6) - step_s("graph", 40e-6) == pytest.approx(0.0 if captured else 3 * 10e-6)


def test_a_full_queue_does_not_change_how_long_a_step_takes() -> None:
    workload = step(Kernels(50, (9e-6,)), Wait())
    roomy, full = played(workload, "stream"), played(workload, "stream", queue=4)
    assert full.end_s == pytest.approx(roomy.end_s)
    assert full.host[40].begin_s > roomy.host[40].begin_s
    # but work of the host behind the calls comes later
    later = step(Kernels(50, (9e-6,)), HostWork(400e-6), Wait())
    assert played(later, "stream", queue=4).end_s > played(later, "stream").end_s + 200e-6


def act(kind: str, host_s: float, way_s: float, *work: model.Work, stream: int = 0) -> model.Act:
    return model.Act(kind, host_s, way_s, work, stream)


LAUNCH = act("launch", 0.1e-6, 1e-6, model.Work("gpu", 50e-6, 9e-6))
SHORT = act("launch", 1e-6, 0.0, model.Work("gpu", 5e-6))
TURN = act("launch", 1e-6, 0.0, model.Work("gpu", 50e-6))
REPLAY = act("replay", 1e-6, 1e-6, model.Work("gpu", 100e-6, 2e-6, 0), model.Work("gpu", 1e-6, 2e-6, 1))
COPY = act("copy", 1e-6, 0.0, model.Work("h2d", 100e-6))
SYNC = model.Act("sync", 0.0, wait_s=1e-6)
KEPT, HELD = (model.Act("event", 0.0, work=(event,)) for event in (RECORDED, AWAITED))
BRANCHES = tuple(model.Work("gpu", 50e-6, 9e-6, branch) for branch in range(4))
BEFORE_A_COPY = [act("launch", 1e-6, 0.0, model.Work("gpu", (9e-6, 40e-6)[at], 2e-6), stream=at) for at in (0, 1)]
JOINS = act("copy", 1e-6, 0.0, model.Work("d2h", 10e-6, joins=True))
PAGEABLE = Copies("h2d", 1 << 20, memory="pageable")
FORKED = [part for at in range(1, 9) for part in (Event(1, at, awaited=True), Kernels(1, (9e-6,), stream=at))]
KERNEL = Kernels(1, (4e-6,))
# A graph takes longer to these and back: half of it lies on either side, and a first or last node has one side.
BETWEEN: dict[str, Part] = {
    "a memset": Kernels(1, (0.8e-6,), memset=True), "a small copy": Copies("h2d", model.SMALL_COPY - 1),
    "a copy": Copies("h2d", model.SMALL_COPY), "a copy to the host": Copies("d2h", 8),
}  # fmt: skip
ACTS: dict[str, tuple[list[model.Act], dict[str, float]]] = {
    "nothing": ([], {}),
    "an empty stream is synchronised too": ([model.Act("sync", 3e-6, wait_s=1e-6)], {}),
    "a replay takes one place in the queue, however many kernels it has": (
        [act("replay", 1e-6, 1e-6, *[model.Work("gpu", 10e-6)] * 5)] * 4, {"queue": 2},
    ),
    "busy is what any kernel covers": ([SHORT, SHORT._replace(stream=1), SYNC], {}),
    "and no copy": ([COPY, SYNC], {}),
    "kernels of other streams begin a front end apart": (
        [LAUNCH._replace(stream=index) for index in range(4)], {"front_end_s": 2e-6},
    ),
    "as do those of branches": ([act("replay", 0.1e-6, 1e-6, *BRANCHES)], {"front_end_s": 2e-6}),
    "in one stream the kernel and its gap take longer than that": ([LAUNCH, LAUNCH], {"front_end_s": 2e-6}),
    "a stream that waits holds up no other": ([COPY, SHORT, SHORT._replace(stream=1)], {"front_end_s": 2e-6}),
    "what joins comes after all streams and before all that follows": (
        [*BEFORE_A_COPY, JOINS, act("launch", 1e-6, 0.0, model.Work("gpu", 1e-6, 2e-6), stream=7)], {},
    ),
    "a replay comes after all branches of the one before it": (
        [REPLAY, REPLAY._replace(work=REPLAY.work[::-1])], {},
    ),
    "a wait for an event that follows is for that of the step before": (
        [HELD, TURN._replace(stream=1), TURN, KEPT] * 2, {},
    ),
    "directions are copied at once, and one direction in turn": (
        [act("copy", 1e-6, 0.0, model.Work(lane, 10e-6), stream=at) for at, lane in enumerate(("h2d", "d2h", "h2d"))],
        {},
    ),
    "a slow host": ([act("launch", 9e-6, 1e-6, model.Work("gpu", 2e-6))] * 5 + [SYNC], {}),
    "long kernels": ([act("launch", 1e-6, 1e-6, model.Work("gpu", 9e-6, 2e-6))] * 5 + [SYNC], {}),
}  # fmt: skip
PLAYS: dict[str, tuple[Workload, str]] = {
    "kernels are dealt to the streams in turn": (step(Kernels(3), Wait(), Kernels(2), streams=2), "stream"),
    "and to branches": (step(Kernels(3), Wait(), Kernels(2), streams=2), "graph"),
    "nodes without an awaited event are roots": (step(*FORKED, streams=9), "graph"),
    "others are not": (step(Kernels(1, (9e-6,), stream=0), Event(1, 0), *FORKED, streams=9), "graph"),
    "bytes keep a kernel as long as the memory needs": (step(Kernels(1, (3e-6,), bytes=40e6)), "stream"),
    "and no longer": (step(Kernels(1, (30e-6,), bytes=40e6)), "stream"),
    "each part may have its own layer and arguments": (
        step(Kernels(1, arguments=8), Kernels(1, layer="cuda_core", host_s=1e-6)), "stream",
    ),
    "also in a graph": (step(Kernels(1, arguments=8), Kernels(1, layer="cuda_core", host_s=1e-6)), "graph"),
    "waits, host work and pageable copies part graphs": (
        step(Kernels(5), Copies("d2h", 4096, 2), Wait(), Kernels(3), HostWork(1e-6), Kernels(2), PAGEABLE, Kernels(1)),
        "graph",
    ),
    "nothing is captured": (step(Wait(), HostWork(1e-6), PAGEABLE), "graph"),
    **{
        f"{at} {place} in a {way}": (step(*parts), way)
        for at, part in BETWEEN.items()
        for place, parts in (("between kernels", (KERNEL, part, KERNEL, Wait())), ("alone", (part, Wait())))
        for way in model.WAYS
    },
    "a pinned copy leaves the host to the next call": (
        step(Copies("h2d", 5_000_000), Kernels(1, (4e-6,)), Copies("d2h", 5_500_000), Wait()), "stream",
    ),
    "a pageable copy waits for the work before it and keeps the host": (
        step(Kernels(1, (40e-6,)), Copies("d2h", 9_000_000, memory="pageable"), Kernels(1)), "stream",
    ),
    "a wait": (step(Kernels(7, (3e-6,)), Wait()), "stream"),
    "steps that end in a wait do not overlap": (step(*(Kernels(7, (3e-6,)), Wait()) * 3), "stream"),
    "the host works behind a wait": (step(Kernels(7, (3e-6,)), Wait(), HostWork(50e-6)), "stream"),
    "a wait for nothing costs its call": (step(Wait()), "stream"),
    **{
        f"the gap behind {blocks} blocks in a {way}": (step(Kernels(2, (9e-6,), blocks=blocks), Wait()), way)
        for blocks in (1055, 1056) for way in model.WAYS
    },
    **{
        f"{blocks} blocks of a framework": (step(Kernels(2, (9e-6,), blocks=blocks, layer="torch_eager")), "graph")
        for blocks in (None, 9999)
    },
}  # fmt: skip


def told(found: model.Played) -> Iterator[str]:
    """Times in us."""
    for name, spans in (("host", found.host), ("work", found.work)):
        yield f"{name}: " + "; ".join(
            f"{span.lane} of {span.act} {span.begin_s * 1e6:.5g}–{span.end_s * 1e6:.5g}" for span in spans
        )
    shares = ", ".join(f"{name} {seconds * 1e6:.5g}" for name, seconds in found.shares.items())
    yield f"ends {found.end_s * 1e6:.5g}, busy {found.busy_s * 1e6:.5g}: {shares}"


def test_what_is_played() -> None:
    plays = {name: model.play(acts, **how) for name, (acts, how) in ACTS.items()}
    plays |= {name: played(workload, way) for name, (workload, way) in PLAYS.items()}
    texts = ("\n".join((f"== {name}", *told(found))) for name, found in plays.items())
    snapshots.same("plays", "\n\n".join(texts))
