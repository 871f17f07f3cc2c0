"""Causal self-attention: multi-head, grouped and multi-query, by one fused projection."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.parts import causal
from blocklab.parts.context import AttentionContext
from blocklab.parts.linear import Linear, is_plain_torch
from blocklab.parts.norm import NormConfig
from blocklab.parts.part import PartConfig, Spec, linear, part, slot, under


@slot(n_sizes=1)
class AttentionConfig(PartConfig):
    """Mixes positions: (B, T, d_model) and a context -> (B, T, d_model)."""

    slot = "attention"
    default_kind = "causal"

    def score_width(self, d_model: int, context_length: int) -> int | None:
        """n_heads * head_dim * keys seen: the size of one token's two score products.

        A class of the user's own states it by a static method of this name that takes the record,
        d_model and context_length (0 for a mixing without scores). For one that does not, and has
        `n_heads` in its record, scores like ours are assumed. None: there is nothing to go by.
        """
        return told_score_width(self, d_model, context_length)


def told_score_width(part: PartConfig, d_model: int, context_length: int) -> int | None:
    """What the part's class states, or what the heads in its record come to; else None."""
    own = getattr(part.module, "score_width", None)
    if own is not None:
        return int(own(part, d_model, context_length))
    fields = {name: value for name, value in part if isinstance(value, int)}
    n_heads, window = fields.get("n_heads"), fields.get("window")
    if not n_heads:
        return None
    head_dim = fields.get("head_dim") or d_model // n_heads
    return n_heads * head_dim * min(context_length, window or context_length)


@part("attention", "causal")
class CausalAttention(nn.Module):
    """Each position looks at itself and those before it (Vaswani et al. 2017, section 3.2).

    Fewer key and value heads than heads is grouped-query attention (Ainslie et al. 2023), one is
    multi-query. `window` counts the position itself (Mistral). `softcap` bounds the scores by
    cap * tanh(score / cap) (Gemma 2). `qk_norm` normalises queries and keys before they turn.
    Rows of `qkv` are queries, then keys, then values, each head by head.
    """

    class Config(AttentionConfig):
        """`n_heads` queries of `head_dim` look at `n_kv_heads` keys and values.

        `qkv_bias`, `out_bias`: on the projections into and out of the heads. `qk_norm`: a norm of
        queries and keys, over each head or over all (`qk_norm_over`). `window`: how many tokens a
        query sees, itself included; null means all. `scale`: the factor on the scores. `softcap`:
        scores become softcap * tanh(scores / softcap).
        """

        kind: Literal["causal"] = "causal"
        n_heads: int = Field(12, gt=0)
        n_kv_heads: int | None = Field(None, gt=0)
        """Key and value heads; null means as many as heads."""
        head_dim: int | None = Field(None, gt=0)
        """Width of a head; null means d_model / n_heads."""
        qkv_bias: bool = True
        out_bias: bool = True
        qk_norm: SerializeAsAny[NormConfig] | None = None
        qk_norm_over: Literal["head", "all"] = "head"
        """Normalise each head by itself (Qwen 3), or all heads as one vector (OLMo 2)."""
        window: int | None = Field(None, gt=0)
        scale: float | None = Field(None, gt=0)
        """Factor on the scores; null means 1 / sqrt(head_dim)."""
        softcap: float | None = Field(None, gt=0)

        def heads(self, d_model: int) -> tuple[int, int, int]:
            """n_heads, n_kv_heads and head_dim after resolution."""
            n_kv_heads = self.n_kv_heads or self.n_heads
            if self.head_dim is None and d_model % self.n_heads:
                raise BlocklabError(
                    f"block.attention.n_heads: {self.n_heads} heads do not divide "
                    f"d_model {d_model}; choose a divisor or give head_dim"
                )
            if self.n_heads % n_kv_heads:
                raise BlocklabError(
                    f"block.attention.n_kv_heads: {n_kv_heads} key-value heads do not divide "
                    f"{self.n_heads} heads"
                )
            return self.n_heads, n_kv_heads, self.head_dim or d_model // self.n_heads

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            n_heads, n_kv_heads, head_dim = self.heads(d_model)
            width = (n_heads + 2 * n_kv_heads) * head_dim
            specs = linear("qkv", d_model, width, bias=self.qkv_bias)
            if self.qk_norm is not None:
                over = self._normed_widths(d_model)
                specs |= under("query_norm", self.qk_norm.parameters(over[0]))
                specs |= under("key_norm", self.qk_norm.parameters(over[1]))
            return specs | linear(
                "output", n_heads * head_dim, d_model, bias=self.out_bias, role="writer"
            )

        def score_width(self, d_model: int, context_length: int) -> int:
            n_heads, _, head_dim = self.heads(d_model)
            return n_heads * head_dim * min(context_length, self.window or context_length)

        def _normed_widths(self, d_model: int) -> tuple[int, int]:
            n_heads, n_kv_heads, head_dim = self.heads(d_model)
            if self.qk_norm_over == "head":
                return head_dim, head_dim
            return n_heads * head_dim, n_kv_heads * head_dim

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = config.heads(d_model)
        self.window, self.softcap = config.window, config.softcap
        self.scale = config.scale or 1 / math.sqrt(self.head_dim)
        self.norm_over_all = config.qk_norm_over == "all"
        width = (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        self.qkv = Linear(d_model, width, bias=config.qkv_bias)
        self.query_norm = self.key_norm = None
        if config.qk_norm is not None:
            over = config._normed_widths(d_model)
            self.query_norm = config.qk_norm.build(over[0])
            self.key_norm = config.qk_norm.build(over[1])
        self.output = Linear(self.n_heads * self.head_dim, d_model, bias=config.out_bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        queries, keys, values = self._project(x, context)
        keys, values = context.extend(keys, values)
        mixed = self._attend(queries, keys, values, context)  # (B, n_heads, T, head_dim)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _project(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, n_heads, T, head_dim); keys and values (B, n_kv_heads, T, head_dim)."""
        heads = self.n_heads, self.n_kv_heads
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # (B, T, heads of all three, head_dim)
        # Slices would each hand back a gradient of the whole, mostly zeros.
        if self.query_norm is None:
            looking, values = qkv.split((sum(heads), self.n_kv_heads), dim=2)
        else:
            queries, keys, values = qkv.split((*heads, self.n_kv_heads), dim=2)
            normed = self._normed(self.query_norm, queries), self._normed(self.key_norm, keys)
            looking = torch.cat(normed, dim=2)
        turned = context.rotate(looking).transpose(1, 2)
        queries, keys = torch.split(turned, list(heads), dim=1)
        return queries, keys, values.transpose(1, 2)

    def _normed(self, norm: nn.Module | None, heads: Tensor) -> Tensor:
        assert norm is not None
        if not self.norm_over_all:
            return norm(heads)  # type: ignore[no-any-return]
        return norm(heads.flatten(2)).view_as(heads)  # type: ignore[no-any-return]

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, context: AttentionContext
    ) -> Tensor:
        mask = context.mask(queries, keys.shape[2], self.window)
        if queries.shape[2] == 1 and torch.compiler.is_compiling():
            return self._attend_once_by_sums(queries, keys, values, mask, context)
        if self.softcap is not None:
            return self._attend_by_products(queries, keys, values, mask, context)
        # Whoever looks on is to see the scores of every head, also of a single query.
        if queries.shape[2] == 1 and not is_plain_torch():
            return self._attend_once(queries, keys, values, mask, context)
        if mask is None and not context.dropout and _may_be_by_hand(queries, keys):
            return causal.causal_attention(queries, keys, values, self.scale)
        if _products_are_faster(queries, keys):
            return self._attend_by_products(queries, keys, values, mask, context)
        return F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=_as_wide_as(queries, mask),
            dropout_p=context.dropout,
            is_causal=mask is None and queries.shape[2] > 1,
            scale=self.scale,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )

    def _attend_once(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        context: AttentionContext,
    ) -> Tensor:
        """A single query's heads that share keys are as many queries of one head: no copies."""
        mixed = F.scaled_dot_product_attention(
            queries.reshape(len(queries), self.n_kv_heads, -1, self.head_dim),
            keys,
            values,
            attn_mask=_as_wide_as(queries, self._by_group(mask)),
            dropout_p=context.dropout,
            scale=self.scale,
        )
        return mixed.flatten(1, 2).unsqueeze(2)  # (B, n_heads, 1, head_dim)

    def _attend_once_by_sums(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        context: AttentionContext,
    ) -> Tensor:
        """A single query for a compiler, which makes one pass over keys and one over values."""
        wide = torch.promote_types(queries.dtype, torch.float32)
        grouped = queries.reshape(len(queries), self.n_kv_heads, -1, 1, self.head_dim).to(wide)
        scores = (grouped * self.scale * keys.to(wide).unsqueeze(2)).sum(-1)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        mask = self._by_group(mask)
        if mask is not None:
            scores = scores + _added(mask, wide)  # (B, n_kv_heads, group, S)
        weights = context.drop(scores.softmax(-1)).unsqueeze(-1)
        mixed = (weights * values.to(wide).unsqueeze(2)).sum(-2)
        return mixed.to(values.dtype).flatten(1, 2).unsqueeze(2)  # (B, n_heads, 1, head_dim)

    def _by_group(self, mask: Tensor | None) -> Tensor | None:
        """The mask of a single query, (…, 1, S), with the heads of a group as its queries."""
        if mask is None or mask.ndim <= 2 or mask.shape[-3] != self.n_heads:
            return mask
        return mask.reshape(*mask.shape[:-3], self.n_kv_heads, -1, mask.shape[-1])

    def _attend_by_products(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        context: AttentionContext,
    ) -> Tensor:
        """Two products and a softmax; scores in at least float32, from the first product on."""
        n_queries, n_keys = queries.shape[2], keys.shape[2]
        # The heads of a group share keys and values: their queries stand below one another.
        stacked = (-1, self.n_kv_heads, self.n_heads // self.n_kv_heads * n_queries)
        with torch.autocast(queries.device.type, enabled=False):
            wide = torch.promote_types(queries.dtype, torch.float32)
            grouped = (queries.to(wide) * self.scale).reshape(*stacked, self.head_dim)
            scores = grouped @ keys.to(wide).transpose(-1, -2)  # (B, n_kv_heads, group * T, S)
            scores = scores.view(-1, self.n_heads, n_queries, n_keys)
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            if mask is None and n_queries > 1:
                mask = context.once(
                    ("triangle", n_keys),
                    lambda: torch.ones(
                        n_queries, n_keys, dtype=torch.bool, device=scores.device
                    ).tril(),
                )
            if mask is not None:
                # Not by the mask itself: older compilers cannot ask a tensor which it is.
                key = context.positions, self.window, self.n_heads, n_queries, n_keys
                scores = scores + context.once(("added", *key, wide), lambda: _added(mask, wide))
            weights = context.drop(scores.softmax(-1)).to(values.dtype)
            mixed = weights.view(*stacked, n_keys) @ values
        return mixed.view(-1, self.n_heads, n_queries, self.head_dim)


def _may_be_by_hand(queries: Tensor, keys: Tensor) -> bool:
    """Whether causal attention is faster by our own products, and may be: also when compiled."""
    ours = torch.compiler.is_compiling() or not is_plain_torch()
    return ours and causal.is_faster(queries, keys)


def _products_are_faster(queries: Tensor, keys: Tensor) -> bool:
    """In bfloat16 on a processor: the fused attention's backward pass is four times slower there.

    Measured on Zen 5, (16, 4, 128, 64), forward and backward: 12 against 24 ms, and with heads of
    16 dimensions 2.2 against 9.2.
    """
    if queries.device.type != "cpu" or queries.dtype != torch.bfloat16:
        return False
    return causal.is_faster(queries, keys)


def _as_wide_as(queries: Tensor, mask: Tensor | None) -> Tensor | None:
    """A bias in the dtype and shape that the fused attention wants it in.

    Of three dimensions PyTorch's would not be fused on a processor: all scores would stand in
    memory, and a step of (4, 8, 512, 64) take 149 instead of 89 ms.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask.to(queries.dtype).view(*(1,) * (4 - mask.ndim), *mask.shape)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What a mask adds to the scores: its bias, or minus infinity where nothing may be seen."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(
        ~mask, float("-inf")
    )
