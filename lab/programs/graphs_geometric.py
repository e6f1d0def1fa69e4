"""Graph networks of PyTorch Geometric on random graphs, each with a loop of its own shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from iterations import Iterations
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_add_pool, global_mean_pool
from torch_geometric.utils import negative_sampling


def random_graph(nodes: int, edges: int, features: int, classes: int) -> Data:
    return Data(
        x=torch.randn(nodes, features), edge_index=torch.randint(0, nodes, (2, edges)),
        y=torch.randint(0, classes, (nodes,)), train_mask=torch.rand(nodes) < 0.3,
    )  # fmt: skip


class Gcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(128, 64), GCNConv(64, 7)

    def forward(self, data: Data) -> torch.Tensor:
        x = F.dropout(self.first(data.x, data.edge_index).relu(), training=self.training)
        return self.second(x, data.edge_index).log_softmax(1)


def gcn(it: Iterations) -> None:
    """Selects nodes of a whole graph by a boolean mask, which makes the host wait."""
    data, model = random_graph(2700, 10_500, 128, 7).to(it.device), Gcn().to(it.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, capturable=bool(it.graph))

    def train() -> torch.Tensor:
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(data)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        return loss

    it.capture(train)
    for _ in range(1, 10**6):
        loss = train()
        if it.reads:
            float(loss)
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


class Gat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(64, 16, heads=8, dropout=0.6), GATConv(128, 5, dropout=0.6)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.second(F.elu(self.first(x, edges)), edges)


def gat(it: Iterations) -> None:
    """Attention over the edges of a whole graph; nodes by their numbers, so that nothing waits."""
    data, model = random_graph(3000, 9000, 64, 5).to(it.device), Gat().to(it.device)
    chosen = data.train_mask.nonzero().squeeze(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, capturable=bool(it.graph))

    def train() -> torch.Tensor:
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[chosen], data.y[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(train)
    epoch = 0
    while epoch < 10**6:
        loss = train()
        epoch += 1
        if it.reads:
            loss.item()
        if it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


class Gin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (16, 64, 64, 64)
        self.layers = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, b)))
            for a, b in itertools.pairwise(widths)
        )
        self.head = nn.Linear(64, 2)

    def forward(self, batch: Data) -> torch.Tensor:
        x = batch.x
        for layer in self.layers:
            x = layer(x, batch.edge_index).relu()
        return self.head(global_add_pool(x, batch.batch, size=batch.num_graphs))


def gin(it: Iterations) -> None:
    """Mini-batches of small graphs of other sizes from a loader, so that no two steps have one shape."""
    graphs = []
    for number in range(320):
        nodes = 12 + number % 17
        graphs.append(Data(
            x=torch.randn(nodes, 16), edge_index=torch.randint(0, nodes, (2, 3 * nodes)), y=torch.tensor([number % 2])
        ))  # fmt: skip
    loader = DataLoader(graphs, batch_size=32, shuffle=True)
    model = Gin().to(it.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    it.group = len(loader)
    for _ in range(10_000):
        for batch in loader:
            batch = batch.to(it.device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            if it.reads:
                loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(50, 128), SAGEConv(128, 12)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edges).relu(), edges)


def sage(it: Iterations) -> None:
    """Neighbours are drawn on the GPU, eight of each node of a batch that a generator gives."""
    graph, model = random_graph(20_000, 160_000, 50, 12).to(it.device), Sage().to(it.device)
    neighbours = torch.randint(0, 20_000, (20_000, 25), device=it.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def sampled(size: int = 256, each: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        while True:
            seeds = torch.randint(0, 20_000, (size,), device=it.device)
            picked = neighbours[seeds].gather(1, torch.randint(0, 25, (size, each), device=it.device))
            nodes = torch.cat((seeds, picked.flatten()))
            begins = torch.arange(size, size * (each + 1), device=it.device)
            yield nodes, torch.stack((begins, torch.arange(size, device=it.device).repeat_interleave(each))), seeds

    for nodes, edges, seeds in sampled():
        loss = F.cross_entropy(model(graph.x[nodes], edges)[: len(seeds)], graph.y[seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def link_prediction(it: Iterations) -> None:
    """Edges against edges that do not exist, drawn anew each step by the library, whose mask waits."""
    data = random_graph(1500, 6000, 128, 7).to(it.device)
    first, second = GCNConv(128, 64).to(it.device), GCNConv(64, 32).to(it.device)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)

    def decode(z: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return (z[edges[0]] * z[edges[1]]).sum(-1)

    class Fit:
        def step(self) -> torch.Tensor:
            z = second(first(data.x, data.edge_index).relu(), data.edge_index)
            absent = negative_sampling(data.edge_index, 1500, 3000)
            out = torch.cat((decode(z, data.edge_index), decode(z, absent)))
            wanted = torch.cat((out.new_ones(data.num_edges), out.new_zeros(absent.shape[1])))
            loss = F.binary_cross_entropy_with_logits(out, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

    fit = Fit()
    for _ in range(10**6):
        loss = fit.step()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def graph_regression(it: Iterations) -> None:
    """One batch of graphs that stays, with edges whose weights were computed before: nothing waits."""
    nodes, graphs = 960, 32
    x, target = torch.randn(nodes, 32, device=it.device), torch.randn(graphs, 1, device=it.device)
    edges = torch.randint(0, nodes, (2, 4000), device=it.device)
    weights = torch.rand(4000, device=it.device)
    which = torch.arange(graphs, device=it.device).repeat_interleave(nodes // graphs)
    layers = nn.ModuleList(GCNConv(32, 32, normalize=False) for _ in range(4)).to(it.device)
    head = nn.Linear(32, 1).to(it.device)
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-3, capturable=bool(it.graph))

    def step() -> torch.Tensor:
        out = x
        for layer in layers:
            out = out + layer(out, edges, weights).relu()
        loss = F.l1_loss(head(global_mean_pool(out, which, size=graphs)), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    while True:
        loss = step()
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break
