"""What a module calls while it computes: dropout is taken out, casts and overwriting are noted."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DROPOUTS = frozenset(
    [
        "dropout",
        "dropout_",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_dropout",
        "feature_alpha_dropout",
    ]
)
_HARMLESS = frozenset(("requires_grad_", "retain_grad_", "detach_"))
_WRITTEN = {
    "add_": "x += …",
    "sub_": "x -= …",
    "mul_": "x *= …",
    "div_": "x /= …",
    "pow_": "x **= …",
    "__setitem__": "x[…] = …",
}


class Listening(TorchFunctionMode):
    """While this is active dropout does nothing, unless `drops`."""

    def __init__(self, drops: bool = False) -> None:
        super().__init__()
        self.drops = drops
        self.narrow: set[torch.dtype] = set()
        """Floating-point types below float64 that some result had."""
        self.overwriting: list[str] = []
        """Operations that changed a tensor of the graph, or indices, in place, as they are
        written."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS and not self.drops:
            return args[0] if args else given["input"]
        if name == "scaled_dot_product_attention" and not self.drops:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                given["dropout_p"] = 0.0
        self._note_overwriting(name, args, given)
        result = func(*args, **given)
        if isinstance(result, Tensor) and result.is_floating_point():
            self.narrow |= {result.dtype} - {torch.float64}
        return result

    def _note_overwriting(
        self, name: str, args: tuple[Any, ...], given: Mapping[str, object]
    ) -> None:
        target = args[0] if args else None
        if not isinstance(target, Tensor) or name in _HARMLESS:
            return
        if target.is_floating_point() and not target.requires_grad:
            return
        if given.get("inplace") is True:
            written = f"{name}(inplace=True)"
        elif name in _WRITTEN or (name.endswith("_") and not name.endswith("__")):
            written = _WRITTEN.get(name, f"x.{name}(…)")
        else:
            return
        if written not in self.overwriting:
            self.overwriting.append(written)
