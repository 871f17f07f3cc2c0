"""What MODEL means on the command line: a preset, a YAML file, or a run's folder."""

import json
from pathlib import Path

from blocklab.errors import BlocklabError, nearest
from blocklab.model import presets
from blocklab.model.config import ModelConfig


def model_config(name: str) -> ModelConfig:
    """The config that MODEL names. Raises BlocklabError when it names nothing."""
    path = Path(name)
    if name.replace("_", "-") in presets.names():
        return presets.preset(name)()
    if path.is_file():
        return ModelConfig.from_yaml(path)
    record = path / "run.json"
    if record.is_file():
        stored = json.loads(record.read_text(encoding="utf-8"))
        return ModelConfig.parse(stored["spec"]["model"], at=str(record))
    raise BlocklabError(
        f"no model '{name}': not a YAML file, not a run's folder, and not a preset; "
        f"{nearest(name, presets.names())}"
    )
