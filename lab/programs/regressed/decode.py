"""Greedy decoding by a small Llama of transformers with a static cache; the ends are looked at every 16 tokens."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONGEST, BATCH, END = 128, 4, 2


class Decoder:
    def __init__(self):
        config = LlamaConfig(
            hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4, intermediate_size=512,
            vocab_size=4000, max_position_embeddings=LONGEST,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config).to(DEVICE).eval()
        self.cache = StaticCache(config=config, max_cache_len=LONGEST)
        self.allowed = torch.full((LONGEST, LONGEST), float("-inf"), device=DEVICE).triu(1)
        self.restart()

    def restart(self):
        self.cache.reset()
        self.token = torch.ones(BATCH, 1, dtype=torch.long, device=DEVICE)
        self.place = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.text = torch.zeros(BATCH, LONGEST, dtype=torch.long, device=DEVICE)
        self.ended = torch.zeros(BATCH, dtype=torch.bool, device=DEVICE)

    def next_token(self):
        mask = self.allowed.index_select(0, self.place)[None, None].expand(BATCH, 1, 1, LONGEST)
        answer = self.model(
            input_ids=self.token, past_key_values=self.cache, attention_mask=mask, position_ids=self.place[None],
            use_cache=True,
        )  # fmt: skip
        scores = answer.logits[:, -1]
        token = scores.argmax(-1, keepdim=True)
        self.text.index_copy_(1, self.place, token)
        self.ended |= token[:, 0] == END
        self.token = token
        self.place = self.place + 1


def make():
    decoder = Decoder()

    @torch.no_grad()
    def turn(number):
        decoder.next_token()
        ended = number % 16 == 15 and decoder.ended.all()
        if ended or number % 96 == 95:
            words = decoder.text[0, :8].tolist()
            print(f"token {number + 1}: {words}")
            decoder.restart()

    return turn
