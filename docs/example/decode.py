"""A decoder that generates one token after another, eager or as a CUDA graph, and how long a token takes.

python decode.py                        # eager, with a check for the end behind each token
python decode.py --trace trace.json.gz  # the same, recorded by torch.profiler
python decode.py --graph                # as a graph, with the check behind every 16 tokens
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional

TOKENS, LENGTH, WIDTH, HEADS, LAYERS, WORDS = 128, 256, 1024, 16, 8, 32_000
END = 2  # the token that ends a text


class Layer(nn.Module):
    """Attention over the tokens so far, whose keys and values are kept, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("kept", torch.zeros(2, HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(self.before(x)).view(3, HEADS, 1, -1)
        self.kept.index_copy_(2, place, torch.stack((key, value)))
        scores = query @ self.kept[0].transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + mask
        x = x + self.join((functional.softmax(scores, -1) @ self.kept[1]).view(1, WIDTH))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    """Everything that a token needs stays on the GPU: the last token, its place, and the mask of the places so far."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("token", torch.ones(1, dtype=torch.long))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("mask", torch.full((LENGTH,), -torch.inf))

    def start(self) -> None:
        self.token.fill_(1)
        self.place.zero_()
        self.mask.fill_(-torch.inf)

    def forward(self) -> None:
        """Compute the next token from the last one and store it in its place."""
        self.mask.index_fill_(0, self.place, 0.0)
        x = self.words(self.token)
        for layer in self.layers:
            x = layer(x, self.place, self.mask)
        self.token.copy_(self.head(self.last(x)).argmax(-1))
        self.place.add_(1)


def generate(model, step, check_every: int) -> int:
    """The number of tokens until the end, which is looked for behind so many tokens."""
    model.start()
    for count in range(1, TOKENS + 1):
        step()
        if count % check_every == 0 and model.token.item() == END:
            break
    return count


def captured(model):
    """The replay of a step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model = Decoder().to(given.device)
    step, check_every = (captured(model), 16) if given.graph else (model, 1)
    for _ in range(2):
        generate(model, step, check_every)
    if given.trace:
        kinds = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], with_stack=True) as profile:
            generate(model, step, check_every)
        profile.export_chrome_trace(given.trace)
        return
    times = []
    for _ in range(9):
        began = time.perf_counter()
        tokens = generate(model, step, check_every)
        model.token.item()
        times.append((time.perf_counter() - began) / tokens)
    middle, least, most = (f"{seconds * 1e3:.3f}" for seconds in (sorted(times)[4], min(times), max(times)))
    print(f"{middle} ms a token ({least} to {most}), the last one is {model.token.item()}")


if __name__ == "__main__":
    main()
