"""PyTorch programs whose steps neither wait nor load: most are launch-bound, two are GPU-bound."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from programs import Made, Step

DEVICE = os.environ.get("PROGRAMS_DEVICE", "cuda")
SMALL = "PROGRAMS_SMALL" in os.environ  # for trying the programs out on a CPU
BF16 = torch.bfloat16


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def captured(run: Step) -> Step:
    """The replay of what ``run`` submits. It is run in another stream first, as torch.cuda.graph asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    torch.cuda.synchronize()
    replay: Step = graph.replay
    return replay


def whole(step: Step) -> Made:
    """A program whose whole step can be captured."""
    return Made(step, torch.cuda.synchronize, lambda: captured(step))


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class GroupedLayer(nn.Module):
    """A decoder's layer: ``heads`` query heads share ``groups`` heads of keys and values."""

    def __init__(self, width: int, heads: int, groups: int, length: int, batch: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.before, self.between = RmsNorm(width), RmsNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 5 * width, bias=False)
        self.down = nn.Linear(5 * width // 2, width, bias=False)
        self.register_buffer("cache", torch.zeros(2, batch, groups, length, self.size))

    def forward(self, x: torch.Tensor, place: torch.Tensor, turn: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch = len(x)
        h = self.before(x)
        q = self.query(h).view(batch, self.heads, 1, self.size)
        k, v = self.pair(h).view(batch, 2, self.groups, 1, self.size).unbind(1)
        q, k = (one * turn + one.flip(-1) * (1 - turn) for one in (q, k))
        self.cache[0].index_copy_(2, place, k)
        self.cache[1].index_copy_(2, place, v)
        keys, values = self.cache.repeat_interleave(self.heads // self.groups, 2).unbind(0)
        a = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(a.reshape(batch, -1))
        up, gate = self.gate(self.between(x)).chunk(2, -1)
        return x + self.down(up * F.silu(gate))


def decode_grouped() -> Made:
    batch, length, width = 4, 768, 896
    layers = nn.ModuleList([GroupedLayer(width, 14, 2, length, batch) for _ in range(6)]).to(DEVICE, BF16).eval()
    embed = nn.Embedding(16_000, width, device=DEVICE, dtype=BF16)
    token = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    place, places = torch.zeros(1, dtype=torch.long, device=DEVICE), torch.arange(length, device=DEVICE)
    turn = rand(width // 14, dtype=BF16).cos()

    @torch.no_grad()
    def step() -> None:
        x, mask = embed(token), (places <= place).view(1, 1, 1, length)
        for layer in layers:
            x = layer(x, place, turn, mask)
        token.copy_((x @ embed.weight.t()).argmax(-1))
        place.add_(1).remainder_(length)

    return whole(step)


def train_transformer() -> Made:
    layer = nn.TransformerEncoderLayer(320, 5, 1280, dropout=0.1, activation="gelu", batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(320, 400)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=DEVICE == "cuda")
    x, want = rand(8, 128, 320), torch.randint(0, 400, (8 * 128,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x).view(-1, 400), want).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return whole(step)


def three_streams() -> Made:
    shapes = ((96, 512, 6), (160, 640, 9), (64, 1024, 12))
    inputs = [(rand(rows, width), rand(width, width), rand(width)) for rows, width, _ in shapes]
    streams = [torch.cuda.Stream() for _ in shapes]

    @torch.no_grad()
    def step() -> None:
        here, ends = torch.cuda.current_stream(), []
        for stream, (x, weight, bias), (_, _, layers) in zip(streams, inputs, shapes, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                for _ in range(layers):
                    x = torch.tanh(torch.addmm(bias, x, weight, alpha=0.05))
                ends.append(x.sum())
        for stream in streams:
            here.wait_stream(stream)
        torch.stack(ends).mean()

    return whole(step)


def gradient_penalty() -> Made:
    critic = nn.Sequential(
        nn.Linear(80, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU(), nn.Linear(384, 192), nn.SiLU(), nn.Linear(192, 1)
    ).to(DEVICE)
    parameters = list(critic.parameters())
    x = rand(96, 80).requires_grad_()

    def step() -> None:
        score = critic(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        loss = score.mean() + 10 * (slope.square().sum(1).add(1e-8).sqrt() - 1).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=1e-4)

    return whole(step)


def train_unet() -> Made:
    def block(before: int, after: int) -> nn.Sequential:
        pairs = ((before, after), (after, after))
        return nn.Sequential(
            *(
                part
                for pair in pairs
                for part in (nn.Conv2d(*pair, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
            )
        )

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = block(3, 24), block(24, 48), block(48, 96)
            self.ups = nn.ModuleList([nn.ConvTranspose2d(96, 48, 2, 2), nn.ConvTranspose2d(48, 24, 2, 2)])
            self.fourth, self.fifth, self.last = block(96, 48), block(48, 24), nn.Conv2d(24, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.first(x)
            b = self.second(F.max_pool2d(a, 2))
            c = self.third(F.max_pool2d(b, 2))
            c = self.fourth(torch.cat([self.ups[0](c), b], 1))
            return self.last(self.fifth(torch.cat([self.ups[1](c), a], 1)))

    model = UNet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)
    x, want = rand(4, 3, 64, 64), torch.randint(0, 2, (4, 64, 64), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), want).backward()
        optimizer.step()

    return whole(step)


def gan_turns() -> Made:
    """Odd steps train the generator, even steps the critic: a graph each."""
    generator = nn.Sequential(nn.Linear(48, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2),
                              nn.Linear(256, 144)).to(DEVICE)  # fmt: skip
    critic = nn.Sequential(nn.Linear(144, 320), nn.LeakyReLU(0.2), nn.Linear(320, 1)).to(DEVICE)
    models = (generator, critic)
    optimizers = [torch.optim.Adam(one.parameters(), lr=2e-4, capturable=DEVICE == "cuda") for one in models]
    noise, real = rand(192, 48), rand(192, 144)

    def train_generator() -> None:
        optimizers[0].zero_grad(set_to_none=True)
        F.softplus(-critic(generator(noise))).mean().backward()
        optimizers[0].step()

    def train_critic() -> None:
        optimizers[1].zero_grad(set_to_none=True)
        with torch.no_grad():
            fake = generator(noise)
        (F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()).backward()
        optimizers[1].step()

    def in_turn(turns: list[Step]) -> Step:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            turns[steps % 2]()

        return step

    def graph() -> Step:
        return in_turn([captured(train_critic), captured(train_generator)])

    return Made(in_turn([train_critic, train_generator]), torch.cuda.synchronize, graph)


def large_products() -> Made:
    tokens, width, hidden = (64, 96, 160) if SMALL else (6144, 5120, 13_824)
    x = rand(tokens, width, dtype=BF16)
    layers = [[rand(width, hidden, dtype=BF16) * 0.02 for _ in range(2)] + [rand(hidden, width, dtype=BF16) * 0.02]
              for _ in range(2)]  # fmt: skip

    @torch.no_grad()
    def step() -> None:
        y = x
        for gate, up, down in layers:
            y = y + (F.silu(y @ gate) * (y @ up)) @ down

    return whole(step)


def prefill() -> Made:
    batch, length, heads = (1, 64, 2) if SMALL else (2, 6144, 32)
    width = heads * 128
    x, norm = rand(batch, length, width, dtype=BF16), RmsNorm(width).to(DEVICE, BF16)
    qkv, out = rand(width, 3 * width, dtype=BF16) * 0.02, rand(width, width, dtype=BF16) * 0.02

    @torch.no_grad()
    def step() -> None:
        q, k, v = (norm(x) @ qkv).view(batch, length, 3, heads, 128).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x + a.transpose(1, 2).reshape(batch, length, width) @ out

    return whole(step)
