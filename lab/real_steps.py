"""Twelve real PyTorch steps, timed without a profiler, against what microbench predicts of them.

Run by hand on a machine with a GPU, in two minutes: ``OUT=FOLDER python lab/real_steps.py [RUN]``. RUN is a run file
or a bundled run's name (default: nvidia-h200) with the costs; its launch_model rows make the range. Eager and graph
times are medians of whole steps with one synchronise each. The kernels' own durations come from a pass under
torch.profiler at the end. Writes $OUT/steps.json.
"""

import json
import math
import os
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

BEGAN = time.monotonic()
LIMIT_S = 105.0
PER_LOOP_S = 0.5

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

DEVICE = os.environ.get("STEPS_DEVICE", "cuda")
HALF = torch.float16


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


# Each function returns the step: a call that submits it and waits for nothing.


def chain_small():
    x = rand(1024)

    def step():
        y = x
        for _ in range(20):
            y = y * 1.01
            y = torch.tanh(y)
            y = y + x
        return y

    return torch.no_grad()(step)


def chain_mixed_sizes():
    xs = [rand(1 << bits) for bits in (10, 16, 20, 22, 24)]

    def step():
        out = []
        for x in xs:
            y = x.mul(0.5).add_(1.0)
            y = torch.sigmoid(y).mul_(x)
            out.append(y.clamp_(-1, 1).sub_(0.1))
        return out

    return torch.no_grad()(step)


def mlp_narrow():
    model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(320, 320), nn.ReLU())]).to(DEVICE)
    x = rand(48, 320)
    return torch.no_grad()(lambda: model(x))


def mlp_wide():
    model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(3072, 3072), nn.SiLU())]).to(DEVICE, HALF)
    x = rand(1024, 3072, dtype=HALF)
    return torch.no_grad()(lambda: model(x))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class DecodeLayer(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm_1, self.norm_2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(3 * width, width, bias=False),
        )
        self.register_buffer("keys", torch.zeros(1, heads, length, self.size))
        self.register_buffer("values", torch.zeros(1, heads, length, self.size))

    def forward(self, x, place, cos, sin):
        h = self.norm_1(x)
        q, k, v = (one(h).view(1, 1, self.heads, self.size).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = (one * cos + torch.roll(one, self.size // 2, -1) * sin for one in (q, k))
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        a = F.scaled_dot_product_attention(q, self.keys, self.values)
        x = x + self.o(a.transpose(1, 2).reshape(1, 1, -1))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def decode_kv_cache():
    layers = nn.ModuleList([DecodeLayer(1024, 8, 1024) for _ in range(6)]).to(DEVICE, HALF)
    x, place = rand(1, 1, 1024, dtype=HALF), torch.tensor([77], device=DEVICE)
    cos, sin = rand(1, 1, 1, 128, dtype=HALF), rand(1, 1, 1, 128, dtype=HALF)

    def step():
        y = x
        for layer in layers:
            y = layer(y, place, cos, sin)
        return y

    return torch.no_grad()(step)


def train_transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(192, 512)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=DEVICE == "cuda")
    x, want = rand(6, 96, 192), torch.randint(0, 512, (6 * 96,), device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x).view(-1, 512), want)
        loss.backward()
        optimizer.step()
        return loss

    return step


def convnet():
    def block(channels):
        return nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )

    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), *[block(48) for _ in range(5)], nn.MaxPool2d(2),
        nn.Conv2d(48, 96, 3, padding=1),
        *[block(96) for _ in range(5)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 100),
    ).to(DEVICE).eval()  # fmt: skip
    x = rand(16, 3, 48, 48)
    return torch.no_grad()(lambda: model(x))


def lstm_loop():
    x_w, h_w = nn.Linear(256, 4 * 256).to(DEVICE), nn.Linear(256, 4 * 256).to(DEVICE)
    xs = rand(16, 20, 256)

    def step():
        h = c = torch.zeros(16, 256, device=DEVICE)
        for at in range(xs.shape[1]):
            i, f, g, o = (x_w(xs[:, at]) + h_w(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h

    return torch.no_grad()(step)


def layer_norm_chain():
    norms = nn.ModuleList([nn.LayerNorm(2048) for _ in range(24)]).to(DEVICE)
    x = rand(2048, 2048)

    def step():
        y = x
        for norm in norms:
            y = y + F.gelu(norm(y))
        return y

    return torch.no_grad()(step)


def embedding_gather():
    table = nn.Embedding(50_000, 128).to(DEVICE)
    ids = torch.randint(0, 50_000, (64, 50), device=DEVICE)
    pick = torch.randint(0, 50, (64, 8, 1), device=DEVICE).expand(64, 8, 128).contiguous()
    segment = torch.randint(0, 16, (64,), device=DEVICE)

    def step():
        rows = table(ids)
        chosen = torch.gather(rows, 1, pick)
        scores = torch.softmax((chosen * rows.mean(1, keepdim=True)).sum(-1), -1)
        pooled = (chosen * scores.unsqueeze(-1)).sum(1)
        sums = torch.zeros(16, 128, device=DEVICE).index_add_(0, segment, pooled)
        best, where = torch.topk(pooled @ table.weight[:1000].t(), 5)
        return sums, torch.cat([best, where.float()], 1), F.normalize(sums, dim=-1)

    return torch.no_grad()(step)


def multi_loss():
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128)).to(DEVICE)
    x, want, sign = rand(256, 128), rand(256, 128), torch.ones(256, device=DEVICE)
    labels = torch.randint(0, 128, (256,), device=DEVICE)

    def step():
        for parameter in model.parameters():
            parameter.grad = None
        y = model(x)
        loss = F.mse_loss(y, want) + 0.5 * F.l1_loss(y, want) + 0.1 * F.huber_loss(y, want)
        loss = loss + F.cross_entropy(y, labels) + F.cosine_embedding_loss(y, want, sign) + 1e-3 * y.pow(2).mean()
        loss.backward()
        return loss

    return step


def train_mlp_sgd():
    model = nn.Sequential(*[m for _ in range(5) for m in (nn.Linear(512, 512), nn.GELU())], nn.Linear(512, 10)).to(
        DEVICE
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    x, want = rand(128, 512), torch.randint(0, 10, (128,), device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), want)
        loss.backward()
        optimizer.step()
        return loss

    return step


STEPS = (
    chain_small, chain_mixed_sizes, mlp_narrow, mlp_wide, decode_kv_cache, train_transformer, convnet, lstm_loop,
    layer_norm_chain, embedding_gather, multi_loss, train_mlp_sgd,
)  # fmt: skip


def median_of(take, least=15, most=400):
    """Median of each column of samples for PER_LOOP_S."""
    samples, began = [], time.monotonic()
    while len(samples) < least or (time.monotonic() - began < PER_LOOP_S and len(samples) < most):
        samples.append(take())
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def timed(run):
    """Time until the step is submitted, and until it has ended; both of one run, so that drift affects both."""
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    run()
    submitted = time.perf_counter_ns()
    torch.cuda.synchronize()
    return (submitted - began) * 1e-9, (time.perf_counter_ns() - began) * 1e-9


def in_a_loop(run, steps=10):
    """Time of a step where steps follow one another with one synchronise at the end."""
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    for _ in range(steps):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - began) * 1e-9 / steps


def captured(run, stream):
    """The step as a graph and the numbers of its kernels, copies and memsets; None without cuda.bindings."""
    try:
        graph, kept = torch.cuda.CUDAGraph(keep_graph=True), True
    except TypeError:
        graph, kept = torch.cuda.CUDAGraph(), False
    with torch.cuda.graph(graph, stream=stream):
        run()
    counts = None
    if kept:
        try:
            from cuda.bindings import driver

            handle = driver.CUgraph(graph.raw_cuda_graph())
            number = int(driver.cuGraphGetNodes(handle)[-1])
            nodes = driver.cuGraphGetNodes(handle, number)[1][:number] if number else []
            kinds = [driver.cuGraphNodeGetType(node)[1].name.rsplit("_", 1)[-1] for node in nodes]
            counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
        except Exception:  # noqa: BLE001  (whatever the driver says, the profiler counts instead)
            counts = None
        graph.instantiate()
    return graph, counts


def durations_of(run, steps=5):
    """Durations in s of each kernel, copy and memset of a step in order, the median over ``steps``, by CUPTI."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            run()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    ran = sorted(
        (one["ts"], one["dur"] * 1e-6) for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    each = len(ran) // steps
    if each * steps != len(ran):
        return [seconds for _, seconds in ran[-each:]]
    return [statistics.median(ran[step * each + at][1] for step in range(steps)) for at in range(each)]


def gpu_time_of(replay):
    """The GPU's time of one replay in s, by events, with the replay queued behind a kernel that holds the stream."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(20):
        torch.cuda._sleep(2_000_000)
        first.record()
        replay()
        last.record()
        torch.cuda.synchronize()
        taken.append(first.elapsed_time(last) * 1e-3)
    return statistics.median(taken)


def measured(make):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run = make()
        for _ in range(12):
            run()
        torch.cuda.synchronize()
        row = {}
        row["submit_s"], row["eager_s"] = median_of(lambda: timed(run), least=25, most=800)
        (row["loop_s"],) = median_of(lambda: (in_a_loop(run),), least=3, most=40)
        graph, counts = captured(run, stream)
        for _ in range(5):
            graph.replay()
        _, row["graph_s"] = median_of(lambda: timed(graph.replay))
        row["graph_gpu_s"] = gpu_time_of(graph.replay)
        row["nodes"] = counts
        torch.cuda.synchronize()
        graph.reset()
    launched = sum(counts.get(kind, 0) for kind in ("KERNEL", "MEMCPY", "MEMSET")) if counts else 0
    row["launches"] = launched
    return row


def profiled(make):
    """The durations of a step's kernels, of all steps after all times: a process that was profiled replays graphs more
    slowly, by 0.2 to 0.5 us a node, until it ends."""
    with torch.cuda.stream(torch.cuda.Stream()):
        run = make()
        for _ in range(12):
            run()
        torch.cuda.synchronize()
        return durations_of(run)


def predicted(row, fit, bundled):
    """What microbench predicts from durations, launches and host time, and its range without the host time."""
    from microbench.model.fit import with_calls, with_model_code_of
    from microbench.model.forecast import forecast
    from microbench.model.workload import Kernels, Wait, Workload

    launches = row["launches"]
    call_s = fit.constants["call.torch_eager.1"].value
    host_s = row["submit_s"] / launches - call_s
    found = {"call_s": call_s, "launch_s": row["submit_s"] / launches, "host_s": host_s}
    for name, host in (("given", host_s), ("range", None)):
        part = Kernels(launches, tuple(row["durations_s"]), arguments=1, host_s=host)
        workload = Workload((part, Wait()), layer="torch_eager")
        own = with_calls(fit, workload)
        if host is None and not own.model_code:
            own = with_model_code_of(own, bundled)
        one = forecast(workload, own)
        found[name] = {
            "stream_s": one.stream.step_s, "low_s": one.stream.low_s, "high_s": one.stream.high_s,
            "limit": one.stream.limit, "graph_s": one.graph.step_s, "graph_low_s": one.graph.low_s,
            "graph_high_s": one.graph.high_s, "making_s": one.making_s, "launch_bound_from_s": one.launch_bound_s,
        }  # fmt: skip
        if one.host is not None:
            found["host_range_s"] = [one.host.bare_s, one.host.typical_s]
            found["host_source"] = one.host.source
    return found


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "nvidia-h200"
    from microbench.library.runs import load
    from microbench.model.fit import fit_for
    from microbench.model.workload import Kernels, Wait, Workload

    usual = Workload((Kernels(10, (1e-6,), arguments=1), Wait()), layer="torch_eager")
    _, run = load(name)
    _, bundled = load("nvidia-h200")
    _, fit = fit_for(run, usual)
    results = []
    for make in STEPS:
        row = {"name": make.__name__}
        try:
            if time.monotonic() - BEGAN > LIMIT_S:
                raise TimeoutError("out of time")
            row |= measured(make)
        except Exception as error:  # noqa: BLE001  (one step's failure must not hide the others)
            row["error"] = f"{type(error).__name__}: {error}"
            row["trace"] = traceback.format_exc()[-1500:]
        results.append(row)
        print(f"  {time.monotonic() - BEGAN:5.1f} s  {row['name']}  {row.get('error', 'ok')}", flush=True)
    for make, row in zip(STEPS, results, strict=True):
        if "error" not in row:
            row["durations_s"] = profiled(make)
            row["launches"] = row["launches"] or len(row["durations_s"])
            row["predicted"] = predicted(row, fit, bundled)
    out = Path(os.environ.get("OUT", "."))
    report(results, run.run_id)
    out.mkdir(parents=True, exist_ok=True)
    facts = {"torch": torch.__version__, "run": run.run_id, "seconds": time.monotonic() - BEGAN}
    (out / "steps.json").write_text(json.dumps({**facts, "steps": results}, indent=1))


def report(results, run_id):
    good = [row for row in results if "predicted" in row]
    print(f"\ncosts of run {run_id}; times in us, ratios are predicted / true")
    print(f"{'step':20}{'n':>5}{'host/n':>8}{'eager':>9}{'in loop':>9}{'given':>9}{'ratio':>7}{'low':>9}{'high':>9}"
          f"{'holds':>6}{'graph':>9}{'pred.':>9}{'ratio':>7}")  # fmt: skip
    for row in results:
        if "predicted" not in row:
            print(f"{row['name']:20} {row.get('error')}")
            continue
        p = row["predicted"]
        given, ranged = p["given"], p["range"]
        row["stream_ratio"], row["graph_ratio"] = given["stream_s"] / row["eager_s"], given["graph_s"] / row["graph_s"]
        row["holds"] = ranged["low_s"] <= row["eager_s"] <= ranged["high_s"]
        us = [1e6 * value for value in (p["launch_s"], row["eager_s"], row["loop_s"], given["stream_s"])]
        print(f"{row['name']:20}{row['launches']:5}{us[0]:8.1f}{us[1]:9.1f}{us[2]:9.1f}{us[3]:9.1f}{row['stream_ratio']:7.3f}"
              f"{ranged['low_s'] * 1e6:9.1f}{ranged['high_s'] * 1e6:9.1f}{'yes' if row['holds'] else 'NO':>6}"
              f"{row['graph_s'] * 1e6:9.1f}{given['graph_s'] * 1e6:9.1f}{row['graph_ratio']:7.3f}")  # fmt: skip
    if not good:
        return
    near = [sum(abs(math.log(row[key])) <= math.log(1.1) for row in good) for key in ("stream_ratio", "graph_ratio")]
    print(f"\nwith the measured host time within 10 %: stream {near[0]} of {len(good)}, graph {near[1]} of {len(good)}")
    print(f"the range without it holds the truth: {sum(row['holds'] for row in good)} of {len(good)}")
    print(
        "host time a launch assumed:", good[0]["predicted"].get("host_range_s"), good[0]["predicted"].get("host_source")
    )


if __name__ == "__main__":
    main()
