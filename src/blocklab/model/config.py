"""The configuration of a whole model: a tree of records that the module tree follows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, SerializeAsAny, WrapValidator, model_validator

from blocklab.errors import BlocklabError, nearest
from blocklab.expected import require
from blocklab.files import write_atomically
from blocklab.model.block import BlockConfig, StandardBlock
from blocklab.model.initialization import InitializationConfig, Normal
from blocklab.model.layers import Layer, LayerException, value_at
from blocklab.model.preset_fields import SIZES, preset_fields
from blocklab.parts.attention import CausalAttention
from blocklab.parts.norm import NoNorm, NormConfig
from blocklab.parts.part import Spec, linear, under
from blocklab.parts.positions import LearnedPositions, PositionsConfig, Rotary
from blocklab.record import (
    Kept,
    Record,
    Value,
    changed,
    every_path,
    kept_by_switches,
    revalidated,
)
from blocklab.shown import Shown
from blocklab.yaml_file import read_yaml, write_yaml

Probability = Annotated[float, Field(ge=0, lt=1)]


class EmbeddingConfig(Record):
    """The token embedding."""

    scale: float | None = Field(None, gt=0)
    """Factor on looked-up vectors, whatever they were drawn at. Null: 1, or for a tied table what
    lifts the head's std, at which it is drawn, to the embedding's."""


class HeadConfig(Record):
    """The map from the stream to logits: softcap * tanh(scale * (W h + b) / softcap)."""

    bias: bool = False
    scale: float | None = Field(None, gt=0)
    softcap: float | None = Field(None, gt=0)


def _same_or_norm(value: object, _: object) -> object:
    """`same` and null stay as they are; everything else must be a norm, and errors say which."""
    return value if value is None or value == "same" else NormConfig.model_validate(value)


class ModelConfig(Shown, Record):
    """A decoder-only language model. Sizes that are null are resolved from others at build.

    Prints as the YAML that `from_yaml` reads.
    """

    vocab_size: int | None = Field(None, gt=0)
    """Rows of the embedding; null until a tokenizer gives it."""
    context_length: int = Field(1024, gt=0)
    d_model: int = Field(768, gt=0)
    n_layers: int = Field(12, gt=0)
    tie_embeddings: bool = True
    dropout: Probability = 0.0
    """After the embedding sum, on attention weights, and on each branch before it joins."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    positions: SerializeAsAny[PositionsConfig] = Field(default_factory=LearnedPositions.Config)
    block: SerializeAsAny[BlockConfig] = Field(default_factory=StandardBlock.Config)
    final_norm: Annotated[
        Literal["same"] | SerializeAsAny[NormConfig] | None, WrapValidator(_same_or_norm)
    ] = None
    """`same` follows block.norm; null means `none` under placement post, else `same`. A block of
    the user's own that has no norm in its record gives nothing to follow: it must be given then."""
    head: HeadConfig = HeadConfig()
    layers: tuple[LayerException, ...] = ()
    initialization: SerializeAsAny[InitializationConfig] = Field(default_factory=Normal)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for exception in self.layers:
            exception.indices(self.n_layers)
        for layer in map(self.layer, self._distinct_layers()):
            layer.block.check(self.d_model)
            attention = getattr(layer.block, "attention", None)
            if isinstance(attention, CausalAttention.Config) and isinstance(
                layer.positions, Rotary.Config
            ):
                layer.positions.rotated(attention.heads(self.d_model)[2])
        _ = self.norm_at_the_end
        self._require_reachable_embedding_std()
        return self

    def _require_reachable_embedding_std(self) -> None:
        std, scale = self.initialization.embedding_std, self.embedding.scale
        if self.tie_embeddings and std is not None and scale is not None:
            raise BlocklabError(
                f"initialization.embedding_std: {std} is never reached: a tied table is drawn at "
                f"the head's std and embedding.scale, here {scale}, is all that its lookup is "
                "scaled by; set embedding.scale or initialization.embedding_std to null"
            )

    def _exceptions(self, index: int) -> tuple[int, ...]:
        """Which of `layers` act on layer `index`; layers with the same ones are alike."""
        return tuple(n for n, e in enumerate(self.layers) if index in e.indices(self.n_layers))

    def _distinct_layers(self) -> list[int]:
        """One index for each group of layers that are alike."""
        if not self.layers:
            return [0]
        return list({self._exceptions(i): i for i in range(self.n_layers)}.values())

    def layer(self, index: int) -> Layer:
        """Block and positions of layer `index`; of exceptions that meet there the last one wins."""
        layer = Layer(block=self.block, positions=self.positions)
        for exception in self.layers:
            if index in exception.indices(self.n_layers):
                layer = exception.applied_to(layer)
        return layer

    def excepted_positions(self) -> dict[int, PositionsConfig]:
        """Positions of the layers whose own differ from the model's."""
        if not self.layers:
            return {}
        own = {i: self.layer(i).positions for i in range(self.n_layers)}
        return {i: positions for i, positions in own.items() if positions != self.positions}

    def overridden(self, path: str) -> tuple[int, ...]:
        """Layers with another value at `path` than the model's: what `layers` states there wins.

        `path` is dotted, `block.attention.window`; none is excepted where it begins otherwise than
        with `block` or `positions`.
        """
        stated = value_at(Layer(block=self.block, positions=self.positions), path)
        layers = range(self.n_layers) if self.layers else ()
        return tuple(i for i in layers if value_at(self.layer(i), path) != stated)

    @property
    def routes(self) -> bool:
        """Whether some layer sends tokens to experts."""
        blocks = (self.layer(i).block for i in self._distinct_layers())
        return any(getattr(b, "feed_forward", b).kind == "experts" for b in blocks)

    @property
    def rows(self) -> int:
        """The vocabulary size. Raises BlocklabError while it is null."""
        if self.vocab_size is None:
            raise BlocklabError("vocab_size is null: give it, or a tokenizer that decides it")
        return self.vocab_size

    @property
    def norm_at_the_end(self) -> NormConfig:
        """The final norm after resolution; kind `none` where there is none."""
        norm = _final_norm(self.final_norm, self.block)
        if norm is None:
            raise BlocklabError(
                f"final_norm: block '{self.block.kind}' has no norm that it could follow; "
                "give final_norm, a norm or none"
            )
        return norm

    def meant_by(self, name: str) -> Record | None:
        """A path into the final norm starts from what it follows while it is null or `same`."""
        if name == "final_norm" and self.final_norm in (None, "same"):
            return _final_norm(self.final_norm, self.block)
        return None

    @property
    def embedding_scale(self) -> float:
        """Factor on looked-up embeddings after resolution."""
        if self.embedding.scale is not None:
            return self.embedding.scale
        if not self.tie_embeddings:
            return 1.0
        return self.initialization.table_std() / self.initialization.output_std()

    def parameters(self) -> dict[str, Spec]:
        """Path, shape and role of every distinct parameter, in the order of the built module."""
        d = self.d_model
        # A tied table is drawn as the head it is; its lookup is scaled instead.
        table = Spec((self.rows, d), "head" if self.tie_embeddings else "embedding")
        specs = {"embedding.weight": table}
        specs |= under("positions", self.positions.parameters(d, self.context_length))
        known: dict[tuple[int, ...], dict[str, Spec]] = {}
        for i in range(self.n_layers):
            alike = self._exceptions(i)
            if alike not in known:
                known[alike] = self.layer(i).block.parameters(d)
            specs |= under(f"blocks.{i}", known[alike])
        for i, positions in self.excepted_positions().items():
            inner = positions.parameters(d, self.context_length)
            specs |= under(f"layer_positions.{i}", inner)
        specs |= under("final_norm", self.norm_at_the_end.parameters(d))
        head = linear("head", d, self.rows, bias=self.head.bias, role="head")
        if self.tie_embeddings:
            del head["head.weight"]
        return specs | head

    def with_changes(self, changes: Mapping[str, Any]) -> "ModelConfig":
        """A new config with the value at each dotted path replaced.

        `block.X` changes every layer but those for which `layers` states X: exceptions win, and
        `overridden` names where. `blocks.3.X` changes one layer: it adds an exception, which wins
        over those before it. A mapping without `kind` updates a part, one with `kind` replaces it;
        a change of kind keeps the fields both kinds have. Another kind of block keeps the final
        norm, which is then stated, unless the changes say otherwise. Raises BlocklabError for a bad
        path or value.
        """
        require(Mapping, changes, "with_changes")
        return revalidated(self._keeping_final_norm(self._changed(changes), changes))

    def kept(self, changes: Mapping[str, Any]) -> tuple[Kept, ...]:
        """What `with_changes` keeps that neither the changes nor the new kinds' defaults say.

        Raises BlocklabError for a bad path or value.
        """
        kept: list[Kept] = []
        for path, value in changes.items():
            first, _, rest = path.partition(".")
            if first == "blocks":
                exception = _excepted(self, path, rest, value).layers[-1]
                layer = self.layer(min(exception.indices(self.n_layers)))
                for found in kept_by_switches(layer, exception.changes):
                    inner = found.path.removeprefix("block.")
                    kept.append(found._replace(path=f"blocks.{exception.at}.{inner}"))
        whole = {path: value for path, value in changes.items() if path.split(".")[0] != "blocks"}
        kept += kept_by_switches(self, whole)
        bare = self._changed(whole)
        stated = self._keeping_final_norm(bare, whole).final_norm
        if stated is not bare.final_norm and isinstance(stated, NormConfig):
            block = _block_of(bare)
            alone = _final_norm(bare.final_norm, block)
            default: Value = "no norm to follow" if alone is None else alone.plain()
            kept.append(Kept("final_norm", stated.plain(), block.kind, default))
        return tuple(kept)

    def _changed(self, changes: Mapping[str, Any]) -> "ModelConfig":
        """The config with each change made, and nothing validated yet."""
        config: Record = self
        for path, value in changes.items():
            first, _, rest = path.partition(".")
            if first == "blocks":
                config = _excepted(cast(ModelConfig, config), path, rest, value)
            else:
                config = changed(config, path, value)
        return cast(ModelConfig, config)

    def _keeping_final_norm(self, new: "ModelConfig", changes: Mapping[str, Any]) -> "ModelConfig":
        """`new`, made by `changes`, with this config's final norm stated where it would be lost.

        Only another kind of block can lose it unsaid: it may have no norm, or another one.
        """
        said = set(every_path(changes))
        if _kind_of(new.block) == self.block.kind or "final_norm" in said:
            return new
        norm, own = _final_norm(new.final_norm, _block_of(new)), self.norm_at_the_end
        if norm == own or (norm is not None and said & {"block.norm", "block.placement"}):
            return new
        return new.model_copy(update={"final_norm": own})

    @classmethod
    def from_yaml(cls, path: str | Path) -> "ModelConfig":
        """Read a config: all of its fields, or a preset, its sizes and changes to it.

        Other keys beside `preset` are paths as in `with_changes`. Raises BlocklabError naming the
        file.
        """
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise BlocklabError(f"{path}: expected a mapping of a model's fields")
        if data.keys() & {"baseline", "variants"}:
            raise BlocklabError(f"{path}: describes a study, not a model; blocklab ablate takes it")
        try:
            return cls._of_preset(data) if "preset" in data else cls.parse(data)
        except BlocklabError as error:
            raise BlocklabError(f"{path}: {error}") from None

    @classmethod
    def _of_preset(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Sizes go to the preset, for others follow them; all else is set as it is."""
        valid = {"preset", *SIZES, *cls.model_fields}
        for path in data:
            first = str(path).split(".")[0]
            if first not in valid | {"blocks"}:
                raise BlocklabError(f"unknown key '{path}'; {nearest(first, valid)}")
        sizes = {name: data[name] for name in SIZES if data.get(name) is not None}
        config = cls.parse(preset_fields(str(data["preset"]), sizes))
        # Null is a value of the model's own fields (`vocab_size`), but heads are its attention's.
        done = {"preset", "n_heads", "n_kv_heads", *sizes}
        return config.with_changes({path: data[path] for path in data if path not in done})

    def to_yaml(self, path: str | Path) -> None:
        """Write every field, defaults included. Raises RunFailed when the disk refuses."""
        write_atomically(Path(path), f"{self}\n".encode())

    def __str__(self) -> str:
        return write_yaml(self.plain()).rstrip("\n")


def _final_norm(chosen: object, block: BlockConfig) -> NormConfig | None:
    """What a model's `final_norm` comes to; None where it follows a block that has no norm."""
    if isinstance(chosen, NormConfig):
        return chosen
    if chosen is None and getattr(block, "placement", "pre") == "post":
        return NoNorm.Config()
    norm = getattr(block, "norm", None)
    return norm if isinstance(norm, NormConfig) else None


def _kind_of(block: object) -> object:
    """The kind of a block that is not validated yet."""
    if isinstance(block, Mapping):
        return block.get("kind", BlockConfig.default_kind)
    return getattr(block, "kind", block)


def _block_of(config: ModelConfig) -> BlockConfig:
    """The block of a config that is not validated yet."""
    block: object = config.block
    if isinstance(block, BlockConfig):
        return revalidated(block, "block")
    return BlockConfig.parse(block, "block")


def _excepted(config: ModelConfig, path: str, rest: str, value: object) -> ModelConfig:
    index, _, inner = rest.partition(".")
    if not inner or not index.lstrip("-").isdigit():
        raise BlocklabError(f"{path}: expected blocks.NUMBER.PATH, as in blocks.3.norm.kind")
    exception = LayerException(at=index, changes={f"block.{inner}": value})
    return config.model_copy(update={"layers": (*config.layers, exception)})
