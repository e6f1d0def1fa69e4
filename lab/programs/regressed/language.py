"""Training of a small GPT-2 of transformers in half precision, four parts of a batch a step."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS, SIZE, LENGTH, WORDS = 4, 2, 64, 3000


def windows(text, number):
    begin = number * SIZE * LENGTH % (len(text) - SIZE * LENGTH)
    return text[begin : begin + SIZE * LENGTH].view(SIZE, LENGTH)


def make():
    config = GPT2Config(n_embd=192, n_layer=3, n_head=4, vocab_size=WORDS, n_positions=LENGTH, use_cache=False)
    model = GPT2LMHeadModel(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0, growth_interval=10_000)
    text = torch.randint(0, WORDS, (100_000,), device=DEVICE)

    def part(number):
        tokens = windows(text, number)
        with torch.autocast(DEVICE, dtype=torch.float16 if DEVICE == "cuda" else torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss / PARTS
        scaler.scale(loss).backward()
        return loss.detach()

    def turn(number):
        total = torch.zeros((), device=DEVICE)
        for piece in range(PARTS):
            total += part(PARTS * number + piece)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if number % 25 == 24:
            print(f"step {number + 1}: loss {total.item():.3f}, scale {scaler.get_scale():.0f}")

    return turn
