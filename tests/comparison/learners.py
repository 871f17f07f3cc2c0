"""Modules as learners write them, in the styles that are common, each with its mistakes to choose.

None of this looks at ours: that is the point.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    """Layer norm with a gain called scale and a shift called shift."""

    def __init__(self, d: int, mistake: str = "", eps: float = 1e-5) -> None:
        super().__init__()
        self.mistake, self.eps = mistake, eps
        self.scale, self.shift = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        eps, mean = self.eps, x.mean(-1, keepdim=True)
        if self.mistake == "unbiased-and-eps-outside":
            return self.scale * (x - mean) / (x.std(-1, keepdim=True) + eps) + self.shift
        variance = x.var(-1, keepdim=True, unbiased=self.mistake == "unbiased-variance")
        if self.mistake == "eps-outside-root":
            return self.scale * (x - mean) / (variance.sqrt() + eps) + self.shift
        if self.mistake == "no-eps":
            return self.scale * (x - mean) / variance.sqrt() + self.shift
        if self.mistake == "no-mean-subtraction":
            mean = torch.zeros_like(mean)
            variance = x.pow(2).mean(-1, keepdim=True)
        if self.mistake == "mean-kept":
            mean = torch.zeros_like(mean)
        if self.mistake == "no-root":
            return self.scale * (x - mean) / (variance + eps) + self.shift
        if self.mistake == "wrong-axis":
            mean, variance = x.mean(-2, keepdim=True), x.var(-2, keepdim=True, unbiased=False)
        y = (x - mean) / (variance + eps).sqrt()
        if self.mistake == "shift-unused":
            return self.scale * y
        return self.scale * y + self.shift


class RootNorm(nn.Module):
    """RMSNorm with a gain called g."""

    def __init__(self, d: int, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        square = x.pow(2).mean(-1, keepdim=True)
        if self.mistake == "mean-subtracted":
            x = x - x.mean(-1, keepdim=True)
            square = x.pow(2).mean(-1, keepdim=True)
        if self.mistake == "sum-not-mean":
            square = x.pow(2).sum(-1, keepdim=True)
        if self.mistake == "eps-outside-root":
            return x / (square.sqrt() + 1e-6) * self.g
        if self.mistake == "gain-plus-one":
            return x * (square + 1e-6).rsqrt() * (1 + self.g)
        if self.mistake == "gain-unused":
            return x * (square + 1e-6).rsqrt()
        eps = 1e-5 if self.mistake == "other-eps" else 1e-6
        return x * (square + eps).rsqrt() * self.g


class FeedForward(nn.Module):
    """An mlp in a Sequential."""

    def __init__(self, d: int, d_ff: int = 0, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        act = {
            "exact-gelu": nn.GELU(), "relu": nn.ReLU(), "no-activation": nn.Identity(),
        }.get(mistake, nn.GELU("tanh"))  # fmt: skip
        layers = [nn.Linear(d, d_ff or 4 * d), act, nn.Linear(d_ff or 4 * d, d)]
        if mistake == "activation-at-the-end":
            layers = [layers[0], layers[2], act]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        if self.mistake == "dropout-in-evaluation":
            y = F.dropout(y, 0.2)
        return x + y if self.mistake == "adds-its-input" else y


class SwiGLU(nn.Module):
    """Three maps, called as Llama's users call them."""

    def __init__(self, d: int, d_ff: int, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.gate_proj = nn.Linear(d, d_ff, bias=False)
        self.up_proj = nn.Linear(d, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.mistake == "gate-and-up-swapped":
            return self.down_proj(gate * F.silu(up))
        if self.mistake == "sigmoid":
            return self.down_proj(torch.sigmoid(gate) * up)
        if self.mistake == "activated-after-gating":
            return self.down_proj(F.silu(gate * up))
        if self.mistake == "sum-not-product":
            return self.down_proj(F.silu(gate) + up)
        return self.down_proj(F.silu(gate) * up)


class Attention(nn.Module):
    """Causal attention with separate maps, and a mask kept as a buffer."""

    def __init__(
        self, d: int, n_heads: int, mistake: str = "", rotary: str = "", n_kv_heads: int = 0
    ) -> None:
        super().__init__()
        self.n_heads, self.hd, self.mistake, self.rotary = n_heads, d // n_heads, mistake, rotary
        self.n_kv = n_kv_heads or n_heads
        self.W_query = nn.Linear(d, d)
        self.W_key = nn.Linear(d, self.n_kv * self.hd)
        self.W_value = nn.Linear(d, self.n_kv * self.hd)
        if mistake != "no-output-projection":
            self.out_proj = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)
        view = "heads-not-split" in self.mistake or "neither" in self.mistake
        if view:
            q, k, v = (y.reshape(b, -1, t, self.hd) for y in (q, k, v))
        else:
            q, k, v = (y.view(b, t, -1, self.hd).transpose(1, 2) for y in (q, k, v))
        if self.rotary:
            q, k = self.turned(q), self.turned(k)
        k, v = (y.repeat_interleave(self.n_heads // self.n_kv, 1) for y in (k, v))
        scores = q @ k.transpose(2, 3)
        scale = {
            "no-scale": 1.0, "scaled-by-d-model": math.sqrt(d), "scaled-by-head-dim": self.hd,
            "scale-inverted": 1 / math.sqrt(self.hd),
        }.get(self.mistake, math.sqrt(self.hd))  # fmt: skip
        weights = self.weighted(scores / scale)
        if self.mistake == "dropout-in-evaluation":
            weights = F.dropout(weights, 0.3, training=True)
        y = weights @ v
        merged = y if "merged" in self.mistake else y.transpose(1, 2)
        merged = merged.contiguous().view(b, t, d)
        return merged if self.mistake == "no-output-projection" else self.out_proj(merged)

    def weighted(self, scores: Tensor) -> Tensor:
        t = scores.shape[-1]
        ones = torch.ones(t, t)
        hidden = {
            "no-causal-mask": torch.zeros(t, t),
            "mask-off-by-one": ones.triu(2),
            "mask-hides-itself": ones.triu(0),
            "mask-inverted": ones.tril(-1),
        }.get(self.mistake, ones.triu(1)).bool()
        if self.mistake == "mask-after-softmax":
            return scores.softmax(-1).masked_fill(hidden, 0.0)
        fill = 0.0 if self.mistake == "mask-fills-zero" else -math.inf
        axis = {"softmax-over-queries": -2, "softmax-over-heads": 1}.get(self.mistake, -1)
        if axis == 1:
            fill = -1e9
        return scores.masked_fill(hidden, fill).softmax(axis)

    def turned(self, x: Tensor) -> Tensor:
        half = self.hd // 2
        frequency = 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * frequency
        if self.rotary == "halves":
            angle = torch.cat((angle, angle), -1)
            other = torch.cat((-x[..., half:], x[..., :half]), -1)
            return x * angle.cos() + other * angle.sin()
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class FusedAttention(nn.Module):
    """One map for all three, by torch's fused attention."""

    def __init__(self, d: int, n_heads: int, order: str = "qkv", by_head: bool = False) -> None:
        super().__init__()
        self.n_heads, self.order, self.by_head = n_heads, order, by_head
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.c_attn(x)
        if self.by_head:
            parts = y.view(b, t, self.n_heads, 3, -1).unbind(3)
        else:
            parts = [part.view(b, t, self.n_heads, -1) for part in y.chunk(3, -1)]
        named = dict(zip(self.order, parts, strict=True))
        q, k, v = (named[n].transpose(1, 2) for n in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class Head(nn.Module):
    """One head of a list of heads."""

    def __init__(self, d: int, size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(d, size, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self, d: int, n_heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(d, d // n_heads) for _ in range(n_heads))
        self.proj = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class Conv1D(nn.Module):
    """A map stored as (in, out), as GPT-2's first code stored it."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class ConvMLP(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(d, 4 * d), Conv1D(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, d: int, n_heads: int, mistake: str = "") -> None:
        super().__init__()
        self.att, self.ff = Attention(d, n_heads, mistake), FeedForward(d, mistake=mistake)
        self.norm1, self.norm2 = Norm(d, mistake), Norm(d, mistake)
        self.mistake = mistake

    def forward(self, x: Tensor) -> Tensor:
        m = self.mistake
        if m == "placement-post":
            return self.norm2((y := self.norm1(x + self.att(x))) + self.ff(y))
        if m == "residual-missing":
            return self.ff(self.norm2(self.att(self.norm1(x))))
        if m == "residual-of-the-normed":
            x = (x := self.norm1(x)) + self.att(x)
            return (x := self.norm2(x)) + self.ff(x)
        if m == "residual-missing-at-feed-forward":
            return self.ff(self.norm2(x + self.att(self.norm1(x))))
        if m == "feed-forward-first":
            x = x + self.ff(self.norm2(x))
            return x + self.att(self.norm1(x))
        x = x + self.att(self.norm1(x))
        return x + self.ff((self.norm1 if m == "one-norm-for-both" else self.norm2)(x))


class GPT(nn.Module):
    """A whole model from a namespace of sizes."""

    def __init__(self, cfg: SimpleNamespace, mistake: str = "") -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)
        self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.trf_blocks = nn.Sequential(
            *(Block(cfg.emb_dim, cfg.n_heads, mistake) for _ in range(cfg.n_layers))
        )
        self.final_norm = Norm(cfg.emb_dim, mistake)
        self.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False)
        if cfg.tied:
            self.out_head.weight = self.tok_emb.weight
        self.mistake = mistake

    def forward(self, tokens: Tensor) -> Tensor:
        m, x = self.mistake, self.tok_emb(tokens)
        if m == "embedding-scaled":
            x = x * x.shape[-1] ** 0.5
        if m != "positions-missing":
            first = 1 if m == "positions-from-one" else 0
            x = x + self.pos_emb(torch.arange(first, first + tokens.shape[1]))
        x = self.trf_blocks(x)
        logits = self.out_head(x if m == "no-final-norm" else self.final_norm(x))
        return logits.softmax(-1) if m == "answers-probabilities" else logits
