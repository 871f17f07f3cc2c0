"""What a user's own part says by being built: its parameters, their roles, its products.

Ours state all of it in their records; of a class that states nothing it is read off its modules.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from blocklab.errors import BlocklabError, nearest
from blocklab.parts.contract import is_ours
from blocklab.parts.spec import Role, Spec, under


class Stated(Protocol):
    """What a part's record says of itself."""

    def parameters(self, *sizes: int) -> dict[str, Spec]: ...

    def in_products(self, *sizes: int) -> int: ...


class Built(NamedTuple):
    """What a part was built from."""

    record: Stated
    sizes: tuple[int, ...]


def specs_of(module: nn.Module, inside: Mapping[nn.Module, Built]) -> dict[str, Spec]:
    """Shape and role of every distinct parameter of a built module.

    `inside` says which modules in it are parts: their records know their roles. Raises
    BlocklabError where the class names a parameter that it has not.
    """
    kept_parameters(module)
    known: dict[str, Role] = {}
    for path, inner in module.named_modules():
        if inner in inside:
            built = inside[inner]
            specs = under(path, built.record.parameters(*built.sizes))
            known |= {name: spec.role for name, spec in specs.items()}
    owners = dict(module.named_modules())
    read = {}
    for name, parameter in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        role = known.get(name) or _role(owners[path], leaf, parameter)
        read[name] = Spec(tuple(parameter.shape), role)
    return _with_writers(module, read)


def _role(owner: nn.Module, leaf: str, parameter: Tensor) -> Role:
    """What a parameter is for in the module that holds it: its kind tells, a name alone does not.

    What somebody calls a bias may be anything; that of a linear map is one, as PyTorch's and ours.
    """
    if leaf == "weight" and isinstance(owner, nn.Linear):
        return "matrix"
    if leaf == "weight" and isinstance(owner, nn.Embedding):
        return "position"
    if parameter.ndim >= 2:
        return "other"
    kind = type(owner)
    of_torch = kind.__module__.startswith("torch.nn.") and kind.__module__ not in _HOLDING_OTHERS
    known = isinstance(owner, nn.Linear) or of_torch or is_ours(kind)
    return "bias" if leaf == "bias" and known else "gain"


_HOLDING_OTHERS = (nn.Module.__module__, nn.ModuleList.__module__)
"""Where PyTorch defines the bare module and containers: what stands in them somebody put there."""


def _with_writers(module: nn.Module, specs: dict[str, Spec]) -> dict[str, Spec]:
    """The specs with the role of those that the class names as residual writers."""
    written = dict(specs)
    for name in getattr(module, "residual_writers", ()):
        _require_parameter(module, "residual_writers", name, specs)
        if len(specs[name].shape) < 2:
            at = f"{type(module).__name__}.residual_writers: '{name}'"
            raise BlocklabError(f"{at} has shape {specs[name].shape}; expected a matrix")
        written[name] = Spec(specs[name].shape, "writer")
    return written


def kept_parameters(module: nn.Module) -> set[Tensor]:
    """Parameters whose first values are their constructor's, as the classes inside say.

    Raises BlocklabError where a class names a parameter that it has not.
    """
    kept: set[Tensor] = set()
    for inner in module.modules():
        names = getattr(inner, "keeps_values", ())
        # A tied one may be named by any of its names.
        held = dict(inner.named_parameters(remove_duplicate=False)) if names else {}
        for name in names:
            _require_parameter(inner, "keeps_values", name, held)
            kept.add(held[name])
    return kept


def _require_parameter(module: nn.Module, said: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        at = f"{type(module).__name__}.{said}: '{name}'"
        raise BlocklabError(f"{at} is no parameter of it; {nearest(name, names)}")


class Products(NamedTuple):
    """Parameters that one token is multiplied by, each as often as it is."""

    linear: int
    """Those of linear maps."""
    by_hand: int
    """Raw parameters of two dimensions or more."""


def products_in(specs: Mapping[str, Spec]) -> Products:
    """Those of a part that states its parameters: each is multiplied by once."""
    every = specs.values()
    return Products(
        sum(spec.size for spec in every if spec.role in ("matrix", "writer")),
        sum(spec.size for spec in every if spec.role == "other" and len(spec.shape) > 1),
    )


def products_of(module: nn.Module, inside: Mapping[nn.Module, Built]) -> Products:
    """Those of a built module: a tensor that several modules hold is met in each of them.

    Parts in it are asked themselves: of experts a token meets a few.
    """
    linear = by_hand = 0
    asked: tuple[str, ...] = ()
    for path, inner in module.named_modules():
        if path.startswith(asked):
            continue
        built = inside.get(inner)
        if built is not None and _is_as_stated(inner, built):
            asked += (f"{path}.",)
            linear += built.record.in_products(*built.sizes)
            continue
        for leaf, parameter in inner.named_parameters(recurse=False, remove_duplicate=False):
            role = _role(inner, leaf, parameter)
            linear += parameter.numel() if role == "matrix" else 0
            by_hand += parameter.numel() if role == "other" else 0
    return Products(linear, by_hand)


def _is_as_stated(module: nn.Module, built: Built) -> bool:
    """Whether nobody has put something else into a part since it was built."""
    stated = built.record.parameters(*built.sizes)
    found = {name: tuple(p.shape) for name, p in module.named_parameters()}
    return found == {name: spec.shape for name, spec in stated.items()}
