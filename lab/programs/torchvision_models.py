"""Models of torchvision with random weights, each with a loop of its own shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from iterations import Iterations
from torch import nn
from torchvision import models
from torchvision.models import detection, optical_flow, segmentation, video


def resnet18(it: Iterations) -> None:
    """Inference of eight images, the same batch each time."""
    model = models.resnet18(weights=None).to(it.device).eval()
    images = torch.randn(8, 3, 224, 224, device=it.device)

    @torch.no_grad()
    def predict() -> torch.Tensor:
        return model(images).argmax(1)

    it.capture(predict)
    for _ in range(1_000_000):
        classes = predict()
        if it.reads:
            classes[0].item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def resnet50(it: Iterations) -> None:
    """Training in bf16 with channels last: the GPU is busy all the time."""
    device = it.device
    model = models.resnet50(weights=None).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    size = 48 if device == "cuda" else 2
    images = torch.randn(size, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (size,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    done = False
    while not done:
        loss = step()
        if it.reads:
            float(loss)
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        done = it.enough()


def mobilenet_v3(it: Iterations) -> None:
    """Epochs of sixteen batches that lie on the GPU; the mean loss is set to zero at the begin of each."""
    model = models.mobilenet_v3_small(weights=None, num_classes=100).to(it.device).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, capturable=bool(it.graph))
    batches = [
        (torch.randn(32, 3, 128, 128, device=it.device), torch.randint(0, 100, (32,), device=it.device))
        for _ in range(16)
    ]

    def train(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    it.capture(lambda: train(*batches[0]))
    it.group = len(batches)
    for epoch in range(100_000):
        total = torch.zeros((), device=it.device)
        running = 0.0
        for number, (images, labels) in enumerate(batches):
            loss = train(images, labels)
            total += loss
            if it.reads:
                running += loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                print(f"epoch {epoch}, batch {number}, loss {running}")
                return


def efficientnet_b0(it: Iterations) -> None:
    """Inference in bf16 under inference_mode, a counter in a while loop."""
    model = models.efficientnet_b0(weights=None).to(it.device).eval()
    images = torch.randn(4, 3, 224, 224, device=it.device)

    def step() -> torch.Tensor:
        with torch.inference_mode(), torch.autocast(it.device, dtype=torch.bfloat16):
            return model(images).softmax(-1)

    it.capture(step)
    count, seen = 0, 0
    while count < 1_000_000:
        probabilities = step()
        seen += len(probabilities)
        if it.reads:
            probabilities.max().item()
        if it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            return
        count += 1


def densenet121(it: Iterations) -> None:
    """Training with AdamW: hundreds of small kernels forward and backward."""
    model = models.densenet121(weights=None, num_classes=10).to(it.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=bool(it.graph))
    images, labels = torch.randn(16, 3, 96, 96, device=it.device), torch.randint(0, 10, (16,), device=it.device)

    def training_step() -> torch.Tensor:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(training_step)
    for _ in itertools.count():
        loss = training_step()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def vgg16(it: Iterations) -> None:
    """Training of large convolutions in full precision: long kernels, few launches."""
    model = models.vgg16(weights=None).to(it.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    size = 24 if it.device == "cuda" else 2
    images = torch.randn(size, 3, 224, 224, device=it.device)
    labels = torch.randint(0, 1000, (size,), device=it.device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    losses: list[float] = []
    for _ in range(10**6):
        loss = step()
        if it.reads:
            losses.append(loss.item())
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


class Trainer:
    """Fits a classifier; the loop is in fit(), the work of a step in training_step()."""

    def __init__(self, model: nn.Module, it: Iterations) -> None:
        self.model, self.it = model.to(it.device), it
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=bool(it.graph))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        while True:
            for batch in batches:
                loss = self.training_step(*batch)
                self.on_step_end(loss)
                self.it.end()
                if self.it.enough():
                    return

    def on_step_end(self, loss: torch.Tensor) -> None:
        if self.it.reads:
            self.last = loss.item()
        elif self.it.waits():
            torch.cuda.synchronize()


def squeezenet(it: Iterations) -> None:
    """A Trainer class."""
    trainer = Trainer(models.squeezenet1_1(weights=None, num_classes=200), it)
    batches = [
        (torch.randn(32, 3, 112, 112, device=it.device), torch.randint(0, 200, (32,), device=it.device))
        for _ in range(4)
    ]
    it.capture(lambda: trainer.training_step(*batches[0]))
    trainer.fit(batches)


def shufflenet(it: Iterations) -> None:
    """Inference on frames that a generator gives, each from pageable memory."""

    def frames() -> Iterator[torch.Tensor]:
        pictures = torch.randint(0, 256, (32, 3, 224, 224), dtype=torch.uint8)
        for number in itertools.count():
            yield pictures[number % 32].unsqueeze(0)

    model = models.shufflenet_v2_x1_0(weights=None).to(it.device).eval()
    mean = torch.tensor([0.485, 0.456, 0.406], device=it.device).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=it.device).view(3, 1, 1)

    def classify(frame: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model((frame.float() / 255 - mean) / deviation).topk(5).indices

    static = torch.zeros(1, 3, 224, 224, dtype=torch.uint8, device=it.device)
    it.capture(lambda: classify(static))
    for frame in frames():
        best = classify(frame.to(it.device))
        if it.reads:
            best[0, 0].item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            return


def mnasnet(it: Iterations) -> None:
    """Training with a schedule; enumerate() of an endless source of pinned batches."""

    def source() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pin = it.device == "cuda"
        images = [torch.randn(24, 3, 128, 128, pin_memory=pin) for _ in range(6)]
        labels = [torch.randint(0, 1000, (24,)) for _ in range(6)]
        yield from itertools.cycle(zip(images, labels, strict=True))

    model = models.mnasnet0_5(weights=None).to(it.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    if it.graph:
        images, labels = (tensor.to(it.device) for tensor in next(source()))
        it.capture(lambda: step(images, labels))
    for number, (images, labels) in enumerate(source()):
        loss = step(images.to(it.device, non_blocking=True), labels.to(it.device, non_blocking=True))
        scheduler.step()
        if it.reads:
            value = loss.item()
            if number % 500 == 0:
                print(number, value)
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def fasterrcnn(it: Iterations) -> None:
    """Detection in two images of other sizes; the model itself waits for numbers of boxes."""
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None).to(it.device).eval()
    images = [torch.rand(3, 240, 320, device=it.device), torch.rand(3, 320, 280, device=it.device)]

    @torch.no_grad()
    def detect() -> list[dict[str, torch.Tensor]]:
        return model(images)

    it.capture(detect)
    while True:
        found = detect()
        if it.reads:
            found[0]["boxes"].sum().item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def deeplabv3(it: Iterations) -> None:
    """Training of a segmentation with two losses."""
    model = segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    )
    model.to(it.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=bool(it.graph))
    images = torch.randn(4, 3, 256, 256, device=it.device)
    target = torch.randint(0, 21, (4, 256, 256), device=it.device)

    def losses() -> torch.Tensor:
        out = model(images)
        return F.cross_entropy(out["out"], target) + 0.5 * F.cross_entropy(out["aux"], target)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = losses()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    it.capture(step)

    def epoch(length: int) -> bool:
        for _ in range(length):
            loss = step()
            if it.reads:
                loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return True
        return False

    while not epoch(25):
        pass


def r3d_18(it: Iterations) -> None:
    """Training on short clips: 3D convolutions keep the GPU busy."""
    model = video.r3d_18(weights=None, num_classes=50).to(it.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clips, labels = torch.randn(4, 3, 8, 112, 112, device=it.device), torch.randint(0, 50, (4,), device=it.device)

    def step() -> torch.Tensor:
        loss = F.cross_entropy(model(clips), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    it.capture(step)
    for _ in range(100_000):
        loss = step()
        if it.reads:
            loss.tolist()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def raft_small(it: Iterations) -> None:
    """Optical flow: twelve equal updates inside of each step."""
    model = optical_flow.raft_small(weights=None).to(it.device).eval()
    clip = torch.rand(9, 3, 128, 160, device=it.device) * 2 - 1

    def flow(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(first, second, num_flow_updates=12)[-1]

    it.capture(lambda: flow(clip[:1], clip[1:2]))
    while not it.enough():
        for number in range(8):
            moved = flow(clip[number : number + 1], clip[number + 1 : number + 2])
            if it.reads:
                moved.abs().mean().item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                break


def regnet(it: Iterations) -> None:
    """A number of a validation set: accuracy is counted on the GPU, and read after each pass of ten batches."""
    model = models.regnet_y_400mf(weights=None).to(it.device).eval()
    images, labels = torch.randn(160, 3, 160, 160, device=it.device), torch.randint(0, 1000, (160,), device=it.device)
    right = torch.zeros((), dtype=torch.long, device=it.device)

    @torch.no_grad()
    def evaluate_batch(images: torch.Tensor, labels: torch.Tensor) -> None:
        right.add_((model(images).argmax(1) == labels).sum())

    it.capture(lambda: evaluate_batch(images[:16], labels[:16]))
    it.group = 10
    while True:
        right.zero_()
        for batch, want in zip(images.split(16), labels.split(16), strict=True):
            evaluate_batch(batch, want)
            if it.reads:
                right.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return
        if it.style != "none":
            print(f"accuracy {right.item() / 160:.3f}", end="\r")
