"""The standard block: two sublayers on the residual stream, in series or in parallel."""

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator
from torch import Tensor, nn

from blocklab.model.sublayer import NORM_ROLES, Placement, through_sublayer
from blocklab.parts.attention import AttentionConfig, CausalAttention, told_score_width
from blocklab.parts.context import AttentionContext
from blocklab.parts.feed_forward import MLP, FeedForwardConfig
from blocklab.parts.norm import LayerNorm, NormConfig
from blocklab.parts.part import PartConfig, Spec, part, slot, under
from blocklab.parts.residual import Add, ResidualConfig

SUBLAYERS = ("attention", "feed_forward")


@slot(n_sizes=1)
class BlockConfig(PartConfig):
    """A whole block: (B, T, d_model) and a context -> (B, T, d_model)."""

    slot = "block"
    default_kind = "standard"

    def check(self, d_model: int) -> None:
        """Raise BlocklabError when the block cannot be built at this width."""

    def score_width(self, d_model: int, context_length: int) -> int | None:
        """n_heads * head_dim * keys seen, summed over the block's attention.

        A class of the user's own states it as an attention does. For one that does not, it is that
        of the attention in its record, or what `n_heads` there comes to. None: nothing to go by.
        """
        nested = [inner for _, inner in self if isinstance(inner, AttentionConfig)]
        if hasattr(self.module, "score_width") or not nested:
            return told_score_width(self, d_model, context_length)
        widths = [attention.score_width(d_model, context_length) for attention in nested]
        return None if None in widths else sum(filter(None, widths))


@part("block", "standard")
class StandardBlock(nn.Module):
    """Attention, then feed-forward, each with its norms and its way back to the stream.

    In parallel both read the same stream and their outputs join it together: with one norm for
    both (Wang & Komatsuzaki 2021, GPT-J) or one each (Black et al. 2022, GPT-NeoX).
    """

    class Config(BlockConfig):
        kind: Literal["standard"] = "standard"
        placement: Placement = "pre"
        parallel: Literal["off", "one_norm", "two_norms"] = "off"
        norm: SerializeAsAny[NormConfig] = Field(default_factory=LayerNorm.Config)
        attention: SerializeAsAny[AttentionConfig] = Field(default_factory=CausalAttention.Config)
        feed_forward: SerializeAsAny[FeedForwardConfig] = Field(default_factory=MLP.Config)
        residual: SerializeAsAny[ResidualConfig] = Field(default_factory=Add.Config)

        @field_validator("parallel", mode="before")
        @classmethod
        def _off_may_be_false(cls, value: object) -> object:
            return "off" if value is False else value

        @model_validator(mode="after")
        def _parallel_is_pre_norm(self) -> "StandardBlock.Config":
            if self.parallel != "off" and self.placement != "pre":
                raise ValueError(
                    f"parallel '{self.parallel}' goes with placement 'pre', not '{self.placement}'"
                )
            return self

        def check(self, d_model: int) -> None:
            if isinstance(self.attention, CausalAttention.Config):
                self.attention.heads(d_model)
            self.feed_forward.width(d_model)

        def norm_names(self) -> dict[str, dict[str, str]]:
            """For each sublayer, where its norms act and what they are called."""
            if self.parallel == "one_norm":
                return {name: {"into": "both"} for name in SUBLAYERS}
            return {
                sublayer: {
                    role: sublayer if i == 0 else f"{sublayer}_{role}"
                    for i, role in enumerate(NORM_ROLES[self.placement])
                }
                for sublayer in SUBLAYERS
            }

        def residual_names(self) -> tuple[str, ...]:
            """One for each way back to the stream: in parallel the branches share it."""
            return SUBLAYERS if self.parallel == "off" else ("both",)

        def parameters(self, d_model: int) -> dict[str, Spec]:  # type: ignore[override]
            names = self.norm_names()
            specs: dict[str, Spec] = {}
            for name in dict.fromkeys(n for of in names.values() for n in of.values()):
                specs |= under(f"norm.{name}", self.norm.parameters(d_model))
            specs |= under("attention", self.attention.parameters(d_model))
            specs |= under("feed_forward", self.feed_forward.parameters(d_model))
            for name in self.residual_names():
                specs |= under(f"residual.{name}", self.residual.parameters(d_model))
            return specs

        def matrix_parameters(self, d_model: int) -> int:  # type: ignore[override]
            names = [name for of in self.norm_names().values() for name in of.values()]
            # Ours have none in norms and residuals; a user's own may.
            return (
                self.attention.in_products(d_model)
                + self.feed_forward.in_products(d_model)
                + self.norm.in_products(d_model) * len(set(names))
                + self.residual.in_products(d_model) * len(self.residual_names())
            )

    def __init__(self, d_model: int, config: Config) -> None:
        super().__init__()
        self.parallel = config.parallel != "off"
        self.norm_names = config.norm_names()
        self.norm = nn.ModuleDict()
        for names in self.norm_names.values():
            for name in names.values():
                if name not in self.norm:
                    self.norm[name] = config.norm.build(d_model)
        self.attention = config.attention.build(d_model)
        self.feed_forward = config.feed_forward.build(d_model)
        self.residual = nn.ModuleDict(
            {name: config.residual.build(d_model) for name in config.residual_names()}
        )

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        def attention(h: Tensor) -> Tensor:
            return self.attention(h, context)  # type: ignore[no-any-return]

        if self.parallel:
            return self._in_parallel(x, attention, context)
        x = self._sublayer("attention", attention, x, context)
        return self._sublayer("feed_forward", self.feed_forward, x, context)

    def _sublayer(
        self, name: str, branch: Callable[[Tensor], Tensor], x: Tensor, context: AttentionContext
    ) -> Tensor:
        return through_sublayer(x, branch, self._norms(name), self.residual[name], context.drop)

    def _in_parallel(
        self, x: Tensor, attention: Callable[[Tensor], Tensor], context: AttentionContext
    ) -> Tensor:
        h = self._norms("attention")["into"](x)
        shared = self.norm_names["attention"] == self.norm_names["feed_forward"]
        g = h if shared else self._norms("feed_forward")["into"](x)
        branches = context.drop(attention(h)) + context.drop(self.feed_forward(g))
        return self.residual["both"](x, branches)  # type: ignore[no-any-return]

    def _norms(self, sublayer: str) -> Mapping[str, nn.Module]:
        return {role: self.norm[name] for role, name in self.norm_names[sublayer].items()}
