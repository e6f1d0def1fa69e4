"""What takes a thread off its core: caused on this machine, and read from a made-up /proc/interrupts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded_trees import write

from microbench.core.errors import Skip
from microbench.host.affinity import core_interrupts, pinned, thread_state

TABLE = """\
           CPU0       CPU2
 24:          1         20  IO-APIC   5-edge      ACPI:Ged
LOC:        100       2000  Local timer interrupts
ERR:          7
MIS:          0
"""


def test_waits_are_counted() -> None:
    before = thread_state()
    for _ in range(5):
        time.sleep(0.001)
    assert thread_state().waits - before.waits >= 5


def test_a_thread_that_shares_its_cpu_is_preempted() -> None:
    cpu = min(os.sched_getaffinity(0))
    with pinned({cpu}):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # it inherits the pinning
        try:
            before, began_s = thread_state(), time.monotonic()
            while thread_state().preemptions - before.preemptions < 3:
                assert time.monotonic() - began_s < 20
        finally:
            other.kill()
            other.wait()


def test_interrupts_of_every_kind_are_added_up_for_one_cpu(tmp_path: Path) -> None:
    write(tmp_path, "proc/interrupts", TABLE)
    assert core_interrupts(0, tmp_path) == 101
    assert core_interrupts(2, tmp_path) == 2020
    with pytest.raises(Skip, match="no column for CPU 1"):
        core_interrupts(1, tmp_path)


def test_a_kernel_that_hides_interrupts_is_a_skip(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no such file"):
        core_interrupts(0, tmp_path)
