"""What every page is made of: a template filled in, and charts in the page and as files beside it.

A page stands alone: it needs no script, and fetches nothing.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blocklab.files import write_atomically
from blocklab.report.drawing import Chart, inline, to_png, to_svg

if TYPE_CHECKING:
    from markupsafe import Markup


def written_chart(chart: Chart, folder: Path) -> dict[str, str]:
    """Write a chart to `charts/NAME.{svg,png}` in the folder; its two pictures for the page.

    Raises RunFailed when the disk refuses.
    """
    wide = to_svg(chart.wide)
    write_atomically(folder / "charts" / f"{chart.name}.svg", wide.encode())
    write_atomically(folder / "charts" / f"{chart.name}.png", to_png(wide))
    return {
        "wide": inline(wide, f"{chart.name}-wide", chart.description),
        "narrow": inline(to_svg(chart.narrow), f"{chart.name}-narrow", chart.description),
    }


def rendered(template: str, values: Mapping[str, object]) -> str:
    """A template of ours filled in; what the values hold is text and never markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("blocklab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kept"] = kept
    return environment.get_template(template).render(values)


def kept(text: str) -> "Markup":
    """A text as markup in which the end of a line never parts a figure from its percent sign."""
    from markupsafe import Markup, escape

    whole = r'<span class="kept">\g<0></span>'
    return Markup(re.sub(r"[+\N{MINUS SIGN}]?[\d.]+ %", whole, str(escape(text))))
