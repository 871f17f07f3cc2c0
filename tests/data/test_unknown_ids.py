"""Ids that no token has leave a mark in a text, and what are no ids at all is said."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models

import blocklab as bl
from blocklab.data.tokenizer import Tokenizer, load_tokenizer, train_bpe
from blocklab.errors import BlocklabError
from blocklab.generation import generate_text


def with_a_hole() -> Tokenizer:
    backend = Backend(models.WordLevel({"a": 0, "c": 2}, unk_token="a"))
    return Tokenizer(backend.to_str(), "with a hole", None)


@pytest.fixture(params=["bytes", "bpe", "gpt2"])
def every(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "bpe":
        return train_bpe(["one two three"] * 9, 270)
    return load_tokenizer(request.param)


def test_an_id_that_no_token_has_is_seen_where_it_stands(every: Tokenizer) -> None:
    one, two = every.encode("one"), every.encode(" two")
    for unknown in (99_999, -1, every.vocab_size):
        assert every.decode([unknown]) == "\ufffd"
        assert every.decode([*one, unknown, unknown, *two]) == "one\ufffd\ufffd two"
    assert every.decode([]) == ""


def test_a_hole_in_a_vocabulary_is_no_token_either() -> None:
    tokenizer = with_a_hole()
    assert tokenizer.vocab_size == 3
    assert tokenizer.decode([0, 1]) == "a\ufffd"


def test_what_are_no_ids_is_said_with_what_to_give(every: Tokenizer) -> None:
    batch = torch.tensor([[1, 2, 3]])
    assert every.decode(batch[0]) == every.decode([1, 2, 3])
    for wrong, found in ((batch, "a Tensor"), (5, "5"), ("one", "'one'"), (None, "None")):
        with pytest.raises(BlocklabError, match=f"ids of one text, found {found}"):
            every.decode(wrong)  # type: ignore[arg-type]


def test_a_model_with_more_rows_than_ids_writes_to_the_end() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=300, context_length=32)
    model = bl.Transformer(config, seed=0)
    with torch.no_grad():
        model.head.weight.copy_(torch.zeros_like(model.head.weight))
        model.head.weight[280] = 1.0
        model.final_norm.bias.fill_(1.0)
    (written,) = generate_text(model, load_tokenizer("bytes"), "one", max_new_tokens=3)
    assert written.ids == (280, 280, 280)
    assert written.text == "\ufffd" * 3


def test_a_file_is_loaded_by_its_path_as_by_its_name(tmp_path: Path) -> None:
    load_tokenizer("gpt2").save(tmp_path / "tokenizer.json")
    by_path, by_name = load_tokenizer(tmp_path), load_tokenizer(str(tmp_path))
    assert by_path.fingerprint == by_name.fingerprint
    assert by_path.name == by_name.name == str(tmp_path / "tokenizer.json")
