"""What a model is, apart from its config: the tensors that a checkpoint and a model's file hold."""

from torch import Tensor, nn


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Its parameters, a tied one once, and the buffers that belong to its state; none is copied.

    Our own parts have no such buffers, a part of the user's own may.
    """
    stored = model.state_dict().keys()
    buffers = {path: buffer for path, buffer in model.named_buffers() if path in stored}
    return dict(model.named_parameters()) | buffers
