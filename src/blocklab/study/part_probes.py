"""What one kind of part promises, and whether it keeps it: keys seen, places told apart, the
identity path, the statistics of a norm.

A promise goes with the class: a part derived from ours has made it, unless it says otherwise by
`keeps_promise = False`; a user's own part has not.
`probes` holds what must be true of any parts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from blocklab.model.block import StandardBlock
from blocklab.model.layers import Layer
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import AttentionConfig, CausalAttention
from blocklab.parts.context import AttentionContext
from blocklab.parts.contract import is_ours
from blocklab.parts.feed_forward import FeedForwardConfig
from blocklab.parts.norm import DynamicTanh, LayerNorm, NoNorm, NormConfig, RMSNorm
from blocklab.parts.part import PartConfig
from blocklab.parts.positions import NoPositions
from blocklab.parts.residual import Add, NoResidual, ResidualConfig, Scaled
from blocklab.study.own_faults import faults_named
from blocklab.study.probes import (
    PROBE_LENGTH,
    PROBE_SEED,
    ROUNDING,
    parts_of,
    probe_tokens,
    probing,
    same_bits,
)


@dataclass(frozen=True)
class _Attention:
    """One attention in the model and what it was called with."""

    path: str
    module: nn.Module
    x: Tensor
    """Random vectors of the shape it was called with: the stream itself may have become the same at
    all places, or so large that one key drowns all others."""
    context: AttentionContext

    def __call__(self, x: Tensor) -> Tensor:
        """Its output for another input, nothing kept from the first time."""
        context = replace(self.context, shared={})
        return self.module(x, context)  # type: ignore[no-any-return]


def _promises(part: nn.Module | PartConfig, *ours: type) -> bool:
    """Whether a part, or a record's, is one of these and has not said that it is another thing."""
    module = part.module if isinstance(part, PartConfig) else type(part)
    return isinstance(part, ours) and getattr(module, "keeps_promise", True)


def _whose(part: nn.Module | PartConfig) -> str:
    """Of a derived class: where its promise comes from, and how it is given up."""
    module = part.module if isinstance(part, PartConfig) else type(part)
    if is_ours(module):
        return ""
    base = next(cls for cls in type(part).__mro__ if is_ours(cls)).__qualname__.split(".")[0]
    return (
        f". {module.__name__} is derived from {base}, which promises otherwise; if that is meant, "
        "write keeps_promise = False in the class"
    )


def norm_statistics(model: Transformer) -> Iterator[str]:
    """Whether our norms give what they are named for; before the model is shaken, gains being 1."""
    norms = parts_of(model, NormConfig)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_: nn.Module, inputs: Any, output: Tensor) -> None:
            seen[path] = (inputs[0], output)

        return hook

    hooks = [norm.register_forward_hook(keep(path)) for path, norm in norms.items()]
    try:
        with probing(model):
            model(probe_tokens(model, PROBE_LENGTH))
    finally:
        for hook in hooks:
            hook.remove()
    for path, (x, y) in seen.items():
        if not _promises(norms[path], nn.Module):
            continue
        wrong = _wrong_statistics(norms[path], x.double(), y.double())
        if wrong is not None:
            whose = _whose(norms[path])
            as_said = "as its base does" if whose else "as its kind says"
            yield f"{path} does not normalise {as_said}: {wrong}{whose}"


def _wrong_statistics(norm: nn.Module, x: Tensor, y: Tensor) -> str | None:
    if isinstance(norm, LayerNorm):
        mean, variance = float(y.mean(-1).abs().max()), y.var(-1, unbiased=False)
        inner = x.var(-1, unbiased=False)
        off = float((variance - inner / (inner + norm.eps)).abs().max())
        if not max(mean, off) <= 1e-3:
            return f"a vector's mean is off 0 by {mean:.3g}, its variance off 1 by {off:.3g}"
    elif isinstance(norm, RMSNorm):
        inner = x.square().mean(-1)
        off = float((y.square().mean(-1) - inner / (inner + norm.eps)).abs().max())
        if not off <= 1e-3:
            return f"a vector's mean square is off 1 by {off:.3g}"
    elif isinstance(norm, DynamicTanh) and not float(y.abs().max()) <= 1:
        return f"values reach {float(y.abs().max()):.3g}, a tanh stays within 1"
    elif isinstance(norm, NoNorm) and not same_bits(x, y):
        return "kind none changes its input"
    return None


def wrong_keys(model: Transformer) -> Iterator[str]:
    """A causal attention whose queries see other keys than themselves and the window before."""
    widest = max((a.window or 0 for a in _causal(model)), default=0)
    with faults_named(model):
        yield from _wrong_keys(model, max(PROBE_LENGTH, 2 * widest))


def _wrong_keys(model: Transformer, length: int) -> Iterator[str]:
    for attention in _one_of_each(_attentions(model, length), model):
        if not _promises(attention.module, CausalAttention):
            continue
        length = attention.x.shape[1]
        for query in sorted({length // 2, length - 1}):
            seen = _keys_seen(attention, query)
            window = _window_of(model, attention)
            first = 0 if window is None else max(0, query - window + 1)
            if seen != set(range(first, query + 1)):
                said = "no window" if window is None else f"a window of {window}"
                yield (
                    f"{attention.path}: with {said} the query at place {query} sees "
                    f"{len(seen)} keys ({_spans(seen)}), expected {query + 1 - first}"
                    f"{_whose(attention.module)}"
                )
                break


def _keys_seen(attention: _Attention, query: int) -> set[int]:
    # Small, so that no weight of the softmax rounds to 0 and its key looks unseen.
    x = (0.1 * attention.x[:1]).requires_grad_()
    with torch.enable_grad():
        out = attention(x)[0, query].sum()
    (gradient,) = torch.autograd.grad(out, x)
    return set(gradient[0].ne(0).any(-1).nonzero().flatten().tolist())


def _spans(places: set[int]) -> str:
    return f"places {min(places)} to {max(places)}" if places else "none"


def wrong_places(model: Transformer) -> Iterator[str]:
    """Positions that tell no places apart, or kind `none` that does.

    Without positions the logits of one token repeated are the same everywhere. With them the stream
    differs as it enters the blocks, or an attention's last query notices when keys change places.
    """
    config = model.config
    entering, logits = _of_one_token_repeated(model)
    by_embedding = bool((entering != entering[:1]).any())
    if _promises(config.positions, NoPositions.Config) and _is_all_ours(model):
        apart = (logits - logits[:1]).abs().max() > ROUNDING * logits.abs().max()
        if by_embedding or apart:
            yield (
                f"positions '{config.positions.kind}': the logits of a repeated token differ from "
                f"place to place{_whose(config.positions)}"
            )
    with faults_named(model):
        yield from _wrong_order(model, by_embedding)


def _wrong_order(model: Transformer, by_embedding: bool) -> Iterator[str]:
    config = model.config
    for attention in _one_of_each(_attentions(model, PROBE_LENGTH), model):
        positions = config.layer(_block_of(attention.path)).positions
        by_order = _notices_order(attention, _window_of(model, attention))
        if by_order is None:
            continue
        if isinstance(positions, NoPositions.Config):
            promised = _promises(positions, NoPositions.Config)
            if by_order and promised and _promises(attention.module, CausalAttention):
                yield (
                    f"positions '{positions.kind}': {attention.path} notices in which order "
                    f"the keys before a query stand{_whose(positions)}"
                )
        elif not by_order and not by_embedding:
            yield (
                f"positions '{positions.kind}' do nothing at {attention.path}: neither a repeated "
                "token nor the order of the keys before a query tells places apart"
            )


def _of_one_token_repeated(model: Transformer) -> tuple[Tensor, Tensor]:
    """The stream as it enters the blocks (T, d_model), and the logits (T, V)."""
    length = min(PROBE_LENGTH, model.config.context_length)
    entering: list[Tensor] = []
    hook = model.blocks[0].register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    try:
        with probing(model):
            logits = model(torch.zeros((1, length), dtype=torch.long))
    finally:
        hook.remove()
    return entering[0][0], logits[0]


def _notices_order(attention: _Attention, window: int | None) -> bool | None:
    """None where the last query sees fewer than two keys before it: they have no order."""
    length = attention.x.shape[1]
    visible = min(window or length, length)
    if visible < 3:
        return None
    order = torch.arange(length)
    order[length - visible : -1] = order[length - visible : -1].flip(0)
    with torch.no_grad():
        before = attention(attention.x)[:, -1]
        after = attention(attention.x[:, order])[:, -1]
    return bool((before - after).abs().max() > ROUNDING * before.abs().max())


def wrong_identity_path(model: Transformer) -> Iterator[str]:
    """With every branch silent the stream must come through, and with `none` it must not."""
    layers = [model.config.layer(i) for i in range(model.config.n_layers)]
    if not all(map(_has_known_residual, layers)):
        return
    cut = [layer.block.residual for layer in layers if _is_cut(layer)]  # type: ignore[attr-defined]
    alive = _identity_path(model)
    if cut and alive:
        yield (
            f"residual '{cut[0].kind}': the stream still comes through where every branch is "
            f"silent; the identity path is not gone{_whose(cut[0])}"
        )
    if not cut and not alive:
        residual: PartConfig = layers[0].block.residual  # type: ignore[attr-defined]
        yield (
            f"residual '{residual.kind}': nothing of the stream comes through where every branch "
            f"is silent{_whose(residual)}"
        )


def _identity_path(model: Transformer) -> bool:
    """Whether the final vector still depends on the token when all branches put out zeros."""

    def silence(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    branches = parts_of(model, AttentionConfig, FeedForwardConfig).values()
    hooks = [branch.register_forward_hook(silence) for branch in branches]
    tokens = torch.arange(min(model.config.rows, 8))[:, None]  # (B, 1)
    try:
        with probing(model):
            features = model.features(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return bool((features - features[:1]).abs().max() > ROUNDING * features.abs().max())


def _has_known_residual(layer: Layer) -> bool:
    block = layer.block
    known = (Add.Config, NoResidual.Config, Scaled.Config)
    return isinstance(block, StandardBlock.Config) and _promises(block.residual, *known)


def _is_cut(layer: Layer) -> bool:
    block = layer.block
    return isinstance(block, StandardBlock.Config) and isinstance(block.residual, NoResidual.Config)


def _attentions(model: Transformer, length: int) -> list[_Attention]:
    """Every attention in the blocks, as an evaluation calls it."""
    called: list[_Attention] = []
    generator = torch.Generator().manual_seed(PROBE_SEED)

    def keep(path: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            if len(inputs) == 2 and isinstance(inputs[1], AttentionContext):
                x = torch.randn(inputs[0].shape, generator=generator)
                called.append(_Attention(path, module, x, inputs[1]))

        return hook

    parts = parts_of(model.blocks, AttentionConfig)
    hooks = [p.register_forward_pre_hook(keep(f"blocks.{path}")) for path, p in parts.items()]
    try:
        with probing(model):
            model(probe_tokens(model, length))
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _one_of_each(attentions: list[_Attention], model: Transformer) -> list[_Attention]:
    """Those of the first of the layers that are alike."""
    layers: list[Layer] = []
    first: set[int] = set()
    for index in range(model.config.n_layers):
        layer = model.config.layer(index)
        if layer not in layers:
            layers.append(layer)
            first.add(index)
    return [a for a in attentions if _block_of(a.path) in first]


def _block_of(path: str) -> int:
    return int(path.split(".")[1])


def _causal(model: Transformer) -> list[CausalAttention]:
    return [m for m in model.modules() if isinstance(m, CausalAttention)]


def _window_of(model: Transformer, attention: _Attention) -> int | None:
    """The window its record states, whatever the module made of it."""
    block = model.config.layer(_block_of(attention.path)).block
    record = getattr(block, "attention", None)
    return record.window if isinstance(record, CausalAttention.Config) else None


def _is_all_ours(model: Transformer) -> bool:
    slots = (NormConfig, AttentionConfig, FeedForwardConfig, ResidualConfig)
    ours = all(
        any(cls.__module__.startswith("blocklab.parts.") for cls in type(module).__mro__)
        for module in parts_of(model, *slots).values()
    )
    return ours and all(isinstance(block, StandardBlock) for block in model.blocks)
