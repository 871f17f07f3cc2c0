"""Which of a whole model's tensors is which of ours: block by block, each block alike."""

import itertools
import re
from collections import defaultdict
from dataclasses import replace

from torch import nn

from blocklab.comparison.feed_forward import MLPWiring
from blocklab.comparison.layouts import (
    CONTRADICTION,
    UNUSUAL,
    Layout,
    attention_layouts,
    gated_layouts,
    joined,
    layout_of,
    mlp_layouts,
    norm_layouts,
)
from blocklab.comparison.sheets import Gathered, Sheet, Vectors, gathered
from blocklab.comparison.transformer import TransformerWiring
from blocklab.errors import BlocklabError
from blocklab.model.sublayer import Placement

MOST = 40
"""Layouts that are tried at most."""

_FEED_FORWARD = re.compile(r"(^|[._])(mlp|ff|ffn|ffwd|feed|feedforward|feed_forward)([._]|$)")
_AFTER_ATTENTION = re.compile(r"(post|after)_?att")


def model_layouts(
    module: nn.Module, wiring: TransformerWiring, d_model: int, d_ff: int, sizes: tuple[int, int]
) -> list[Layout]:
    """Layouts of a whole model; `sizes` are vocabulary and context length.

    Raises BlocklabError when the blocks or one of their parts cannot be found.
    """
    whole = gathered(module)
    prefix, n_blocks = _blocks(module)
    if n_blocks != wiring.n_layers:
        raise BlocklabError(
            f"{type(module).__name__}: found {n_blocks} blocks, ours has {wiring.n_layers}"
        )
    blocks = [
        _block_layouts(module.get_submodule(f"{prefix}.{i}"), wiring, d_model, d_ff)
        for i in range(n_blocks)
    ]
    outside = Gathered(
        tuple(s for s in whole.sheets if not s.name.startswith(f"{prefix}.")),
        tuple(v for v in whole.vectors if not v.name.startswith(f"{prefix}.")),
    )
    around = _outside(outside, d_model, *sizes, type(module).__name__)
    found = []
    for choice in range(min(len(layouts) for layouts in blocks)):
        parts = [
            _named(layouts[choice], f"{prefix}.{i}").under(f"blocks.{i}")
            for i, layouts in enumerate(blocks)
        ]
        layout = joined([around, *parts])
        found.append(replace(layout, cost=parts[0].cost, against=parts[0].against))
    return found[:MOST]


def _named(layout: Layout, path: str) -> Layout:
    """The layout of a block, its names from the whole module on."""
    names = {ours: f"{path}.{theirs}" for ours, theirs in layout.names.items()}
    return replace(layout, names=names)


def _blocks(module: nn.Module) -> tuple[str, int]:
    """Path of the list of blocks, and how many there are: the list that holds most."""
    held: dict[str, set[int]] = defaultdict(set)
    weight: dict[str, int] = defaultdict(int)
    # A block that stands in the list twice is two blocks.
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found = re.match(r"^(.*?)\.(\d+)\.", name)
        if found:
            held[found[1]].add(int(found[2]))
            weight[found[1]] += parameter.numel()
    if not held:
        raise BlocklabError(f"{type(module).__name__}: no list of blocks found among its modules")
    prefix = max(weight, key=lambda path: weight[path])
    return prefix, len(held[prefix])


def _block_layouts(
    block: nn.Module, wiring: TransformerWiring, d_model: int, d_ff: int
) -> list[Layout]:
    found = gathered(block, wiring.attention.n_heads)
    feeding = [[sheet for sheet in way if _feeds(sheet, d_ff)] for way in found.ways]
    attending = [[sheet for sheet in way if not _feeds(sheet, d_ff)] for way in found.ways]
    attention = attention_layouts(attending, d_model, wiring.attention)
    make = mlp_layouts if isinstance(wiring.feed_forward, MLPWiring) else gated_layouts
    feed_forward = make(feeding, d_model, d_ff)
    for name, layouts, sheets in (
        ("attention", attention, attending[0]),
        ("feed_forward", feed_forward, feeding[0]),
    ):
        if not layouts:
            shapes = ", ".join(f"{s.name} {tuple(s.matrix.shape)}" for s in sheets) or "none"
            raise BlocklabError(
                f"{type(block).__name__}: no matrices that fit our {name}; found {shapes}"
            )
    norms_ways = _norms(found.vectors, wiring.placement)
    choices = itertools.product(norms_ways, attention[: MOST // 2], feed_forward[:4])
    parts = [
        joined([norms, a.under("attention"), f.under("feed_forward")]) for norms, a, f in choices
    ]
    return sorted(parts, key=lambda layout: layout.cost)


def _feeds(sheet: Sheet, d_ff: int) -> bool:
    if _FEED_FORWARD.search(sheet.name):
        return True
    return any(size in (d_ff, 2 * d_ff) for size in sheet.matrix.shape) and "att" not in sheet.name


def _norms(vectors: tuple[Vectors, ...], placement: Placement) -> list[Layout]:
    """Attention's norm and the feed-forward's, by name or by order; the other way round late."""
    if len(vectors) < 2:
        return [
            joined([norm_layouts(vectors)[0].under("norm.attention")]) if vectors else Layout({})
        ]
    first, second = vectors[:2]
    roles = _norm_role(first.name, placement), _norm_role(second.name, placement)
    if roles[0] == roles[1]:
        late = Layout({}, {}, UNUSUAL)
    else:
        if roles[0] == "feed_forward" or roles[1] == "attention":
            first, second = second, first
        against = ((second.name, "attention's norm"), (first.name, "the feed-forward's norm"))
        late = Layout({}, {}, CONTRADICTION, against=against)
    return [
        joined(
            [
                norm_layouts([a])[0].under("norm.attention"),
                norm_layouts([b])[0].under("norm.feed_forward"),
                order,
            ]
        )
        for a, b, order in ((first, second, Layout({})), (second, first, late))
    ]


def _norm_role(name: str, placement: Placement) -> str | None:
    """Which sublayer a norm's name says that it belongs to."""
    after = _AFTER_ATTENTION.search(name) and placement == "pre"
    if _FEED_FORWARD.search(name) or after:
        return "feed_forward"
    return "attention" if "att" in name else None


def _outside(
    found: Gathered, d_model: int, vocab_size: int, context_length: int, name: str
) -> Layout:
    """Embedding, positions, final norm and head."""
    tables = [sheet for sheet in found.sheets if sheet.matrix.shape == (vocab_size, d_model)]
    looked_up = [sheet for sheet in tables if sheet.looked_up]
    heads = [s for s in tables if not s.looked_up and s.stored != "unknown"]
    heads += [
        way
        for sheet in found.sheets
        if sheet.stored != "out_in"
        for way in sheet.oriented(vocab_size, d_model)
        if sheet not in tables
    ]
    embedding = next(iter(looked_up or tables), None)
    if embedding is None:
        raise BlocklabError(
            f"{name}: no table of shape ({vocab_size}, {d_model}) found for the token embedding"
        )
    parts = [layout_of({"embedding": embedding})]
    if heads:
        parts.append(layout_of({"head": heads[0]}))
    places = [
        sheet
        for sheet in found.sheets
        if sheet.matrix.shape == (context_length, d_model) and sheet is not embedding
    ]
    if places:
        parts.append(layout_of({"positions": places[0]}))
    if found.vectors:
        parts.append(norm_layouts(found.vectors[-1:])[0].under("final_norm"))
    return joined(parts)
