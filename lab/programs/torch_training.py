"""Training loops in plain PyTorch: the shapes that users give them, more than the models."""

from __future__ import annotations

import collections
import itertools
import random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from iterations import Iterations
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(5000, 128), nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, 17)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(words))[0])


def lstm_tagger(it: Iterations) -> None:
    """An LSTM over sentences, epochs in epochs: the copy of a pageable batch begins each step."""
    model = Tagger().to(it.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=bool(it.graph))
    sentences = [(torch.randint(0, 5000, (16, 40)), torch.randint(0, 17, (16, 40))) for _ in range(12)]

    def step(words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(words).transpose(1, 2), tags)
        loss.backward()
        optimizer.step()
        return loss

    if it.graph:
        words, tags = (tensor.to(it.device) for tensor in sentences[0])
        it.capture(lambda: step(words, tags))
    for _ in range(300):
        for words, tags in sentences:
            loss = step(words.to(it.device), tags.to(it.device))
            if it.reads:
                loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


class GruCell(nn.Module):
    """A recurrent network written as a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(32, 128), nn.Linear(128, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        state = series.new_zeros(series.shape[0], 128)
        for now in series.unbind(1):
            state = self.cell(now, state)
        return self.head(state)


def gru_by_hand(it: Iterations) -> None:
    """A forecast by a cell in a loop over twenty times: an iteration has twenty equal parts."""
    model = GruCell().to(it.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    series, wanted = torch.randn(64, 20, 32, device=it.device), torch.randn(64, 1, device=it.device)
    it.parts = 20

    def step() -> torch.Tensor:
        loss = F.mse_loss(model(series), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    number = 0
    while True:
        loss = step()
        number += 1
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def translator(it: Iterations) -> None:
    """nn.Transformer from one sequence to another, with label smoothing and a schedule by LambdaLR."""
    model = nn.Transformer(128, 4, 3, 3, 512, batch_first=True).to(it.device)
    embed, head = nn.Embedding(4000, 128).to(it.device), nn.Linear(128, 4000).to(it.device)
    weights = [*model.parameters(), *embed.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1.0, betas=(0.9, 0.98), eps=1e-9, capturable=bool(it.graph))
    warm = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: 128**-0.5 * min((n + 1) ** -0.5, (n + 1) * 4000**-1.5)
    )
    source, target = (torch.randint(0, 4000, (12, 33), device=it.device) for _ in range(2))
    mask = nn.Transformer.generate_square_subsequent_mask(32, device=it.device)

    def step() -> torch.Tensor:
        out = model(embed(source), embed(target[:, :-1]), tgt_mask=mask, tgt_is_causal=True)
        loss = F.cross_entropy(head(out).transpose(1, 2), target[:, 1:], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return loss

    it.capture(step)
    for number, _ in enumerate(itertools.repeat(0)):
        loss = step()
        warm.step()
        if it.reads and number >= 0:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(16, 128)
        layer = nn.TransformerEncoderLayer(128, 8, 256, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.inside(x)).mean(1))


class Loop:
    """A user's own small framework: run() calls _epoch(), which calls _step()."""

    def __init__(self, it: Iterations) -> None:
        self.it, self.model = it, Encoder().to(it.device)
        self.optimizer = torch.optim.RAdam(self.model.parameters(), lr=1e-3, capturable=bool(it.graph))
        self.data = [
            (torch.randn(32, 48, 16, device=it.device), torch.randint(0, 5, (32,), device=it.device)) for _ in range(7)
        ]

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _epoch(self) -> bool:
        for x, y in self.data:
            loss = self._step(x, y)
            if self.it.reads:
                loss.item()
            elif self.it.waits():
                torch.cuda.synchronize()
            self.it.end()
            if self.it.enough():
                return False
        return True

    def run(self) -> None:
        self.it.capture(lambda: self._step(*self.data[0]))
        while self._epoch():
            pass


def encoder_training(it: Iterations) -> None:
    """TransformerEncoder with dropout in a class of three methods."""
    Loop(it).run()


def dcgan(it: Iterations) -> None:
    """Two networks and two optimizers in turn; the style that reads reads both losses."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4, 1), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(True),
        nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
    ).to(it.device)  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64),
        nn.LeakyReLU(0.2, True), nn.Conv2d(64, 1, 8),
    ).to(it.device)  # fmt: skip
    first, second = (
        torch.optim.Adam(net.parameters(), 2e-4, (0.5, 0.999), capturable=bool(it.graph)) for net in (critic, generator)
    )
    judge = nn.BCEWithLogitsLoss()
    real = torch.rand(64, 3, 32, 32).to(it.device) * 2 - 1
    ones, zeros = torch.ones(64, device=it.device), torch.zeros(64, device=it.device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        fake = generator(torch.randn(64, 64, 1, 1, device=it.device))
        critic.zero_grad()
        loss_critic = judge(critic(real).flatten(), ones) + judge(critic(fake.detach()).flatten(), zeros)
        loss_critic.backward()
        first.step()
        generator.zero_grad()
        loss_generator = judge(critic(fake).flatten(), ones)
        loss_generator.backward()
        second.step()
        return loss_critic, loss_generator

    it.capture(step)
    for _ in range(50):
        for _ in range(10_000):
            one, other = step()
            if it.reads:
                one.item() + other.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


def vae(it: Iterations) -> None:
    """A variational autoencoder on flat images from a DataLoader of this process."""
    encode, decode = mlp(784, 400, 40).to(it.device), mlp(20, 400, 784).to(it.device)
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=1e-3, capturable=bool(it.graph))
    loader = DataLoader(TensorDataset(torch.rand(4096, 784)), batch_size=128, shuffle=True, drop_last=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        close = F.binary_cross_entropy_with_logits(decode(z), x, reduction="sum")
        loss = close - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if it.graph:
        static = torch.rand(128, 784, device=it.device)
        it.capture(lambda: step(static))
    it.group = len(loader)
    for epoch in range(1, 100):
        summed = 0.0
        for _, (x,) in enumerate(loader):
            loss = step(x.to(it.device))
            if it.reads:
                summed += loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return
        if it.reads:
            print(f"epoch {epoch}: {summed / 4096:.2f}")


def dqn(it: Iterations) -> None:
    """Q-learning: an action and a batch of a replay buffer on the host each step; each tenth updates the target."""
    online, target = mlp(8, 128, 128, 4).to(it.device), mlp(8, 128, 128, 4).to(it.device)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.AdamW(online.parameters(), lr=1e-4, amsgrad=True)
    buffer: collections.deque[Any] = collections.deque(maxlen=2000)
    state = torch.randn(8)

    def act(state: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return online(state.to(it.device)).argmax()

    def learn() -> torch.Tensor:
        states, actions, rewards, after = (
            torch.stack(each).to(it.device) for each in zip(*random.sample(buffer, 64), strict=True)
        )
        wanted = rewards + 0.99 * target(after).amax(1).detach()
        loss = F.smooth_l1_loss(online(states).gather(1, actions.unsqueeze(1)).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(online.parameters(), 100)
        optimizer.step()
        return loss

    for _ in range(200):
        buffer.append((torch.randn(8), torch.tensor(random.randrange(4)), torch.randn(()), torch.randn(8)))
    for frame in itertools.count():
        best = act(state)
        after = torch.randn(8)
        buffer.append((state, torch.tensor(random.randrange(4)), torch.randn(()), after))
        loss = learn()
        if frame % 10 == 9:
            for kept, learned in zip(target.parameters(), online.parameters(), strict=True):
                kept.data.lerp_(learned.data, 0.05)
        state = after
        if it.reads:
            best.item()
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def physics_net(it: Iterations) -> None:
    """Burgers' equation: derivatives of the network by autograd, then a backward pass through them."""
    net = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    net.to(it.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=bool(it.graph))
    inside = (torch.rand(4000, 2, device=it.device) * 2 - 1).requires_grad_()
    edge, value = torch.rand(400, 2, device=it.device), torch.zeros(400, 1, device=it.device)

    def residual() -> torch.Tensor:
        u = net(inside)
        slope = torch.autograd.grad(u.sum(), inside, create_graph=True)[0]
        x, t = slope[:, :1], slope[:, 1:]
        curved = torch.autograd.grad(x.sum(), inside, create_graph=True)[0][:, :1]
        return t + u * x - 0.003 * curved

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = residual().square().mean() + F.mse_loss(net(edge), value)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    tries, loss = 0, torch.zeros(())
    while tries < 10**7:
        loss = step()
        tries += 1
        if it.reads and loss.item() < 0:
            break
        if it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def lbfgs_fit(it: Iterations) -> None:
    """LBFGS with a closure, four evaluations a step; the optimizer itself reads numbers."""
    net = mlp(4, 64, 64, 1).to(it.device)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=4, tolerance_grad=0.0, tolerance_change=0.0)
    x = torch.randn(2000, 4, device=it.device)
    y = (x.sin().sum(1, keepdim=True) + 0.1 * torch.randn(2000, 1, device=it.device)).detach()
    it.parts = 4

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    for _ in range(1_000_000):
        loss = optimizer.step(closure)
        if it.reads:
            float(loss)
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def own_graph(it: Iterations) -> None:
    """A user who captured the step already: a copy in, a replay, and a number."""
    net = mlp(256, 512, 512, 512, 10).to(it.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=it.device == "cuda")
    x, y = torch.zeros(64, 256, device=it.device), torch.zeros(64, dtype=torch.long, device=it.device)
    data = torch.randn(20, 64, 256, device=it.device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    replay, loss = step, step().detach()  # or the gradients would belong to this stream
    if it.device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        replay = graph.replay
    for batch in itertools.cycle(data):
        x.copy_(batch)
        replay()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


class Pictures(Dataset[Any]):
    """Each item is made when it is asked for."""

    def __len__(self) -> int:
        return 640

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 32, 32), number / 640) + torch.randn(3, 32, 32), number % 10


def loader_pinned(it: Iterations) -> None:
    """A DataLoader without workers and with pinned batches: the host prepares while the GPU is idle."""
    loader = DataLoader(Pictures(), batch_size=32, shuffle=True, num_workers=0, pin_memory=it.device == "cuda")
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to(it.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    it.group = len(loader)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    if it.graph:
        images, labels = (tensor.to(it.device) for tensor in next(iter(loader)))
        it.capture(lambda: step(images, labels))
    for _ in range(1000):
        for images, labels in loader:
            loss = step(images.to(it.device, non_blocking=True), labels.to(it.device, non_blocking=True))
            if it.reads:
                loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


def accumulation(it: Iterations) -> None:
    """Gradients of four micro-batches, then one update: the iteration is the update."""
    model = mlp(512, 1024, 1024, 1024, 100).to(it.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=bool(it.graph))
    x, y = torch.randn(4, 32, 512, device=it.device), torch.randint(0, 100, (4, 32), device=it.device)
    it.parts = 4

    def update() -> torch.Tensor:
        total = torch.zeros((), device=it.device)
        for inputs, labels in zip(x, y, strict=True):
            loss = F.cross_entropy(model(inputs), labels) / 4
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    it.capture(update)
    updates = 0
    while True:
        total = update()
        updates += 1
        if it.reads:
            total.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def amp_scaler(it: Iterations) -> None:
    """Mixed precision in fp16 with GradScaler, which waits for a number each step."""
    device = it.device
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.GELU(), nn.Conv2d(64, 64, 3, 2, 1), nn.GELU(), nn.Conv2d(64, 128, 3, 2, 1),
        nn.GELU(), nn.Flatten(), nn.Linear(128 * 64, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=bool(it.graph))
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    images, labels = torch.randn(64, 3, 32, 32, device=device), torch.randint(0, 10, (64,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    it.capture(step)
    for _ in itertools.count():
        loss = step()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def evaluating(it: Iterations) -> None:
    """Training, and each twentieth step an evaluation of five batches, whose accuracy is read."""
    model = mlp(128, 512, 512, 512, 20).to(it.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000, 0.9)
    x, y = torch.randn(10, 128, 128, device=it.device), torch.randint(0, 20, (10, 128), device=it.device)
    it.group = 20

    def train_step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    @torch.no_grad()
    def evaluate() -> float:
        model.eval()
        right = sum((model(inputs).argmax(1) == labels).sum() for inputs, labels in zip(x[:5], y[:5], strict=True))
        return float(right) / 640

    it.capture(lambda: train_step(x[0], y[0]))

    def main() -> None:
        step = 0
        while step < 10**7:
            loss = train_step(x[step % 10], y[step % 10])
            scheduler.step()
            step += 1
            if step % 20 == 0:
                evaluate()
            if it.reads:
                loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return

    main()


def policy_gradient(it: Iterations) -> None:
    """An episode of 25 actions by a small network on the GPU, then one update: the parts are the actions."""
    policy = mlp(6, 64, 64, 3).to(it.device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    drift = torch.randn(3, 6, device=it.device) * 0.1
    it.unit, it.parts = "one episode of 25 actions and an update", 25

    def episode() -> tuple[torch.Tensor, torch.Tensor]:
        states, chances, rewards = torch.zeros(32, 6, device=it.device), [], []
        for _ in range(25):
            chosen = torch.distributions.Categorical(logits=policy(states), validate_args=False)
            actions = chosen.sample()
            states = states * 0.95 + drift[actions]
            chances.append(chosen.log_prob(actions))
            rewards.append(-states.square().sum(1))
        return torch.stack(chances), torch.stack(rewards)

    for _ in range(100_000):
        chances, rewards = episode()
        returns = rewards.flip(0).cumsum(0).flip(0)
        loss = -(chances * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it.reads:
            rewards.mean().item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def diffusion_sampling(it: Iterations) -> None:
    """Denoising in a loop over fifty times inside of a loop over images; an iteration is one time."""
    net = nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1), nn.SiLU(), nn.GroupNorm(8, 64), nn.Conv2d(64, 64, 3, padding=1), nn.SiLU(),
        nn.GroupNorm(8, 64), nn.Conv2d(64, 3, 3, padding=1),
    ).to(it.device).eval()  # fmt: skip
    kept = torch.linspace(0.9999, 0.98, 50, device=it.device)
    it.unit, it.group = "one denoising", 50

    def denoise(x: torch.Tensor, kept_now: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        noise = net(torch.cat((x, time.expand(len(x), 1, 32, 32)), 1))
        x = (x - (1 - kept_now) / (1 - kept_now**2).sqrt() * noise) / kept_now.sqrt()
        return x + 0.01 * torch.randn_like(x)

    times = torch.arange(50, device=it.device) / 50

    @torch.no_grad()
    def sample() -> torch.Tensor | None:
        x = torch.randn(8, 3, 32, 32, device=it.device)
        for number in reversed(range(50)):
            x = denoise(x, kept[number], times[number])
            if it.reads:
                x[0, 0, 0, 0].item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return None
        return x

    start = torch.randn(8, 3, 32, 32, device=it.device)
    with torch.no_grad():
        it.capture(lambda: denoise(start, kept[10], times[10]))
    while sample() is not None:
        pass


def two_streams(it: Iterations) -> None:
    """The next batch is copied on a stream of its own while the last one is trained on."""
    device = it.device
    model = mlp(1024, 1024, 1024, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    host = [(torch.randn(256, 1024), torch.randint(0, 10, (256,))) for _ in range(8)]
    if device == "cuda":
        host = [(x.pin_memory(), y.pin_memory()) for x, y in host]
        copies = torch.cuda.Stream()

    def fetch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = host[number % len(host)]
        if device == "cpu":
            return x, y
        with torch.cuda.stream(copies):
            return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    ahead = fetch(0)
    for number in itertools.count(1):
        if device == "cuda":
            torch.cuda.current_stream().wait_stream(copies)
            for tensor in ahead:
                tensor.record_stream(torch.cuda.current_stream())
        x, y = ahead
        ahead = fetch(number)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break
