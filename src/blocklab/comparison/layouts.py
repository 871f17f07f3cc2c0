"""Which of a learner's tensors is which of ours: every way that fits the shapes, likeliest first.

A layout is no mistake: fused or separate, transposed or not, in another order, it is the same map.
Names decide between ways that fit equally; a way that contradicts a name comes late.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from blocklab.comparison.attention import AttentionWiring
from blocklab.comparison.sheets import Sheet, Vectors

CONTRADICTION = 10
"""What a contradicted name costs; a mistake costs half of it."""
Ways: TypeAlias = Sequence[Sequence[Sheet]]
"""The sheets to lay out; then, to be tried next, with those repeated that stand in two places."""

UNUSUAL = 4
"""What an order costs that no name speaks for or against: less than a mistake."""


@dataclass(frozen=True)
class Layout:
    """Their tensors under our names. `names` says where each came from."""

    tensors: dict[str, Tensor]
    names: dict[str, str] = field(default_factory=dict)
    cost: int = 0
    sources: dict[str, frozenset[int]] = field(default_factory=dict)
    """Identities of the parameters that each is made of."""
    against: tuple[tuple[str, str], ...] = ()
    """Their names, and what each is read as although it says otherwise."""

    @property
    def used(self) -> frozenset[int]:
        """Identities of every parameter that has a place here."""
        return frozenset().union(*self.sources.values())

    def under(self, prefix: str) -> "Layout":
        return Layout(
            {f"{prefix}.{name}": tensor for name, tensor in self.tensors.items()},
            {f"{prefix}.{name}": where for name, where in self.names.items()},
            self.cost,
            {f"{prefix}.{name}": ids for name, ids in self.sources.items()},
            self.against,
        )


def joined(layouts: Iterable[Layout]) -> Layout:
    """Several parts' layouts as one."""
    parts = list(layouts)
    return Layout(
        {name: tensor for layout in parts for name, tensor in layout.tensors.items()},
        {name: where for layout in parts for name, where in layout.names.items()},
        sum(layout.cost for layout in parts),
        {name: ids for layout in parts for name, ids in layout.sources.items()},
        tuple(pair for layout in parts for pair in layout.against),
    )


def norm_layouts(vectors: Sequence[Vectors]) -> list[Layout]:
    """Gain and shift of a norm, and the other way round, which two names may contradict."""
    if not vectors:
        return [Layout({})]
    one = vectors[0]
    tensors = {"weight": one.weight, "bias": one.bias}
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    names = {"weight": one.weight_name, "bias": one.bias_name}
    found = [Layout(given, {name: names[name] for name in given}, 0, dict(one.sources))]
    if len(given) == 2:
        other = {"weight": "bias", "bias": "weight"}
        against = ((one.bias_name, "gain"), (one.weight_name, "shift")) if one.told_apart else ()
        found.append(
            Layout(
                {name: given[other[name]] for name in given},
                {name: names[other[name]] for name in given},
                CONTRADICTION if one.told_apart else UNUSUAL,
                {name: one.sources[other[name]] for name in given},
                against,
            )
        )
    return found


def mlp_layouts(ways: Ways, d_model: int, d_ff: int) -> list[Layout]:
    """Two matrices."""
    wanted = {"expand": (d_ff, d_model), "contract": (d_model, d_ff)}
    return _first_found(_assigned(sheets, wanted, _mlp_role) for sheets in ways)


def gated_layouts(ways: Ways, d_model: int, d_ff: int) -> list[Layout]:
    """Three matrices, or gate and up fused into one."""
    return _first_found(_gated(sheets, d_model, d_ff) for sheets in ways)


def _gated(sheets: Sequence[Sheet], d_model: int, d_ff: int) -> list[Layout]:
    wanted = {"gate": (d_ff, d_model), "up": (d_ff, d_model), "contract": (d_model, d_ff)}
    found = list(_assigned(sheets, wanted, _gated_role))
    for fused, rest in _ways(sheets, 2 * d_ff, d_model):
        for contract in (way for sheet in rest for way in sheet.oriented(d_model, d_ff)):
            rows = torch.arange(2 * d_ff)
            # The gate comes first by convention: the other way round is a mistake with a name.
            ways = ((rows[:d_ff], rows[d_ff:], 0), (rows[0::2], rows[1::2], 1))
            for gate, up, cost in ways:
                parts = {
                    "gate": fused.rows(gate, "rows of the gate"),
                    "up": fused.rows(up, "rows of up"),
                    "contract": contract,
                }
                found.append(layout_of(parts, cost))
    return found


def attention_layouts(ways: Ways, d_model: int, wiring: AttentionWiring) -> list[Layout]:
    """Fused or separate projections, with an output projection or without one."""
    tries = [(sheets, True) for sheets in ways] + [(ways[0], False)]
    return _first_found(_attention(sheets, d_model, wiring, last) for sheets, last in tries)


def _attention(
    sheets: Sequence[Sheet], d_model: int, wiring: AttentionWiring, with_output: bool
) -> list[Layout]:
    wide, narrow = wiring.n_heads * wiring.head_dim, wiring.n_kv_heads * wiring.head_dim
    wanted = {"query": (wide, d_model), "key": (narrow, d_model), "value": (narrow, d_model)}
    output = {"output": (d_model, wide)} if with_output else {}
    found = list(_assigned(sheets, wanted | output, _attention_role))
    for fused, rest in _ways(sheets, wide + 2 * narrow, d_model):
        outputs = [{"output": way} for sheet in rest for way in sheet.oriented(d_model, wide)]
        for parts, cost in _fused_rows(fused, wiring):
            found += [layout_of(parts | last, cost) for last in (outputs if output else [{}])]
    return found


def _ways(sheets: Sequence[Sheet], d_out: int, d_in: int) -> Iterator[tuple[Sheet, list[Sheet]]]:
    """Every sheet that can be (d_out, d_in), oriented so, and the other sheets."""
    for sheet in sheets:
        for way in sheet.oriented(d_out, d_in):
            yield way, [other for other in sheets if other is not sheet]


def _fused_rows(fused: Sheet, wiring: AttentionWiring) -> Iterator[tuple[dict[str, Sheet], int]]:
    """Queries, keys and values inside one matrix: in blocks of any order, or head by head."""
    heads = {"query": wiring.n_heads, "key": wiring.n_kv_heads, "value": wiring.n_kv_heads}
    for number, order in enumerate(itertools.permutations(heads)):
        index, start = {}, 0
        for name in order:
            size = heads[name] * wiring.head_dim
            index[name] = torch.arange(start, start + size)
            start += size
        yield {n: fused.rows(i, f"rows of the {n}") for n, i in index.items()}, min(number, 1) * 3
        if wiring.n_heads != wiring.n_kv_heads:
            continue
        by_head = torch.arange(start).view(wiring.n_heads, 3, wiring.head_dim)
        yield (
            {
                name: fused.rows(by_head[:, place].flatten(), f"rows of each head's {name}")
                for place, name in enumerate(order)
            },
            1 + min(number, 1) * 3,
        )


def _assigned(
    sheets: Sequence[Sheet], wanted: dict[str, tuple[int, int]], role: "RoleOf"
) -> Iterator[Layout]:
    """Every way to give each of our matrices one of theirs that fits it."""
    if len(sheets) < len(wanted):
        return
    for chosen in itertools.permutations(sheets, len(wanted)):
        pairs = list(zip(wanted.items(), chosen, strict=True))
        against = tuple(
            (sheet.name, name) for (name, _), sheet in pairs if role(sheet.name) not in (None, name)
        )
        ways = [sheet.oriented(*shape) for (_, shape), sheet in pairs]
        for parts in itertools.product(*ways):
            cost = CONTRADICTION * len(against)
            yield layout_of(dict(zip(wanted, parts, strict=True)), cost, against)


def layout_of(
    parts: dict[str, Sheet], cost: int = 0, against: tuple[tuple[str, str], ...] = ()
) -> Layout:
    """Sheets under our names."""
    tensors: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    sources: dict[str, frozenset[int]] = {}
    for name, sheet in parts.items():
        tensors |= sheet.tensors(name)
        sources |= {f"{name}.{kind}": ids for kind, ids in sheet.sources.items()}
        names |= dict.fromkeys(sheet.tensors(name), sheet.name)
        # Transposed only where nothing else fits as well.
        cost += sheet.name.endswith("transposed")
    return Layout(tensors, names, cost, sources, against)


def _first_found(tries: Iterable[Iterable[Layout]]) -> list[Layout]:
    """The layouts of the first try that has some, the cheapest first."""
    found = next((some for layouts in tries if (some := list(layouts))), [])
    return sorted(found, key=lambda layout: layout.cost)


class RoleOf:
    """What a tensor's name says it is for, if anything."""

    def __init__(self, **words: str) -> None:
        self.words = {role: set(text.split()) for role, text in words.items()}

    def __call__(self, name: str) -> str | None:
        steps = re.split(r"[._\s]+", re.sub(r" transposed| *,.*", "", name.lower()))
        return next((role for role, words in self.words.items() if words & set(steps)), None)


_attention_role = RoleOf(
    query="q query queries wq toq qproj queryproj wquery",
    key="k key keys wk tok kproj wkey",
    value="v val value values wv tov vproj wvalue",
    output="o out output proj projection wo dense outproj oproj unifyheads",
)
_mlp_role = RoleOf(
    expand="expand fc fc1 up w1 l1 linear1 lin1 in h4h",
    contract="contract proj fc2 down w2 l2 linear2 lin2 out c",
)
_gated_role = RoleOf(gate="gate", up="up", contract="down contract out w2 c")
