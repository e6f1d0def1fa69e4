"""What does it cost to change a graph, compared with making a new one?

Question
    How long does it take to give nodes of an executable graph new arguments or a new grid: node by node, by an update
    from a new capture, and by a new capture and instantiate? How much longer does the next replay take?
Method
    Each kernel of a chain writes an argument and its grid's size to memory of its own. Each change sets new values, and
    after the next replay every value is read back and checked. A compiled loop makes all calls and reads the host's
    clock between them.
Reading
    A change costs record + change + dispose + (next_replay - later_replay). The cost grows with the changed nodes if
    they are changed node by node, and with all nodes for an update. A rebuild pays for a new capture and instantiate
    and for destroying the old graph.
"""

from functools import partial

from microbench.experiments.graph.lives import Change, ChangeWay, graph_changes
from microbench.meter.benchmark import Axis, Benchmark, Between, Gpu, Meter, Metric, Params, Results

RECORDS = ("exec_update", "rebuild")
COLUMNS = {
    "change": Between(Change.RECORDED, Change.CHANGED),
    "next_launch": Between(Change.CHANGED, Change.CALLED),
    "next_replay": Between(Change.CHANGED, Change.DONE),
    "later_launch": Between(Change.AGAIN, Change.AGAIN_CALLED),
    "later_replay": Between(Change.AGAIN, Change.AGAIN_DONE),
}
RECORD = {"record": Between(Change.BEGIN, Change.RECORDED), "dispose": Between(Change.AGAIN_DONE, Change.DISPOSED)}


def combines(params: Params) -> bool:
    """A subset of nodes can only be changed node by node."""
    nodes, changed = int(params["nodes"]), int(params["changed_nodes"])
    return changed == nodes or (params["way"] not in RECORDS and changed < nodes)


def measure(gpu: Gpu, meter: Meter, way: ChangeWay, nodes: int, changed_nodes: int) -> Results:
    columns = RECORD | COLUMNS if way in RECORDS else COLUMNS
    changes = partial(graph_changes, gpu, way, nodes, changed_nodes, 1)
    yield from meter.collect_stamps(changes, columns, verified="every argument and grid read back after each change")


BENCHMARK = Benchmark(
    title="Changing a graph",
    metrics=(
        Metric("change", "time", "s", "calls that change the executable graph or make a new one"),
        Metric("record", "time", "s", "capture of a new graph, where the way needs one"),
        Metric("dispose", "time", "s", "destroying the captured graph, and after a rebuild the old executable graph"),
        Metric("next_launch", "time", "s", "launch call after the change"),
        Metric("next_replay", "time", "s", "the same with a synchronise"),
        Metric("later_launch", "time", "s", "launch call after that one"),
        Metric("later_replay", "time", "s", "the same with a synchronise"),
    ),
    axes={
        "way": Axis.same(
            "how: node by node (set_params, set_grid), an update from a new capture, or a rebuild",
            ("set_params", "set_grid", "exec_update", "rebuild"),
        ),
        "nodes": Axis("nodes of the graph", (100,), (1, 100, 1000), (1, 10, 100, 1000), minimum=1, maximum=10_000),
        "changed_nodes": Axis(
            "nodes that change", (1, 100), (1, 100, 1000), (1, 10, 100, 1000), minimum=1, maximum=10_000
        ),
    },
    combines=combines,
)
