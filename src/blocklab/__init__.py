"""blocklab: a laboratory for the transformer block.

Public names load when first used, so that importing the package stays instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocklab import parts as parts
    from blocklab.errors import BlocklabError as BlocklabError
    from blocklab.model import presets as presets
    from blocklab.model.config import ModelConfig as ModelConfig
    from blocklab.model.count import count as count
    from blocklab.model.transformer import Transformer as Transformer
    from blocklab.parts.part import part as part

__version__ = "0.1.0"

_PUBLIC = {
    "BlocklabError": "blocklab.errors:BlocklabError",
    "ModelConfig": "blocklab.model.config:ModelConfig",
    "Transformer": "blocklab.model.transformer:Transformer",
    "count": "blocklab.model.count:count",
    "part": "blocklab.parts.part:part",
    "parts": "blocklab.parts",
    "presets": "blocklab.model.presets",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'blocklab' has no attribute '{name}'")
    module, _, attribute = _PUBLIC[name].partition(":")
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
