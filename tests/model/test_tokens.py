"""Tokens that a model cannot read are refused in one line that says what it reads."""

import pytest
import torch
from torch import Tensor

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.generation.cache import KeyValueCache

ROWS = 7
CONFIG = bl.presets.modern(
    d_model=32, n_heads=2, n_layers=1, vocab_size=ROWS, context_length=6, tie_embeddings=True
)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([1, 2, 3]), r"tokens have shape \(3,\); expected \(B, T\).*tokens\[None\]"),
        (torch.tensor(1), r"tokens have shape \(\); expected \(B, T\) with T at least 1$"),
        (torch.zeros(1, 0, dtype=torch.long), r"shape \(1, 0\); expected \(B, T\) with T at least"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"shape \(1, 2, 3\); expected \(B, T\)"),
        (
            torch.zeros(1, 2),
            r"tokens are torch\.float32; expected ids, torch\.int64 or torch\.int32",
        ),
        (torch.ones(1, 2, dtype=torch.bool), r"tokens are torch\.bool; expected ids"),
        (torch.tensor([[0, ROWS, ROWS + 1]]), r"hold 7: 2 of 3 are no rows.*ids from 0 to 6"),
        (torch.tensor([[0, -1]]), r"hold -1: 1 of 2 are no rows of the embedding; .* from 0 to 6"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_what_are_no_tokens_is_refused(tokens: Tensor, message: str, cached: bool) -> None:
    model = bl.Transformer(CONFIG).eval()
    cache = KeyValueCache.of(model, 1, 6) if cached else None
    with pytest.raises(BlocklabError, match=message):
        model(tokens, cache=cache)
    with pytest.raises(BlocklabError, match=message):
        model.features(tokens)


def test_ids_of_either_width_are_read() -> None:
    model, tokens = bl.Transformer(CONFIG).eval(), torch.tensor([[0, ROWS - 1]])
    assert torch.equal(model(tokens), model(tokens.int()))


def test_an_error_of_ones_own_stays_what_it_is() -> None:
    """The table of an embedding may be hooked; what that raises is no fault of the tokens."""
    model = bl.Transformer(CONFIG)

    def hook(*_: object) -> None:
        raise IndexError("mine")

    model.embedding.register_forward_hook(hook)
    with pytest.raises(IndexError, match="mine"):
        model(torch.tensor([[0]]))
