"""How a campaign grows with its nodes: wall time and memory of one scheduler process, by hand.

    python lab/fleet_nodes.py 10 100 1000

Each node is a Dask worker, a few hundred of them in one process, and its run is replaced by a stub that returns the
bytes of a bundled run at once. So the table shows what the engine, Dask and the files cost, and no measurement.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Worker

from microbench.archive import store
from microbench.fleet import campaign, node
from microbench.fleet.engine import Engine

PROCESSES = 4
# A worker samples its own process many times a second, which is nothing on a node and too much for 500 in a process.
dask.config.set({
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "60s",
})  # fmt: skip
RUN = store.bundled()["nvidia-h200-x2"].read_bytes()


def stub(order: dict[str, Any]) -> dict[str, Any]:
    """In the place of ``node.measure``."""
    if worker := node._worker():
        worker.log_event(order["topic"], order["task"])
    return {"status": "ok", "reason": "", "run": RUN, "seconds": 0.0}


async def serve(address: str, first: int, count: int) -> None:
    """Run ``count`` workers until the scheduler ends."""
    stub.__module__, stub.__qualname__ = node.measure.__module__, node.measure.__qualname__
    node.measure = stub
    workers = [Worker(address, nthreads=1, name=first + n, memory_limit=0, dashboard=False) for n in range(count)]
    for begin in range(0, count, 50):
        await asyncio.gather(*workers[begin : begin + 50])
    await asyncio.gather(*(worker.finished() for worker in workers))


def memory_mb(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def carry_out(nodes: int) -> str:
    """One campaign of so many nodes: a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        contact = Path(folder, "scheduler.json")
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        scheduler = subprocess.Popen([*command, "--no-dashboard", "--scheduler-file", str(contact)], **quiet)
        started = [scheduler]
        try:
            while not contact.exists():
                time.sleep(0.1)
            with Client(scheduler_file=str(contact), timeout=30, direct_to_workers=False) as client:
                address = client.scheduler.address
                share = -(-nodes // PROCESSES)
                for first in range(0, nodes, share):
                    count = min(share, nodes - first)
                    started.append(
                        subprocess.Popen([sys.executable, __file__, "serve", address, str(first), str(count)], **quiet)
                    )
                began_s = time.monotonic()
                client.wait_for_workers(nodes, timeout=600)
                joined_s, empty_mb = time.monotonic() - began_s, memory_mb(scheduler.pid)
                made = campaign.new_campaign("scale", ["stub"], campaign.Options(device="fake"), address)
                place = campaign.make_folder(Path(folder), made.campaign)
                began_s, cpu_s = time.monotonic(), time.process_time()
                Engine(client, made, place, expected=nodes).run()
                wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
                assert made.counts() == {"ok": nodes}
                size_mb = sum(path.stat().st_size for path in place.iterdir()) / 1e6
                return (
                    f"| {nodes} | {joined_s:.1f} s | {wall_s:.1f} s | {wall_s / nodes * 1e3:.1f} ms | {cpu_s:.1f} s "
                    f"| {empty_mb:.0f} MB | {memory_mb(scheduler.pid):.0f} MB | {memory_mb(os.getpid()):.0f} MB "
                    f"| {size_mb:.1f} MB |"
                )
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()


def main() -> None:
    print(f"the run file of each node: {len(RUN) / 1e3:.0f} kB; load average {os.getloadavg()[0]:.1f}")
    print("| nodes | to join | campaign | a node | CPU of the client | scheduler, idle | scheduler | client | files |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for nodes in map(int, sys.argv[1:] or ["10", "100"]):
        print(carry_out(nodes), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        main()
