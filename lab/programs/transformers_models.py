"""Models of transformers with random weights and small configurations, each with a loop of its own shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from iterations import Iterations
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperModel,
    get_linear_schedule_with_warmup,
)


def bert(it: Iterations) -> None:
    """Inference of sentences that are all of one length."""
    config = BertConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    model = BertModel(config).to(it.device).eval()
    words = torch.randint(0, config.vocab_size, (8, 128), device=it.device)

    @torch.no_grad()
    def embed() -> torch.Tensor:
        return model(words).last_hidden_state[:, 0]

    it.capture(embed)
    for _ in range(1_000_000):
        vectors = embed()
        if it.reads:
            vectors.norm().item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def bert_classifier(it: Iterations) -> None:
    """Fine-tuning with AdamW, a linear schedule, clipping and a padding mask."""
    config = BertConfig(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024, num_labels=3
    )
    model = BertForSequenceClassification(config).to(it.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, capturable=bool(it.graph))
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, 10_000)

    def batch(size: int = 16, length: int = 96) -> dict[str, torch.Tensor]:
        lengths = torch.randint(length // 2, length + 1, (size, 1))
        return {
            "input_ids": torch.randint(0, config.vocab_size, (size, length)),
            "attention_mask": (torch.arange(length) < lengths).long(),
            "labels": torch.randint(0, 3, (size,)),
        }

    loader = [batch() for _ in range(10)]

    def update(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(**inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if it.graph:
        static = {key: value.to(it.device) for key, value in loader[0].items()}
        it.capture(lambda: update(static))
    total = 0.0
    for _ in range(1000):
        for inputs in loader:
            loss = update({key: value.to(it.device) for key, value in inputs.items()})
            scheduler.step()
            if it.reads:
                total += loss.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


class MaskedTrainer:
    """Hides words and lets the model guess them."""

    def __init__(self, it: Iterations) -> None:
        self.it, self.config = it, DistilBertConfig(dim=256, n_layers=4, n_heads=4, hidden_dim=1024, vocab_size=8000)
        self.model = DistilBertForMaskedLM(self.config).to(it.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, capturable=bool(it.graph))
        self.words = torch.randint(5, 8000, (16, 64), device=it.device)

    def hide(self) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.rand(self.words.shape, device=self.it.device) < 0.15
        return self.words.masked_fill(hidden, 4), self.words.masked_fill(~hidden, -100)

    def training_step(self) -> torch.Tensor:
        words, labels = self.hide()
        loss = self.model(input_ids=words, labels=labels).loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self) -> None:
        self.it.capture(self.training_step)
        step = 0
        while True:
            loss = self.training_step()
            step += 1
            self.log(loss)
            self.it.end()
            if self.it.enough():
                break

    def log(self, loss: torch.Tensor) -> None:
        if self.it.reads:
            self.loss = float(loss)
        elif self.it.waits():
            torch.cuda.synchronize()


def distilbert(it: Iterations) -> None:
    """Masked language modelling by a Trainer class."""
    MaskedTrainer(it).train()


def gpt2(it: Iterations) -> None:
    """Training on windows of a long text that a generator gives, in bf16."""
    config = GPT2Config(n_embd=384, n_layer=6, n_head=6, vocab_size=16_000, n_positions=256, use_cache=False)
    model = GPT2LMHeadModel(config).to(it.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=it.device == "cuda")
    text = torch.randint(0, config.vocab_size, (100_000,))

    def windows(size: int = 8, length: int = 128) -> Iterator[torch.Tensor]:
        while True:
            begins = torch.randint(len(text) - length, (size,)).tolist()
            yield torch.stack([text[begin : begin + length] for begin in begins]).to(it.device, non_blocking=True)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(it.device, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    if it.graph:
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True, capturable=True)
        tokens = next(windows())
        it.capture(lambda: step(tokens))
    for tokens in windows():
        loss = step(tokens)
        if it.reads:
            loss.item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def gpt2_generate(it: Iterations) -> None:
    """generate() of 24 tokens, greedy: one call is an iteration."""
    config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=8000, n_positions=128, eos_token_id=None)
    config.pad_token_id = 0
    model = GPT2LMHeadModel(config).to(it.device).eval()
    prompt = torch.randint(1, 8000, (2, 16), device=it.device)
    mask = torch.ones_like(prompt)
    it.unit, it.parts = "one call of generate()", 24
    for _ in range(100_000):
        tokens = model.generate(prompt, attention_mask=mask, max_new_tokens=24, min_new_tokens=24, do_sample=False)
        if it.reads:
            tokens[0, -1].item()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def opt_generate(it: Iterations) -> None:
    """generate() with sampling for one prompt after the other, inside of a function of the user."""
    config = OPTConfig(
        hidden_size=256, ffn_dim=1024, num_hidden_layers=4, num_attention_heads=4, vocab_size=8000,
        max_position_embeddings=128, word_embed_proj_dim=256, eos_token_id=None, pad_token_id=1, bos_token_id=2,
    )  # fmt: skip
    model = OPTForCausalLM(config).to(it.device).eval()
    prompts = [torch.randint(3, 8000, (1, 12), device=it.device) for _ in range(5)]
    it.unit, it.parts = "one call of generate()", 16

    def answer(prompt: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(prompt)
        return model.generate(
            prompt, attention_mask=mask, max_new_tokens=16, min_new_tokens=16, do_sample=True, top_k=50, temperature=0.8
        )

    while True:
        for prompt in prompts:
            tokens = answer(prompt)
            if it.reads:
                tokens.cpu()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return


def small_llama(device: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=16_000, max_position_embeddings=512,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device).eval()
    return model.to(torch.bfloat16) if device == "cuda" else model


def llama_decode(it: Iterations) -> None:
    """A decode loop by hand inside of generate(), over prompts: 48 tokens each after a prefill."""
    model = small_llama(it.device)
    prompts = [torch.randint(0, 16_000, (1, 20), device=it.device) for _ in range(4)]
    it.unit, it.group = "one token", 48

    def generate(prompt: torch.Tensor, length: int) -> torch.Tensor | None:
        cache = DynamicCache(config=model.config)
        token = model(prompt, past_key_values=cache).logits[:, -1:].argmax(-1)
        tokens = [token]
        for _ in range(length):
            token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            tokens.append(token)
            if it.reads:
                token.item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                return None
        return torch.cat(tokens, 1)

    with torch.no_grad():
        for prompt in itertools.cycle(prompts):
            if generate(prompt, it.group) is None:
                break


class Decoder:
    """Writes into a static cache, so that each token is the same work."""

    def __init__(self, it: Iterations) -> None:
        self.it, self.model = it, small_llama(it.device)
        self.cache = StaticCache(config=self.model.config, max_cache_len=2048)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=it.device)

    def prefill(self, prompt: torch.Tensor) -> None:
        self.cache.reset()
        self.token.copy_(self.model(prompt, past_key_values=self.cache).logits[:, -1:].argmax(-1))

    def decode(self) -> torch.Tensor:
        return self.token.copy_(self.model(self.token, past_key_values=self.cache).logits[:, -1:].argmax(-1))

    def answer(self, prompt: torch.Tensor, length: int) -> bool:
        self.prefill(prompt)
        for _ in range(length):
            token = self.decode()
            if self.it.reads:
                token.item()
            elif self.it.waits():
                torch.cuda.synchronize()
            self.it.end()
            if self.it.enough():
                return False
        return True


@torch.inference_mode()
def llama_static(it: Iterations) -> None:
    """Decoding into a static cache in a class; a prompt of 32 tokens begins each 64 tokens."""
    decoder = Decoder(it)
    prompt = torch.randint(0, 16_000, (1, 32), device=it.device)
    it.unit, it.group = "one token", 64
    decoder.prefill(prompt)
    it.capture(decoder.decode)
    while decoder.answer(prompt, it.group):
        pass


def t5(it: Iterations) -> None:
    """Training of an encoder and a decoder with Adafactor's plainer cousin: SGD with momentum."""
    config = T5Config(
        d_model=256, d_kv=32, d_ff=1024, num_layers=4, num_heads=8, vocab_size=8000, decoder_start_token_id=0,
        use_cache=False,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).to(it.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    source = torch.randint(1, 8000, (8, 64), device=it.device)
    target = torch.randint(1, 8000, (8, 32), device=it.device)

    def step() -> torch.Tensor:
        loss = model(input_ids=source, labels=target).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    it.capture(step)
    history = []
    for number in itertools.count():
        loss = step()
        if it.reads:
            history.append((number, loss.item()))
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break


def whisper(it: Iterations) -> None:
    """The encoder on one stretch of sound after the other, copied from pinned memory."""
    config = WhisperConfig(
        d_model=256, encoder_layers=4, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=1024, decoder_ffn_dim=1024, vocab_size=2000, max_source_positions=750,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    encoder = WhisperModel(config).encoder.to(it.device).eval()
    sounds = torch.randn(6, 1, config.num_mel_bins, 1500)
    sounds = sounds.pin_memory() if it.device == "cuda" else sounds

    @torch.inference_mode()
    def encode(sound: torch.Tensor) -> torch.Tensor:
        return encoder(sound).last_hidden_state

    static = sounds[0].to(it.device)
    it.capture(lambda: encode(static))
    done = False
    while not done:
        for sound in sounds:
            hidden = encode(sound.to(it.device, non_blocking=True))
            if it.reads:
                hidden.mean().item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            done = it.enough()
            if done:
                break


def whisper_transcribe(it: Iterations) -> None:
    """An encoder's pass and twelve greedy tokens by hand: an iteration is a whole stretch of sound."""
    config = WhisperConfig(
        d_model=192, encoder_layers=3, decoder_layers=3, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=768, decoder_ffn_dim=768, vocab_size=2000, max_source_positions=500,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = WhisperModel(config).to(it.device).eval()
    sound = torch.randn(1, config.num_mel_bins, 1000, device=it.device)
    it.unit, it.parts = "one encoding and twelve tokens", 12

    def transcribe() -> torch.Tensor:
        hidden = model.encoder(sound)
        tokens = torch.ones(1, 1, dtype=torch.long, device=it.device)
        cache, token = None, tokens
        for _ in range(12):
            out = model.decoder(
                token, encoder_hidden_states=hidden.last_hidden_state, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            token = (out.last_hidden_state[:, -1] @ model.decoder.embed_tokens.weight.T).argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, token), 1)
        return tokens

    with torch.no_grad():
        for _ in range(100_000):
            tokens = transcribe()
            if it.reads:
                tokens[0, -1].item()
            elif it.waits():
                torch.cuda.synchronize()
            it.end()
            if it.enough():
                break


def vit(it: Iterations) -> None:
    """Classification of large batches in half precision."""
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536, num_labels=10
    )
    model = ViTForImageClassification(config).to(it.device).eval()
    images = torch.randn(16, 3, 224, 224, device=it.device)
    if it.device == "cuda":
        model, images = model.half(), images.half()

    def main() -> None:
        with torch.inference_mode():
            it.capture(lambda: model(pixel_values=images).logits)
            for _ in itertools.repeat(None):
                logits = model(pixel_values=images).logits
                if it.reads:
                    logits.sum().item()
                elif it.waits():
                    torch.cuda.synchronize()
                it.end()
                if it.enough():
                    return

    main()


def wav2vec2(it: Iterations) -> None:
    """Speech to letters: forward, and the best letters are read as a list in the style that reads."""
    config = Wav2Vec2Config(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024, vocab_size=32,
        conv_dim=(128,) * 7, num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=8,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config).to(it.device).eval()
    sound = torch.randn(2, 16_000, device=it.device)

    @torch.no_grad()
    def letters() -> torch.Tensor:
        return model(sound).logits.argmax(-1)

    it.capture(letters)
    count = 0
    while count < 10**6:
        best = letters()
        count += 1
        if it.reads:
            best.tolist()
        elif it.waits():
            torch.cuda.synchronize()
        it.end()
        if it.enough():
            break
