"""A folder's study can be asked more, and forgets nothing of what it was asked before."""

import pytest

from blocklab.errors import BlocklabError
from blocklab.study.folder import REPORT, Circumstances, StudyFolder
from tests.study.test_study import TEXT, minimal

LAYER_NORM = {"block.norm.kind": "layer"}
PLAIN = {"block.feed_forward": {"kind": "mlp", "bias": False}}
BOTH = {"layer-norm": LAYER_NORM, "plain": PLAIN, "both": {**LAYER_NORM, **PLAIN}}
TOGETHER = {"norm and mlp": ("layer-norm", "plain", "both")}


def holding(tmp_path, study):
    folder = StudyFolder(tmp_path)
    folder.write(study, Circumstances(TEXT, "blocklab ablate", {}), ())
    return folder


def test_further_variants_leave_variants_and_interactions_as_they_were(tmp_path):
    held = minimal(variants=BOTH, interactions=TOGETHER)
    more = minimal(variants={"post": {"block.placement": "post"}})
    wider = holding(tmp_path, held).widened(more, TEXT.fingerprint)
    assert dict(wider.variants) == {**held.variants, **more.variants}
    assert wider.interactions == held.interactions


def test_a_further_interaction_joins_those_that_are_there(tmp_path):
    held = minimal(variants=BOTH)
    wider = holding(tmp_path, held).widened(
        minimal(variants=BOTH, interactions=TOGETHER), TEXT.fingerprint
    )
    assert wider.interactions == TOGETHER


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"variants": {"layer-norm": {"block.norm": {"kind": "none"}}}}, "variants.layer-norm"),
        (
            {"variants": BOTH, "interactions": {"norm and mlp": ("plain", "layer-norm", "both")}},
            "interactions.norm and mlp",
        ),
        (
            {"training": {"steps": 11, "batch_size": 2, "learning_rates": [1e-3, 1e-2]}},
            "training.steps",
        ),
    ],
)
def test_what_differs_is_refused_by_name(fields, path, tmp_path):
    held = minimal(variants=BOTH, interactions=TOGETHER)
    with pytest.raises(BlocklabError, match=f"holds another study: {path}"):
        holding(tmp_path, held).widened(minimal(**fields), TEXT.fingerprint)


def seeds_of(tmp_path, *, reported, **fields):
    """A folder's study, whose report was made or not."""
    folder = holding(tmp_path, minimal(**fields))
    if reported:
        (tmp_path / REPORT).write_text("", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("held", "reported", "asked", "looked"),
    [
        ({"seeds": 5}, True, {"seeds": 8}, 5),
        ({"seeds": 5}, True, {"seeds": 5}, 0),
        ({"seeds": 5}, False, {"seeds": 8}, 0),
        # What was looked at stays so, whichever folder it went through.
        ({"seeds": 8, "looked": 5}, True, {"seeds": 8}, 5),
        ({"seeds": 8, "looked": 5}, False, {"seeds": 8}, 5),
        ({"seeds": 8, "looked": 5}, True, {"seeds": 12}, 8),
        ({"seeds": 8, "looked": 5}, False, {"seeds": 12}, 5),
        ({"seeds": 8, "looked": 5}, True, {"seeds": 7}, 5),
        ({"seeds": 5}, False, {"seeds": 8, "looked": 3}, 3),
        # Another way to read the same losses does not make them new.
        ({"seeds": 5}, True, {"seeds": 8, "delta": 0.02, "resolution": 0.01}, 5),
        ({"seeds": 5}, True, {"seeds": 8, "ladder": {"tokens": [0.5]}, "budget": "x"}, 5),
        # Other losses are.
        ({"seeds": 5}, True, {"seeds": 8, "match": "none"}, 0),
        # Of the first five alone the first look was the verdict.
        ({"seeds": 8, "looked": 5}, True, {"seeds": 5}, 0),
    ],
)
def test_seeds_that_were_looked_at_stay_so_when_their_runs_are_reused(
    held, reported, asked, looked, tmp_path
):
    folder = seeds_of(tmp_path, reported=reported, **held)
    assert folder.continued_by(minimal(**asked)).looked == looked


def test_a_folder_keeps_what_a_study_already_knows_to_be_looked_at(tmp_path):
    folder = seeds_of(tmp_path, reported=False, seeds=5)
    wider = folder.widened(minimal(seeds=8, looked=5), TEXT.fingerprint)
    assert (wider.seeds, wider.looked) == (8, 5)


@pytest.mark.parametrize(("there", "here"), [("two-look", 20), (5, "two-look")])
def test_looking_twice_is_not_declared_or_taken_back_by_reusing(there, here, tmp_path):
    folder = seeds_of(tmp_path, reported=True, seeds=there, search=True)
    with pytest.raises(BlocklabError, match="how often the study looks was fixed"):
        folder.continued_by(minimal(seeds=here, search=True))
