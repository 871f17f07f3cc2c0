"""Equal sizes: the feed-forward width at which a variant costs what the baseline does."""

from collections.abc import Callable, Iterator, Mapping

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.count import count

WIDTH = "block.feed_forward.d_ff"
MULTIPLE = 8
"""Widths stay multiples of this, for the sake of the hardware's tiles."""


def parameters(config: ModelConfig) -> int:
    return count(config).total


def flops(config: ModelConfig) -> int:
    """Raises BlocklabError where a part of the user's own does not tell its scores."""
    return count(config).known_flops_per_token()


MEASURES: Mapping[str, Callable[[ModelConfig], int]] = {"parameters": parameters, "flops": flops}


def natural_width(config: ModelConfig) -> int | None:
    """Width of the feed-forward as its record says it; None for one that has none."""
    feed_forward = getattr(config.block, "feed_forward", None)
    width: Callable[[int], int | None] = getattr(feed_forward, "width", lambda _: None)
    return width(config.d_model)


def matched(config: ModelConfig, target: int, measure: Callable[[ModelConfig], int]) -> ModelConfig:
    """`config` with the feed-forward width at which `measure` comes nearest to `target`.

    The config itself when it already is as near as any width, or has no width to solve.
    """
    width = natural_width(config)
    if width is None or measure(config) == target:
        return config

    def at(d_ff: int) -> int:
        return measure(config.with_changes({WIDTH: d_ff}))

    # Both measures are linear in the width, so two points give the line.
    slope = (at(2 * MULTIPLE) - at(MULTIPLE)) / MULTIPLE
    if slope <= 0:
        return config
    exact = MULTIPLE + (target - at(MULTIPLE)) / slope
    below = max(1, int(exact // MULTIPLE)) * MULTIPLE
    best = min((width, below, below + MULTIPLE), key=lambda d_ff: abs(at(d_ff) - target))
    if exact < MULTIPLE / 2:
        raise BlocklabError(
            f"{WIDTH}: no width matches; even {MULTIPLE} is too large. Set match: none"
        )
    return config if best == width else config.with_changes({WIDTH: best})


def states_width(changes: Mapping[str, object], config: ModelConfig) -> bool:
    """Whether the feed-forward width of a changed config is a number that its changes state, by
    its own path or inside a mapping: it is then left as it is."""
    width = getattr(getattr(config.block, "feed_forward", None), "d_ff", None)
    return width is not None and width in _stated_widths(changes)


def _stated_widths(changes: Mapping[str, object]) -> Iterator[object]:
    for path, value in changes.items():
        if f"{WIDTH}.".startswith(f"{path}."):
            stated: object = value
            for step in WIDTH.removeprefix(path).split(".")[1:]:
                stated = stated.get(step) if isinstance(stated, Mapping) else None
            yield stated
