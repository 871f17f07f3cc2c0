"""Builds docs/block.md by running the code: `python docs/build_block.py`.

Every shape, count and number on that page comes out of a model that is built here; a test holds
the committed page to what this gives. Everything is measured in float64, so that the rounded
numbers are the same on every machine.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import blocklab as bl

PAGE = Path(__file__).with_name("block.md")
TOKENS = (2, 8)  # (B, T)


def page() -> str:
    """The whole page."""
    config = bl.presets.gpt2(n_layers=2, vocab_size=1000, context_length=64, dropout=0.0)
    model = bl.Transformer(config, seed=1).double().eval()
    tokens = torch.randint(0, 1000, TOKENS, generator=torch.Generator().manual_seed(1))
    parts = [
        _opening(),
        _the_stream(model, tokens),
        _parameters(),
        _formulas(),
        _modern(),
        _questions(model, tokens),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if i in right else ":---" for i in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))


def _shape(x: Tensor) -> str:
    return "(" + ", ".join(f"{size:,}" for size in x.shape) + ")"


def _rms(x: Tensor) -> str:
    return f"{x.square().mean().sqrt().item():.3f}"


def _opening() -> str:
    return """
# One block, laid open

A decoder-only language model is a stream of vectors, one for each position, that every block reads
and adds to. This page follows that stream through a single block of GPT-2's shape (768 wide, 12
heads) and then says what a modern block does otherwise. It is written by `docs/build_block.py`,
which builds the models and prints what it finds: nothing below was typed in by hand.

The names in `code` are addresses. The same path stands in a study file, on the command line
(`--set block.norm.kind=rms`), in the parameter table and in an error message.
"""


def _the_stream(model: bl.Transformer, tokens: Tensor) -> str:
    addresses = {
        "blocks.0.norm.attention": "the norm before attention: each vector to mean 0 and rms 1",
        "blocks.0.attention.qkv": "one matrix makes queries, keys and values",
        "blocks.0.attention.output": "heads joined again and mixed: what attention adds",
        "blocks.0.residual.attention": "**the stream** after attention: x + attention(norm(x))",
        "blocks.0.norm.feed_forward": "the norm before the feed-forward",
        "blocks.0.feed_forward.expand": "four times as wide",
        "blocks.0.feed_forward.contract": "activated and back: what the feed-forward adds",
        "blocks.0.residual.feed_forward": "**the stream** after the block",
    }
    seen = bl.inspect.record(model, tokens, "embedding", *addresses)
    entering = bl.inspect.streams(model, tokens)[0]
    rows = [
        ["`embedding`", "a row of the table for each token", _shape(seen["embedding"].output),
         _rms(seen["embedding"].output)],
        ["`positions`", "**the stream** as it enters: token + place", _shape(entering),
         _rms(entering)],
    ]  # fmt: skip
    rows += [
        [f"`{path.removeprefix('blocks.0.')}`", what, _shape(seen[path].output),
         _rms(seen[path].output)]
        for path, what in addresses.items()
    ]  # fmt: skip
    heads = bl.inspect.attention_maps(model, tokens)[0]
    assert heads is not None
    adds = {
        name: seen[f"blocks.0.residual.{name}"].inputs for name in ("attention", "feed_forward")
    }
    shares = {
        name: (branch.norm() / stream.norm()).item() for name, (stream, branch) in adds.items()
    }
    return f"""
## The stream's shapes

{TOKENS[0]} sequences of {TOKENS[1]} tokens, (B, T) = {_shape(tokens)}, before any training:

{_table(["address", "what it gives", "shape", "rms"], rows, right=[3])}

Between `qkv` and `output` stand the attention weights, {_shape(heads)}: for each sequence and each
head, how much every position takes from every one before it. Row t sums to 1 over the keys 0 to t.

The width of the stream never changes, {model.config.d_model} in and {model.config.d_model} out:
that is what lets blocks be stacked, and a branch be left out. With weights drawn N(0, 0.02)
attention adds a vector {shares["attention"]:.2f} times the stream's length, the feed-forward one
of {shares["feed_forward"]:.2f} times what the stream then is: in an untrained model the branches
are louder than the embeddings they are added to.
"""


def _parameters() -> str:
    count = bl.count(bl.presets.gpt2())
    rows = [row for row in count.rows if row.path.startswith("blocks.0.")]
    total = sum(row.parameters for row in rows)
    table = [
        [f"`{row.path.removeprefix('blocks.0.')}`", " × ".join(map(str, row.shape)),
         f"{row.parameters:,}", f"{row.parameters / total:.1%}"]
        for row in rows
    ]  # fmt: skip
    table.append(["**one block**", "", f"**{total:,}**", "100 %"])
    return f"""
## The parameter table

One block of GPT-2 124M, counted from its record, without building it (`blocklab count gpt2`):

{_table(["parameter", "shape", "parameters", "share"], table, right=[2, 3])}

`qkv` holds three matrices of 768 × 768 on top of one another: rows of the queries first, then of
the keys, then of the values.
"""


def _formulas() -> str:
    x = torch.randn(2, 8, 96, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    checks = [
        ("LayerNorm", "norm: {kind: layer}", "y = g · (x − mean(x)) / √(var(x) + ε) + b",
         "Ba et al. 2016, eq. 3–4", _norm_error(x, "layer")),
        ("RMSNorm", "norm: {kind: rms}", "y = g · x / √(mean(x²) + ε)",
         "Zhang & Sennrich 2019, eq. 4", _norm_error(x, "rms")),
        ("attention", "attention: {kind: causal}",
         "y = softmax(Q Kᵀ / √head_dim + mask) V, each head; then W_o",
         "Vaswani et al. 2017, eq. 1 and 3.2.2", _attention_error(x)),
        ("MLP", "feed_forward: {kind: mlp}", "y = W₂ gelu(W₁ x + b₁) + b₂",
         "Vaswani et al. 2017, eq. 2", _mlp_error(x)),
        ("GELU (tanh)", "activation: gelu_tanh",
         "½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))",
         "Hendrycks & Gimpel 2016, section 2", _gelu_error(x)),
        ("SwiGLU", "feed_forward: {kind: gated}", "y = W₂ (silu(W_g x) ⊙ W_u x)",
         "Shazeer 2020, eq. 6", _gated_error(x)),
        ("pre-norm block", "placement: pre", "x ← x + f(norm(x)), attention then feed-forward",
         "Radford et al. 2019, section 2.3", None),
        ("post-norm block", "placement: post", "x ← norm(x + f(x))",
         "Vaswani et al. 2017, section 3.1", None),
    ]  # fmt: skip
    rows = [
        [name, f"`{address}`", formula, source, "" if error is None else _below(error)]
        for name, address, formula, source, error in checks
    ]
    return f"""
## Every formula, and whether the code is it

The last column is the largest difference between our part and the formula written out, in float64
on random vectors.

{_table(["part", "address", "formula", "source", "differs by"], rows)}
"""


def _below(error: float) -> str:
    """Rounding differs from machine to machine; that it is rounding does not."""
    assert error < 1e-12
    return "< 1e-12"


def _norm_error(x: Tensor, kind: str) -> float:
    config = bl.parts.LayerNorm.Config() if kind == "layer" else bl.parts.RMSNorm.Config()
    part = _drawn(config.build(96))
    centre = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    y = centre / (centre.square().mean(-1, keepdim=True) + config.eps).sqrt() * part.weight
    return _apart(part(x), y if part.bias is None else y + part.bias)


def _attention_error(x: Tensor) -> float:
    config = bl.presets.gpt2(d_model=96, n_heads=4, n_layers=1, vocab_size=10, dropout=0.0)
    model = _drawn(bl.Transformer(config, seed=0))
    tokens = torch.randint(0, 10, (2, 8), generator=torch.Generator().manual_seed(0))
    seen = bl.inspect.record(model, tokens, "blocks.0.attention")["blocks.0.attention"]
    part, h = model.blocks[0].attention, seen.inputs[0]
    q, k, v = (
        y.unflatten(-1, (4, 24)).transpose(1, 2)
        for y in F.linear(h, part.qkv.weight, part.qkv.bias).chunk(3, -1)
    )
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    weights = (q @ k.transpose(-1, -2) / math.sqrt(24)).masked_fill(hidden, -math.inf).softmax(-1)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    return _apart(seen.output, F.linear(mixed, part.output.weight, part.output.bias))


def _mlp_error(x: Tensor) -> float:
    part = _drawn(bl.parts.MLP.Config().build(96))
    h = x @ part.expand.weight.t() + part.expand.bias
    h = h / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return _apart(part(x), h @ part.contract.weight.t() + part.contract.bias)


def _gelu_error(x: Tensor) -> float:
    y = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return _apart(bl.parts.ACTIVATIONS["gelu_tanh"](x), y)


def _gated_error(x: Tensor) -> float:
    part = _drawn(bl.parts.Gated.Config().build(96))
    gate, up = (x @ w.t() for w in part.expand.weight.chunk(2))
    return _apart(part(x), (gate / (1 + (-gate).exp()) * up) @ part.contract.weight.t())


def _drawn(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64, no gain left at 1 and no bias at 0."""
    generator = torch.Generator().manual_seed(3)
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += noise / 10
    return module


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def _modern() -> str:
    old = bl.presets.gpt2(d_model=768, n_heads=12)
    new = bl.presets.modern(d_model=768, n_heads=12, vocab_size=50257, context_length=1024)
    rows = []
    for what, address in (
        ("norm", "block.norm.kind"),
        ("placement", "block.placement"),
        ("feed-forward", "block.feed_forward.kind"),
        ("activation", "block.feed_forward.activation"),
        ("biases in it", "block.feed_forward.bias"),
        ("biases in attention", "block.attention.qkv_bias"),
        ("positions", "positions.kind"),
    ):
        rows.append([what, f"`{address}`", *(f"{_at(config, address)}" for config in (old, new))])
    widths = [config.block.feed_forward.width(768) for config in (old, new)]
    rows.append(["hidden width", "`block.feed_forward.d_ff`", *(f"{w:,}" for w in widths)])
    sizes = [
        sum(row.parameters for row in bl.count(config).rows if row.path.startswith("blocks.0."))
        for config in (old, new)
    ]
    rows.append(["parameters of one block", "", *(f"{size:,}" for size in sizes)])
    return f"""
## The modern block

Pre-norm, RMSNorm, SwiGLU, rotary positions and no biases. At the same width:

{_table(["what", "address", "GPT-2", "modern"], rows, right=[2, 3])}

`blocklab ablate` trains the one against the other, one change at a time, and says what each was
worth.
"""


def _at(config: bl.ModelConfig, address: str) -> object:
    value: object = config
    for step in address.split("."):
        value = getattr(value, step)
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def _questions(model: bl.Transformer, tokens: Tensor) -> str:
    questions = [
        ("Why are there two norms in a block?", _two_norms(model, tokens)),
        ("Why four times the width?", _four_times()),
        ("And why 8/3 when it is gated?", _eight_thirds()),
        ("Why does post-norm need warm-up?", _warm_up()),
        ("Where do most parameters live?", _where()),
        ("What can attention not do alone?", _attention_alone(model, tokens)),
        ("What can the feed-forward not do alone?", _feed_forward_alone(model, tokens)),
        ("Why divide the scores by the root of head_dim?", _root()),
        ("What would happen without the residual connections?", _no_residuals()),
    ]
    shown = [
        f"<details>\n<summary><b>{question}</b></summary>\n\n{answer.strip()}\n\n</details>"
        for question, answer in questions
    ]
    return "## Questions\n\nTry to answer before you open one.\n\n" + "\n\n".join(shown)


def _two_norms(model: bl.Transformer, tokens: Tensor) -> str:
    norms = bl.inspect.norm_measures(model, tokens)
    found = [f"{norm.input_rms:.2f}" for norm in norms]
    return f"""
Because a block is two sublayers, and each needs an input of a size it can rely on. The stream only
ever has things added to it: in this model the norms meet vectors of rms {", ".join(found)} on
their way from the first to the last. Attention's scores grow with the square of their input and the
activation of the feed-forward bends at a fixed place, so both would behave differently from block
to block. The first norm cannot serve the second sublayer, since attention has changed the stream
in between. The stream itself is not normalised (pre-norm): it stays a plain sum.
"""


def _four_times() -> str:
    config = bl.presets.gpt2()
    widths = (1, 2, 4, 8)
    sizes = [
        bl.count(config.with_changes({"block.feed_forward.d_ff": w * 768})).subtotals
        for w in widths
    ]
    shares = [
        f"{w}×: {s['block.feed_forward'] / (s['block.feed_forward'] + s['block.attention']):.0%}"
        for w, s in zip(widths, sizes, strict=True)
    ]
    return f"""
It is a convention that has held, not a law. The hidden units are where a position is worked on by
itself, and each needs a row to read with and a row to write with: 2 · d · d_ff parameters against
attention's 4 · d². At d_ff = 4 d the feed-forward has 8 d², twice as many as attention. Its share
of a block's two branches by width: {", ".join(shares)}. Wider means more units for fewer blocks at
the same size; `blocklab ablate width` asks what that is worth.
"""


def _eight_thirds() -> str:
    d = 4096
    plain, gated = 2 * d * 4 * d, 3 * d * bl.parts.Gated.Config().width(d)
    return f"""
A gated feed-forward has three matrices where the plain one has two: 3 · d · d_ff parameters. To
have as many as a plain one of width 4 d, 3 · d_ff = 2 · 4 d, so d_ff = 8/3 d, rounded down to a
multiple of 64 because hardware likes round sizes. At d = {d:,}: d_ff
{bl.parts.Gated.Config().width(d):,}, {gated:,} parameters against {plain:,}
({gated / plain - 1:+.1%}). Comparing a gated feed-forward with a plain one of the same *width*
would hand it half as many parameters again.
"""


def _warm_up() -> str:
    rows = []
    for placement in ("pre", "post"):
        found = []
        for n_layers in (6, 12, 48):
            norms = _first_matrices(placement, n_layers)
            found.append(f"{norms[0]:.3f} → {norms[-1]:.3f}")
        rows.append([f"{placement}-norm", *found])
    table = _table(["", "6 blocks", "12 blocks", "48 blocks"], rows, right=[1, 2, 3])
    return f"""
Look at the gradient that each block's first feed-forward matrix gets before any training, from the
first block to the last, with weights drawn by fan-in:

{table}

With post-norm every sublayer ends in a norm, so the last block always meets a stream of the same
size and gets a gradient of the same size, however deep the model is. With pre-norm the stream has
grown by the time it reaches the final norm, which divides by its size: the gradients of the last
blocks shrink about as 1/√depth (Xiong et al. 2020). So a deep post-norm model starts with gradients
several times those of a pre-norm one, which also change most in the first steps, while Adam's
averages are still made of hardly anything. Warm-up goes through those steps slowly.

How the weights are drawn decides how much of this is left: with every weight at N(0, 0.02) and a
small width, post-norm's gradients are no larger than pre-norm's. `blocklab reproduce
placement-gradients` shows both draws at 6, 12 and 48 blocks, and `blocklab ablate warmup` trains
the question.
"""


def _first_matrices(placement: str, n_layers: int) -> list[float]:
    config = bl.presets.gpt2(
        d_model=64, n_heads=4, n_layers=n_layers, vocab_size=256, context_length=32, dropout=0.0
    ).with_changes({"block.placement": placement, "initialization.kind": "fan_in"})
    model = bl.Transformer(config, seed=1).double()
    generator = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(0, 256, (4, 32), generator=generator) for _ in range(2))
    norms = bl.inspect.gradient_norms(model, tokens, targets)
    return [norms[f"blocks.{i}.feed_forward.expand.weight"] for i in range(n_layers)]


def _where() -> str:
    rows = []
    for name in ("gpt2", "gpt2-xl", "llama-2-7b", "llama-2-70b"):
        config = bl.presets.preset(name)()
        count = bl.count(config)
        shares = [
            count.subtotals.get(part, 0) / count.total
            for part in ("block.feed_forward", "block.attention", "embedding", "head", "positions")
        ]
        rows.append([name, f"{count.total / 1e9:.2f}", *(f"{share:.1%}" for share in shares)])
    columns = ["model", "billions", "feed-forward", "attention", "embedding", "head", "positions"]
    return f"""
In the feed-forward, and in small models in the vocabulary:

{_table(columns, rows, right=range(1, 7))}

The norms have less than a thousandth. GPT-2's head is its embedding (tied), so it has none of its
own; doubling the width quadruples the blocks and only doubles the tables, which is why the tables
fade as models grow.
"""


def _attention_alone(model: bl.Transformer, tokens: Tensor) -> str:
    part = model.blocks[0].attention
    seen = bl.inspect.record(model, tokens, "blocks.0.attention.qkv", "blocks.0.attention.output")
    weights = bl.inspect.attention_maps(model, tokens)[0]
    assert weights is not None
    qkv = seen["blocks.0.attention.qkv"].output.unflatten(-1, (-1, 64))
    values = qkv[:, :, 24:].transpose(1, 2)

    def given(v: Tensor) -> Tensor:
        return F.linear((weights @ v).transpose(1, 2).flatten(2), part.output.weight)

    error = _apart(given(2 * values), 2 * given(values))
    return f"""
It cannot compute anything new from a single position. Once the weights are fixed, what attention
gives is a weighted mean of values that are a matrix times the input: everything is linear. Doubling
all values doubles the result (here to {_below(error)}), and the first
position, which sees only itself, gets W_o W_v x: one matrix product, whatever the scores are. All
non-linearity goes into *where* to look. The feed-forward is what makes a vector into something
that is not a blend of vectors that were there already.
"""


def _feed_forward_alone(model: bl.Transformer, tokens: Tensor) -> str:
    part = model.blocks[0].feed_forward
    recorded = bl.inspect.record(model, tokens, "blocks.0.feed_forward")["blocks.0.feed_forward"]
    x = recorded.inputs[0]
    error = _apart(part(x.flip(1)).flip(1), part(x))
    changed = x.clone()
    changed[:, 0] += 1.0
    leak = _apart(part(changed)[:, 1:], part(x)[:, 1:])
    return f"""
It cannot tell one position anything about another. Turn the sequence round and its outputs turn
round with it (here to {_below(error)}); change the first position and no other output moves
({_below(leak)}). Everything a model knows of its context came through attention.
"""


def _root() -> str:
    generator = torch.Generator().manual_seed(4)
    rows = []
    for head_dim in (16, 64, 256):
        q, k = (
            torch.randn(512, head_dim, generator=generator, dtype=torch.float64) for _ in range(2)
        )
        scores = q @ k.t()
        entropies = [
            torch.special.entr(s.softmax(-1)).sum(-1).mean().item()
            for s in (scores, scores / math.sqrt(head_dim))
        ]
        rows.append([str(head_dim), f"{scores.std().item():.1f}",
                     f"{scores.std().item() / math.sqrt(head_dim):.2f}",
                     *(f"{e:.2f}" for e in entropies)])  # fmt: skip
    columns = ["head_dim", "std of q·k", "divided", "entropy of 512 keys", "divided"]
    return f"""
A dot product of two vectors of independent numbers of size 1 has a standard deviation of
√head_dim. Undivided, the softmax of such scores looks at one key alone, and wider heads would be
sharper for no reason but their width:

{_table(columns, rows, right=range(5))}

(512 keys looked at alike: {math.log(512):.2f} nats.) A softmax that has settled on one key has
almost no gradient left to change its mind.
"""


def _no_residuals() -> str:
    found = []
    for kind in ("add", "none"):
        config = bl.presets.gpt2(
            d_model=64, n_heads=4, n_layers=12, vocab_size=256, context_length=32, dropout=0.0
        ).with_changes({"block.residual.kind": kind})
        model = bl.Transformer(config, seed=1).double()
        tokens = torch.randint(0, 256, (1, 32), generator=torch.Generator().manual_seed(1))
        found.append(bl.inspect.position_similarity(model, tokens)[-1].item())
    return f"""
Attention averages, and average after average makes all positions the same. After 12 untrained
blocks the mean cosine similarity between different positions is {found[0]:.2f} with residuals and
{found[1]:.2f} without. A model whose positions are all alike can only learn how often each token
occurs, and that is where its training stalls: on the entropy of the unigrams (`blocklab reproduce
position-similarity` and `time-machine`).
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
