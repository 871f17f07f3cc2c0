"""What can be measured on a model while it trains, every so many steps.

Nothing here changes what is measured: the model's outputs, gradients, mode and random numbers stay
as they were to the bit. Means over a run, and what they say of its stability, are `stability`.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from blocklab.inspect.stream import mean_cosine
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer
from blocklab.training.inspection import Inspection

SEQUENCES = 2
"""How many sequences of a training batch are looked at: enough for a root mean square."""


@dataclass(frozen=True)
class StreamMeasures:
    """The residual stream and what is computed from it, on one batch without dropout."""

    rms: tuple[float, ...]
    """Root mean square of the stream over all positions: as it enters, then after each block."""
    largest_attention_logit: tuple[float | None, ...]
    """For each block the largest score that enters its softmax, over the keys a query may see;
    None where the attention takes no softmax."""
    position_similarity: tuple[float | None, ...]
    """After each block the mean cosine between its vectors at different positions, 1 where all are
    alike; None for sequences of one token."""


def measure_stream(model: Transformer, tokens: Tensor) -> StreamMeasures:
    """One further forward pass over `tokens` (B, T), without dropout or gradients.

    A few sequences are enough: their cost is that of a forward pass over them, and the scores of
    one sequence at a time are held in memory.
    """
    rms: list[float] = []
    similarity: list[float | None] = []
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
            alike = mean_cosine(stream).mean() if stream.shape[1] > 1 else None
            similarity.append(None if alike is None else float(alike))
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
        with torch.no_grad(), evaluating(model), kept, scores:
            model.features(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return StreamMeasures(tuple(rms), tuple(largest), tuple(similarity))


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


class StepInspection:
    """Looks into one optimiser step at its three moments; `seconds` is what that cost.

    It holds a copy of the weights from `before_update` to `after_update`.
    """

    def __init__(self, model: Transformer, inputs: Tensor) -> None:
        """Before the step: `inputs` (B, T) is its batch, of which a few sequences are read."""
        self.seconds = 0.0
        self._model = model
        with self._counted():
            self._stream = measure_stream(model, inputs[:SEQUENCES])

    def before_update(self) -> None:
        """With the gradients there and not clipped yet."""
        with self._counted():
            self._gradient_norm = gradient_norm_by_block(self._model)
            self._before = weights_by_block(self._model)

    def after_update(self) -> Inspection:
        """With the weights moved."""
        with self._counted():
            return Inspection(
                self._gradient_norm,
                update_ratios(self._model, self._before),
                self._stream.rms,
                self._stream.position_similarity,
                self._stream.largest_attention_logit,
            )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


def weights_by_block(model: nn.Module) -> dict[str, list[Tensor]]:
    """A copy of the weights, with the keys of `gradient_norm_by_block`."""
    return _by_block(model, lambda p: p.detach().clone())


def update_ratios(model: nn.Module, before: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """|weights now - before| / |before| of each block; one whose weights were all zero is left out.

    `before` is the `weights_by_block` of the same model.
    """
    ratios: dict[str, float] = {}
    after = _by_block(model, nn.Parameter.detach)
    for name, old in before.items():
        size = float(torch.nn.utils.get_total_norm(old))
        if size > 0:
            change = torch._foreach_sub(after[name], old)
            ratios[name] = float(torch.nn.utils.get_total_norm(change)) / size
    return ratios


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
