"""Whatever a declared change brings about is explained by it, and nothing else is."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import blocklab as bl
from blocklab.model.transformer import Transformer
from blocklab.study.differences import (
    anatomy,
    differing,
    leaves,
    unexplained_leaves,
    unexplained_places,
)
from tests.model.strategies import configs
from tests.study.test_probes import built

CHANGES = {
    "vocab_size": [17],
    "context_length": [8],
    "d_model": [48],
    "n_layers": [4],
    "tie_embeddings": [True, False],
    "dropout": [0.2],
    "embedding.scale": [3.0],
    "positions.kind": ["learned", "sinusoidal", "none", "alibi"],
    "block.placement": ["post", "sandwich", "output", "pre"],
    "block.parallel": ["one_norm", "two_norms"],
    "block.norm.kind": ["layer", "dyt", "none"],
    "block.attention.n_heads": [1],
    "block.attention.window": [3],
    "block.feed_forward": [{"kind": "mlp", "d_ff": 20}],
    "block.residual": [{"kind": "scaled", "learned": True}],
    "blocks.0.norm.kind": ["dyt"],
    "blocks.-1.feed_forward.d_ff": [20],
    "layers": [[{"at": "::2", "block.attention.window": 3}]],
    "final_norm": ["none", {"kind": "layer"}],
    "head.bias": [True],
    "head.softcap": [9.0],
    "initialization.kind": ["depth", "fan_in"],
    "initialization.residual_writers": ["zero"],
}

changes = st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda paths: st.fixed_dictionaries({path: st.sampled_from(CHANGES[path]) for path in paths})
)


def between(before, changed):
    """Every place and every leaf of the record that differs."""
    one, other = (anatomy(Transformer(config, seed=0)) for config in (before, changed))
    places = [
        *differing(one.modules, other.modules),
        *differing(one.shapes, other.shapes),
        *differing(one.values, other.values),
    ]
    return places, differing(leaves(before), leaves(changed))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(configs(), changes)
def test_whatever_a_declared_change_brings_about_is_explained_by_it(config, declared):
    try:
        changed = config.with_changes(declared)
    except bl.BlocklabError:
        assume(False)
    places, records = between(config, changed)
    n_layers = max(config.n_layers, changed.n_layers)
    assert unexplained_places(places, declared, n_layers, standard=True) == []
    assert unexplained_leaves(records, declared) == []


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path in CHANGES for value in CHANGES[path]]
)
def test_each_change_explains_all_that_follows_from_it(path, value):
    before = built(
        **{
            "positions.kind": "alibi",
            "layers": [{"at": "-1", "positions.kind": "rotary"}],
            "block.attention.qk_norm": {"kind": "rms"},
        }
    ).config
    if path == "positions.kind" and value in ("learned", "sinusoidal"):
        before = before.with_changes({"layers": []})
    changed = before.with_changes({path: value})
    places, records = between(before, changed)
    assert (places, records) != ([], []) or value in (False, "pre", "alibi", "fan_in")
    n_layers = max(before.n_layers, changed.n_layers)
    assert unexplained_places(places, [path], n_layers, standard=True) == []
    assert unexplained_leaves(records, [path]) == []


@pytest.mark.parametrize(
    ("declared", "made"),
    [
        ("block.norm.kind", {"block.attention.n_heads": 4}),
        ("block.attention.n_heads", {"block.feed_forward.d_ff": 24}),
        ("blocks.0.norm.kind", {"blocks.1.norm.kind": "layer"}),
        ("blocks.0.norm.kind", {"final_norm": {"kind": "layer"}}),
        ("positions.kind", {"tie_embeddings": True}),
        ("head.bias", {"embedding.scale": 2.0}),
        ("dropout", {"block.residual": {"kind": "scaled", "learned": True}}),
        ("block.placement", {"head.bias": True}),
        ("block.placement", {"block.attention.n_heads": 4}),
        ("block.parallel", {"block.feed_forward.d_ff": 24}),
    ],
)
def test_what_another_change_brings_about_is_not_explained(declared, made):
    before = built().config
    places, records = between(before, before.with_changes(made))
    assert unexplained_places(places, [declared], 2, standard=True) != []
    if not declared.startswith("blocks"):
        assert unexplained_leaves(records, [declared]) != []


@pytest.mark.parametrize(
    ("declared", "place"),
    [
        # What only a user's own positions, block or table could bring about.
        ("context_length", "layer_positions.1.table"),
        ("positions.kind", "layer_positions.0.table"),
        ("block", "final_norm.weight"),
        ("block.kind", "blocks.1.anything"),
        ("block", "blocks.1.anything"),
        ("layers", "layer_positions.1"),
        ("d_model", "anything"),
        ("initialization.kind", "anything"),
    ],
)
def test_a_change_may_reach_beyond_its_own_place(declared, place):
    assert unexplained_places([place], [declared], 2, standard=True) == []


@pytest.mark.parametrize("standard", [True, False])
def test_another_kind_of_block_does_not_explain_another_final_norm(standard):
    """The record then states the norm that it followed, and the model must still have that one."""
    assert unexplained_leaves(["final_norm", "final_norm.kind"], ["block.kind"]) == []
    assert unexplained_leaves(["head.bias"], ["block.kind"]) == ["head.bias"]
    lost = ["final_norm", "final_norm.weight"]
    assert unexplained_places(lost, ["block.kind"], 2, standard=standard) == lost
    also = ["block.kind", "block.norm.kind"]
    assert unexplained_places(lost, also, 2, standard=standard) == []


def test_inside_a_block_of_ones_own_any_change_of_it_may_show_anywhere():
    assert unexplained_places(["blocks.1.mixer"], ["block.norm.eps"], 2, standard=False) == []
    assert unexplained_places(["blocks.1.mixer"], ["block.norm.eps"], 2, standard=True) != []
    assert unexplained_places(["blocks.1.mixer"], ["blocks.0.norm.eps"], 2, standard=False) != []
