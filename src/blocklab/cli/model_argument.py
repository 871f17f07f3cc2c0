"""What MODEL means on the command line, where its weights do not matter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blocklab.cli.hub import PREFIX, fetched_config
from blocklab.errors import BlocklabError, nearest
from blocklab.model import presets
from blocklab.model.config import ModelConfig
from blocklab.model.preset_fields import is_preset


def is_untrained(name: str) -> bool:
    """Whether MODEL is a config without weights: a preset or a YAML file."""
    return is_preset(name) or Path(name).suffix.lower() in (".yaml", ".yml")


def model_config(name: str) -> ModelConfig:
    """The config that MODEL names. Raises BlocklabError when it names nothing."""
    if is_preset(name):
        return presets.preset(name)()
    path = fetched_config(name) if name.startswith(PREFIX) else require_somewhere(name)
    # By any name: only weights have endings of their own.
    if path.is_file() and path.suffix != ".gguf":
        return ModelConfig.from_yaml(path)
    # Late, for it brings training and tokenizers along.
    from blocklab.exchange.load import load_config

    return load_config(path)


def changed_model(name: str, config: ModelConfig, changes: Mapping[str, Any]) -> ModelConfig:
    """The config that MODEL names, with changes; at another width a preset's feed-forward follows.

    A preset states the published width, which belongs to the published d_model alone.
    """
    if is_preset(name) and changes.get("d_model", config.d_model) != config.d_model:
        changes = {"block.feed_forward.d_ff": None} | dict(changes)
    return config.with_changes(changes)


def require_somewhere(name: str) -> Path:
    """The path that MODEL is. Raises BlocklabError, with the presets, where there is none."""
    path = Path(name)
    # An empty name would mean the folder one happens to be in.
    if not name.strip() or not path.exists():
        raise BlocklabError(
            f"no model '{name}': not a preset, a YAML file, a run, a Hugging Face folder, a .gguf "
            f"file or hf:org/name; {nearest(name, presets.names())}"
        )
    return path
