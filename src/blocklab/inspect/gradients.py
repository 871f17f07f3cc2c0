"""How large the gradient of each parameter is, after one backward pass."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.expected import require
from blocklab.inspect.recording import require_batch
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer


def gradient_norms(model: Transformer, tokens: Tensor, targets: Tensor) -> dict[str, float]:
    """Norm of the gradient of each parameter after one backward pass.

    `tokens` and `targets`, the token that follows each, are ids (B, T). The loss is the mean
    cross-entropy in nats over all positions, without dropout. Gives {name as in
    `model.named_parameters()`: norm}, in nats a unit of the parameter; 0 where the loss does not
    reach it, or where it is frozen. The model's `.grad`, its mode and torch's random numbers stay
    as they were.

    Raises BlocklabError when the shapes differ or an id is no row of the model.
    """
    return loss_and_gradient_norms(model, tokens, targets)[1]


def loss_and_gradient_norms(
    model: Transformer, tokens: Tensor, targets: Tensor
) -> tuple[float, dict[str, float]]:
    """The loss, in nats, and what `gradient_norms` gives, from the same pass."""
    require_one_target_each(model, tokens, targets)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = model.embedding.weight.device
    kept = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with kept, torch.enable_grad(), evaluating(model):
        logits = model(tokens).flatten(0, 1)  # (B * T, vocab_size)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(wide, targets.flatten())
        # Not `backward`: that would add to .grad.
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    norms = {name: 0.0 for name, _ in model.named_parameters()}
    for name, gradient in zip(trained, gradients, strict=True):
        norms[name] = 0.0 if gradient is None else float(gradient.norm())
    return loss.item(), norms


def require_one_target_each(model: Transformer, tokens: Tensor, targets: Tensor) -> None:
    """Raise BlocklabError unless `targets` are a row of the model for each of `tokens` (B, T)."""
    require_batch(model, tokens)
    require(Tensor, targets, "targets")
    if tokens.shape != targets.shape:
        raise BlocklabError(
            f"targets have shape {tuple(targets.shape)}, tokens {tuple(tokens.shape)}: "
            "expected one target for each token"
        )
    if targets.dtype != torch.int64:
        raise BlocklabError(f"targets are {targets.dtype}; expected ids, torch.int64")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= model.config.rows:
        raise BlocklabError(
            f"targets hold {low if low < 0 else high}; expected ids from 0 to "
            f"{model.config.rows - 1} (vocab_size - 1)"
        )
