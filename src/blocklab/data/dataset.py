"""From a config to a dataset: found in the cache, or made from text and put there.

What a dataset is, once it is there, is in `prepared`; what makes which batch is in `windows`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from blocklab.data.cache import (
    default_cache,
    digest,
    read_json,
    writable_cache,
    write_json,
)
from blocklab.data.corpora import Corpus, Say, read_corpus
from blocklab.data.prepared import FORMAT, Dataset, describe
from blocklab.data.reading import Errors, utf8
from blocklab.data.split import RULE, Side, Split, split
from blocklab.data.synthetic import SYNTHETIC
from blocklab.data.token_files import Text, write_tokens
from blocklab.data.tokenizer import Tokenizer, bpe_size, identity, load_tokenizer, train_bpe
from blocklab.errors import BlocklabError
from blocklab.files import discard, new_folder
from blocklab.record import Record

__all__ = ["DataConfig", "Dataset", "prepare", "require_windows", "still_gives"]

DEFAULT_TOKENIZER = "bpe:2048"
SAMPLE = 50_000_000  # bytes of training text from which a BPE is learnt at most
LARGE = 100_000_000  # bytes of text above which progress is said


class DataConfig(Record):
    """Which text, cut into which tokens. `tokenizer: null` is bpe:2048, bytes for synthetic:…"""

    corpus: str = "python-library"
    tokenizer: str | None = None
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    encoding: str = "utf-8"

    def resolved_tokenizer(self) -> str:
        default = "bytes" if self.corpus.startswith("synthetic:") else DEFAULT_TOKENIZER
        return self.tokenizer or default


def require_windows(dataset: Dataset, context_length: int) -> None:
    """Refuse, with the counts, a dataset in which a side has no room for one window."""
    needed = context_length + 1
    if len(dataset.train) < needed or len(dataset.validation) < needed:
        raise BlocklabError(
            f"too little text: {len(dataset.train):,} training and {len(dataset.validation):,} "
            f"validation tokens, but one window of context_length {context_length} needs "
            f"{needed:,} in each; give more text, a shorter context or another validation_share"
        )


def prepare(config: DataConfig, *, cache: Path | None = None, say: Say | None = None) -> Dataset:
    """The dataset that `config` describes: found in the cache, or made and put there.

    `cache` defaults to BLOCKLAB_CACHE, else ~/.cache/blocklab; `say` is told what is being done.
    What was skipped, normalised or decided is in the dataset's `notes`. Raises BlocklabError.
    """
    root, cache_notes = writable_cache(cache)
    preparation = _Preparation(config, root, say or (lambda text: None))
    found = preparation.known(cache or default_cache()) or preparation.known(root)
    dataset = found or preparation.make()
    return replace(dataset, notes=cache_notes + dataset.notes)


def still_gives(config: DataConfig, fingerprint: str, tokenizer: Tokenizer | None) -> bool:
    """Whether the dataset that `config` describes would be the one of that fingerprint.

    `tokenizer` is what that one was cut with. The text is read, but for what the cache knows of it;
    without a tokenizer the cache alone can tell. Raises BlocklabError.
    """
    root, _ = writable_cache(None)
    preparation = _Preparation(config, root, lambda text: None)
    found = preparation.known(default_cache()) or preparation.known(root)
    if found is not None and found.fingerprint == fingerprint:
        return True
    if tokenizer is None:
        return False
    text = preparation.corpus.fingerprint
    return fingerprint == _fingerprint(text, tokenizer, config.validation_share)


def _fingerprint(text: str, tokenizer: Tokenizer, share: float) -> str:
    return digest(FORMAT, RULE, text, tokenizer.fingerprint, share)


class _Preparation:
    """One config's way from text to dataset. An index in the cache leads from what was found
    (cheap to compute) or read (when files were merely copied or touched) to the dataset."""

    def __init__(self, config: DataConfig, root: Path, say: Say) -> None:
        self.config, self.root, self.say = config, root, say
        self.tokenizer_name = config.resolved_tokenizer()
        self.settings = (
            FORMAT, RULE, identity(self.tokenizer_name), config.validation_share, config.encoding
        )  # fmt: skip
        self.corpus = self.read()

    def read(self) -> Corpus:
        errors: Errors = "surrogateescape" if self.tokenizer_name == "bytes" else "strict"
        config = self.config
        return read_corpus(
            config.corpus, config.encoding, errors=errors, cache=self.root, say=self.say
        )

    def entry(self, root: Path, kind: str, corpus: str) -> Path:
        return root / "index" / f"{digest(kind, corpus, *self.settings)}.json"

    def known(self, root: Path) -> Dataset | None:
        """What the cache at `root` holds for the corpus as it is found, if anything."""
        entry = read_json(self.entry(root, "found", self.corpus.identity)) or {}
        notes = entry.get("source_notes")
        said = tuple(map(str, notes)) if isinstance(notes, list) else ()
        return _reopened(root / "datasets" / str(entry.get("dataset")), said)

    def known_text(self) -> Dataset | None:
        """The dataset made before from a corpus with the same text, if there is one."""
        entry = read_json(self.entry(self.root, "read", self.corpus.fingerprint)) or {}
        return _reopened(self.root / "datasets" / str(entry.get("dataset")), self.corpus.notes)

    def make(self) -> Dataset:
        ready = None if bpe_size(self.tokenizer_name) else load_tokenizer(self.tokenizer_name)
        self.say(f"reading {self.config.corpus}")
        chosen = split(self.corpus.survey, self.config.validation_share)
        dataset = self.known_text() or self.made(chosen, ready)
        known = {"dataset": dataset.fingerprint, "source_notes": self.corpus.notes}
        write_json(self.entry(self.root, "read", self.corpus.fingerprint), known)
        write_json(self.entry(self.root, "found", self.corpus.identity), known)
        return dataset

    def made(self, chosen: Split, ready: Tokenizer | None) -> Dataset:
        size = sum(chosen.survey.sizes)
        if not size:
            raise BlocklabError(
                f"corpus '{self.config.corpus}': holds no text{_listed(self.corpus.notes)}"
            )
        notes = [chosen.said()]
        tokenizer = ready or self.trained(chosen, size, notes)
        if tokenizer.end_of_text is None:
            notes.append("the tokenizer has no end of text: documents follow without a separator")
        fingerprint = _fingerprint(chosen.survey.fingerprint, tokenizer, chosen.share)
        folder = self.root / "datasets" / fingerprint
        if folder.is_dir() and _reopened(folder, ()) is None:
            discard(folder)
        if not folder.is_dir():
            self.say(f"tokenising {size / 1e6:,.1f} MB with {tokenizer.name}")
            with new_folder(folder) as partial:
                self.fill(partial, chosen, tokenizer, fingerprint, notes)
        return Dataset.open(folder, self.corpus.notes)

    def trained(self, chosen: Split, size: int, notes: list[str]) -> Tokenizer:
        """A BPE learnt from the training side alone, of a large one from an even sample."""
        wanted = bpe_size(self.tokenizer_name) or 0
        train_size = size * (1 - chosen.share)
        ratio = min(1.0, SAMPLE / train_size)
        if ratio < 1:
            notes.append(
                f"{self.tokenizer_name} learnt from {100 * ratio:.1f} % of the training text"
            )
        self.say(f"learning {self.tokenizer_name} from {train_size * ratio / 1e6:,.1f} MB")
        pieces = (text for _, side, text in chosen.texts(self.corpus) if side is Side.TRAIN)
        tokenizer = train_bpe(_evenly(pieces, ratio), wanted)
        if tokenizer.vocab_size < wanted:
            notes.append(
                f"the text is too small for {self.tokenizer_name}: "
                f"{tokenizer.vocab_size:,} ids were learnt"
            )
        return tokenizer

    def fill(
        self,
        folder: Path,
        chosen: Split,
        tokenizer: Tokenizer,
        fingerprint: str,
        notes: list[str],
    ) -> None:
        texts = _with_progress(chosen.texts(self.corpus), sum(chosen.survey.sizes), self.say)
        written = write_tokens(texts, tokenizer, folder)
        if self.read().identity != self.corpus.identity:
            raise BlocklabError(f"corpus '{self.config.corpus}' changed while it was being read")
        train, validation = written[Side.TRAIN], written[Side.VALIDATION]
        if not train.tokens or not validation.tokens:
            raise BlocklabError(
                f"corpus '{self.config.corpus}': too little text to split: {train.tokens} training "
                f"and {validation.tokens} validation tokens; give more text"
            )
        kind, _, name = self.config.corpus.partition(":")
        known = kind == "synthetic" and tokenizer.name == "bytes"
        floor = SYNTHETIC[name].entropy_floor if known else None
        describe(
            folder, written, tokenizer, fingerprint, self.corpus.notes, tuple(notes), floor
        )  # fmt: skip


def _reopened(folder: Path, source_notes: tuple[str, ...]) -> Dataset | None:
    """A prepared folder if it is there and sound, with the notes of this corpus, not its twin's."""
    try:
        found = Dataset.open(folder, source_notes)
        # Read now, while there is a text to make it anew from, and not when somebody asks.
        return None if found.tokenizer is None else found
    except BlocklabError:
        return None


def _listed(notes: tuple[str, ...]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def _with_progress(texts: Iterable[Text], size: int, say: Say) -> Iterator[Text]:
    """The same texts; of a large corpus every tenth is said."""
    seen, tenths = 0, 0
    for text in texts:
        yield text
        seen += len(utf8(text[2]))
        if size > LARGE and seen * 10 // size > tenths:
            tenths = seen * 10 // size
            say(f"tokenised {tenths * 10} %")


def _evenly(pieces: Iterable[str], ratio: float) -> Iterator[str]:
    """About `ratio` of the pieces by bytes, spread evenly."""
    seen = kept = 0
    for piece in pieces:
        size = len(utf8(piece))
        seen += size
        if kept + size / 2 <= seen * ratio:
            kept += size
            yield piece
