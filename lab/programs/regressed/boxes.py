"""Training of a detector's head on a ResNet of timm: generalized IoU of boxes, and the best boxes of each image."""

import timm
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, BOXES, KEPT = 4, 32, 5


def area(boxes):
    width, height = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).unbind(-1)
    return width * height


def loss_of(boxes, wanted):
    """One less the generalized IoU of boxes that belong together."""
    overlap = area(
        torch.cat([torch.max(boxes[..., :2], wanted[..., :2]), torch.min(boxes[..., 2:], wanted[..., 2:])], -1)
    )
    union = area(boxes) + area(wanted) - overlap
    around = area(
        torch.cat([torch.min(boxes[..., :2], wanted[..., :2]), torch.max(boxes[..., 2:], wanted[..., 2:])], -1)
    )
    return (1 - overlap / (union + 1e-7) + (around - union) / (around + 1e-7)).mean()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = timm.create_model("resnet10t", pretrained=False, num_classes=0)
        self.head = nn.Linear(self.body.num_features, BOXES * 5)

    def forward(self, images):
        found = self.head(self.body(images)).view(-1, BOXES, 5)
        corner, extent = found[..., :2].sigmoid(), found[..., 2:4].sigmoid()
        return torch.cat([corner, corner + extent], -1), found[..., 4]


def make():
    model = Detector().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(BATCH, 3, 64, 64, device=DEVICE)
    corner = torch.rand(BATCH, BOXES, 2, device=DEVICE)
    wanted = torch.cat([corner, corner + 0.2], -1)
    known = torch.rand(BATCH, BOXES, device=DEVICE) < 0.7
    best = torch.zeros(BATCH, KEPT, 4, device=DEVICE)

    def turn(number):
        boxes, scores = model(images)
        box_loss = loss_of(boxes, wanted)
        score_loss = F.binary_cross_entropy_with_logits(scores, known.float())
        loss = box_loss + score_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            order = scores.topk(KEPT, 1).indices
            best.copy_(boxes.gather(1, order[..., None].expand(-1, -1, 4)))
        if number % 50 == 49:
            first = [box.tolist() for box in best[:, 0].cpu()]
            print(f"step {number + 1}: loss {loss.item():.3f}, {first[0]}")

    return turn
