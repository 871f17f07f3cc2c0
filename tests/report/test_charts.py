"""The charts: valid descriptions, pictures that stand alone, labels that do not collide."""

import re
import struct
from collections.abc import Mapping
from xml.etree import ElementTree

import altair
import pytest

from blocklab.report.charts import charts
from blocklab.report.drawing import inline, to_png, to_svg
from blocklab.report.palette import styles

from .factory import modern_block, study
from .simulated import bowl, simulated
from .simulated import study as asked
from .test_blocks import seen

SVG = "{http://www.w3.org/2000/svg}"


def many_arms():
    losses = {
        name: {
            (seed, rate): None if rate > 0.01 and i % 2 else 3.6 + 0.004 * i + 0.01 * seed
            for seed in range(2)
            for rate in (1e-3, 1e-2, 3e-2)
        }
        for i, name in enumerate(["modern", *(f"variant-{n}" for n in range(12)), "placebo"])
    }
    return study(losses)


STUDIES = {
    "quick": modern_block(),
    "looked into": seen(),
    "five seeds": modern_block(5, (3e-3, 1e-2, 3e-2)),
    "one run each": study({"m": {(0, 1e-2): 3.5}, "other": {(0, 1e-2): 3.4}}),
    "many arms": many_arms(),
}


@pytest.fixture(scope="module", params=STUDIES)
def drawn(request):
    made = charts(STUDIES[request.param])
    return {(c.name, w): to_svg(getattr(c, w)) for c in made for w in ("wide", "narrow")}


def test_a_description_is_valid_vega_lite():
    made = charts(STUDIES["looked into"])
    assert [c.name for c in made] == [
        "effects",
        "learning-rates",
        "training-loss",
        "gradient-norm",
        "gradient-by-block",
    ]
    for chart in made:
        for spec in (chart.wide, chart.narrow):
            altair.Chart.from_dict(_in_short(spec), validate=True)


def _in_short(value):
    """With two rows of each layer, for the validator takes its time; tuples as JSON has them."""
    if isinstance(value, dict):
        return {k: _in_short(v[:2] if k == "values" else v) for k, v in value.items()}
    return [_in_short(v) for v in value] if isinstance(value, list | tuple) else value


def test_no_two_texts_overlap(drawn):
    for (name, layout), svg in drawn.items():
        boxes = list(_texts(ElementTree.fromstring(svg), 0, 0))
        assert len(boxes) > 5
        for i, (text, *a) in enumerate(boxes):
            for other, *b in boxes[:i]:
                apart = a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
                assert apart, f"{name} {layout}: {text!r} covers {other!r}"


def _texts(node, x, y):
    """Every visible text with its box, by Arial's mean width."""
    moved = re.search(r"translate\(([-\d.]+)[, ]+([-\d.]+)\)", node.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if node.tag == SVG + "text" and node.text and node.get("fill") != "white":
        size = float(node.get("font-size", "12px").removesuffix("px"))
        width = 0.5 * size * len(node.text)
        left = x - {"end": width, "middle": width / 2}.get(node.get("text-anchor"), 0)
        if node.get("opacity") != "0":
            yield node.text, left, y - 0.7 * size, left + width, y
    for child in node:
        yield from _texts(child, x, y)


def test_a_picture_fits_its_layout(drawn):
    for (name, layout), svg in drawn.items():
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        assert width <= {"wide": 790, "narrow": 350}[layout], name


def test_a_picture_needs_nothing_from_outside(drawn):
    for svg in drawn.values():
        assert "<script" not in svg
        assert "<image" not in svg
        assert not re.search(r'href="(?!#)', svg)


def test_a_png_has_two_pixels_for_each_of_the_picture():
    svg = to_svg(charts(modern_block())[0].wide)
    png = to_png(svg)
    assert png.startswith(b"\x89PNG")
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    assert struct.unpack(">I", png[16:20])[0] == pytest.approx(2 * width, abs=2)


def test_a_line_has_at_most_two_hundred_points():
    result = modern_block(3, points=3000)
    for chart in charts(result)[2:]:
        for layer in chart.wide["layer"]:
            names = [row["line"] for row in layer["data"]["values"] if "line" in row]
            assert max(map(names.count, set(names)), default=0) <= 200


def test_the_baseline_is_dark_and_the_placebo_grey_and_dashed():
    looks = styles(many_arms())
    assert looks["modern"].colour == "#1b1f24"
    assert looks["placebo"].dash != looks["modern"].dash == (1, 0)
    assert len({(look.colour, look.dash) for look in looks.values()}) == len(looks)


def test_the_first_colours_stay_when_arms_are_added():
    few = study({name: {(0, 1e-2): 3.5} for name in ("m", "a", "b")})
    more = study({name: {(0, 1e-2): 3.5} for name in ("m", "a", "b", "c", "placebo")})
    assert styles(few).items() <= styles(more).items()


def test_nothing_is_drawn_of_nothing():
    assert charts(study({"m": {(0, 1e-2): None}, "a": {(0, 1e-2): None}})) == ()
    alone = charts(study({"m": {(0, 1e-2): 3.5}}))
    assert "effects" not in [chart.name for chart in alone]


def test_diverged_runs_are_crossed_and_counted():
    rates = charts(modern_block(5, (3e-3, 1e-2, 3e-2)))[1]
    assert "4 of 5" in to_svg(rates.wide)
    assert "4 of 5" not in to_svg(charts(modern_block())[1].wide)


def test_crosses_stand_above_every_loss():
    result = many_arms()
    losses = [loss for a in result.arms for point in a.rates for loss in point.losses.values()]
    layers = charts(result)[1].wide["layer"]
    crosses = next(layer for layer in layers if layer["mark"].get("shape") == "cross")
    assert len(crosses["data"]["values"]) == sum(arm.n_diverged > 0 for arm in result.arms)
    assert min(row["y"] for row in crosses["data"]["values"]) > max(losses)


def test_the_baseline_lies_on_top():
    for chart in charts(modern_block())[1:]:
        lines = next(
            layer for layer in chart.wide["layer"]
            if layer["mark"]["type"] == "line" and len(layer["data"]["values"]) >= 10
        )  # fmt: skip
        assert lines["data"]["values"][-1]["line"] == "modern"


def test_arms_left_out_of_a_mean_are_named():
    losses = {
        "m": {(seed, 1e-2): 3.5 for seed in (1, 2, 3)},
        "torn": {(seed, 1e-2): None if seed == 1 else 3.6 for seed in (1, 2, 3)},
        "lost": {(seed, 1e-2): None for seed in (1, 2, 3)},
    }
    reading = next(c.reading for c in charts(study(losses)) if c.name == "training-loss")
    assert "Not drawn, because all 3 runs of lost diverged." in reading
    assert "Without the runs that diverged: torn (1 of 3 seeds)." in reading


def test_an_inline_picture_has_ids_of_its_own():
    svg = (
        '<svg viewBox="0 0 10 20"><clipPath id="c"/><g clip-path="url(#c)"/>'
        '<use xlink:href="#c"/></svg>'
    )
    made = inline(svg, "a", 'x "quoted" <y>')
    assert 'id="a-c"' in made
    assert "url(#a-c)" in made
    assert 'href="#a-c"' in made
    assert 'aria-label="x &quot;quoted&quot; &lt;y&gt;"' in made
    assert ElementTree.fromstring(made).get("viewBox") == "0 0 10 20"


def written(spec):
    """Every text that a picture's rows carry."""
    if isinstance(spec, Mapping):
        own = {spec["text"]} if isinstance(spec.get("text"), str) else set()
        return own.union(*map(written, spec.values()))
    return set().union(*map(written, spec)) if isinstance(spec, list | tuple) else set()


def test_two_long_names_with_one_beginning_are_told_apart_in_every_picture():
    names = ("a-variant-with-a-rather-long-name-one", "a-variant-with-a-rather-long-name-two")
    losses = {
        name: {(seed, rate): None if seed == 0 and rate > 5e-3 else 3.5 + 0.1 * k + 0.01 * seed
               for seed in range(3) for rate in (3e-3, 1e-2)}
        for k, name in enumerate(("base", *names))
    }  # fmt: skip
    for chart in charts(study(losses)):
        for spec in (chart.wide, chart.narrow):
            texts = written(spec)
            for end in ("-one", "-two"):
                assert any(text.startswith("a-var") and text.endswith(end) for text in texts)


def test_an_axis_shows_two_numbers_at_least_on_a_phone_too():
    def loss_of(run):
        return bowl(run) + (0.05 if run.arm == "ln" else 0)

    (effects, *_) = charts(simulated(asked(search=False), loss_of))
    panels = effects.narrow["vconcat"]
    assert len(panels) == 2
    for panel in panels:
        drawn = to_svg({**effects.narrow, "vconcat": [panel]})
        assert len(re.findall(r">[−-]?\d\.\d+<", drawn)) >= 2
