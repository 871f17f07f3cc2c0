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


@pytest.mark.parametrize("temperature", [1e-44, 1e-50, 1e-320])
def test_a_temperature_that_float32_has_no_number_for_is_greedy(temperature: float) -> None:
    given = torch.cat([logits(seed) for seed in range(3)])
    rules = Sampling(temperature=temperature, seed=1)
    drawing = Choice(rules, torch.zeros(3, 1, dtype=torch.long), None, VOCABULARY)
    assert torch.equal(drawing.next(given), given.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("penalty", [1e-300, 1e-50, 1e50, 1e300])
def test_an_extreme_penalty_decides_and_draws_a_token(penalty: float, dtype: torch.dtype) -> None:
    given = logits(0)
    met = torch.stack((given.argmax(), given.argmin()))[None]
    for temperature in (0.0, 1.0):
        rules = Sampling(temperature=temperature, repetition_penalty=penalty, seed=1)
        drawn = int(Choice(rules, met.to(dtype), None, VOCABULARY).next(given))
        # What divides by next to nothing lets nothing but the likeliest through; what divides by
        # more than all leaves it at 0.
        assert (drawn == int(met[0, 0])) == (penalty < 1)


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
