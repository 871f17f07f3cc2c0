"""A tied head is the embedding's table, whatever is moved, loaded or asked for."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import blocklab as bl
from blocklab.errors import BlocklabError

TOKENS = torch.tensor([[1, 2, 3]])


def made(tied: bool = True, **changes: Any) -> bl.Transformer:
    config = bl.presets.gpt2(
        d_model=8, n_heads=2, n_layers=1, vocab_size=7, context_length=6, tie_embeddings=tied
    )
    return bl.Transformer(config.with_changes(changes), seed=0).eval()


@pytest.mark.parametrize("part", ["embedding", "head"])
def test_a_tie_that_a_move_of_one_part_broke_is_made_again(part: str) -> None:
    model = made()
    expected = model(TOKENS)
    model.get_submodule(part).to_empty(device="meta").to_empty(device="cpu")
    assert model.head.weight is not model.embedding.weight
    with torch.no_grad():
        model.embedding.weight.copy_(made().embedding.weight)
    assert torch.equal(model(TOKENS), expected)
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())


def test_a_table_that_was_converted_alone_serves_the_head_too() -> None:
    model = made(positions="none").double()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.embedding.to(torch.float32)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model.head.weight.dtype == torch.float64
    model.blocks.float(), model.final_norm.float()
    assert model(TOKENS).dtype == torch.float32
    assert model.head.weight is model.embedding.weight


def test_a_head_that_somebody_wrapped_is_left_as_it_is() -> None:
    model = made()
    weight_norm(model.head)
    with torch.no_grad():
        model.head.parametrizations.weight.original0 *= 3.0
    assert torch.allclose(model(TOKENS), 3 * made()(TOKENS), atol=1e-6)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_with_two_tables_is_refused_where_one_is_both(assign: bool) -> None:
    model, untied = made(), made(tied=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = r"^head\.weight is not embedding\.weight, but tie_embeddings is true: "
    with pytest.raises(BlocklabError, match=message):
        model.load_state_dict(untied.state_dict(), assign=assign)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    untied.load_state_dict(made(tied=False, d_model=8).state_dict(), assign=assign)


def test_it_is_refused_by_its_place_in_a_larger_module() -> None:
    whole = nn.ModuleDict({"model": made()})
    state = {f"model.{name}": tensor for name, tensor in made(tied=False).state_dict().items()}
    with pytest.raises(BlocklabError, match=r"^model\.head\.weight is not model\.embedding\."):
        whole.load_state_dict(state)


def test_a_state_whose_two_tables_are_equal_is_loaded() -> None:
    model = made()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("embedding.weight", "head.weight"):
        state[name][3] = torch.nan  # of a run that diverged
    other = made(tied=True, n_layers=1)
    other.load_state_dict(state)
    assert other.head.weight is other.embedding.weight
    assert other.embedding.weight[3].isnan().all()
    del state["head.weight"]
    assert made().load_state_dict(state, strict=False).missing_keys == ["head.weight"]
