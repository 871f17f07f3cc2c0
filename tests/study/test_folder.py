"""A folder's study can be asked more, and forgets nothing of what it was asked before."""

import pytest

from blocklab.errors import BlocklabError
from blocklab.study.folder import Circumstances, StudyFolder
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
