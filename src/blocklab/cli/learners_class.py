"""A learner's class from FILE:CLASS, built by filling its constructor from known names of sizes."""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from blocklab.errors import BlocklabError, nearest
from blocklab.own_file import imported_file

SYNONYMS: dict[str, str] = {
    "d_model": "d_model d dim emb_dim n_embd embed_dim embedding_dim embed_size hidden_size "
    "model_dim normalized_shape d_in d_out n_embed width features num_features channels ndim size",
    "n_heads": "n_heads n_head num_heads heads nhead num_attention_heads",
    "n_kv_heads": "n_kv_heads num_kv_heads num_key_value_heads n_kv_groups",
    "n_layers": "n_layers n_layer num_layers depth layers num_hidden_layers n_blocks",
    "context_length": "context_length block_size max_seq_len max_len seq_len ctx_len n_ctx "
    "n_positions max_position_embeddings max_seq_length",
    "vocab_size": "vocab_size n_vocab vocab num_tokens",
    "d_ff": "d_ff hidden_dim ff_dim dim_feedforward intermediate_size ffn_dim d_hidden hidden",
    "head_dim": "head_dim head_size d_head d_k",
    "dropout": "dropout drop_rate p dropout_p attn_pdrop resid_pdrop embd_pdrop attn_dropout",
    "qkv_bias": "qkv_bias",
    "bias": "bias use_bias",
    "eps": "eps epsilon layer_norm_epsilon norm_eps rms_norm_eps",
}
"""Our word for a size, and the names that people's constructors have for it."""

_OURS = {name: ours for ours, names in SYNONYMS.items() for name in names.split()}


class Sizes(dict[str, Any]):
    """A configuration that is a mapping and an object alike, under every name that people use."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def built(spec: str, sizes: Mapping[str, Any], given: Mapping[str, Any]) -> nn.Module:
    """The module that FILE:CLASS names, built with `given` arguments and known `sizes`.

    Raises BlocklabError when the file, the class or an argument cannot be found.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file:
        raise BlocklabError(f"{spec}: expected FILE:CLASS, as in my_norm.py:MyNorm")
    found = getattr(_imported(Path(file)), name, None)
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise BlocklabError(f"{file}: no torch module called '{name}'")
    arguments = _arguments(found, sizes, given)
    try:
        return found(**arguments)
    except (Exception, SystemExit) as error:
        shown = ", ".join(f"{key}={_short(value)}" for key, value in arguments.items())
        raise BlocklabError(f"{name}({shown}) fails: {type(error).__name__}: {error}") from error


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise BlocklabError(f"{path}: no such file")
    # Its neighbours first, as when Python runs it; itself by a name of its own, for a learner's
    # inspect.py is not Python's.
    before = list(sys.path)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        return imported_file(path, f"blocklab_learner_{path.stem}")
    finally:
        sys.path[:] = before


def _arguments(
    found: type[nn.Module], sizes: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(found).parameters
    for name in given:
        if name not in parameters:
            raise BlocklabError(
                f"--with {name}: {found.__name__} takes no such argument; "
                f"{nearest(name, parameters)}"
            )
    arguments = dict(given)
    for name, parameter in parameters.items():
        if name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        ours = _OURS.get(name.lower())
        if ours is not None and sizes.get(ours) is not None:
            arguments[name] = sizes[ours]
        elif parameter.default is parameter.empty and name.lower() in _CONFIGS:
            arguments[name] = _as_config(sizes)
        elif parameter.default is parameter.empty:
            raise BlocklabError(
                f"{found.__name__}: what is its argument '{name}'? give --with {name}=VALUE"
            )
    return arguments


_CONFIGS = {"config", "cfg", "args", "params", "hparams", "conf", "settings"}


def _as_config(sizes: Mapping[str, Any]) -> Sizes:
    return Sizes({name: sizes[ours] for name, ours in _OURS.items() if sizes.get(ours) is not None})


def _short(value: Any) -> str:
    return "…" if isinstance(value, Sizes) else repr(value)
