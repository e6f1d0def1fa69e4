"""What do bank conflicts of shared memory cost?

Question
    How many cycles does a warp's load take when its lanes read words with a stride between them, so that several words
    lie in one bank?
Method
    Each loaded word holds the address of the next, so no load can be left out. 32 warps with four such chains each keep
    one SM busy (throughput), and one warp alone waits for every load (latency), timed by the SM's own clock. The end of
    each lane's chain is compared.
Reading
    Shared memory has 32 banks of 4 bytes and reads one word from each bank in a cycle. Words whose addresses differ by
    a multiple of 128 bytes share a bank, and n of them take n cycles: n-way conflicts. A stride of 0 is one word for
    all lanes, which is read once. Odd strides in words have no conflicts, which is why tiles are padded by a word.
"""

import math

from microbench.experiments.memory.access import WORD_BYTES
from microbench.experiments.memory.shared import BANKS, bank_reads
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, always, verified

READS = 4000
# Steps of a full SM: without conflicts they take about 65 us, so that begin and end are negligible.
STEPS = 1000


def measure(gpu: Gpu, meter: Meter, stride_bytes: int) -> Results:
    loads = bank_reads(gpu, stride_bytes)
    calls = STEPS * loads.loads
    throughput = meter.collect("cycles", lambda: (loads.together(STEPS),), clock="device", calls=calls)
    latency = meter.collect("latency_cycles", lambda: (loads.alone(READS),), clock="device", calls=READS)
    yield from verified([throughput, latency], "every chain of loads ended at its word")
    ways = math.gcd(stride_bytes // WORD_BYTES, BANKS) if stride_bytes else 1
    yield Fact("ways", ways, source=f"{BANKS} banks of {WORD_BYTES} bytes")


BENCHMARK = Benchmark(
    title="Bank conflicts of shared memory",
    metrics=(
        Metric("cycles", "time", "cycle", "a warp's load while the SM is full of them (throughput)"),
        Metric("latency_cycles", "time", "cycle", "a warp's load that the next one waits for, alone on the SM"),
    ),
    axes={
        "stride_bytes": Axis.sizes(
            "bytes from one lane's word to the next one's; 0: one word for all",
            "",
            "0 4 8 16 32 64 128 132 B",
            "0 4 8 12 16 20 24 32 48 64 96 128 132 256 260 B 1 KiB",
            least="0 B",
            most="4 KiB",
        ),
    },
    late=always,
)
