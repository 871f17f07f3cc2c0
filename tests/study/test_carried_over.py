"""What a variant leaves of the baseline is said, whichever way it is left."""

import pytest

from blocklab.study.carried_over import carried_over
from blocklab.study.plan import plan
from blocklab.study.study import Study

from .test_study import TEXT


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block.attention.window": 4}, "; layer 2: block.attention.window as stated"),
        ({"block.norm.kind": "layer"}, "eps"),
        ({"positions.base": 500.0}, ""),
    ],
)
def test_it_ends_the_sentence_of_a_variant(changes, said):
    study = Study.parse(
        {
            "question": "?",
            "baseline": {
                "name": "base",
                "preset": "modern",
                "d_model": 32,
                "n_layers": 3,
                "n_heads": 2,
                "context_length": 16,
                "set": {"blocks.2.attention.window": 8},
            },
            "variants": {"changed": changes},
            "training": {"steps": 10},
            "match": "none",
        }
    )
    found = carried_over(plan(study, TEXT), "changed")
    assert said in found
    assert bool(found) == bool(said)
