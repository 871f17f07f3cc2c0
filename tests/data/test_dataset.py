import json
import math
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

from blocklab.data import dataset as module
from blocklab.data.dataset import DataConfig, Dataset, prepare, require_windows
from blocklab.data.exact_cuts import LLAMA_3
from blocklab.data.synthetic import SYNTHETIC
from blocklab.data.tokenizer import train_bpe
from blocklab.errors import BlocklabError

LINES = "".join(f"line {number} of a text, {number * number}\n" for number in range(2_000))


def written(folder: Path, text: str = LINES, name: str = "text.txt") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_config_defaults_and_bounds() -> None:
    assert DataConfig().resolved_tokenizer() == "bpe:2048"
    assert DataConfig(corpus="synthetic:recall").resolved_tokenizer() == "bytes"
    assert DataConfig.parse(DataConfig().plain()) == DataConfig()
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(BlocklabError, match="validation_share"):
            DataConfig(validation_share=share)
    with pytest.raises(BlocklabError, match=r"corpsu.*corpus"):
        DataConfig.parse({"corpsu": "x"})


def test_a_single_text_is_there_whole_head_then_tail(tmp_path: Path, cache: Path) -> None:
    data = prepare(DataConfig(corpus=written(tmp_path), tokenizer="bytes"), cache=cache)
    assert bytes(data.train.tolist() + data.validation.tolist()).decode() == LINES
    assert len(data.validation) == round(0.1 * len(LINES))
    assert (data.train_bytes, data.validation_bytes) == (len(data.train), len(data.validation))
    assert (data.train_documents, data.validation_documents) == (1, 1)
    assert data.train.dtype == np.uint16 and isinstance(data.train, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data.train[0] = 1


def test_documents_are_separated_and_on_one_side_each(tmp_path: Path, cache: Path) -> None:
    texts = {f"document {number} says {number * 7}" for number in range(300)}
    lines = "".join(json.dumps({"text": text}) + "\n" for text in sorted(texts))
    path = written(tmp_path, lines + lines, "a.jsonl")  # every document twice
    data = prepare(DataConfig(corpus=path, tokenizer="bpe:300"), cache=cache)
    sides = []
    for ids, bytes_, documents in (
        (data.train, data.train_bytes, data.train_documents),
        (data.validation, data.validation_bytes, data.validation_documents),
    ):
        parts = np.split(ids, np.flatnonzero(ids == data.tokenizer.end_of_text))
        found = [data.tokenizer.decode(part[part != data.tokenizer.end_of_text]) for part in parts]
        assert len(found) == documents
        assert sum(len(text.encode()) for text in found) == bytes_
        assert set(Counter(found).values()) == {2}
        sides.append(set(found))
    assert sides[0] | sides[1] == texts
    assert not sides[0] & sides[1]
    assert 0.08 < len(sides[1]) / len(texts) < 0.12


def test_a_bpe_is_learnt_from_the_training_side_alone(tmp_path: Path, cache: Path) -> None:

    head, tail = LINES, "zyzzyva " * (len(LINES) // 8 // 9)
    data = prepare(
        DataConfig(corpus=written(tmp_path, head + tail), tokenizer="bpe:400"), cache=cache
    )
    cut = len(head + tail) - round(0.1 * len(head + tail))
    assert data.tokenizer.fingerprint == train_bpe([(head + tail)[:cut]], 400).fingerprint
    assert len(data.tokenizer.encode("zyzzyva")) > len(data.tokenizer.encode("line 12"))


def test_a_large_text_teaches_by_an_even_sample_and_says_so(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE", 20_000)
    lines = "".join(json.dumps({"text": f"{n} " * 50}) + "\n" for n in range(1_000))
    data = prepare(
        DataConfig(corpus=written(tmp_path, lines, "a.jsonl"), tokenizer="bpe:300"), cache=cache
    )
    assert any("bpe:300 learnt from" in note and "%" in note for note in data.notes)


def test_a_sample_is_spread_evenly_and_of_the_size_asked() -> None:
    pieces = [f"{number:04}" for number in range(1_000)]
    kept = [int(piece) for piece in module._evenly(pieces, 0.1)]
    assert len(kept) == 100
    assert set(np.diff(kept)) == {10}
    assert list(module._evenly(pieces, 1.0)) == pieces


def test_a_text_too_small_for_the_tokenizer_is_said(tmp_path: Path, cache: Path) -> None:
    config = DataConfig(corpus=written(tmp_path, LINES[:200]), tokenizer="bpe:5000")
    data = prepare(config, cache=cache)
    assert data.vocab_size == data.tokenizer.vocab_size < 5_000
    assert any("too small for bpe:5000" in note for note in data.notes)


def test_the_same_config_is_prepared_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(corpus=written(tmp_path, "\ufeff" + LINES), tokenizer="bpe:300")
    first = prepare(config, cache=cache)
    monkeypatch.setattr(module, "write_tokens", None)
    monkeypatch.setattr(module, "train_bpe", None)
    said: list[str] = []
    again = prepare(config, cache=cache, say=said.append)
    assert said == []
    assert_same(first, again)
    os.utime(config.corpus)  # touched, not changed: read again, not tokenised again
    assert_same(first, prepare(config, cache=cache))


def assert_same(first: Dataset, second: Dataset) -> None:
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.validation, second.validation)
    for name in ("fingerprint", "notes", "folder", "vocab_size", "unigram_entropy", "train_bytes"):
        assert getattr(first, name) == getattr(second, name), name
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    assert first.tokenizer.name == second.tokenizer.name


def test_an_edit_is_noticed_even_when_it_keeps_the_size(tmp_path: Path, cache: Path) -> None:
    config = DataConfig(corpus=written(tmp_path), tokenizer="bytes")
    first = prepare(config, cache=cache)
    written(tmp_path, LINES.replace("of a text", "of a TEXT"))
    assert prepare(config, cache=cache).fingerprint != first.fingerprint


def test_the_fingerprint_changes_with_all_that_decides_the_tokens(
    tmp_path: Path, cache: Path
) -> None:
    base = DataConfig(corpus=written(tmp_path), tokenizer="bpe:300")
    configs = [
        base,
        base.model_copy(update={"tokenizer": "bpe:301"}),
        base.model_copy(update={"tokenizer": "bytes"}),
        base.model_copy(update={"validation_share": 0.2}),
        base.model_copy(update={"corpus": written(tmp_path, LINES + "x", "other.txt")}),
        base.model_copy(update={"corpus": "python-docs"}),
    ]
    assert len({prepare(config, cache=cache).fingerprint for config in configs}) == len(configs)


def test_the_fingerprint_does_not_depend_on_where_the_text_lies(tmp_path: Path) -> None:
    found = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        config = DataConfig(corpus=written(tmp_path / folder), tokenizer="bpe:300")
        found.append(prepare(config, cache=tmp_path / folder / "cache").fingerprint)
    assert found[0] == found[1]


def test_twins_in_text_keep_their_own_notes(tmp_path: Path, cache: Path) -> None:
    plain = DataConfig(corpus=written(tmp_path), tokenizer="bytes")
    crlf = DataConfig(
        corpus=written(tmp_path, "\ufeff" + LINES.replace("\n", "\r\n"), "dos.txt"),
        tokenizer="bytes",
    )
    for _ in range(2):  # made, then found
        one, two = prepare(plain, cache=cache), prepare(crlf, cache=cache)
        assert one.fingerprint == two.fingerprint
        assert not [note for note in one.notes if "normalised" in note or "byte-order" in note]
        assert (
            len([note for note in two.notes if "normalised" in note or "byte-order" in note]) == 2
        )


def test_a_worker_reopens_the_same_thing(tmp_path: Path, cache: Path) -> None:
    config = DataConfig(corpus=written(tmp_path), tokenizer="bpe:300")
    data = prepare(config, cache=cache)
    assert_same(data, Dataset.open(data.folder))
    script = """
        import hashlib, sys
        from blocklab.data.dataset import Dataset
        data = Dataset.open(sys.argv[1])
        content = hashlib.sha256(data.train.tobytes()).hexdigest()
        print(data.fingerprint, content, data.unigram_entropy)
    """
    fingerprint, content, entropy = run(script, data.folder)
    known = json.loads((data.folder / "dataset.json").read_text())
    assert (fingerprint, content) == (data.fingerprint, known["train"]["sha256"])
    assert float(entropy) == data.unigram_entropy


def test_whoever_only_trains_reads_no_tokenizer(tmp_path: Path, cache: Path) -> None:
    data = prepare(DataConfig(corpus=written(tmp_path), tokenizer="bpe:300"), cache=cache)
    (data.folder / "tokenizer.json").unlink()
    opened = Dataset.open(data.folder)
    assert opened.train.tolist() == data.train.tolist()
    with pytest.raises(BlocklabError, match="cannot be read"):
        _ = opened.tokenizer


def test_the_separator_of_a_tokenizer_with_a_config_survives_reopening(
    tmp_path: Path, cache: Path
) -> None:
    tokenizer = train_bpe([LINES], 300)
    tokenizer.save(tmp_path / "own" / "tokenizer.json")
    (tmp_path / "own" / "tokenizer_config.json").write_text('{"eos_token": "~"}')
    config = DataConfig(corpus=written(tmp_path), tokenizer=str(tmp_path / "own"))
    data = prepare(config, cache=cache)
    assert Dataset.open(data.folder).tokenizer.end_of_text == tokenizer.encode("~")[0]


def test_the_tokens_are_those_of_each_document_as_a_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However reading cuts it: before a line end, after punctuation, in a word without an end."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(alphabet), show_progress=False
    )
    kinds = ["so, (so).\n\n\nso: nospacesinthis" * 10, "so.\n" * 50, "endless" * 70]
    documents = [f"{number}{text}" for number in range(40) for text in kinds]
    backend.train_from_iterator(documents, trainer)
    backend.save(str(tmp_path / "tokenizer.json"))

    monkeypatch.setattr("blocklab.data.reading.PIECE", 50)
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(documents):
        written(tmp_path / "texts", text, f"{number}.txt")
    tokenizer = str(tmp_path / "tokenizer.json")
    config = DataConfig(corpus=str(tmp_path / "texts"), tokenizer=tokenizer)
    data = prepare(config, cache=cache)
    wholes = [np.array(backend.encode(text).ids, "<u2").tobytes() for text in documents]
    found = [bytes(data.train), bytes(data.validation)]
    assert sum(map(len, found)) == sum(map(len, wholes))
    assert all(any(whole in side for side in found) for whole in wholes)


def run(script: str, *arguments: object) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


def test_a_truncated_token_file_is_refused_on_opening_and_made_anew_in_preparing(
    tmp_path: Path, cache: Path
) -> None:
    config = DataConfig(corpus=written(tmp_path), tokenizer="bytes")
    data = prepare(config, cache=cache)
    content = (data.folder / "train.bin").read_bytes()
    whole = data.train.tolist()
    for damage in (content[:-2], b"", content + b"\0\0"):
        (data.folder / "train.bin").write_bytes(damage)
        with pytest.raises(BlocklabError, match=r"train\.bin: holds .* damaged"):
            Dataset.open(data.folder)
        assert prepare(config, cache=cache).train.tolist() == whole
    (data.folder / "tokenizer.json").write_text("{")
    with pytest.raises(BlocklabError, match=r"tokenizer\.json': not a tokenizer"):
        _ = Dataset.open(data.folder).tokenizer
    assert prepare(config, cache=cache).train.tolist() == whole
    _ = Dataset.open(data.folder).tokenizer
    (data.folder / "dataset.json").write_text("{")
    with pytest.raises(BlocklabError, match="no prepared dataset"):
        Dataset.open(data.folder)
    assert prepare(config, cache=cache).train.tolist() == whole


def test_two_processes_may_prepare_the_same_thing_at_once(tmp_path: Path, cache: Path) -> None:
    config = DataConfig(corpus=written(tmp_path, LINES * 5), tokenizer="bpe:300")
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        found = pool.starmap(_prepared, [(config, cache)] * 4)
    assert len(set(found)) == 1
    assert len(list((cache / "datasets").iterdir())) == 1
    data = prepare(config, cache=cache)
    assert data.tokenizer.decode([*data.train, *data.validation]) == LINES * 5


def _prepared(config: DataConfig, cache: Path) -> tuple[str, int]:
    data = prepare(config, cache=cache)
    return data.fingerprint, int(data.train.astype(np.int64).sum())


def test_a_corpus_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(corpus=written(tmp_path), tokenizer="bytes")
    real = module.write_tokens

    def meanwhile(*arguments: object) -> object:
        written(tmp_path, LINES + "more")
        return real(*arguments)

    monkeypatch.setattr(module, "write_tokens", meanwhile)
    with pytest.raises(BlocklabError, match="changed while it was being read"):
        prepare(config, cache=cache)
    assert not list((cache / "datasets").iterdir())


def test_bytes_that_are_no_text_need_the_bytes_tokenizer(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    raw = b"caf\xe9 " * 500 + bytes(range(128, 256))
    path.write_bytes(raw)
    with pytest.raises(BlocklabError, match=r"a\.txt: byte 3 \(0xe9\)"):
        prepare(DataConfig(corpus=str(path), tokenizer="bpe:300"), cache=cache)
    data = prepare(DataConfig(corpus=str(path), tokenizer="bytes"), cache=cache)
    assert bytes([*data.train, *data.validation]) == raw
    latin = DataConfig(corpus=str(path), tokenizer="bpe:300", encoding="latin-1")
    latin_data = prepare(latin, cache=cache)
    text = latin_data.tokenizer.decode([*latin_data.train, *latin_data.validation])
    assert text == raw.decode("latin-1")


def test_no_text_and_too_little_text_are_refused_with_counts(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(BlocklabError, match="holds no text"):
        prepare(DataConfig(corpus=written(tmp_path, ""), tokenizer="bytes"), cache=cache)
    (tmp_path / "folder").mkdir()
    written(tmp_path / "folder", "hidden", ".hidden")
    with pytest.raises(BlocklabError, match=r"holds no text \(skipped, hidden: \.hidden\)"):
        prepare(DataConfig(corpus=str(tmp_path / "folder"), tokenizer="bytes"), cache=cache)
    with pytest.raises(BlocklabError, match="2 training and 0 validation tokens"):
        prepare(DataConfig(corpus=written(tmp_path, "hi"), tokenizer="bytes"), cache=cache)
    data = prepare(DataConfig(corpus=written(tmp_path, "x" * 1000), tokenizer="bytes"), cache=cache)
    require_windows(data, 99)
    with pytest.raises(BlocklabError, match=r"900 training and 100 validation.*needs 101"):
        require_windows(data, 100)


def test_a_bad_tokenizer_is_refused_before_the_corpus_is_read(tmp_path: Path, cache: Path) -> None:
    said: list[str] = []
    with pytest.raises(BlocklabError, match="'gtp2': no such file; did you mean 'gpt2'"):
        config = DataConfig(corpus=written(tmp_path), tokenizer="gtp2")
        prepare(config, cache=cache, say=said.append)
    assert said == []


def test_the_unigram_entropy_is_that_of_the_training_tokens(tmp_path: Path, cache: Path) -> None:
    data = prepare(DataConfig(corpus=written(tmp_path), tokenizer="bytes"), cache=cache)
    counts = Counter(data.train.tolist()).values()
    exact = -sum(c / len(data.train) * math.log(c / len(data.train)) for c in counts)
    assert data.unigram_entropy == pytest.approx(exact, rel=1e-12)


def test_a_synthetic_corpus_carries_its_floor_where_it_holds(tmp_path: Path, cache: Path) -> None:
    data = prepare(DataConfig(corpus="synthetic:recall"), cache=cache)
    assert data.entropy_floor == SYNTHETIC["recall"].entropy_floor
    assert data.entropy_floor < data.unigram_entropy
    assert len(data.train) / data.train_bytes == pytest.approx(1, abs=1e-3)
    assert Dataset.open(data.folder).entropy_floor == data.entropy_floor
    merged = prepare(DataConfig(corpus="synthetic:recall", tokenizer="bpe:300"), cache=cache)
    assert merged.entropy_floor is None
    assert prepare(DataConfig(corpus=written(tmp_path)), cache=cache).entropy_floor is None


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["array", "tensor"])
def test_a_dataset_from_tokens_is_cut_at_the_tail(make: object) -> None:
    ids = [int(i) % 997 for i in range(45_268)]
    data = Dataset.from_tokens(make(ids), None, 0.1)
    assert (len(data.train), len(data.validation)) == (40_741, 4_527)
    assert [*data.train.tolist(), *data.validation.tolist()] == ids
    assert (data.vocab_size, data.tokenizer, data.folder) == (997, None, None)
    assert (data.train_bytes, data.validation_bytes) == (None, None)
    assert Dataset.from_tokens(make(ids), 1000).fingerprint != data.fingerprint
    assert Dataset.from_tokens(make(ids), 997).fingerprint == data.fingerprint


def test_a_dataset_from_tokens_is_its_own_copy_in_the_smallest_type() -> None:
    ids = torch.arange(100)
    data = Dataset.from_tokens(ids, 70_000)
    ids[0] = 99
    assert data.train[0] == 0
    assert data.train.dtype == np.uint32
    small = np.arange(100, dtype=np.uint16)
    data = Dataset.from_tokens(small, 100)
    small[0] = 99
    assert data.train[0] == 0
    assert Dataset.from_tokens(ids, 65_536).train.dtype == np.uint16


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), r"shape \(2, 3\)"),
        (torch.zeros(3), "float32"),
        (torch.zeros(0, dtype=torch.int64), r"shape \(0,\)"),
        (torch.tensor([1, -1]), "from -1 to 1"),
        (torch.tensor([1, 10]), "below vocab_size 10"),
    ],
)
def test_tokens_that_are_no_ids_are_refused(tokens: torch.Tensor, message: str) -> None:
    with pytest.raises(BlocklabError, match=message):
        Dataset.from_tokens(tokens, 10)


def test_the_published_text_gives_the_published_unigram_entropy(published_data: Path) -> None:
    tokenizer = module.load_tokenizer("gpt2")
    text = (published_data / "time_machine.txt").read_text(encoding="utf-8")
    data = Dataset.from_tokens(np.array(tokenizer.encode(text)), tokenizer.vocab_size)
    assert len(data.train) == 40_741
    assert data.unigram_entropy == pytest.approx(6.346, abs=5e-4)
    share = Counter(tokenizer.decode([i]) for i in data.train.tolist())
    assert share[","] / len(data.train) == pytest.approx(0.050, abs=5e-4)


def test_the_time_machine_keeps_every_token_through_preparation(
    published_data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKLAB_DATA", str(published_data))
    data = prepare(DataConfig(corpus="time-machine", tokenizer="gpt2"), cache=cache)
    text = (published_data / "time_machine.txt").read_text(encoding="utf-8")
    assert data.tokenizer.decode([*data.train, *data.validation]) == text
    assert abs(len(data.train) + len(data.validation) - 45_268) <= 2  # the cut may fall in a token
    assert data.train_bytes + data.validation_bytes == len(text.encode())


def test_importing_the_config_does_not_import_torch() -> None:
    assert run("import sys, blocklab.data.dataset; print('torch' in sys.modules)") == ["False"]


def test_python_docs_are_split_into_whole_topics(cache: Path) -> None:
    data = prepare(DataConfig(corpus="python-docs"), cache=cache)
    assert data.vocab_size == 2_048
    share = data.validation_bytes / (data.train_bytes + data.validation_bytes)
    assert 0.08 < share < 0.12
    assert data.train_documents + data.validation_documents > 70


@pytest.mark.slow
def test_the_library_is_prepared_in_seconds_and_found_in_no_time(cache: Path) -> None:
    config = DataConfig(corpus="python-library", tokenizer="bpe:1024")
    began = time.process_time()
    cold = prepare(config, cache=cache)
    made = time.process_time() - began
    began = time.process_time()
    warm = prepare(config, cache=cache)
    found = time.process_time() - began
    assert_same(cold, warm)
    assert made < 60  # 5 s on two free cores; loaded machines vary
    assert found < 0.3
    assert cold.unigram_entropy == pytest.approx(5.95, abs=0.1)


PEAK = """
    import resource, sys
    from pathlib import Path
    import blocklab.data.windows
    from blocklab.data.dataset import DataConfig, prepare
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    path, cache, tokenizer = sys.argv[1:]
    before = peak()
    data = prepare(DataConfig(corpus=path, tokenizer=tokenizer), cache=Path(cache))
    print(peak() - before, len(data.train) + len(data.validation))
"""


def test_a_long_line_without_a_break_is_prepared_in_little_memory(
    tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "sparse.txt"
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    grown, tokens = run(PEAK, path, cache, "bytes")
    assert int(tokens) == 64 * 2**20
    assert float(grown) < 60  # MiB


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "sparse.txt"
    with path.open("wb") as file:
        file.truncate(2**30)
    grown, tokens = run(PEAK, path, cache, "bytes")
    assert int(tokens) == 2**30
    assert float(grown) < 60  # MiB


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file_under_a_bpe(tmp_path: Path, cache: Path) -> None:
    grown = {}
    for megabytes in (10, 40):
        path = tmp_path / f"{megabytes}.txt"
        with path.open("w") as file:
            for _ in range(megabytes * 1_000_000 // len(LINES)):
                file.write(LINES)
        memory, _ = run(PEAK, path, cache, "bpe:300")
        grown[megabytes] = float(memory)
    assert grown[40] < grown[10] + 60  # MiB
