"""Drawing at the ends of what floating point can say: the smallest share, the last token."""

import random

import pytest
import torch
from torch import Tensor

from blocklab.generation.sampling import Choice, Sampling

VOCABULARY = 40


def logits(seed: int) -> Tensor:
    return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed))


class Last(random.Random):
    """Always the end of the line: what is drawn is 1 less this, all of the probability."""

    def random(self) -> float:
        return 0.0


def choice(**rules: float) -> Choice:
    sampling = Sampling(temperature=1.0, seed=1, **rules)  # type: ignore[arg-type]
    return Choice(sampling, torch.zeros(1, 1, dtype=torch.long), None, VOCABULARY)


@pytest.mark.parametrize("share", [1e-6, 1e-45, 1e-300])
def test_the_likeliest_token_stays_however_small_a_share_is_asked_for(share: float) -> None:
    """The last is 0 in the precision of the probabilities, which even the first then reaches."""
    given = logits(0)
    assert int(choice(top_p=share).next(given)) == int(given.argmax())


def total(given: Tensor) -> float:
    return float((given - given.amax()).softmax(-1).cumsum(-1)[0, -1])


def test_the_last_draw_is_a_token_also_where_the_probabilities_add_up_to_less_than_one() -> None:
    given = next(found for found in map(logits, range(99)) if total(found) < 1)
    drawing = choice()
    drawing.streams = [Last()]
    assert 0 <= int(drawing.next(given)) < VOCABULARY


def test_the_last_draw_is_one_of_those_that_a_rule_has_left() -> None:
    for given in map(logits, range(30)):
        drawing = choice(top_p=0.5)
        drawing.streams = [Last()]
        order = given[0].sort(descending=True)
        before = order.values.softmax(-1).cumsum(-1) - order.values.softmax(-1)
        kept = order.indices[before < 0.5].tolist()
        assert int(drawing.next(given)) in kept
