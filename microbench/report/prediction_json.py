"""A prediction as JSON: times, intervals, shares, advice and constants, in SI base units."""

from __future__ import annotations

import msgspec

from microbench.explain.forecast import Forecast, Prediction
from microbench.explain.prediction import described, used
from microbench.report.prediction import Side


def encoded(side: Side) -> bytes:
    """One object; ``reference`` in it says that the constants are a bundled run's and not this machine's."""
    forecast, run = side.forecast, side.run
    fit = forecast.fit
    whole = {
        "workload": {"title": described(forecast.workload), **_step(forecast)},
        "run": run.run_id,
        "device": fit.device,
        "reference": side.reference,
        "simulated": run.simulated,
        "stream": _way(forecast.stream),
        "graph": _way(forecast.graph) if forecast.graph is not None else None,
        "speedup": forecast.speedup,
        "making_s": forecast.making_s,
        "break_even_steps": forecast.break_even,
        "advice": msgspec.to_builtins(forecast.advice),
        "constants": {name: msgspec.to_builtins(fit.constants[name]) for name in used(forecast)},
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def _step(forecast: Forecast) -> dict[str, object]:
    workload = forecast.workload
    return {
        "kernels": workload.kernels,
        "layers": workload.layers,
        "streams": workload.streams,
        "replays": workload.replays,
        "unit": workload.unit,
        "per_step": workload.per_step,
    }


def _way(one: Prediction) -> dict[str, object]:
    return {
        "step_s": one.step_s,
        "low_s": one.low_s,
        "high_s": one.high_s,
        "idle_share": one.idle_share,
        "limit": one.limit,
        "spent_s": dict(one.shares),
        "outside": one.outside,
    }
