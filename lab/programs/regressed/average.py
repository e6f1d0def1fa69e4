"""Training of a small ViT of timm with clipping, a fused optimizer and an exponential moving average of weights."""

import timm
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DECAY, LIMIT = 0.999, 1.0


class Average:
    """A moving average of all weights of a model."""

    def __init__(self, model):
        self.model = model
        self.weights = [weight.detach().clone() for weight in model.parameters()]

    @torch.no_grad()
    def update(self):
        now = list(self.model.parameters())
        torch._foreach_lerp_(self.weights, now, 1 - DECAY)


def make():
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64, num_classes=50, depth=6).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    average = Average(model)
    images = torch.randn(8, 3, 64, 64, device=DEVICE)
    labels = torch.randint(0, 50, (8,), device=DEVICE)
    norms = []

    def update(images, labels):
        scores = model(images)
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        average.update()
        return loss.detach(), norm

    def turn(number):
        loss, norm = update(images, labels)
        norms.append(norm)
        if number % 50 == 49:
            largest = torch.stack(norms).max().item()
            norms.clear()
            print(f"step {number + 1}: loss {loss.item():.3f}, norm at most {largest:.2f}")

    return turn
