"""A character model by PyTorch as a script: a while loop at module level with a counter, batches drawn on the GPU."""

import torch
import torch.nn.functional as F  # noqa: N812
from iterations import it
from torch import nn

torch.manual_seed(0)
LENGTH, SIZE, LETTERS = 64, 32, 65
text = torch.randint(0, LETTERS, (50_000,), device=it.device)
offsets = torch.arange(LENGTH + 1, device=it.device)
embed = nn.Embedding(LETTERS, 96).to(it.device)
layers = nn.ModuleList(
    nn.TransformerEncoderLayer(96, 4, 384, 0.0, batch_first=True, norm_first=True) for _ in range(3)
).to(it.device)
head = nn.Linear(96, LETTERS).to(it.device)
mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=it.device)
weights = [*embed.parameters(), *layers.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(weights, lr=1e-3, capturable=bool(it.graph))


def loss_of_a_batch():
    begins = torch.randint(0, len(text) - LENGTH - 1, (SIZE, 1), device=it.device)
    tokens = text[begins + offsets]
    x = embed(tokens[:, :-1])
    for layer in layers:
        x = layer(x, src_mask=mask, is_causal=True)
    return F.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())


def step():
    loss = loss_of_a_batch()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


it.capture(step)

iteration = 0
while iteration < 1_000_000:
    loss = loss_of_a_batch()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iteration += 1
    if it.reads:
        print(f"{iteration}: {loss.item():.3f}", end="\r")
    elif it.waits():
        torch.cuda.synchronize()
    it.end()
    if it.enough():
        break
