"""The list of topics that `explain` can print."""

from microbench.core.errors import UsageError, nearest
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
    cause = f"there is no topic {plain(name, 40)}"
    raise UsageError(cause, nearest(name, known) or f"choose one of {', '.join(known)}")
