"""Model configurations drawn from every part there is, in every combination that fits together."""

from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st

from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.parts.activation import ACTIVATIONS

VOCABULARY = 13
CONTEXT = 10

for_every_config = settings(max_examples=40, deadline=None, derandomize=True)


def randomized(config: ModelConfig, seed: int = 0) -> Transformer:
    """The model in float64 and evaluation mode, with no parameter left at exactly 0 or 1."""
    model = Transformer(config, seed=seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).double()
    return model


def random_tokens(batch: int = 2, length: int = CONTEXT, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator)


def norms() -> st.SearchStrategy[dict[str, Any]]:
    affine = {"eps": st.sampled_from([1e-6, 1e-5, 1e-2]), "bias": st.booleans()}
    return st.one_of(
        *(
            st.fixed_dictionaries({"kind": st.just(kind), "unit_offset": st.booleans(), **affine})
            for kind in ("layer", "rms")
        ),
        st.fixed_dictionaries(
            {
                "kind": st.just("dyt"),
                "alpha": st.sampled_from([0.5, 0.8]),
                "bias": st.booleans(),
            }
        ),
        st.just({"kind": "none"}),
    )


@st.composite
def feed_forwards(draw: st.DrawFn, d_model: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(["mlp", "gated", "experts"]))
    if kind == "experts":
        return draw(experts(d_model))
    derived = kind == "mlp" or d_model >= 24
    return {
        "kind": kind,
        "d_ff": draw(st.sampled_from([12, None] if derived else [12])),
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
        "bias": draw(st.booleans()),
    }


@st.composite
def experts(draw: st.DrawFn, d_model: int) -> dict[str, Any]:
    shared = draw(st.sampled_from([None, 8]))
    return {
        "kind": "experts",
        "n_experts": 3,
        "n_active": draw(st.sampled_from([1, 2, 3])),
        "d_ff": draw(st.sampled_from([12, None] if d_model >= 16 else [12])),
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
        "normalized": draw(st.sampled_from([None, True, False])),
        "shared_d_ff": shared,
        "shared_gate": draw(st.booleans()) if shared else False,
        "balance": draw(st.sampled_from([0.0, 0.02])),
    }


@st.composite
def attentions(draw: st.DrawFn) -> dict[str, Any]:
    n_heads = draw(st.sampled_from([1, 2, 4]))
    divisors = [n for n in (1, 2, 4) if n_heads % n == 0]
    return {
        "kind": "causal",
        "n_heads": n_heads,
        "n_kv_heads": draw(st.sampled_from([None, *divisors])),
        "head_dim": draw(st.sampled_from([None, 4, 6])),
        "qkv_bias": draw(st.booleans()),
        "out_bias": draw(st.booleans()),
        "qk_norm": draw(st.none() | norms()),
        "qk_norm_over": draw(st.sampled_from(["head", "all"])),
        "window": draw(st.sampled_from([None, 1, 3, 64])),
        "scale": draw(st.sampled_from([None, 0.3])),
        "softcap": draw(st.sampled_from([None, 2.0])),
    }


def scalings(rotated: int) -> st.SearchStrategy[dict[str, Any]]:
    """Every way to stretch a rotation; those that follow the length stay within their range."""
    factors = st.lists(st.sampled_from([1.0, 1.5, 3.0]), min_size=rotated // 2)
    longrope = {
        "kind": st.just("longrope"),
        "short": factors.map(lambda f: f[: rotated // 2]),
        "long": factors.map(lambda f: f[: rotated // 2]),
        "original_context": st.just(CONTEXT),
        "factor": st.sampled_from([1.0, 4.0]),
    }
    yarn = {
        "kind": st.just("yarn"),
        "factor": st.sampled_from([0.5, 4.0]),
        "original_context": st.sampled_from([4, 64]),
        "beta_fast": st.sampled_from([4.0, 32.0]),
        "amplitude": st.sampled_from([None, 1.3]),
        "truncate": st.booleans(),
    }
    chosen = [
        st.just({"kind": "none"}),
        st.just({"kind": "linear", "factor": 3.0}),
        st.just({"kind": "llama3", "factor": 4.0, "original_context": 16}),
        st.fixed_dictionaries(yarn),
        st.fixed_dictionaries(longrope),
    ]
    if rotated >= 4:
        chosen.append(st.just({"kind": "dynamic", "original_context": CONTEXT}))
    return st.one_of(chosen)


@st.composite
def positions(draw: st.DrawFn, head_dim: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(["learned", "sinusoidal", "rotary", "alibi", "none"]))
    if kind == "sinusoidal":
        return {"kind": kind, "base": draw(st.sampled_from([100.0, 10_000.0]))}
    if kind == "rotary":
        halves = [1.0, 0.5] if head_dim % 4 == 0 else [1.0]
        fraction = draw(st.sampled_from(halves))
        return {
            "kind": kind,
            "base": draw(st.sampled_from([100.0, 10_000.0])),
            "fraction": fraction,
            "interleaved": draw(st.booleans()),
            "scaling": draw(scalings(int(head_dim * fraction))),
        }
    return {"kind": kind}


def residuals() -> st.SearchStrategy[dict[str, Any]]:
    scaled = {
        "kind": st.just("scaled"),
        "scale": st.sampled_from([1.0, 0.4]),
        "learned": st.booleans(),
    }
    return st.sampled_from([{"kind": "add"}, {"kind": "none"}]) | st.fixed_dictionaries(scaled)


def initializations(scaled: bool) -> st.SearchStrategy[dict[str, Any]]:
    """With an embedding scale that is stated a tied table has no std of its own to reach."""
    shared = {
        "embedding_std": st.sampled_from([None] if scaled else [None, 0.5]),
        "head_std": st.sampled_from([None, 0.1]),
        "residual_writers": st.sampled_from([None, "plain", "depth"]),
    }
    return st.one_of(
        st.fixed_dictionaries({"kind": st.sampled_from(["normal", "depth"]), **shared}),
        st.fixed_dictionaries(
            {"kind": st.just("fan_in"), "gain": st.sampled_from([1.0, 0.5]), **shared}
        ),
    )


@st.composite
def layer_exceptions(draw: st.DrawFn, d_model: int, in_series: bool, turns: bool) -> dict[str, Any]:
    changes: dict[str, st.SearchStrategy[Any]] = {
        "block.attention.window": st.sampled_from([None, 2, 5]),
        "block.norm": norms(),
        "block.feed_forward": feed_forwards(d_model),
        "block.residual": residuals(),
    }
    if in_series:
        changes["block.placement"] = st.sampled_from(["pre", "post", "output", "sandwich"])
    if turns:
        changes["positions.kind"] = st.sampled_from(["none", "rotary", "alibi"])
        changes["positions"] = st.just({"kind": "rotary", "base": 50.0})
    path = draw(st.sampled_from(sorted(changes)))
    return {"at": draw(st.sampled_from(["0", "-1", "::2", "0,1:"])), path: draw(changes[path])}


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """A model of at most three layers, small enough to build in milliseconds."""
    d_model = draw(st.sampled_from([8, 16, 24]))
    attention = draw(attentions())
    head_dim = attention["head_dim"] or d_model // attention["n_heads"]
    places = draw(positions(head_dim))
    turns = places["kind"] in ("rotary", "alibi", "none") and head_dim % 2 == 0
    parallel = draw(st.sampled_from(["off", "off", "one_norm", "two_norms"]))
    in_series = parallel == "off"
    exceptions = layer_exceptions(d_model, in_series, turns)
    scale = draw(st.sampled_from([None, 2.0]))
    return ModelConfig.parse(
        {
            "vocab_size": VOCABULARY,
            "context_length": CONTEXT,
            "d_model": d_model,
            "n_layers": draw(st.integers(1, 3)),
            "tie_embeddings": draw(st.booleans()),
            "dropout": draw(st.sampled_from([0.0, 0.3])),
            "embedding": {"scale": scale},
            "positions": places,
            "block": {
                "placement": draw(st.sampled_from(["pre", "post", "output", "sandwich"]))
                if in_series
                else "pre",
                "parallel": parallel,
                "norm": draw(norms()),
                "attention": attention,
                "feed_forward": draw(feed_forwards(d_model)),
                "residual": draw(residuals()),
            },
            "final_norm": draw(st.sampled_from([None, "same", "none"]) | norms()),
            "head": {
                "bias": draw(st.booleans()),
                "scale": draw(st.sampled_from([None, 0.5])),
                "softcap": draw(st.sampled_from([None, 3.0])),
            },
            "layers": draw(st.lists(exceptions, max_size=2)),
            "initialization": draw(initializations(scale is not None)),
        }
    )
