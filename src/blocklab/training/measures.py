"""What can be measured on a model while it trains, every so many steps.

Nothing here changes what is measured: the model's outputs, gradients, mode and random numbers stay
as they were to the bit. Means over a run, and what they say of its stability, are `stability`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer


@dataclass(frozen=True)
class StreamMeasures:
    """The residual stream and what is computed from it, on one batch without dropout."""

    rms: tuple[float, ...]
    """Root mean square of the stream over all positions: as it enters, then after each block."""
    largest_attention_logit: tuple[float | None, ...]
    """For each block the largest score that enters its softmax, over the keys a query may see;
    None where the attention takes no softmax."""
    log_z: float
    """Mean log of the output softmax's normaliser."""

    @property
    def growth(self) -> float:
        """Geometric mean over the blocks of the factor by which each one's rms grows."""
        first, last = self.rms[0], self.rms[-1]
        return (last / first) ** (1 / (len(self.rms) - 1)) if first > 0 else math.nan


def measure_stream(model: Transformer, tokens: Tensor) -> StreamMeasures:
    """One further forward pass over `tokens` (B, T), without dropout or gradients.

    A few sequences are enough: their cost is that of a forward pass over them, and the scores of
    one sequence at a time are held in memory.
    """
    rms: list[float] = []
    largest: list[float | None] = [None] * len(model.blocks)
    scores = _LargestScore()

    def before(block: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if block == 0:
                rms.append(_rms(inputs[0]))
            scores.largest = None

        return enter

    def after(block: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def leave(_: nn.Module, __: tuple[Any, ...], stream: Tensor) -> None:
            rms.append(_rms(stream))
            largest[block] = scores.largest

        return leave

    hooks = [
        hook
        for i, block in enumerate(model.blocks)
        for hook in (
            block.register_forward_pre_hook(before(i)),
            block.register_forward_hook(after(i)),
        )
    ]
    device = model.embedding.weight.device
    kept = torch.random.fork_rng([device] if device.type == "cuda" else [])
    try:
        with torch.no_grad(), evaluating(model), kept:
            with scores:
                stream = model.features(tokens)
            log_z = [_wide(model.head(h)).logsumexp(-1).mean() for h in stream]  # each h (T, d)
    finally:
        for hook in hooks:
            hook.remove()
    return StreamMeasures(tuple(rms), tuple(largest), float(torch.stack(log_z).mean()))


class _LargestScore(TorchFunctionMode):
    """Sees every softmax over scores that is taken while it is active, whoever takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: float | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self._note(_largest_product(*args, **given))
        elif name == "softmax":
            self._note(float((args[0] if args else given["input"]).max()))
        return func(*args, **given)

    def _note(self, score: float) -> None:
        self.largest = score if self.largest is None else max(self.largest, score)


def _largest_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> float:
    """The largest score of a fused attention, whose arguments these are, over visible keys."""
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = attn_mask
    if is_causal:
        mask = torch.ones(n_queries, n_keys, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], n_keys)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    largest = []
    for i in range(query.shape[0]):
        scores = _wide(query[i]) @ _wide(key[i]).transpose(-1, -2) * scale  # (n_heads, T, S)
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[i], -math.inf)
        elif mask is not None:
            scores = scores + mask[i]
        largest.append(scores.max())
    return float(torch.stack(largest).max())


def gradient_norm_by_block(model: nn.Module) -> dict[str, float]:
    """Norm of the gradient of each block and of each part outside them; call before clipping.

    Keys are `embedding`, `blocks.0`, …, `final_norm`, `head`; a tied head counts as the embedding.
    Their squares add up to that of the whole gradient.
    """
    return {
        name: float(torch.nn.utils.get_total_norm([g for g in gradients if g is not None]))
        for name, gradients in _by_block(model, lambda p: p.grad).items()
    }


@contextmanager
def measuring_updates(model: nn.Module) -> Iterator[dict[str, float]]:
    """Around an optimiser's step: |weights after - before| / |before| of each block.

    The mapping it yields is filled at the end, with the keys of `gradient_norm_by_block`. It holds
    a copy of the weights meanwhile. A block whose weights were all zero is left out.
    """
    before = _by_block(model, lambda p: p.detach().clone())
    ratios: dict[str, float] = {}
    yield ratios
    after = _by_block(model, nn.Parameter.detach)
    for name, old in before.items():
        size = float(torch.nn.utils.get_total_norm(old))
        if size > 0:
            change = torch._foreach_sub(after[name], old)
            ratios[name] = float(torch.nn.utils.get_total_norm(change)) / size


def _by_block(model: nn.Module, read: Callable[[nn.Parameter], Any]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = defaultdict(list)
    for path, parameter in model.named_parameters():
        steps = path.split(".")
        grouped[".".join(steps[: 2 if steps[0] == "blocks" else 1])].append(read(parameter))
    return dict(grouped)


def _rms(x: Tensor) -> float:
    return float(_wide(x).square().mean().sqrt())


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
