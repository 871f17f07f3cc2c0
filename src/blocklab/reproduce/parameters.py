"""GPT-2 124M counted part by part, from its record alone."""

from typing import Any

from blocklab.model import presets
from blocklab.model.count import count
from blocklab.reproduce.comparison import number, whole
from blocklab.reproduce.experiment import Found, Place

_BLOCK = {
    "both norms": ("norm.",),
    "attention, queries keys values": ("attention.qkv.",),
    "attention, output": ("attention.output.",),
    "feed-forward, expand": ("feed_forward.expand.",),
    "feed-forward, contract": ("feed_forward.contract.",),
    "whole block": ("",),
}
"""Which parameters of a block each published line adds up."""


def parameters(figures: dict[str, Any], _: Place) -> Found:
    untied = count(presets.preset("gpt2")(tie_embeddings=False))
    tied = count(presets.preset("gpt2")(tie_embeddings=True))

    def of(prefix: str) -> int:
        return sum(row.parameters for row in untied.rows if row.path.startswith(prefix))

    rows = [
        whole("token embedding", figures["token_embedding"], of("embedding.")),
        whole("position embedding", figures["position_embedding"], of("positions.")),
    ]
    for name, wanted in figures["block"].items():
        found = sum(of(f"blocks.0.{prefix}") for prefix in _BLOCK[name])
        rows.append(whole(f"one block: {name}", wanted, found))
    branches = of("blocks.0.attention.") + of("blocks.0.feed_forward.")
    rows += [
        whole("all 12 blocks", figures["blocks"], of("blocks.")),
        whole("final norm", figures["final_norm"], of("final_norm.")),
        whole("head", figures["head"], of("head.")),
        whole("total, untied", figures["untied"], untied.total),
        whole("total, tied", figures["tied"], tied.total),
        whole("bytes in float32, tied", figures["tied_float32_bytes"], tied.bytes(4)),
        whole(
            "megabytes in float32, untied",
            figures["untied_float32_megabytes"],
            round(untied.bytes(4) / 1e6),
        ),
        number(
            "token embedding's share of the tied model",
            figures["share_of_token_embedding"],
            of("embedding.") / tied.total,
            2,
        ),
        number(
            "feed-forward's share of a block's two branches",
            figures["share_of_feed_forward"],
            of("blocks.0.feed_forward.") / branches,
            3,
        ),
    ]
    share = of("blocks.0.feed_forward.") / of("blocks.0.")
    return Found(
        tuple(rows),
        notes=(f"Of the whole block, its norms included, the feed-forward is {share:.3f}.",),
    )
