"""Fine-tuning of a small BERT of transformers, whose classes have weights and whose last words are hidden."""

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import BertConfig, BertModel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, BATCH, CLASSES = 64, 8, 3
WEIGHTS = (1.0, 2.0, 0.5)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=4000
        )
        self.body = BertModel(config, add_pooling_layer=False)
        self.head = torch.nn.Linear(192, CLASSES)

    def forward(self, words, mask):
        places = torch.arange(words.shape[1], device=words.device)[None]
        hidden = self.body(input_ids=words, position_ids=places).last_hidden_state
        hidden = hidden.masked_fill(~mask[..., None], 0)
        mean = hidden.sum(1) / mask.sum(1, keepdim=True)
        return self.head(mean)


def make():
    model = Classifier().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=True)
    weights = torch.tensor(WEIGHTS, device=DEVICE)
    words = torch.randint(0, 4000, (BATCH, LENGTH), device=DEVICE)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool, device=DEVICE)
    labels = torch.randint(0, CLASSES, (BATCH,), device=DEVICE)

    def hide(words):
        unlucky = torch.rand(words.shape, device=DEVICE) < 0.1
        return words.masked_fill(unlucky, 0)

    def turn(number):
        hidden = hide(words)
        scores = model(hidden, mask)
        loss = F.cross_entropy(scores, labels, weight=weights)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 50 == 49:
            print(f"step {number + 1}: loss {loss.item():.3f}")

    return turn
