"""What ../shared/parity/check.py asks of an importer: load, logits, generate, train, aux."""

import torch
import torch.nn.functional as F
from torch import Tensor

import blocklab as bl
from blocklab.model.transformer import Transformer
from blocklab.parts.experts import balancing_loss, watched_routing


def load(folder: str, dtype: torch.dtype) -> Transformer:
    return bl.load(folder, dtype=dtype).model


def logits(model: Transformer, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    return model(ids, mask)


def generate(model: Transformer, prompt: Tensor, n: int, use_cache: bool) -> Tensor:
    return bl.generate(model, prompt, max_new_tokens=n, use_cache=use_cache)


def train(model: Transformer, ids: Tensor) -> tuple[list[float], list[float]]:
    """Six AdamW steps, decay on every parameter, gradients clipped to norm 1."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    losses, norms = [], []
    for batch in ids:
        out = model(batch)
        loss = F.cross_entropy(out[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def aux(model: Transformer, ids: Tensor) -> Tensor:
    with watched_routing() as routing:
        model(ids)
    return balancing_loss(routing)
