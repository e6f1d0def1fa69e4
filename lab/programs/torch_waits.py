"""PyTorch programs whose steps wait: for a loader, for a number from the GPU, for copies."""

from __future__ import annotations

import itertools
import queue
import threading
import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from programs import Made, Step
from programs.torch_steps import BF16, DEVICE, SMALL, captured, rand

READ_S, PREPARED_S = 2.5e-3, 5e-3  # how long a micro-batch is read, and how long a worker prepares a batch


def pinned(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape)
    return x.pin_memory() if DEVICE == "cuda" else x


def small_network(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, channels, 5, stride=4), nn.GELU(), nn.Conv2d(channels, 2 * channels, 3, stride=2), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, 20),
    ).to(DEVICE)  # fmt: skip


def loader_stalls() -> Made:
    """Gradients of two micro-batches are added up. Each is read by this thread, which sleeps as for a file."""
    model = nn.Sequential(nn.Linear(224, 448), nn.ReLU(), nn.Linear(448, 448), nn.ReLU(), nn.Linear(448, 12)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.8, foreach=True)
    host, x = pinned(40, 224), torch.empty(40, 224, device=DEVICE)
    want = torch.randint(0, 12, (40,), device=DEVICE)

    def first() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), want).backward()

    def second() -> None:
        F.cross_entropy(model(x), want).backward()
        optimizer.step()

    def stepping(parts: tuple[Step, Step], read_s: float) -> Step:
        def step() -> None:
            for part in parts:
                if read_s:
                    time.sleep(read_s)
                x.copy_(host, non_blocking=True)
                part()

        return step

    def graph() -> Step:
        first()
        return stepping((captured(first), captured(second)), READ_S)

    remedies = {"pauses": stepping((first, second), 0.0)}
    return Made(stepping((first, second), READ_S), torch.cuda.synchronize, graph, remedies)


def loader_worker() -> Made:
    """A thread prepares batches one after the other; the step takes one, copies it and trains on it."""
    model = nn.Sequential(*[one for _ in range(4) for one in (nn.Linear(288, 288), nn.Tanh())]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    buffers, batches = [pinned(72, 288) for _ in range(4)], queue.Queue[torch.Tensor](maxsize=2)
    x = torch.empty(72, 288, device=DEVICE)

    def prepare() -> None:
        for buffer in itertools.cycle(buffers):
            time.sleep(PREPARED_S)
            batches.put(buffer)

    threading.Thread(target=prepare, daemon=True).start()

    def body() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(x), x).backward()
        optimizer.step()

    def stepping(train: Step) -> Step:
        def step() -> None:
            x.copy_(batches.get(), non_blocking=True)
            train()

        return step

    return Made(stepping(body), torch.cuda.synchronize, lambda: stepping(captured(body)))


def sampler_item() -> Made:
    cell, embed = nn.GRUCell(208, 416).to(DEVICE).eval(), nn.Embedding(2500, 208).to(DEVICE)
    head = nn.Sequential(nn.LayerNorm(416), nn.Linear(416, 2500)).to(DEVICE)
    state, token = torch.zeros(1, 416, device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)

    @torch.no_grad()
    def one() -> None:
        h = cell(embed(token), state)
        state.copy_(h)
        token.copy_(torch.softmax(head(h) / 0.8, -1).argmax(-1))

    def stepping(next_token: Step, *, item: bool) -> Step:
        def step() -> list[int | float]:
            text: list[int | float] = []
            for _ in range(6):
                next_token()
                if item:
                    text.append(token.item())
            return text

        return step

    return Made(
        stepping(one, item=True), torch.cuda.synchronize, lambda: stepping(captured(one), item=True),
        {"waits": stepping(one, item=False)}, lambda: captured(stepping(one, item=False)),
    )  # fmt: skip


def statistics_item() -> Made:
    """The GPU is busy for longer than the host submits, but runs dry at each `.item()`."""
    rows, width = (16, 32) if SMALL else (2048, 4096)
    x = rand(rows, width, dtype=BF16)
    weights = [rand(width, width, dtype=BF16) * 0.02 for _ in range(6)]
    values = [torch.empty(rows, width, device=DEVICE, dtype=BF16) for _ in range(7)]
    largest = torch.zeros((), device=DEVICE, dtype=BF16)
    values[0].copy_(x)

    def layer(number: int) -> Step:
        @torch.no_grad()
        def run() -> None:
            torch.matmul(values[number], weights[number], out=values[number + 1])
            values[number + 1].relu_()
            largest.copy_(values[number + 1].amax())

        return run

    layers = [layer(number) for number in range(6)]

    def stepping(runs: list[Step], *, item: bool) -> Step:
        def step() -> list[int | float]:
            found: list[int | float] = []
            for run in runs:
                run()
                if item:
                    found.append(largest.item())
            return found

        return step

    return Made(
        stepping(layers, item=True), torch.cuda.synchronize,
        lambda: stepping([captured(run) for run in layers], item=True),
        {"waits": stepping(layers, item=False)}, lambda: captured(stepping(layers, item=False)),
    )  # fmt: skip


def pageable_images() -> Made:
    shape = (2, 3, 32, 32) if SMALL else (48, 3, 256, 256)
    images, fast = torch.randn(*shape), pinned(*shape)
    model, held = small_network(24).eval(), torch.empty(*shape, device=DEVICE)

    @torch.no_grad()
    def body() -> None:
        model((held - 0.45) / 0.22)

    def stepping(source: torch.Tensor, run: Step, *, waits: bool = True) -> Step:
        def step() -> None:
            held.copy_(source, non_blocking=not waits)
            run()

        return step

    return Made(
        stepping(images, body), torch.cuda.synchronize, lambda: stepping(images, captured(body)),
        {"pinned": stepping(fast, body, waits=False)},
    )  # fmt: skip


def prefetch_copy() -> Made:
    """While the network works on one buffer the next batch is copied into the other."""
    shape = (2, 3, 32, 32) if SMALL else (64, 3, 256, 256)
    hosts, buffers = [pinned(*shape) for _ in range(2)], [torch.empty(*shape, device=DEVICE) for _ in range(2)]
    model, aside = small_network(16).eval(), torch.cuda.Stream()
    copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    turn = itertools.cycle(range(2))

    def body(buffer: torch.Tensor) -> Step:
        @torch.no_grad()
        def run() -> None:
            model(buffer)

        return run

    def stepping(runs: list[Step]) -> Step:
        def step() -> None:
            place = next(turn)
            with torch.cuda.stream(aside):
                aside.wait_event(used[place])
                buffers[place].copy_(hosts[place], non_blocking=True)
                copied[place].record(aside)
            here = torch.cuda.current_stream()
            here.wait_event(copied[place])
            runs[place]()
            used[place].record(here)

        return step

    bodies = [body(buffer) for buffer in buffers]
    return Made(stepping(bodies), torch.cuda.synchronize, lambda: stepping([captured(one) for one in bodies]))
