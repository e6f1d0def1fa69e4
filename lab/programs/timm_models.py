"""Models of timm with random weights, each with a loop of its own shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import timm
import torch
import torch.nn.functional as F  # noqa: N812
from iterations import Iterations
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV2
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


def batches(number: int, size: int, side: int, classes: int, device: str) -> list[Batch]:
    return [
        (torch.randn(size, 3, side, side, device=device), torch.randint(0, classes, (size,), device=device))
        for _ in range(number)
    ]


def train_one_epoch(
    model: nn.Module, loader: Iterable[Batch], optimizer: torch.optim.Optimizer, it: Iterations
) -> bool:
    """Whether the program ends."""
    model.train()
    meter = 0.0
    for images, labels in loader:
        loss = backward(model, images, labels)
        optimizer.step()
        optimizer.zero_grad()
        if it.reads:
            meter += loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            return True
    return False


def backward(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    return loss


def vit_tiny(it: Iterations) -> None:
    """Training; three functions deep."""
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=100).to(it.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, capturable=bool(it.graph))
    loader = batches(5, 16, 224, 100, it.device)

    def step() -> None:
        backward(model, *loader[0])
        optimizer.step()
        optimizer.zero_grad()

    it.capture(step)
    for _ in range(1000):
        if train_one_epoch(model, loader, optimizer, it):
            break


def convnext(it: Iterations) -> None:
    """Inference in a function that gives the result of each batch to its caller."""
    model = timm.create_model("convnext_atto", pretrained=False).eval().to(it.device)
    images = torch.randn(4, 3, 224, 224, device=it.device)

    @torch.inference_mode()
    def features() -> torch.Tensor:
        return F.normalize(model.forward_head(model.forward_features(images), pre_logits=True), dim=-1)

    it.capture(features)

    def results() -> Iterator[torch.Tensor]:
        while True:
            yield features()

    for vectors in results():
        if it.reads:
            (vectors[0] @ vectors[1]).item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def swin_tiny(it: Iterations) -> None:
    """Training with autocast, clipping, and a scheduler of timm."""
    device = it.device
    model = timm.create_model("swin_tiny_patch4_window7_224", pretrained=False, num_classes=10, drop_path_rate=0.1)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, capturable=bool(it.graph))
    scheduler = CosineLRScheduler(optimizer, t_initial=10_000, warmup_t=100)
    data = batches(3, 8, 224, 10, device)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss

    it.capture(lambda: step(*data[0]))
    updates = 0
    while updates < 100_000:
        loss = step(*data[updates % len(data)])
        updates += 1
        scheduler.step_update(updates)
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def mixer(it: Iterations) -> None:
    """Training with mixed images: each step mixes by numbers that the host draws."""
    model = timm.create_model("mixer_s32_224", pretrained=False, num_classes=50).to(it.device)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9)
    mixup = Mixup(mixup_alpha=0.8, num_classes=50, label_smoothing=0.1)
    data = batches(4, 32, 224, 50, it.device)

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images, targets = mixup(images.clone(), labels)
        return F.cross_entropy(model(images), targets)

    for _ in range(10_000):
        for images, labels in data:
            loss = loss_of(images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if it.reads:
                loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


def efficientformer(it: Iterations) -> None:
    """Latency of one image in half precision, as a benchmark of a user."""
    model = timm.create_model("efficientformer_l1", pretrained=False).eval().to(it.device)
    image = torch.randn(1, 3, 224, 224, device=it.device)
    if it.device == "cuda":
        model, image = model.half(), image.half()

    @torch.no_grad()
    def infer() -> torch.Tensor:
        return model(image)

    it.capture(infer)
    times = 0
    while True:
        logits = infer()
        times += 1
        if it.reads:
            logits.argmax().item()
        if it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break
    print(times, "images")


def distillation(it: Iterations) -> None:
    """A student learns from a teacher; a slow average of the student is kept."""
    teacher = timm.create_model("resnet26", pretrained=False, num_classes=100).eval().to(it.device)
    student = timm.create_model("deit_tiny_patch16_224", pretrained=False, num_classes=100).to(it.device)
    average = ModelEmaV2(student, decay=0.999)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, capturable=bool(it.graph))
    data = batches(6, 12, 224, 100, it.device)

    def distill(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(images)
        given = student(images)
        soft = F.kl_div((given / 3).log_softmax(-1), (wanted / 3).softmax(-1), reduction="batchmean")
        return 9 * soft + F.cross_entropy(given, labels)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = distill(images, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average.update(student)
        return loss

    it.capture(lambda: step(*data[0]))
    for _ in range(1000):
        for _, batch in enumerate(data):
            loss = step(*batch)
            if it.reads:
                loss.cpu()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


def mobilevit(it: Iterations) -> None:
    """A server: requests of one to four images are taken from a queue, so that steps differ in their shapes."""
    model = timm.create_model("mobilevit_xxs", pretrained=False).eval().to(it.device)
    requests = [torch.randn(1 + number % 4, 3, 256, 256) for number in range(12)]
    queue = list(requests)

    def serve(request: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(request.to(it.device)).softmax(-1).amax(-1)

    it.group = 4
    while queue:
        request = queue.pop(0)
        answer = serve(request)
        if it.reads:
            answer.tolist()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break
        queue.append(request)
