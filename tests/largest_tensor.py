"""What a computation holds at once, as far as single tensors show it."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation gave out, expanded ones apart."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        for x in tree_leaves(given):
            if isinstance(x, Tensor):
                stored = x.untyped_storage().nbytes() // x.element_size()
                self.elements = max(self.elements, min(x.numel(), stored))
        return given
