"""`hf:org/name`: a checkpoint's files from the Hugging Face hub, fetched once and kept there."""

from collections.abc import Sequence
from pathlib import Path

from blocklab.errors import BlocklabError

PREFIX = "hf:"

_CONFIG = "config.json"

_FILES = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
)


def fetched(name: str) -> Path:
    """The folder that holds the checkpoint `hf:org/name`.

    Only configuration, tokenizer, chat templates and safetensors are fetched: no code and no
    pickle. Raises BlocklabError without huggingface_hub, without a network, and for a name that is
    not there.
    """
    folder = _fetched(name, _FILES)
    # Without a network the hub's cache hands out whatever it holds.
    if (folder / _CONFIG).is_file() and not any(folder.glob("*.safetensors")):
        raise BlocklabError(
            f"{name}: only its configuration is here, no safetensors; if the hub has them, try "
            "again with a network"
        )
    return folder


def fetched_config(name: str) -> Path:
    """The folder that holds config.json of `hf:org/name`, and what else was fetched before.

    Raises BlocklabError as `fetched`.
    """
    return _fetched(name, (_CONFIG,))


def _fetched(name: str, files: Sequence[str]) -> Path:
    repository = name.removeprefix(PREFIX)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise BlocklabError(
            f"{name}: needs the package huggingface_hub; pip install 'blocklab[hub]'"
        ) from None
    try:
        return Path(snapshot_download(repository, allow_patterns=list(files)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BlocklabError(
            f"{name}: cannot be fetched ({reason}); is there a network, and is the name right? "
            "A folder with its files works without either"
        ) from None
