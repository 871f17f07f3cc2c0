"""Generation sees models only: whoever encodes and decodes comes from outside."""

import torch

import blocklab as bl
from blocklab.generation import generate_text


class Letters:
    """A tokenizer of nobody's: a to m, and no end of text."""

    end_of_text = None

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        return ["abcdefghijklm".index(letter) for letter in text]

    def decode(self, ids: object) -> str:
        return "".join("abcdefghijklm"[i] for i in ids)  # type: ignore[attr-defined]


def model() -> bl.Transformer:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13, context_length=32)
    return bl.Transformer(config, seed=0)


def test_text_is_written_by_any_tokenizer_that_encodes_and_decodes() -> None:
    (written,) = generate_text(model(), Letters(), "abc", max_new_tokens=5)
    ids = bl.generate(model(), torch.tensor([[0, 1, 2]]), max_new_tokens=5)[0, 3:]
    assert written.ids == tuple(ids.tolist())
    assert written.text == Letters().decode(written.ids)


def test_a_single_stop_is_one_text_and_not_its_letters() -> None:
    (free,) = generate_text(model(), Letters(), "abc", max_new_tokens=8)
    unseen = "".join(letter for letter in "abcdefghijklm" if letter not in free.text)
    stop = free.text[0] + unseen[0]
    (written,) = generate_text(model(), Letters(), "abc", max_new_tokens=8, stop=stop)
    assert written.text == free.text
    (stopped,) = generate_text(model(), Letters(), "abc", max_new_tokens=8, stop=free.text[:2])
    assert stopped.text == ""
