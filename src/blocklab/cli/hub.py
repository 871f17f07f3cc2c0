"""`hf:org/name`: a checkpoint's files from the Hugging Face hub, fetched once and kept there."""

from pathlib import Path

from blocklab.errors import BlocklabError

PREFIX = "hf:"

_CONFIG = "config.json"

_FILES = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
)


def fetched(name: str, *, only_config: bool = False) -> Path:
    """The folder that holds the checkpoint `hf:org/name`, or no more of it than config.json.

    Only configuration, tokenizer and safetensors are fetched: no code and no pickle. Raises
    BlocklabError without huggingface_hub, without a network, and for a name that is not there.
    """
    wanted = [_CONFIG] if only_config else list(_FILES)
    repository = name.removeprefix(PREFIX)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise BlocklabError(
            f"{name}: needs the package huggingface_hub; pip install 'blocklab[hub]'"
        ) from None
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BlocklabError(
            f"{name}: cannot be fetched ({reason}); is there a network, and is the name right? "
            "A folder with its files works without either"
        ) from None
