"""GPT-2 124M before any training: what it says when it knows nothing."""

import math
from typing import Any

import torch

from blocklab.data.tokenizer import load_tokenizer
from blocklab.generation.sampler import generate
from blocklab.model import presets
from blocklab.model.transformer import Transformer
from blocklab.reproduce.comparison import number, text
from blocklab.reproduce.experiment import Found, Place


def untrained(figures: dict[str, Any], place: Place) -> Found:
    place.say("building GPT-2 124M")
    model = published_draw()
    with torch.no_grad():
        logits = model(torch.tensor(figures["tokens"]))
    p = logits[0, -1].double().softmax(-1)
    rows = [
        text("shape of the logits", _shape(figures["logits_shape"]), _shape(logits.shape)),
        number(
            "largest probability after “The cat sat on”",
            figures["largest_probability"],
            float(p.max()),
            6,
        ),
        number("probability of a uniform guess", figures["uniform_probability"], 1 / len(p), 7),
        number("entropy, nats", figures["entropy"], float(torch.special.entr(p).sum()), 2),
        number("entropy of a uniform guess, nats", figures["uniform_entropy"], math.log(len(p)), 2),
    ]
    tokenizer = load_tokenizer("gpt2")
    for prompt, continued in figures["continuations"].items():
        place.say(f"writing on from “{prompt}”")
        tokens = torch.tensor([tokenizer.encode(prompt)])
        written = generate(model, tokens, max_new_tokens=12, temperature=0.0)
        rows.append(
            text(f"12 tokens after “{prompt}”", continued, tokenizer.decode(written[0].tolist()))
        )
    return Found(tuple(rows))


def published_draw() -> Transformer:
    """GPT-2 124M, untied, from torch's global numbers under seed 123, which stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        return Transformer(presets.preset("gpt2")(tie_embeddings=False)).eval()


def _shape(sizes: Any) -> str:
    return " × ".join(f"{size:,}" for size in sizes)
