"""cuBLASLt's fastest candidate beside PyTorch's matmul (of 8-bit floats its scaled mm) on the same tensors, in turn.

Run by hand on a machine with a GPU and PyTorch: ``python tests/beside_gemm.py FOLDER [TIMES]``. Each pair is two gated
batches at a settled clock, one of each library, which goes first changing from pair to pair; both results are compared
in float64. The samples are kept in FOLDER/beside_gemm.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from microbench.core.errors import Skip
from microbench.gpu.cuda.device import open_gpu
from microbench.gpu.cuda.probe import probe
from microbench.gpu.protocol.compute import Gemm, GemmType, Problem
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.timer import Meter
from microbench.measure.tuning import bracketed, fastest, most_queued, warm

SIZE = 8192
DTYPES: tuple[GemmType, ...] = ("bf16", "fp16", "tf32", "fp64", "int8", "fp8_e4m3_fast", "fp8_e4m3", "fp32")
SAMPLE_S = 0.05
WARM_S = 0.5


def sample(meter: Meter, gemm: Gemm, count: int) -> Mapping[str, float]:
    """Seconds of a call and the SM clock, of a batch whose gate was not late."""
    take = bracketed(meter, gemm, meter.gpu.compute.bracket(), count, "rate")
    warm(meter, gemm, SAMPLE_S)
    while not (taken := take()):
        pass
    return {"call_s": taken["rate"] / count, "sm_clock_hz": taken["sm_clock"]}


def in_turn(meter: Meter, problem: Problem, times: int) -> tuple[str, list[dict[str, Mapping[str, float]]]]:
    """cuBLASLt's candidate, and what both took in each pair."""
    ours, found = fastest(meter, problem, "cublaslt")
    theirs = problem.gemm("torch", problem.ways("torch")[0])
    gemms = {"ours": ours, "theirs": theirs}
    for gemm in gemms.values():
        gemm.fresh()
        gemm.submit(1)
        meter.gpu.synchronize()
        gemm.check()
    ours.fresh()
    count = min(max(round(SAMPLE_S / warm(meter, ours, WARM_S)), 1), most_queued(ours))
    pairs = []
    for turn in range(times):
        order = list(gemms) if turn % 2 else list(gemms)[::-1]
        pairs.append({name: sample(meter, gemms[name], count) for name in order})
    ours.check()
    return str(found.value), pairs


def tell(dtype: str, operations: int, candidate: str, pairs: list[dict[str, Mapping[str, float]]]) -> None:
    """Medians of both, and of the paired ratios of their rates."""
    ratios = sorted(pair["theirs"]["call_s"] / pair["ours"]["call_s"] for pair in pairs)
    sides = []
    for name in ("ours", "theirs"):
        call_s = statistics.median(pair[name]["call_s"] for pair in pairs)
        clock_hz = statistics.median(pair[name]["sm_clock_hz"] for pair in pairs)
        sides.append(f"{name} {operations / call_s / 1e12:7.1f} T at {clock_hz / 1e9:.3f} GHz")
    spread = f"({ratios[0]:.4f} to {ratios[-1]:.4f}, {len(ratios)} pairs)"
    print(f"{dtype:14} {', '.join(sides)}; ratio {statistics.median(ratios):.4f} {spread}; {candidate}", flush=True)


def measured(gpu: Gpu, dtype: GemmType, times: int) -> dict[str, object] | None:
    """One type, printed; None where it cannot be."""
    meter = Meter(gpu.clock, gpu)
    try:
        with gpu.case():
            problem = gpu.compute.problem(dtype, SIZE, SIZE, SIZE)
            candidate, pairs = in_turn(meter, problem, times)
            tell(dtype, problem.operations, candidate, pairs)
    except Skip as skip:
        print(f"{dtype:14} skipped: {skip}", flush=True)
        return None
    return {"dtype": dtype, "candidate": candidate, "pairs": pairs}


def main(folder: Path, times: int) -> None:
    """Print a line a type."""
    gpu = open_gpu(probe(None).gpus[0].uuid)
    found = [measured(gpu, dtype, times) for dtype in DTYPES]
    (folder / "beside_gemm.json").write_text(json.dumps([one for one in found if one]), encoding="utf-8")
    gpu.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12)
