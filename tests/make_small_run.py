"""A run with every kind of field filled once, invented and marked simulated: for tests of file format and store.

tests/data/run-v1.json is this run as schema version 1 wrote it. That file is never written again.
"""

import msgspec

from microbench.core import model

DEVICE = "GPU-00000000-0000-0000-0000-000000000001"
GPU = model.GpuInfo(
    name="SIMULATED GPU", uuid=DEVICE, simulated=True, pci_bus_id="0000:01:00.0", compute_capability=(9, 0),
    sm_count=132, l2_bytes=50 << 20, sm_clock_max_hz=1.98e9, ecc=True, other_processes=("python (pid 7)",),
    link=model.LinkInfo(generation_now=5, generation_max=5, lanes_now=16, lanes_max=16, max_payload_bytes=256),
)  # fmt: skip
SESSION = model.Session(
    environment=model.Environment(
        gpus=(GPU,), driver_version="SIMULATED", cuda_driver_version="13.0", packages={"numpy": "2.4.0"},
        facts=(
            model.Fact("cpu_model", "SIMULATED CPU", "/proc/cpuinfo"),
            model.Fact("governor", None, reason="no such file"),
        ),
    ),
    settings=model.Settings("quick", ("launch",), {"size_bytes": (64, 128)}, "fake", 3, 20.0),
    tool_version="0.1.0", started_at="2026-01-02T03:04:05+00:00",
    floors=model.Floors(
        timer_step_s=1e-9, timer_call_s=3e-8, empty_submit_s=3e-6, event_pair_s=1.25e-6, event_step_s=3.2e-8,
        idle_sync_s=2.7e-7,
    ),
    simulated=True, commit="0123456789abcdef",
)  # fmt: skip
BENCHMARK = model.BenchmarkInfo(
    name="copy", suite="link", title="Copies", about="How fast?\n\nMethod\n    By the clock.", version=2,
    axes=(
        model.AxisInfo("direction", "which way", ("h2d", "d2h")), model.AxisInfo("size_bytes", "how much", (64, 128)),
    ),
    metrics=(model.Metric("rate", "rate", "B/s", "bytes once"), model.Metric("submit", "time", "s", "the call")),
)  # fmt: skip
PER_CALL = model.PerCall(4, 1e-6, 2e-6, 3e-6, 4e-6, 1e-6, 4e-6, 1e-6, 1.05, (1, 0, 3))
MEASUREMENT = model.Measurement(
    metric="rate", clock="device", samples=msgspec.Raw(b"[1.5e-06,1.25e-06,2]"), n=3, calls_per_sample=10,
    work=model.Work(bytes=64, flops=0, launches=1), bound="pcie_h2d", verified="read back", needs_verification=True,
    per_call=PER_CALL, floor_s=1.25e-6, resolution=3.2e-8, stopped="narrow",
)  # fmt: skip
OUTCOMES = (
    model.Outcome(
        model.Case("copy", {"direction": "h2d", "size_bytes": 64}), 0, 0, "ok", measurements=(MEASUREMENT,),
        facts=(model.Fact("packet_bytes", 256, unit="B"),), series=(model.Series("rate", (0.0, 0.1), (1e9, 2e9)),),
        telemetry={DEVICE: model.Telemetry(1.98e9, 1.97e9, 1.965e9, 3.2e9, 41.0, 120.5, ("sw power cap",))},
        wall_s=0.25, device=DEVICE,
    ),
    model.Outcome(model.Case("copy", {"direction": "d2h", "size_bytes": 64}), 0, 0, "skipped", "time budget",
                  device=DEVICE),
    model.Outcome(model.Case("copy", {"direction": "d2h", "size_bytes": 128}), 0, 1, "crashed", "killed by SIGSEGV",
                  wall_s=1.0),
    model.Outcome(model.Case("copy"), 0, 2, "timed_out", "no sign of life for 60 s", wall_s=60.0),
    model.Outcome(model.Case("copy"), 0, 2, "failed", "mismatch at byte 7", wall_s=0.5),
)  # fmt: skip
RUN = model.Run(1, "20260102T030405Z-0011aabb", (SESSION,), (BENCHMARK,), OUTCOMES)
