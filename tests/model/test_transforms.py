"""A model is a function of its parameters: torch's own transforms give what a plain loop gives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blocklab as bl
from tests.model.strategies import random_tokens

SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": 13, "context_length": 10}
CONFIGS = [
    bl.presets.gpt2(**SIZES, dropout=0.0),
    bl.presets.modern(**SIZES | {"d_model": 24}, tie_embeddings=True),
]


def loss(model: bl.Transformer, parameters: dict[str, Tensor], tokens: Tensor) -> Tensor:
    logits = torch.func.functional_call(model, parameters, (tokens[None, :-1],))
    return F.cross_entropy(logits[0], tokens[1:])


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_sequence_at_once_are_those_of_one_after_another(
    config: bl.ModelConfig, dtype: torch.dtype
) -> None:
    model, tokens = bl.Transformer(config, seed=0).to(dtype), random_tokens(3, 6)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    each = torch.func.vmap(
        torch.func.grad(lambda values, row: loss(model, values, row)), in_dims=(None, 0)
    )(parameters, tokens)
    for i, row in enumerate(tokens):
        alone = torch.autograd.grad(
            loss(model, dict(model.named_parameters()), row), list(model.parameters())
        )
        for name, gradient in zip(parameters, alone, strict=True):
            assert torch.allclose(each[name][i], gradient, atol=1e-5), name


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_sequences_give_no_logits(config: bl.ModelConfig, dtype: torch.dtype) -> None:
    model = bl.Transformer(config).to(dtype)
    assert model(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3, 13)
