"""A MobileNet of torchvision looks at frames, which are normalized and moved along a flow on the GPU."""

import torch
import torch.nn.functional as F  # noqa: N812
from torchvision import models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 96


class Normalize(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1))

    def forward(self, frames):
        mean, deviation = self.mean, self.deviation
        return (frames - mean) / deviation


def grid_on(device):
    places = torch.arange(SIZE, dtype=torch.float32, device=device)
    return torch.stack(torch.meshgrid(places, places, indexing="xy"), -1)


class Warp(torch.nn.Module):
    """Moves frames along a flow."""

    def __init__(self):
        super().__init__()
        self.register_buffer("grid", grid_on("cpu"))

    def forward(self, frames, flow):
        grid = self.grid
        target = 2 * (grid + flow) / (SIZE - 1) - 1
        return F.grid_sample(frames, target, align_corners=True)


def make():
    model = models.mobilenet_v3_small(weights=None, num_classes=20).to(DEVICE).eval()
    normalize, warp = Normalize().to(DEVICE), Warp().to(DEVICE)
    frames = torch.rand(4, 3, SIZE, SIZE, device=DEVICE)
    flow = torch.randn(4, SIZE, SIZE, 2, device=DEVICE)
    counts = torch.zeros(20, device=DEVICE)

    @torch.no_grad()
    def turn(number):
        moved = warp(frames, flow)
        scores = model(normalize(moved))
        chosen = scores.softmax(1)
        counts.add_(chosen.sum(0))
        if number % 100 == 99:
            print(f"frame {number + 1}: {counts.tolist()[:3]}")

    return turn
