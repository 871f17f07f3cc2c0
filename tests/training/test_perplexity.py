"""Overlapping windows against one forward pass a token, and bytes against the text itself."""

import itertools
import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blocklab as bl
from blocklab.data.reading import in_pieces
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer, train_bpe
from blocklab.errors import BlocklabError
from blocklab.training.perplexity import EncodedText, Perplexity, encode_text, perplexity

CONTEXT = 8
CONFIG = bl.presets.modern(
    d_model=32, n_heads=2, n_layers=1, vocab_size=256, context_length=CONTEXT
).with_changes({"initialization.head_std": 1.0})
MODEL = bl.Transformer(CONFIG, seed=0).double()
BYTES = ByteTokenizer()


def ids(n: int) -> torch.Tensor:
    return torch.randint(256, (n,), generator=torch.Generator().manual_seed(n))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(2, 40), st.integers(1, CONTEXT), st.integers(1, 5))
def test_each_token_is_predicted_once_with_the_context_the_stride_promises(
    n: int, stride: int, batch_size: int
) -> None:
    text, losses = ids(n), []
    for target in range(1, n):
        # The first window takes the first CONTEXT targets, each later one `stride` more.
        window = max(0, -(-(target - CONTEXT) // stride))
        begin = window * stride
        assert begin == 0 or target - begin > CONTEXT - stride
        with torch.no_grad():
            logits = MODEL(text[None, begin:target])[0, -1]
        losses.append(torch.nn.functional.cross_entropy(logits, text[target]).item())
    told: list[tuple[int, int]] = []
    found = perplexity(
        MODEL,
        text,
        stride=stride,
        batch_size=batch_size,
        on_windows=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (found.n_windows, found.n_windows)
    assert found.n_tokens == n - 1
    assert found.loss == pytest.approx(math.fsum(losses) / (n - 1), rel=1e-12)
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_a_stride_of_the_whole_context_is_the_sweep_that_training_makes() -> None:
    text = ids(200)
    trainer = bl.Trainer(CONFIG, corpus=text, batch_size=3)
    held_out = torch.from_numpy(trainer.dataset.validation.astype(np.int64))
    found = perplexity(trainer.model, held_out)
    assert found.stride == CONTEXT
    assert found.loss == pytest.approx(trainer.evaluate(), abs=1e-6)


def test_how_far_it_is_is_told() -> None:
    told: list[tuple[int, int]] = []
    found = perplexity(
        MODEL, ids(41), batch_size=2, on_windows=lambda done, total: told.append((done, total))
    )
    assert found.n_windows == 5
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_chunks_of_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = perplexity(MODEL, ids(50), stride=3)
    monkeypatch.setattr("blocklab.training.perplexity.LOGITS", 256 * 5)
    assert perplexity(MODEL, ids(50), stride=3).loss == pytest.approx(whole.loss, rel=1e-12)


def test_a_model_that_knows_nothing_needs_the_bits_of_its_vocabulary_for_every_byte() -> None:
    model = bl.Transformer(CONFIG, seed=0)
    torch.nn.init.zeros_(model.head.weight)
    found = perplexity(model, encode_text([["some text"]], BYTES))
    assert found.loss == pytest.approx(math.log(256), rel=1e-6)
    assert found.n_tokens == found.n_bytes == 8
    assert found.bits_per_byte == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize(
    ("documents", "start_ids", "n_bytes"),
    [
        (["a", "bc"], (), 2),
        (["€uro"], (), 5),  # the first byte of three
        (["é"], (), 1),
        (["a€"], (0,), 4),
    ],
)
def test_bytes_are_those_of_the_text_without_the_token_that_nothing_predicts(
    documents: list[str], start_ids: tuple[int, ...], n_bytes: int
) -> None:
    for tokenizer in (BYTES, bpe()):
        text = encode_text(([text] for text in documents), tokenizer, start_ids)
        assert text.n_bytes_after_first == n_bytes
        assert text.n_documents == len(documents)
        assert text.n_bytes == len("".join(documents).encode())


def bpe() -> Tokenizer:
    """All bytes, and merges that no test's text has."""
    return train_bpe(["xyxy xyxy"] * 9, 260)


def test_documents_are_parted_by_the_end_of_text() -> None:
    text = encode_text([["a"], ["b"], ["c"]], BYTES)
    assert text.ids.tolist() == [97, 0, 98, 0, 99]


PROSE = "It's 12:30,\n\n    naïve — said the café. " * 40
SECOND = "nospacesinthis" * 50


@pytest.mark.parametrize(
    "tokenizer", [BYTES, train_bpe([PROSE, SECOND], 300)], ids=["bytes", "bpe"]
)
@pytest.mark.parametrize("start_ids", [(), (7,)])
def test_documents_in_pieces_are_judged_as_whole_ones(
    tokenizer: Tokenizer, start_ids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tokenizer.end_of_text is not None
    ids = [*start_ids, *tokenizer.encode(PROSE), tokenizer.end_of_text, *tokenizer.encode(SECOND)]
    n_bytes = len((PROSE + SECOND).encode())
    monkeypatch.setattr("blocklab.data.reading.PIECE", 50)
    text = encode_text([in_pieces([PROSE]), in_pieces([SECOND])], tokenizer, start_ids)
    assert text.ids.tolist() == ids
    assert (text.n_bytes, text.n_documents) == (n_bytes, 2)
    model = bl.Transformer(CONFIG.with_changes({"vocab_size": 300}), seed=0)
    wide = EncodedText(np.array(ids), n_bytes, text.n_bytes_after_first, 2)
    assert perplexity(model, text, stride=5) == perplexity(model, wide, stride=5)


def test_no_document_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, longest = train_bpe([PROSE], 270), 0
    encode = Tokenizer.encode_batch

    def encode_batch(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        nonlocal longest
        longest = max(longest, sum(map(len, texts)))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_batch)
    text = encode_text([itertools.repeat(PROSE, 30)], tokenizer)
    assert text.n_bytes == 30 * len(PROSE.encode())
    assert longest < 2 * len(PROSE)


@pytest.mark.parametrize(
    ("vocab_size", "start_ids", "dtype"),
    [(270, (), np.uint16), (270, (70_000,), np.uint32), (256, (), np.uint8)],
)
def test_ids_take_no_more_bytes_than_the_largest_needs(
    vocab_size: int, start_ids: tuple[int, ...], dtype: type[np.integer]
) -> None:
    tokenizer = BYTES if vocab_size == 256 else train_bpe([PROSE], vocab_size)
    text = encode_text([[PROSE]], tokenizer, start_ids)
    assert text.ids.dtype == dtype
    assert text.ids.tolist() == [*start_ids, *tokenizer.encode(PROSE)]


def test_memory_is_that_of_the_ids_and_not_of_the_text() -> None:
    pieces = (PROSE * 20 for _ in range(100))  # 3 MB that nobody holds at once
    tracemalloc.start()
    try:
        text = encode_text([pieces], train_bpe([PROSE], 1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text.n_bytes > 3_000_000
    assert peak < 2 * text.ids.nbytes + 1_000_000


def test_neither_modes_nor_gradients_change() -> None:
    model = bl.Transformer(CONFIG, seed=0).train()
    perplexity(model, ids(20))
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("text", "stride", "message"),
    [
        (torch.tensor([1, 2]), 0, "stride is 0, expected 1 to context_length 8"),
        (torch.tensor([1, 2]), 9, "stride is 9"),
        (torch.tensor([1, 256]), 4, "run from 1 to 256, but the model has 256 rows"),
        (torch.tensor([1]), 4, "1 tokens, and a first target needs 2"),
    ],
)
def test_what_does_not_fit_is_refused(text: torch.Tensor, stride: int, message: str) -> None:
    with pytest.raises(BlocklabError, match=message):
        perplexity(MODEL, text, stride=stride)


def test_without_bytes_there_are_no_bits_per_byte() -> None:
    assert perplexity(MODEL, ids(20)).bits_per_byte is None
    with pytest.raises(BlocklabError, match="0 tokens"):
        encode_text([], BYTES)
    assert isinstance(encode_text([["ab"]], BYTES), EncodedText)


@pytest.mark.parametrize("loss", [2.0, 800.0, math.inf, math.nan])
def test_the_perplexity_of_a_loss_that_is_no_number_is_none_either(loss: float) -> None:
    found = Perplexity(loss, 1, 1, 1, 1, 1, 1).perplexity
    expected = {2.0: math.exp(2.0), 800.0: math.inf}.get(loss, loss)
    assert found == expected or (math.isnan(found) and math.isnan(loss))
