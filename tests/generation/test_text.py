"""Text that grows token by token is the text of all tokens, whatever bytes they hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

import blocklab as bl
from blocklab.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe
from blocklab.errors import BlocklabError
from blocklab.generation import Sampling, generate_text, sample_tokens
from blocklab.generation.streaming import TextStream

TEXTS = ["Gödel, Escher, Bach: 思考 🧩🧩 naïve café", "a b  c\n\n", "🇫🇷!"]
BYTES = ByteTokenizer()


def sentencepiece() -> Tokenizer:
    """As Llama 2's: spaces are ▁, the first one is dropped, unknown characters are byte tokens."""
    words = ["▁a", "▁b", "▁c", "a", "▁", "!", "b", "c"]
    vocabulary = {w: i for i, w in enumerate([f"<0x{byte:02X}>" for byte in range(256)] + words)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend.to_str(), "sentencepiece", None)


def streamed(stream: TextStream, ids: list[int]) -> list[str]:
    pieces = [stream.add(token) for token in ids]
    return [*pieces, stream.end()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_pieces_are_whole_characters_and_join_to_the_text(name: str, text: str) -> None:
    tokenizer = BYTES if name == "bytes" else train_bpe(["aaa bbb"] * 9, 260)
    ids, prompt = tokenizer.encode(text), tokenizer.encode("é ")
    pieces = streamed(TextStream(tokenizer, prompt), ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert sum(map(bool, pieces)) >= len(set(text)) // 2


def test_a_piece_comes_with_the_byte_that_completes_it() -> None:
    stream = TextStream(BYTES, [])
    assert [stream.add(byte) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]


def test_the_space_that_a_decoder_drops_at_the_beginning_is_kept_after_a_prompt() -> None:
    tokenizer = sentencepiece()
    a, b = 256, 257
    assert tokenizer.decode([b]) == "b"
    assert streamed(TextStream(tokenizer, [a]), [b, b]) == [" b", " b", ""]


def test_characters_of_byte_tokens_are_whole_too() -> None:
    tokenizer = sentencepiece()
    ids = [256, *"€🧩é".encode(), 257]
    pieces = streamed(TextStream(tokenizer, [256]), ids)
    assert pieces == [" a", "", "", "€", "", "", "", "🧩", "", "é", " b", ""]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=24), st.binary(max_size=4))
def test_broken_bytes_lose_nothing_either(new: bytes, before: bytes) -> None:
    prompt = "é".encode() + before.decode("utf-8", "ignore").encode()
    pieces = streamed(TextStream(BYTES, list(prompt)), list(new))
    assert "".join(pieces) == new.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("ab€", max_size=12), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_nothing_of_a_stop_string_is_shown_and_nothing_before_it_lost(
    text: str, stop: list[str]
) -> None:
    ends = [text.find(s) + len(s) for s in stop if s in text]
    first = min(ends, default=len(text))
    # The stop string that is complete first ends the text; of several the one that begins first.
    begun = [text.find(s) for s in stop if s in text[:first]]
    stream = TextStream(BYTES, [], stop)
    pieces = []
    for byte in text.encode():
        pieces.append(stream.add(byte))
        if stream.stopped:
            break
    pieces.append(stream.end())
    assert "".join(pieces) == text[: min(begun, default=len(text))]
    assert stream.stopped == bool(begun)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BlocklabError, match="a stop string is empty"):
        TextStream(BYTES, [], ["a", ""])


@pytest.fixture(scope="module")
def model() -> bl.Transformer:
    config = bl.presets.gpt2(
        d_model=16, n_heads=2, n_layers=2, vocab_size=256, context_length=32
    ).with_changes({"initialization": {"kind": "fan_in", "head_std": 1.0}})
    return bl.Transformer(config, seed=0).double()


PROMPTS = ["one", "a longer prompt", "思考"]


def test_each_prompt_of_a_batch_gets_the_text_it_would_get_alone(model: bl.Transformer) -> None:
    rules = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=3)
    together = generate_text(model, BYTES, PROMPTS, max_new_tokens=12, sampling=rules)
    for i, prompt in enumerate(PROMPTS):
        alone = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=3 + i)
        assert generate_text(model, BYTES, prompt, max_new_tokens=12, sampling=alone) == [
            together[i]
        ]
        ids = torch.tensor([BYTES.encode(prompt)])
        steps = sample_tokens(model, ids, max_new_tokens=12, sampling=alone)
        written = [int(step) for step in steps]
        assert together[i].ids == tuple(written)
        assert together[i].text == bytes(written).decode("utf-8", "replace")
        assert together[i].ended == "length"


def test_the_pieces_told_are_the_text(model: bl.Transformer) -> None:
    told: list[list[str]] = [[] for _ in PROMPTS]
    rules = Sampling(temperature=1.0, seed=3)
    written = generate_text(
        model,
        BYTES,
        PROMPTS,
        max_new_tokens=12,
        sampling=rules,
        on_text=lambda number, piece: told[number].append(piece),
    )
    assert ["".join(pieces) for pieces in told] == [row.text for row in written]
    assert max(map(len, told)) > 3


def test_a_stop_string_ends_one_sequence_and_not_the_others(model: bl.Transformer) -> None:
    rules = Sampling(temperature=1.0, seed=3)
    free = generate_text(model, BYTES, PROMPTS, max_new_tokens=12, sampling=rules)
    stop = free[1].text[4:6]
    stopped = generate_text(model, BYTES, PROMPTS, max_new_tokens=12, sampling=rules, stop=[stop])
    for before, after in zip(free, stopped, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert after.ended == ("stop" if stop in before.text else "length")
    assert stopped[1].ended == "stop"


def test_the_end_of_text_ends_it_and_is_not_shown(model: bl.Transformer) -> None:
    rules = Sampling(temperature=1.0, seed=3)
    free = generate_text(model, BYTES, "one", max_new_tokens=12, sampling=rules)[0]
    end = free.ids[5]
    place = free.ids.index(end)
    stopped = generate_text(model, BYTES, "one", max_new_tokens=12, sampling=rules, stop_ids=[end])[
        0
    ]
    assert stopped.ids == free.ids[: place + 1]
    assert stopped.text == bytes(free.ids[:place]).decode("utf-8", "replace")
    assert stopped.ended == "stop"


def test_an_empty_prompt_begins_after_the_end_of_text(model: bl.Transformer) -> None:
    written = generate_text(model, BYTES, "", max_new_tokens=5, stop_ids=[])[0]
    expected = bl.generate(model, torch.tensor([[0]]), max_new_tokens=5)[0, 1:]
    assert list(written.ids) == expected.tolist()
    begun = generate_text(model, BYTES, "a", max_new_tokens=5, stop_ids=[], start_ids=[7, 8])[0]
    expected = bl.generate(model, torch.tensor([[7, 8, 97]]), max_new_tokens=5)[0, 3:]
    assert list(begun.ids) == expected.tolist()
    with pytest.raises(BlocklabError, match="no end of text to begin after"):
        generate_text(model, sentencepiece(), "", max_new_tokens=5)


def test_a_tokenizer_with_more_ids_than_the_model_is_named(model: bl.Transformer) -> None:
    with pytest.raises(BlocklabError, match="was the prompt encoded by another tokenizer"):
        generate_text(model, load_tokenizer("gpt2"), "Every effort", max_new_tokens=5)


def test_special_tokens_of_a_prompt_are_text_unless_they_are_asked_for(
    model: bl.Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = train_bpe(["aaa bbb"] * 9, 260)
    end, prompt = tokenizer.end_of_text, "<|endoftext|>aaa\ud800<|endoftext|>"
    plain = tokenizer.encode(prompt)
    assert end is not None
    assert end not in plain
    read = tokenizer.encode(prompt, special_tokens=True)
    assert read == [end, *tokenizer.encode("aaa\ufffd"), end]
    assert tokenizer.encode(prompt) == plain
    seen: list[list[list[int]]] = []

    def sample(model: bl.Transformer, tokens: torch.Tensor, **given: object) -> list[torch.Tensor]:
        seen.append(tokens.tolist())
        return []

    monkeypatch.setattr("blocklab.generation.text.sample_tokens", sample)
    for start_ids in ((), (end,)):
        generate_text(
            model, tokenizer, prompt, max_new_tokens=1, start_ids=start_ids, special_tokens=True
        )
    assert seen == [[read], [read]]
