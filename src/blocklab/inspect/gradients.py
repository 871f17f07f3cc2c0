"""How large the gradient of each parameter is, after one backward pass."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer


def gradient_norms(model: Transformer, tokens: Tensor, targets: Tensor) -> dict[str, float]:
    """Norm of the gradient of each parameter, named as in `model.named_parameters()`.

    Of what `loss_and_gradient_norms` takes the loss to be. Raises BlocklabError when the shapes
    differ.
    """
    return loss_and_gradient_norms(model, tokens, targets)[1]


def loss_and_gradient_norms(
    model: Transformer, tokens: Tensor, targets: Tensor
) -> tuple[float, dict[str, float]]:
    """The loss, and the norm of its gradient for each parameter.

    The loss is the mean cross-entropy in nats over all positions of `tokens` (B, T) against
    `targets` (B, T), without dropout. A parameter that the loss does not reach, or that is frozen,
    has norm 0. The model's `.grad`, its mode and torch's random numbers stay as they were.

    Raises BlocklabError when the shapes differ.
    """
    require_one_target_each(tokens, targets)
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


def require_one_target_each(tokens: Tensor, targets: Tensor) -> None:
    """Refuse targets that are not one for each token."""
    if tokens.shape != targets.shape:
        raise BlocklabError(
            f"targets have shape {tuple(targets.shape)}, tokens {tuple(tokens.shape)}: "
            "expected one target for each token"
        )
