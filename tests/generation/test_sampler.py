"""Generation against a loop written here, and its promises about state and randomness."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.generation import sampler
from blocklab.generation.sampler import sample_tokens
from blocklab.model.config import ModelConfig
from tests.model.strategies import CONTEXT, configs, for_every_config, random_tokens, randomized

CONFIG = bl.presets.gpt2(
    d_model=16, n_heads=2, n_layers=2, vocab_size=13, context_length=CONTEXT, dropout=0.3
).with_changes({"initialization": {"kind": "fan_in", "head_std": 1.0}})


@pytest.fixture
def model() -> bl.Transformer:
    return randomized(CONFIG)


def greedy(model: bl.Transformer, tokens: Tensor, n: int) -> Tensor:
    """One sequence at a time, everything computed anew, the last context_length tokens only."""
    rows = []
    for row in tokens:
        for _ in range(n):
            with torch.no_grad():
                logits = model(row[None, -model.config.context_length :])
            row = torch.cat((row, logits[0, -1].argmax()[None]))
        rows.append(row)
    return torch.stack(rows)


@for_every_config
@given(configs(), st.integers(1, CONTEXT + 3), st.booleans())
def test_greedy_is_the_plain_loop_within_and_past_the_context(
    config: ModelConfig, length: int, use_cache: bool
) -> None:
    model, tokens = randomized(config), random_tokens(2, length)
    out = bl.generate(model, tokens, max_new_tokens=6, use_cache=use_cache)
    assert torch.equal(out, greedy(model, tokens, 6))


@for_every_config
@given(configs(), st.lists(st.integers(1, CONTEXT), min_size=2, max_size=3), st.booleans())
def test_a_left_padded_batch_writes_what_each_prompt_writes_alone(
    config: ModelConfig, lengths: list[int], use_cache: bool
) -> None:
    model, width = randomized(config), max(lengths)
    tokens = random_tokens(len(lengths), width)
    mask = torch.stack([torch.arange(width) >= width - n for n in lengths]).long()
    out = bl.generate(model, tokens, max_new_tokens=5, use_cache=use_cache, attention_mask=mask)
    for i, n in enumerate(lengths):
        alone = greedy(model, tokens[i : i + 1, width - n :], 5)
        assert torch.equal(out[i, width - n :], alone[0])


def test_the_prompt_comes_first_and_nothing_new_is_the_prompt(model: bl.Transformer) -> None:
    tokens = random_tokens(2, 4)
    assert torch.equal(bl.generate(model, tokens, max_new_tokens=3)[:, :4], tokens)
    assert torch.equal(bl.generate(model, tokens, max_new_tokens=0), tokens)


def sampled(model: bl.Transformer, **arguments: Any) -> Counter[int]:
    """How often each token follows one prompt, in 4,000 draws."""
    prompt = random_tokens(1, 3).expand(4000, 3)
    drawn = bl.generate(model, prompt, max_new_tokens=1, seed=0, **arguments)[:, -1]
    return Counter(drawn.tolist())


def probabilities(model: bl.Transformer, temperature: float) -> Tensor:
    with torch.no_grad():
        return (model(random_tokens(1, 3))[0, -1] / temperature).softmax(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_their_probabilities_say(
    model: bl.Transformer, temperature: float
) -> None:
    expected = probabilities(model, temperature)
    counts = sampled(model, temperature=temperature)
    for token, p in enumerate(expected.tolist()):
        assert counts[token] / 4000 == pytest.approx(p, abs=5 * (p * (1 - p) / 4000) ** 0.5 + 1e-3)


@pytest.mark.parametrize("k", [1, 3, 99])
def test_top_k_draws_from_the_k_likeliest(model: bl.Transformer, k: int) -> None:
    expected = probabilities(model, 5.0)
    allowed = set(expected.argsort(descending=True)[:k].tolist())
    assert set(sampled(model, temperature=5.0, top_k=k)) == allowed


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.6, 0.9])
def test_top_p_draws_from_the_fewest_that_reach_p(model: bl.Transformer, p: float) -> None:
    expected, allowed, reached = probabilities(model, 5.0), set(), 0.0
    for token in expected.argsort(descending=True).tolist():
        if reached >= p:
            break
        allowed.add(token)
        reached += expected[token].item()
    assert set(sampled(model, temperature=5.0, top_p=p)) == allowed


def test_top_p_counts_within_the_top_k(model: bl.Transformer) -> None:
    order = probabilities(model, 5.0).sort(descending=True)
    first = (order.values[0] / order.values[:2].sum()).item()
    both = sampled(model, temperature=5.0, top_k=2, top_p=first + 0.01)
    assert set(both) == set(order.indices[:2].tolist())
    one = sampled(model, temperature=5.0, top_k=2, top_p=first - 0.01)
    assert set(one) == {int(order.indices[0])}


@pytest.mark.parametrize("share", [1e-9, 0.2, 0.7, 1.0])
def test_min_p_draws_from_those_at_least_that_likely_beside_the_likeliest(
    model: bl.Transformer, share: float
) -> None:
    expected = probabilities(model, 5.0)
    allowed = set((expected >= share * expected.max()).nonzero().flatten().tolist())
    assert set(sampled(model, temperature=5.0, min_p=share)) == allowed


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_a_repetition_penalty_acts_once_on_every_token_met_the_prompt_too(
    model: bl.Transformer, penalty: float
) -> None:
    row = random_tokens(1, 3)[0].repeat(2)
    written = bl.generate(model, row[None], max_new_tokens=8, repetition_penalty=penalty)[0]
    for n in range(len(row), len(written)):
        with torch.no_grad():
            logits = model(written[None, max(0, n - CONTEXT) : n])[0, -1]
        for token in set(written[:n].tolist()):
            logits[token] *= 1 / penalty if logits[token] > 0 else penalty
        assert int(written[n]) == int(logits.argmax())


def test_padding_is_not_a_token_that_was_met(model: bl.Transformer) -> None:
    prompt = torch.tensor([[5, 6]])
    padded, mask = torch.tensor([[0, 0, 5, 6]]), torch.tensor([[0, 0, 1, 1]])
    alone = bl.generate(model, prompt, max_new_tokens=6, repetition_penalty=3.0)
    batched = bl.generate(
        model, padded, attention_mask=mask, max_new_tokens=6, repetition_penalty=3.0
    )
    assert torch.equal(batched[:, 2:], alone)


def test_one_seed_gives_the_sequences_of_a_batch_different_streams(model: bl.Transformer) -> None:
    tokens = random_tokens(1, 3).expand(3, 3)
    one = bl.generate(model, tokens, max_new_tokens=12, temperature=2.0, seed=4)
    each = bl.generate(model, tokens, max_new_tokens=12, temperature=2.0, seed=[4, 5, 6])
    assert torch.equal(one, each)
    assert len({tuple(row) for row in one.tolist()}) == 3


def test_past_the_context_an_error_comes_before_the_first_token(model: bl.Transformer) -> None:
    fits = bl.generate(model, random_tokens(1, 4), max_new_tokens=7, past_context="error")
    assert fits.shape == (1, CONTEXT + 1)
    with pytest.raises(BlocklabError, match="4 prompt tokens and 8 new ones reach past context_"):
        sample_tokens(model, random_tokens(1, 4), max_new_tokens=8, past_context="error")


@pytest.mark.parametrize("kind", ["alibi", "sinusoidal", "none"])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 4])
def test_extending_reads_every_token_at_its_own_place(
    kind: str, use_cache: bool, window: int | None
) -> None:
    config = CONFIG.with_changes({"positions.kind": kind, "block.attention.window": window})
    model, prompt = randomized(config), random_tokens(2, 4)
    out = bl.generate(
        model, prompt, max_new_tokens=CONTEXT + 5, past_context="extend", use_cache=use_cache
    )
    with torch.no_grad():
        likeliest = model(out).argmax(-1)
    assert torch.equal(out[:, 4:], likeliest[:, 3:-1])


@pytest.mark.parametrize(("kind", "name"), [("learned", "Learned"), ("rotary", "Rotary")])
def test_extending_is_refused_where_places_were_never_trained(kind: str, name: str) -> None:
    model = randomized(CONFIG.with_changes({"positions.kind": kind}))
    with pytest.raises(BlocklabError, match=f"where {name}.* has no trained places"):
        sample_tokens(model, random_tokens(1, 4), max_new_tokens=9, past_context="extend")


def test_a_tiny_temperature_is_greedy_and_not_a_nan(model: bl.Transformer) -> None:
    tokens = random_tokens(2, 3)
    cold = bl.generate(model, tokens, max_new_tokens=5, temperature=1e-30, seed=1)
    assert torch.equal(cold, bl.generate(model, tokens, max_new_tokens=5))


def test_a_seed_repeats_a_sample_and_leaves_the_global_generator_alone(
    model: bl.Transformer,
) -> None:
    def sample(seed: int | None) -> Tensor:
        return bl.generate(
            model, random_tokens(2, 3), max_new_tokens=12, temperature=2.0, seed=seed
        )

    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    assert not torch.equal(sample(None), sample(None))
    assert torch.equal(torch.get_rng_state(), before)


def rules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.7, 3.0]),
            "top_k": st.sampled_from([None, 1, 5, 99]),
            "top_p": st.sampled_from([None, 0.5, 0.9, 1.0]),
            "min_p": st.sampled_from([None, 0.2]),
            "repetition_penalty": st.sampled_from([1.0, 1.5, 0.5]),
        }
    )


@for_every_config
@given(configs(), rules(), st.lists(st.integers(1, CONTEXT + 2), min_size=2, max_size=3))
def test_every_rule_draws_the_same_cached_uncached_and_alone(
    config: ModelConfig, rule: dict[str, Any], lengths: list[int]
) -> None:
    model, width = randomized(config), max(lengths)
    tokens = random_tokens(len(lengths), width)
    mask = torch.stack([torch.arange(width) >= width - n for n in lengths]).long()
    cached, anew = (
        bl.generate(
            model,
            tokens,
            max_new_tokens=6,
            attention_mask=mask,
            use_cache=use_cache,
            seed=5,
            **rule,
        )
        for use_cache in (True, False)
    )
    assert torch.equal(cached, anew)
    for i, n in enumerate(lengths):
        prompt = tokens[i : i + 1, width - n :]
        alone = bl.generate(model, prompt, max_new_tokens=6, seed=5 + i, **rule)
        assert torch.equal(cached[i, width - n :], alone[0])


def test_streaming_yields_the_same_ids_one_step_at_a_time(model: bl.Transformer) -> None:
    tokens = random_tokens(2, 3)
    steps = list(sample_tokens(model, tokens, max_new_tokens=5))
    assert [tuple(ids.shape) for ids in steps] == [(2,)] * 5
    whole = bl.generate(model, tokens, max_new_tokens=5)
    assert torch.equal(torch.stack(steps, dim=1), whole[:, 3:])


def test_modes_gradients_and_hooks_are_as_before_also_between_two_steps(
    model: bl.Transformer,
) -> None:
    model.train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    steps = sample_tokens(model, random_tokens(1, 3), max_new_tokens=3)
    next(steps)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    del steps
    prompts = random_tokens(32, 3)
    out = bl.generate(model, prompts, max_new_tokens=6)
    assert [module.training for module in model.modules()] == modes
    assert not out.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(out, bl.generate(model.eval(), prompts, max_new_tokens=6))


def test_the_mode_comes_back_after_an_error(
    model: bl.Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Tensor:
        raise RuntimeError

    monkeypatch.setattr(model, "features", broken)
    model.train()
    with pytest.raises(RuntimeError):
        bl.generate(model, random_tokens(1, 3), max_new_tokens=3)
    assert model.training


def test_a_stopped_sequence_repeats_its_stop_and_all_stopped_ends(model: bl.Transformer) -> None:
    tokens = random_tokens(2, 3)
    free = bl.generate(model, tokens, max_new_tokens=8)[:, 3:]
    stops = (int(free[0, 1]), int(free[1, 4]))
    out = bl.generate(model, tokens, max_new_tokens=8, stop_ids=stops)[:, 3:]
    ends = []
    for i in range(2):
        end = next(t for t in range(8) if int(free[i, t]) in stops)
        assert torch.equal(out[i, : end + 1], free[i, : end + 1])
        assert set(out[i, end:].tolist()) == {int(free[i, end])}
        ends.append(end)
    assert out.shape[1] == max(ends) + 1 < 8


@pytest.mark.parametrize(
    ("tokens", "arguments", "message"),
    [
        ([[1]], {"temperature": -0.1}, "temperature must be 0 or more, not -0.1"),
        ([[1]], {"temperature": float("nan")}, "temperature must be 0 or more, not nan"),
        ([[1]], {"top_k": 0}, "top_k must be 1 or more, not 0"),
        ([[1]], {"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ([[1]], {"top_p": 1.1}, "top_p must be above 0 and at most 1, not 1.1"),
        ([[1]], {"min_p": 0.0}, "min_p must be above 0 and at most 1, not 0.0"),
        ([[1]], {"repetition_penalty": 0.0}, "repetition_penalty must be above 0, not 0.0"),
        ([[1]], {"seed": [1, 2]}, "2 seeds for 1 sequences"),
        ([[1]], {"past_context": "slide"}, "past_context 'slide': expected one of window, error"),
        ([[1]], {"max_new_tokens": -1}, "max_new_tokens must be 0 or more, not -1"),
        ([[]], {}, "the prompt is empty"),
        ([[1, 13]], {}, "token id 13 does not fit a model with vocab_size 13"),
        ([[-1]], {}, "token id -1 does not fit"),
        ([1], {}, r"shape \(1,\)"),
        ([[1]], {"attention_mask": torch.ones(1, 2)}, r"shape \(1, 2\), expected \(1, 1\)"),
        ([[1, 2]], {"attention_mask": torch.tensor([[1, 0]])}, "put the padding on the left"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_the_first_step(
    model: bl.Transformer, tokens: Any, arguments: dict[str, Any], message: str
) -> None:
    prompt = torch.tensor(tokens, dtype=torch.long)
    with pytest.raises(BlocklabError, match=message):
        bl.generate(model, prompt, **{"max_new_tokens": 2, **arguments})


def test_a_prompt_that_does_not_fit_is_refused_before_the_first_step(
    model: bl.Transformer,
) -> None:
    with pytest.raises(BlocklabError, match="token id 13 does not fit"):
        sample_tokens(model, torch.tensor([[13]]), max_new_tokens=2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_diverged_model_says_so(model: bl.Transformer, temperature: float) -> None:
    with torch.no_grad():
        model.final_norm.weight[0] = float("nan")
    with pytest.raises(BlocklabError, match="logits are not finite"):
        bl.generate(model, random_tokens(1, 3), max_new_tokens=1, temperature=temperature)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_text_from_packed_weights_is_the_one_from_plain_weights(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bl.presets.llama(
        d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, vocab_size=32, context_length=128
    ).with_changes({"block.feed_forward.d_ff": 64, "initialization.head_std": 1.0})
    model, prompt = bl.Transformer(config, seed=0).to(dtype), torch.tensor([[1, 2, 3]])
    made: list[object] = []

    class Watched(sampler.PackedWeights):
        def __init__(self, model: bl.Transformer) -> None:
            made.append(model)
            super().__init__(model)

    monkeypatch.setattr(sampler, "PackedWeights", Watched)
    packed = bl.generate(model, prompt, max_new_tokens=70)
    assert made == [model]
    monkeypatch.setattr(sampler, "PACKED_FROM", 71)
    assert torch.equal(packed, bl.generate(model, prompt, max_new_tokens=70))
    assert made == [model]
