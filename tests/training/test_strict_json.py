"""What is not finite is written as JSON that every program reads, and comes back."""

import json
import math

import pytest

from blocklab.training.strict_json import restored, strict


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"a": 1.5, "b": [None, True, "nan"]},
        {"a": math.nan, "b": {"c": [1.0, -math.inf, {"d": math.inf}]}},
    ],
)
def test_a_mapping_comes_back_as_it_was(content):
    written = json.dumps(strict(content), allow_nan=False)
    assert repr(restored(json.loads(written, parse_constant=refuse))) == repr(content)
