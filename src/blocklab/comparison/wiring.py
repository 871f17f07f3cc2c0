"""What every kind of wiring shares: tensors by name, and records of decisions that can be changed.

A wiring says how a part computes, decision by decision. `changed` takes some decisions otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

Tensors: TypeAlias = Mapping[str, Tensor]
"""Parameters under our names."""

Compute: TypeAlias = Callable[[Tensor, Tensors, Any], Tensor]
"""A part as a function of its input, its parameters and its wiring."""

AnyWiring = TypeVar("AnyWiring")


@dataclass(frozen=True)
class Mistake:
    """A decision that people take otherwise, and how to say so."""

    name: str
    words: str
    """Continues "Yours …"."""
    changes: Mapping[str, object]
    """Dotted path in the wiring and the value that makes the mistake."""


def changed(wiring: AnyWiring, changes: Mapping[str, object]) -> AnyWiring:
    """The wiring with other decisions at these dotted paths."""
    for path, value in changes.items():
        wiring = _changed(wiring, path.split("."), value)
    return wiring


def cut(x: Tensor, place: str, wiring: Any) -> Tensor:
    """`x`, detached where the wiring cuts the graph at this place: the value stays, no gradient."""
    return x.detach() if wiring.cut == place else x


def cuts(
    prefix: str, places: Mapping[str, str], at: tuple[str, ...] = ("",)
) -> tuple[Mistake, ...]:
    """The mistakes of cutting a graph at one of these places; `places` says what stands there.

    `at` are the wirings that make the mistake together. Outputs stay as they are with all of them.
    """
    return tuple(
        Mistake(
            f"{prefix}{place.replace('_', '-')}-detached",
            f"cuts {words} from the graph (detach, .data, .item or torch.no_grad): no gradient "
            "passes there",
            {f"{wiring}cut": place for wiring in at},
        )
        for place, words in places.items()
    )


def applies(mistake: Mistake, wiring: object) -> bool:
    """Whether the mistake would change anything: the part must have such a decision."""
    for path, value in mistake.changes.items():
        at: Any = wiring
        for step in path.split("."):
            if not (is_dataclass(at) and step in {field.name for field in fields(at)}):
                return False
            at = getattr(at, step)
        if at == value:
            return False
    return True


def within(prefix: str, mistakes: tuple[Mistake, ...]) -> tuple[Mistake, ...]:
    """The mistakes of a part as mistakes of what the part is in."""
    return tuple(
        Mistake(m.name, m.words, {f"{prefix}.{path}": value for path, value in m.changes.items()})
        for m in mistakes
    )


def _changed(wiring: Any, steps: list[str], value: object) -> Any:
    head, *rest = steps
    new = _changed(getattr(wiring, head), rest, value) if rest else value
    return replace(wiring, **{head: new})


def under(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, without it."""
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{prefix}.")
    }
