"""From a chart's description to a picture: SVG for page and paper, PNG, without network or browser.

Fonts: the renderer carries Liberation Sans; a browser may take Arial or Helvetica, whose letters
are equally wide.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Spec: TypeAlias = Mapping[str, object]

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


@dataclass(frozen=True)
class Chart:
    """One figure: how it is drawn on a page, how on a phone, and what is said beside it."""

    name: str
    """The stem of its files."""
    title: str
    reading: str
    """How to read it, in a sentence or two."""
    description: str
    """What it shows, for a reader who cannot see it."""
    wide: Spec
    narrow: Spec


def to_svg(spec: Spec) -> str:
    """The chart as a picture of its own, on white."""
    import vl_convert

    svg = str(vl_convert.vegalite_to_svg(dict(spec), allowed_base_urls=[]))
    # A hundredth of a pixel is finer than any eye; the other ten digits would double the page.
    return re.sub(r' (?:d|transform)="[^"<>]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), svg)


def to_png(svg: str) -> bytes:
    """The picture in pixels, two for each of its own."""
    import vl_convert

    return bytes(vl_convert.svg_to_png(svg, scale=2.0))


def inline(svg: str, prefix: str, label: str) -> str:
    """The picture as part of a page: its ids made the page's own, its size the box's.

    `label` is read out in its place.
    """
    root = re.match(r"<svg\b[^>]*>", svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', root[0]) if root else None
    if root is None or size is None:
        raise ValueError("not an SVG picture with a view box")
    width, height = size[1], size[2]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg[root.end() :])
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img" '
        f'aria-label="{html.escape(label)}">{body}'
    )
