"""Where in a model training left the finite numbers."""

from torch import nn

from blocklab.training.spread import all_finite


def bad_gradient(model: nn.Module) -> str:
    """The first gradient with a value that is not finite, by its parameter's path."""
    gradients = ((path, p.grad) for path, p in model.named_parameters())
    bad = (path for path, grad in gradients if grad is not None and not all_finite(grad))
    # Finite ones may have a norm that is not.
    return f"gradient of {next(bad, 'all parameters together')}"


def bad_parameter(model: nn.Module) -> str | None:
    """The path of the first parameter with a value that is not finite; None where all are."""
    return next((path for path, p in model.named_parameters() if not all_finite(p)), None)
