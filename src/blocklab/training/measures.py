"""What can be measured on a model while it trains, every so many steps.

Nothing here changes what is measured: the model's outputs, gradients, mode and random numbers stay
as they were to the bit. Means over a run, and what they say of its stability, are `stability`.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blocklab.inspect.recording import rms, watched
from blocklab.inspect.scores import Scores, watching_scores
from blocklab.inspect.stream import mean_cosine
from blocklab.model.transformer import Transformer
from blocklab.training.inspection import Inspection
from blocklab.training.spread import total_norm

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

    A few sequences are enough: their cost is that of a forward pass over them. Beside what the
    model itself computes, the scores of a few queries at a time are held, not those of all.
    """
    sizes: list[float] = []
    similarity: list[float | None] = []

    def entering(inputs: tuple[Any, ...]) -> None:
        sizes.append(rms(inputs[0]))

    def leaving(_: tuple[Any, ...], stream: Tensor) -> None:
        sizes.append(rms(stream))
        alike = mean_cosine(stream).mean() if stream.shape[1] > 1 else None
        similarity.append(None if alike is None else float(alike))

    paths = [f"blocks.{i}" for i in range(len(model.blocks))]
    stream = watched(model, before={paths[0]: entering}, after=dict.fromkeys(paths, leaving))
    with stream, watching_scores(model, _largest) as largest:
        model.features(tokens)
    return StreamMeasures(tuple(sizes), tuple(largest), tuple(similarity))


def _largest(scores: Scores) -> float:
    return float(scores.largest())


def gradient_norm_by_block(model: nn.Module) -> dict[str, float]:
    """Norm of the gradient of each block and of each part outside them; call before clipping.

    Keys are `embedding`, `blocks.0`, …, `final_norm`, `head`; a tied head counts as the embedding.
    Their squares add up to that of the whole gradient.
    """
    return {
        name: total_norm([g for g in gradients if g is not None])
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
        size = total_norm(old)
        if size > 0:
            change = torch._foreach_sub(after[name], old)
            ratios[name] = total_norm(list(change)) / size
    return ratios


def _by_block(model: nn.Module, read: Callable[[nn.Parameter], Any]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = defaultdict(list)
    for path, parameter in model.named_parameters():
        steps = path.split(".")
        grouped[".".join(steps[: 2 if steps[0] == "blocks" else 1])].append(read(parameter))
    return dict(grouped)
