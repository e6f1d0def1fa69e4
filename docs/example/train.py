"""Training of a small masked language model, and how long a step takes.

python train.py                 # as it was found
python train.py --masks gpu     # words are masked on the GPU
python train.py --masks gpu --norm together  # and the norm of all gradients is computed at once, and read now and then
"""

import argparse
import random
import time
from collections.abc import Iterable

import torch
from torch import nn

STEPS, BATCH, LENGTH, WIDTH, WORDS, MASK, DEVICE = 400, 64, 256, 256, 8000, 1, "cuda"


def masked(words: torch.Tensor, where: str) -> torch.Tensor:
    """One word in seven is hidden."""
    if where == "gpu":
        return torch.where(torch.rand(words.shape, device=DEVICE) < 0.15, MASK, words)
    rows = [[MASK if random.random() < 0.15 else word for word in row] for row in words.tolist()]
    return torch.tensor(rows, device=DEVICE)


def size_of_gradients(parameters: Iterable[nn.Parameter], how: str) -> torch.Tensor | float:
    gradients = [one.grad for one in parameters]
    if how == "together":
        return torch.nn.utils.get_total_norm(gradients)
    return sum(one.norm().item() ** 2 for one in gradients) ** 0.5


def main(masks: str, norm: str) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(WIDTH, WORDS)
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    texts = torch.randint(2, WORDS, (64, BATCH, LENGTH), device=DEVICE if masks == "gpu" else "cpu")
    for step in range(STEPS):
        if step == STEPS - 200:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        words = texts[step % len(texts)]
        scores = model(masked(words, masks))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words.to(DEVICE).flatten())
        optimizer.zero_grad()
        loss.backward()
        size = size_of_gradients(model.parameters(), norm)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.2f}, gradients {float(size):.2f}", flush=True)
    torch.cuda.synchronize()
    print(f"{(time.perf_counter() - begin) / 200 * 1e3:.2f} ms a step")


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--masks", choices=("python", "gpu"), default="python")
    options.add_argument("--norm", choices=("each", "together"), default="each")
    main(**vars(options.parse_args()))
