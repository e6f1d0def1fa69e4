"""The metrics of watched processes, for Prometheus: counters of what their windows showed."""

import bisect
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar

from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.fleet.windows import Window

STEPS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MOST_OWNERS = 10  # of a window
MOST_NAMES = 100  # of owners of a process; the rest is "other"
ABOUT = {
    "gpu_idle_seconds": "Time in which the GPU did nothing, by cause, in the windows that were recorded",
    "gpu_busy_seconds": "Time in which the GPU worked, in these windows",
    "recorded_seconds": "Time that these figures cover: the whole steps of the windows",
    "host_seconds": "Idle time of the GPU in which the host ran, by owner of that code",
    "windows": "Windows that were recorded",
    "lost_records": "Records that CUPTI dropped",
    "launches": "Kernel launches in whole steps of the windows",
    "replays": "Graph launches",
    "kernels": "Kernels",
    "kernels_in_graphs": "Kernels that graphs launched",
    "waits": "Calls in which the host waits for the GPU",
    "copies": "Copies",
    "pageable": "Copies from or to pageable memory",
    "allocations": "Allocations by the driver",
}


class Metrics:
    """Adds up windows by process, and serves the sums."""

    def __init__(self, address: str) -> None:
        """Serve http://ADDRESS:PORT/metrics from a thread. Without an address only this machine is served. Raises
        UsageError."""
        host, _, port = address.rpartition(":")
        # By process: sums of a metric and its label; the steps in each bucket, and their sum in s; the newest window.
        self._known: dict[str, tuple[Counter[tuple[str, str]], list[float], Window]] = {}
        self._lost = 0.0
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            server, _ = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(f"{plain(address, 60)} cannot be served: {plain(error)}", "--metrics :9464") from error
        self.address = f"http://{host or '127.0.0.1'}:{server.server_port}/metrics"

    def add(self, window: Window) -> None:
        """Add a window."""
        empty: Counter[tuple[str, str]] = Counter()
        before, steps, _ = self._known.get(window.process, (empty, [0.0] * (len(STEPS_S) + 2), window))
        sums, steps = Counter(before), list(steps)
        sums["recorded_seconds", ""] += window.span_s  # type: ignore[assignment]
        sums["gpu_busy_seconds", ""] += window.busy_s  # type: ignore[assignment]
        sums["windows", ""] += 1
        sums["lost_records", ""] += window.missing
        for cause, seconds in window.causes.items():
            sums["gpu_idle_seconds", cause] += seconds  # type: ignore[assignment]
        for owner in sorted(window.owners, key=lambda name: -window.owners[name])[:MOST_OWNERS]:
            known = ("host_seconds", owner) in sums or sum(name == "host_seconds" for name, _ in sums) < MOST_NAMES
            sums["host_seconds", owner if known else "other"] += window.owners[owner]  # type: ignore[assignment]
        for name, count in window.counts.items():
            sums[name, ""] += count  # type: ignore[assignment]
        for step_s in window.steps_s:
            steps[bisect.bisect_left(STEPS_S, step_s)] += 1
            steps[-1] += step_s
        self._known = {
            **self._known,
            window.process: (sums, steps, window),
        }  # which the server's threads read meanwhile

    def keep(self, processes: set[str], lost: float) -> None:
        """Forget all processes but these. ``lost`` is the share of the time that recording has taken."""
        self._lost = lost
        self._known = {name: known for name, known in self._known.items() if name in processes}

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for."""
        known = self._known
        for name, about in ABOUT.items():
            family = Metric(f"microbench_{name}", about, "counter")
            label = {"gpu_idle_seconds": "cause", "host_seconds": "owner"}.get(name)
            for process, (own, _, newest) in known.items():
                for (metric, value), total in own.items():
                    if metric == name:
                        labels = {"process": process, **({label: value} if label else {})}
                        exemplar = _exemplar(newest) if name == "windows" else None
                        family.add_sample(f"microbench_{name}_total", labels, total, exemplar=exemplar)
            yield family
        histogram = Metric("microbench_step_seconds", "Steps of the program without the recorder", "histogram")
        for process, (_, steps, _) in known.items():
            below = 0.0
            for end, count in zip((*map(str, STEPS_S), "+Inf"), steps, strict=False):
                below += count
                histogram.add_sample("microbench_step_seconds_bucket", {"process": process, "le": end}, below)
            histogram.add_sample("microbench_step_seconds_count", {"process": process}, below)
            histogram.add_sample("microbench_step_seconds_sum", {"process": process}, steps[-1])
        yield histogram
        lost = Metric("microbench_recording_loss_ratio", "Share of the time that recording has taken at most", "gauge")
        lost.add_sample("microbench_recording_loss_ratio", {}, self._lost)
        yield lost


def _exemplar(window: Window) -> Exemplar:
    """The file of the newest window, of which OpenMetrics allows 128 characters in all."""
    return Exemplar({"file": window.file[-100:]}, 1.0, window.unix_s)
