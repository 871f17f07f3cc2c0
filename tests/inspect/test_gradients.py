"""Gradient norms against a plain backward pass, and nothing left behind."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from tests.model.strategies import configs, for_every_config, random_tokens, randomized


@for_every_config
@given(configs())
def test_norms_are_those_of_a_plain_backward_pass(config: ModelConfig) -> None:
    model, tokens, targets = randomized(config), random_tokens(), random_tokens(seed=1)
    norms = bl.inspect.gradient_norms(model, tokens, targets)
    plain = copy.deepcopy(model)
    log_probabilities = plain(tokens).log_softmax(-1)
    (-log_probabilities.gather(-1, targets[..., None]).mean()).backward()
    assert list(norms) == [name for name, _ in plain.named_parameters()]
    for name, parameter in plain.named_parameters():
        expected = parameter.grad.square().sum().sqrt().item()
        assert norms[name] == pytest.approx(expected, rel=1e-9, abs=1e-18), name


@pytest.fixture
def model() -> bl.Transformer:
    return randomized(
        bl.presets.gpt2(
            d_model=16, n_heads=2, n_layers=2, vocab_size=13, context_length=10, dropout=0.3
        )
    )


def test_gradients_mode_and_random_numbers_are_left_as_they_were(model: bl.Transformer) -> None:
    model.train()
    model.blocks[0].eval()
    tokens = random_tokens()
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with torch.no_grad():
        bl.inspect.gradient_norms(model, tokens, tokens)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    for parameter, before in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, before)


def test_two_measurements_agree_though_the_model_has_dropout(model: bl.Transformer) -> None:
    tokens = random_tokens()
    first = bl.inspect.gradient_norms(model.train(), tokens, tokens)
    assert first == bl.inspect.gradient_norms(model, tokens, tokens)


def test_a_frozen_parameter_has_norm_zero(model: bl.Transformer) -> None:
    model.final_norm.requires_grad_(False)
    norms = bl.inspect.gradient_norms(model, random_tokens(), random_tokens())
    assert norms["final_norm.weight"] == 0
    assert norms["blocks.0.attention.qkv.weight"] > 0
    assert not model.final_norm.weight.requires_grad


def test_targets_of_another_shape_are_refused(model: bl.Transformer) -> None:
    with pytest.raises(BlocklabError, match=r"targets have shape \(2, 9\), tokens \(2, 10\)"):
        bl.inspect.gradient_norms(model, random_tokens(), random_tokens(length=9))
