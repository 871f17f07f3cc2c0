"""The files of a Hugging Face folder that are about texts, read and written again.

generation_config.json, tokenizer_config.json, special_tokens_map.json and the chat templates are
carried as they are; what names code or other files stays behind. Of tokenizer.json only the
padding is read here, for the rest is the tokenizer's.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from blocklab.data.tokenizer import Tokenizer
from blocklab.errors import BlocklabError
from blocklab.exchange.conventions import Said, TextConventions
from blocklab.exchange.fields import Fields
from blocklab.exchange.json_file import read_json_object

GENERATION, TOKENIZER = "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
_TEMPLATE, _TEMPLATES = "chat_template.jinja", "additional_chat_templates"

LARGEST_TEMPLATE = 2**20
"""Bytes; published ones have some ten thousand."""

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

_IN_CONFIG = (
    *_IDS,
    *("sep_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
    *("max_length", "max_new_tokens", "min_length", "do_sample", "num_beams", "early_stopping"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences"),
    *("num_beam_groups", "diversity_penalty", "exponential_decay_length_penalty"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values"),
    "task_specific_params",
)
"""What config.json may say about texts. Files from before generation_config.json said it all."""

_OF_OTHER_FILES = (
    *("tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"),
    *("fast_tokenizer_files", "files_loaded", "name_or_path", "is_local", "local_files_only"),
)
"""Fields of tokenizer_config.json that name files which do not come along."""

_PLAIN_CLASS = "PreTrainedTokenizerFast"
"""The class that takes tokenizer.json for what it says, and has no tokens of its own."""


def read_conventions(
    folder: Path, config: Fields, model_type: str, notes: list[str]
) -> TextConventions:
    """What `folder` says about texts; `config` is its config.json.

    Raises BlocklabError naming the file where one is damaged, or an id or a token is none.
    """
    said: dict[str, object] = {
        "model_type": model_type,
        "config": {name: config.value(name, None) for name in _IN_CONFIG if config.states(name)},
        "generation": _content(folder / GENERATION),
    }
    if (folder / TOKENIZER).is_file():
        said["tokenizer"] = _read_tokenizer_config(folder, notes)
        said["special_tokens"] = _content(folder / SPECIAL_TOKENS)
        said["chat_templates"] = _templates(folder)
    try:
        return TextConventions.parse(said)
    except BlocklabError as error:
        raise BlocklabError(f"{folder}: {str(error)[:300]}") from None


def config_fields(conventions: TextConventions, model_type: str) -> Said:
    """What config.json says about texts, in a folder of the family `model_type`."""
    if conventions.model_type == model_type:
        return dict(conventions.config)
    # Another family's defaults must not stand in for what was not said.
    unsaid: Said = dict.fromkeys(_IDS)
    return unsaid | conventions.config


def text_files(
    conventions: TextConventions,
    tokenizer: Tokenizer | None,
    model_type: str,
    context_length: int,
) -> Mapping[str, str]:
    """The content of every file about texts but tokenizer.json, by its name."""
    files: dict[str, str] = {}
    if conventions.generation is not None:
        files[GENERATION] = as_json(conventions.generation)
    if tokenizer is None:
        return files
    said = _tokenizer_config(conventions, tokenizer, model_type, context_length)
    templates = conventions.chat_templates
    if templates.keys() == {"default"}:
        files[_TEMPLATE] = templates["default"]
    elif templates:
        said["chat_template"] = [{"name": n, "template": text} for n, text in templates.items()]
    files[TOKENIZER_CONFIG] = as_json(said)
    if conventions.special_tokens is not None:
        files[SPECIAL_TOKENS] = as_json(conventions.special_tokens)
    return files


def as_json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _tokenizer_config(
    conventions: TextConventions, tokenizer: Tokenizer, model_type: str, context_length: int
) -> Said:
    """What the authors said; as much as is known where they said nothing.

    A class that they named, or left to the family, is kept in that family alone.
    """
    if conventions.tokenizer is None or conventions.model_type is None:
        said: Said = {"model_max_length": context_length, "clean_up_tokenization_spaces": False}
        said |= conventions.tokenizer or {}
    else:
        said = dict(conventions.tokenizer)
        if conventions.model_type == model_type:
            return said
    special = conventions.special_tokens or {}
    for name, i in _marks(conventions, tokenizer).items():
        token = None if i is None else tokenizer.token(i)
        if token is not None and name not in said | special:
            said[name] = token
    return said | {"tokenizer_class": _PLAIN_CLASS}


def _marks(conventions: TextConventions, tokenizer: Tokenizer) -> dict[str, int | None]:
    """The ids of special tokens as far as they are known, by the tokens' names."""
    start, pad = (conventions.config.get(f"{name}_token_id") for name in ("bos", "pad"))
    stops = (*conventions.stop_ids, None)
    return {
        "bos_token": start if isinstance(start, int) else None,
        "eos_token": stops[0] if tokenizer.end_of_text is None else tokenizer.end_of_text,
        "pad_token": pad if isinstance(pad, int) else None,
    }


def _content(path: Path) -> dict[str, object] | None:
    return read_json_object(path) if path.is_file() else None


def _read_tokenizer_config(folder: Path, notes: list[str]) -> dict[str, object] | None:
    said = _content(folder / TOKENIZER_CONFIG)
    padding = _padding(folder / TOKENIZER)
    if said is None:
        return padding or None
    if said.pop("auto_map", None) is not None:
        notes.append(
            f"{TOKENIZER_CONFIG}: auto_map names code that comes with the checkpoint; it is "
            "neither run nor exported"
        )
        said["tokenizer_class"] = _PLAIN_CLASS
    return padding | {name: value for name, value in said.items() if name not in _OF_OTHER_FILES}


def _padding(path: Path) -> dict[str, object]:
    """What tokenizer.json says about padding, which counts where tokenizer_config.json is silent.

    Our tokenizers do not pad, and are stored without.
    """
    try:
        with path.open("rb") as file:
            # It stands before the vocabulary, which takes long to read.
            if re.search(rb'"padding"\s*:\s*null', file.read(4096)):
                return {}
        padding = json.loads(path.read_bytes()).get("padding")
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}  # refused with better words where it is read as a tokenizer
    if not isinstance(padding, dict):
        return {}
    token, side = padding.get("pad_token"), padding.get("direction")
    said = {"pad_token": token, "padding_side": side.lower() if isinstance(side, str) else None}
    return {name: value for name, value in said.items() if value is not None}


def _templates(folder: Path) -> dict[str, str]:
    """The chat templates in files of their own, by name."""
    main = folder / _TEMPLATE
    templates = {"default": _text(main)} if main.is_file() else {}
    return templates | {p.stem: _text(p) for p in sorted((folder / _TEMPLATES).glob("*.jinja"))}


def _text(path: Path) -> str:
    """A template with the line ends that every reader of text sees."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_TEMPLATE + 1)
        if len(raw) <= LARGEST_TEMPLATE:
            return raw.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        raise BlocklabError(f"{path}: cannot be read ({error})") from None
    raise BlocklabError(f"{path}: larger than {LARGEST_TEMPLATE:,} bytes; that is no template")
