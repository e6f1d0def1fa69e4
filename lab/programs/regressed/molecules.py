"""Training of a graph network of PyTorch Geometric on batches of graphs that have a label each."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_mean_pool
from torch_geometric.utils import to_dense_batch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GRAPHS, NODES, FEATURES = 16, 20, 16


def layer(before, after):
    inner = nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.Linear(after, after))
    return GINConv(inner)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([layer(FEATURES, 64), layer(64, 64), layer(64, 64)])
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, graphs):
        x = graphs.x
        for convolution in self.layers:
            x = convolution(x, graphs.edge_index).relu()
        dense, _ = to_dense_batch(x, graphs.batch, max_num_nodes=NODES, batch_size=GRAPHS)
        mixed, _ = self.attention(dense, dense, dense, need_weights=False)
        middle = mixed.mean(1)
        weights = torch.repeat_interleave(graphs.weight, graphs.sizes, output_size=GRAPHS * NODES)
        pooled = global_mean_pool(x * weights[:, None], graphs.batch, size=GRAPHS)
        return self.head(pooled + middle)


def make():
    graphs = []
    for number in range(GRAPHS):
        graphs.append(Data(
            x=torch.randn(NODES, FEATURES), edge_index=torch.randint(0, NODES, (2, 3 * NODES)),
            y=torch.tensor([number % 2]), weight=torch.rand(1), sizes=torch.tensor([NODES]),
        ))  # fmt: skip
    batch = Batch.from_data_list(graphs).to(DEVICE)
    model = Network().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    def turn(number):
        scores = model(batch)
        loss = F.cross_entropy(scores, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 50 == 49:
            print(f"step {number + 1}: loss {loss.item():.3f}")

    return turn
