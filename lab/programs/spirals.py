"""A classifier of spirals by PyTorch, as a script: all at module level, one loop."""

import math

import torch
from iterations import it
from torch import nn

N, CLASSES = 2000, 3
angle = torch.rand(N) * 4 * math.pi
label = torch.randint(0, CLASSES, (N,))
turned = angle + label * 2 * math.pi / CLASSES
points = torch.stack((angle * turned.cos(), angle * turned.sin()), 1) + 0.1 * torch.randn(N, 2)
points, label = points.to(it.device), label.to(it.device)

model = nn.Sequential(nn.Linear(2, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, CLASSES))
model.to(it.device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=bool(it.graph))


def step():
    optimizer.zero_grad()
    loss = criterion(model(points), label)
    loss.backward()
    optimizer.step()
    return loss


it.capture(step)

for epoch in range(1_000_000):
    optimizer.zero_grad()
    loss = criterion(model(points), label)
    loss.backward()
    optimizer.step()
    if it.reads:
        value = loss.item()
        if epoch % 1000 == 0:
            print(epoch, value)
    elif it.waits():
        torch.cuda.synchronize()
    it.end()
    if it.enough():
        break
