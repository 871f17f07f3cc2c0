"""A part that is null, or a word: what a path into it starts from, and that nothing is guessed."""

from pathlib import Path

import pytest
from pydantic import SerializeAsAny

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.parts.norm import NormConfig
from blocklab.record import Record

MODERN = bl.presets.modern(d_model=32, n_heads=2, n_layers=3, vocab_size=11, context_length=8)


@pytest.mark.parametrize("before", [None, "same"])
@pytest.mark.parametrize("changes", [{"final_norm.eps": 0.5}, {"final_norm": {"eps": 0.5}}])
def test_a_path_into_the_final_norm_starts_from_what_it_follows(
    before: object, changes: dict[str, object]
) -> None:
    """Of the slot's own default kind it would have a bias."""
    rms = MODERN.block.norm
    start = MODERN.with_changes({"final_norm": before})
    assert start.with_changes(changes).final_norm == rms.model_copy(update={"eps": 0.5})
    assert MODERN.with_changes({"final_norm": before, **changes}) == start.with_changes(changes)
    layer = start.with_changes({"block.norm": {"kind": "layer", "bias": False}, **changes})
    assert layer.final_norm == bl.parts.LayerNorm.Config(eps=0.5, bias=False)


@pytest.mark.parametrize("before", [None, "same"])
def test_a_kind_said_where_none_was_has_its_own_defaults(before: object) -> None:
    start = MODERN.with_changes({"final_norm": before})
    for changes in ({"final_norm.kind": "layer"}, {"final_norm": "layer"}):
        assert start.with_changes(changes).final_norm == bl.parts.LayerNorm.Config()
        assert start.kept(changes) == ()


def test_after_post_norms_there_is_no_final_norm_to_change() -> None:
    with pytest.raises(BlocklabError, match=r"^final_norm\.eps: unknown key 'eps'; layer, rms"):
        MODERN.with_changes({"block.placement": "post", "final_norm.eps": 0.5})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"block.attention.qk_norm.eps": 0.5},
            r"^block\.attention\.qk_norm\.eps: block\.attention\.qk_norm is null; "
            r"set block\.attention\.qk_norm\.kind first$",
        ),
        (
            {"block.attention.qk_norm": {"eps": 0.5}},
            r"^block\.attention\.qk_norm is null; set block\.attention\.qk_norm\.kind first$",
        ),
        (
            {"block.attention": {"qk_norm": {"eps": 0.5}}},
            r"^block\.attention\.qk_norm is null; set block\.attention\.qk_norm\.kind first$",
        ),
        (
            {"blocks.1.attention.qk_norm.eps": 0.5},
            r"^layers at '1': .*: block\.attention\.qk_norm is null; set ",
        ),
        (
            {"block.attention": {"kind": "causal", "n_heads": 2, "qk_norm": {"eps": 0.5}}},
            r"^block\.attention: qk_norm is null by default and has no kind; give qk_norm\.kind "
            r"\(layer, rms",
        ),
    ],
    ids=str,
)
def test_a_part_that_is_null_is_never_switched_on_unsaid(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BlocklabError, match=message):
        MODERN.with_changes(changes)


def test_a_file_that_gives_a_null_part_no_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("block: {norm: {kind: rms}}\nfinal_norm: {eps: 0.5}\n")
    with pytest.raises(
        BlocklabError, match=r"model\.yaml: final_norm is null by default and has no"
    ):
        ModelConfig.from_yaml(file)


def test_a_part_named_or_stated_by_an_earlier_change_is_changed_further() -> None:
    rms = bl.parts.RMSNorm.Config(eps=0.5)
    for first in ("rms", {"kind": "rms"}, {"kind": "rms", "eps": -1}):
        new = MODERN.with_changes({"final_norm": first, "final_norm.eps": 0.5})
        assert new.final_norm == rms
    block = {"kind": "standard", "parallel": "one_norm", "placement": "post", "norm": rms.plain()}
    mended = {"block": block, "block.norm": {"eps": 0.25}, "block.placement": "pre"}
    new = MODERN.with_changes({**mended, "block.attention.n_heads": 2})
    assert new.block.norm == bl.parts.RMSNorm.Config(eps=0.25)


class Holder(Record):
    """A field whose default is of another kind than its slot's."""

    norm: SerializeAsAny[NormConfig] = bl.parts.RMSNorm.Config()


def test_a_mapping_without_kind_is_of_the_kind_that_stands_there_by_default() -> None:
    assert Holder.parse({"norm": {"eps": 0.5}}).norm == bl.parts.RMSNorm.Config(eps=0.5)
    assert NormConfig.default_kind != "rms"
