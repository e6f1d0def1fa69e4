"""Training of a ResNet-18 of torchvision on pinned batches, with a running mean of loss and accuracy."""

import torch
import torch.nn.functional as F  # noqa: N812
from torchvision import models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, BATCH, SIZE = 100, 16, 64


def source(count):
    batches = []
    for _ in range(count):
        images = torch.randn(BATCH, 3, SIZE, SIZE)
        labels = torch.randint(0, CLASSES, (BATCH,))
        if DEVICE == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        batches.append((images, labels))
    return batches


def accuracy(scores, labels):
    best = scores.argmax(1)
    right = (best == labels).sum()
    return right / len(labels)


def make():
    model = models.resnet18(weights=None, num_classes=CLASSES).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    batches = source(8)
    running = {"loss": torch.zeros((), device=DEVICE), "accuracy": torch.zeros((), device=DEVICE)}

    def train(images, labels):
        scores = model(images)
        loss = F.cross_entropy(scores, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), accuracy(scores.detach(), labels)

    def turn(number):
        images, labels = batches[number % len(batches)]
        images = images.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        loss, right = train(images, labels)
        running["loss"] += loss
        running["accuracy"] += right
        if number % 100 == 99:
            means = [total.item() / 100 for total in running.values()]
            print(f"step {number + 1}: loss {means[0]:.3f}, accuracy {means[1]:.3f}")
            for total in running.values():
                total.zero_()

    return turn
