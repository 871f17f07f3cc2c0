"""Rotary positions as configurations of checkpoints state them, older and newer.

Older ones have `rope_theta` and `rope_scaling` beside each other, newer ones `rope_parameters`
with both inside, for every kind of layer where they differ.
"""

import math
from typing import Any

from blocklab.errors import BlocklabError
from blocklab.exchange.fields import Fields
from blocklab.parts.positions import Rotary
from blocklab.parts.rotary_scaling import (
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    NoScaling,
    RotaryScaling,
    Yarn,
)

KINDS = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}
"""Their names of scalings -> ours; `su` is what the first Phi-3 called its own."""


def rotary(
    fields: Fields,
    context_length: int,
    *,
    theta: float = 10_000.0,
    fraction: float | None = None,
    original: int | None = None,
) -> Rotary.Config:
    """The rotary positions that `fields` describe; `theta` where they name no base.

    `fraction` is the family's default share of rotated dimensions, None where the family always
    rotates all. `original` is a context before stretching that stands outside the scaling.
    """
    new, old = fields.nested("rope_parameters"), fields.nested("rope_scaling")
    if new is not None and old is not None:
        raise BlocklabError(
            f"{fields.at}: rope_parameters and rope_scaling stand beside each other"
        )
    inner = new or old
    base = _agreed(fields, inner, "rope_theta", theta)
    share = _agreed(fields, inner, "partial_rotary_factor", fraction or 1.0)
    if fraction is None and share != 1.0:
        raise fields.refused("partial_rotary_factor", share, "1: this family rotates whole heads")
    return one_rotary(inner, fields, context_length, base, share, original)


def one_rotary(
    inner: Fields | None,
    fields: Fields,
    context_length: int,
    base: float,
    fraction: float = 1.0,
    original: int | None = None,
) -> Rotary.Config:
    """The rotary positions of one object of scaling parameters, None for none."""
    scaling: RotaryScaling = NoScaling()
    if inner is not None:
        scaling = _scaling(inner, context_length, original)
        inner.refuse_unread()
    return Rotary.Config(base=base, fraction=fraction, scaling=scaling)


def _agreed(fields: Fields, inner: Fields | None, name: str, default: float) -> float:
    """A number that may stand outside, inside, or in both places with one value."""
    outside = fields.optional_number(name)
    within = inner.optional_number(name) if inner is not None else None
    if outside is not None and within is not None and outside != within:
        raise BlocklabError(f"{fields.at}: {name} is {outside:g} and, for the rotation, {within:g}")
    return next((v for v in (within, outside) if v is not None), default)


def _scaling(f: Fields, context_length: int, original: int | None) -> RotaryScaling:
    kind = f.one_of("rope_type" if f.has("rope_type") else "type", KINDS, "default")
    f.ignore("type")
    if kind == "none":
        return NoScaling()
    if kind == "linear":
        return Linear(factor=f.number("factor"))
    if kind == "dynamic":
        f.expect("original_max_position_embeddings", context_length)
        return Dynamic(factor=f.number("factor"), original_context=context_length)
    before = original or context_length
    stated = f.whole("original_max_position_embeddings", before)
    before = original or stated
    if kind == "llama3":
        return Llama3(
            factor=f.number("factor"),
            low_frequency=f.number("low_freq_factor"),
            high_frequency=f.number("high_freq_factor"),
            original_context=before,
        )
    factor = f.number("factor", context_length / before)
    if kind == "longrope":
        if original is None:
            # Versions of transformers disagree about where the original context then stands.
            raise f.refused("rope_type", "longrope", "another: only Phi-3 defines it")
        return LongRope(
            short=f.numbers("short_factor"),
            long=f.numbers("long_factor"),
            original_context=before,
            factor=factor,
            amplitude=f.optional_number("attention_factor"),
        )
    return _yarn(f, context_length, before, factor)


def _yarn(f: Fields, context_length: int, before: int, factor: float) -> Yarn:
    if f.has("original_max_position_embeddings") and factor != context_length / before:
        f.notes.append(
            f"rope_scaling.factor {factor:g} is what stretches; some versions of transformers used "
            f"max_position_embeddings / original_max_position_embeddings, "
            f"{context_length / before:g}, instead"
        )
    amplitude = f.optional_number("attention_factor")
    part, whole = f.optional_number("mscale"), f.optional_number("mscale_all_dim")
    if amplitude is None and part and whole:
        amplitude = _sharpening(factor, part) / _sharpening(factor, whole)
    return Yarn(
        factor=factor,
        original_context=before,
        beta_fast=f.number("beta_fast", 32.0),
        beta_slow=f.number("beta_slow", 1.0),
        amplitude=amplitude,
        truncate=f.flag("truncate") if f.states("truncate") else True,
    )


def _sharpening(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def described(rotary: Rotary.Config) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`, the form that old and new readers know."""
    return {"rope_theta": rotary.base, "rope_scaling": _described_scaling(rotary.scaling)}


def _described_scaling(s: RotaryScaling) -> dict[str, Any] | None:
    if isinstance(s, Linear):
        return {"rope_type": "linear", "factor": s.factor}
    if isinstance(s, Dynamic):
        return {"rope_type": "dynamic", "factor": s.factor}
    if isinstance(s, Llama3):
        return {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_frequency,
            "high_freq_factor": s.high_frequency,
            "original_max_position_embeddings": s.original_context,
        }
    if isinstance(s, Yarn):
        return {
            "rope_type": "yarn",
            "factor": s.factor,
            "original_max_position_embeddings": s.original_context,
            "beta_fast": s.beta_fast,
            "beta_slow": s.beta_slow,
            "attention_factor": s.size(),
            "truncate": s.truncate,
        }
    if isinstance(s, LongRope):
        return {
            "rope_type": "longrope",
            "short_factor": list(s.short),
            "long_factor": list(s.long),
            "original_max_position_embeddings": s.original_context,
            "attention_factor": s.size(),
            "factor": s.factor,
        }
    return None


def stretched_context(stated: int, positions: Rotary.Config) -> int:
    """How many tokens a model serves whose `max_position_embeddings` is `stated`.

    A dynamic base states the context before it grows; all others the one after.
    """
    scaling = positions.scaling
    return int(stated * scaling.factor) if isinstance(scaling, Dynamic) else stated


def stated_context(context_length: int, positions: Rotary.Config) -> int:
    """The other way round."""
    scaling = positions.scaling
    return scaling.original_context if isinstance(scaling, Dynamic) else context_length
