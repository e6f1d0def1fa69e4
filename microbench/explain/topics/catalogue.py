"""The list of topics that `explain` can print."""

import difflib

from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.explain.topics import clocks, graphs, launch, pinned, queue, tensor, topology, traffic
from microbench.explain.topics.topic import Topic

# In the order of the list: submitting work, moving data, computing.
TOPICS: tuple[Topic, ...] = (
    launch.TOPIC, graphs.TOPIC, queue.TOPIC, traffic.TOPIC, pinned.TOPIC, topology.TOPIC, clocks.TOPIC, tensor.TOPIC,
)  # fmt: skip


def find(name: str) -> Topic:
    """The topic of that name; raises UsageError for an unknown one."""
    known = {topic.name: topic for topic in TOPICS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"there is no topic {plain(name, 40)}",
        f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}",
    )
