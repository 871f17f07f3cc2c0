"""The page and the files beside it."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklab.report import words
from blocklab.report.charts import charts
from blocklab.report.curves import MOST_POINTS
from blocklab.report.html import page, write_report
from blocklab.report.standalone import kept

from .factory import modern_block, study

FILES = {
    "report.html", "results.csv", "table.csv", "table.md", "table.tex", "charts",
}  # fmt: skip
CHARTS = ("effects", "learning-rates", "training-loss", "gradient-norm")


class Reader(HTMLParser):
    """The page's text, and every tag with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.open = "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "out"
    return folder, write_report(modern_block(5, (3e-3, 1e-2, 3e-2)), folder)


def test_it_leaves_the_page_the_tables_and_the_charts_and_nothing_else(written):
    folder, path = written
    assert path == folder / "report.html"
    assert {p.name for p in folder.iterdir()} == FILES
    assert {p.name for p in (folder / "charts").iterdir()} == {
        f"{name}.{kind}" for name in CHARTS for kind in ("svg", "png")
    }


def test_writing_it_again_replaces_it(written):
    folder, path = written
    before = path.read_bytes()
    path.write_text("an older report")
    write_report(modern_block(5, (3e-3, 1e-2, 3e-2)), folder)
    assert path.read_bytes() == before
    assert {p.name for p in folder.iterdir()} == FILES


def test_the_page_stands_alone(written):
    text = written[1].read_text(encoding="utf-8")
    assert "<script" not in text
    assert "https://" not in text
    reader = Reader(text)
    assert reader.open == []
    for tag, attributes in reader.tags:
        assert tag not in ("script", "link", "img", "iframe", "object")
        target = attributes.get("href", "#")
        assert target.startswith("#") or (written[0] / target).is_file()
    assert not re.search(r"url\((?!#)", text)


def test_the_page_says_what_every_report_must(written):
    text = Reader(written[1].read_text(encoding="utf-8")).text
    for word in ("diverged", "95", "placebo", "Parameters", "unigram entropy", "blocklab ablate"):
        assert word in text
    headings = (
        "The answer", "All arms", "What each change did", "Learning rate by learning rate",
        "Training loss", "Gradient norm", "What this cannot claim", "How to run it again",
    )  # fmt: skip
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)


def test_every_id_stands_once_and_every_picture_has_words(written):
    text = written[1].read_text(encoding="utf-8")
    reader = Reader(text)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 8
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        assert "modern" in root.get("aria-label")
    labels = [v for _, a in reader.tags for k, v in a.items() if k == "aria-labelledby"]
    assert set(labels) <= set(ids)


def test_the_page_is_told_to_screen_readers_phones_and_printers(written):
    text = written[1].read_text(encoding="utf-8")
    assert '<html lang="en">' in text
    for rule in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem", "viewport"):
        assert rule in text


@given(st.text(st.sampled_from("ab1 -_&%$#{}\\<>\"'`|*[]/;=.é"), min_size=1).filter(str.strip))
def test_any_name_is_text_and_never_markup(name):
    result = study({"base": {(0, 1e-2): 3.5}, name: {(0, 1e-2): 3.6}}, points=1, question=name)
    reader = Reader(page(result, []))
    plain = Reader(page(study({"base": {(0, 1e-2): 3.5}, "x": {(0, 1e-2): 3.6}}, points=1), []))
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in plain.tags]
    assert words.sentence(result.arms[1], result) in reader.text


def test_a_name_full_of_markup_is_written_whole(tmp_path):
    name = "</svg><script>alert(1)</script>&amp; $x_1^2$"
    losses = {"base": {(0, 1e-2): 3.5, (1, 1e-2): 3.4}, name: {(0, 1e-2): 3.6, (1, 1e-2): 3.4}}
    text = write_report(study(losses), tmp_path).read_text(encoding="utf-8")
    assert "<script" not in text
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    ElementTree.parse(tmp_path / "charts" / "effects.svg")


@pytest.mark.parametrize(
    "losses",
    [
        {"m": {(0, 1e-2): 3.5}},
        {"m": {(0, 1e-2): 3.5}, "a": {(0, 1e-2): 3.4}},
        {"m": {(0, 1e-2): 3.5, (1, 1e-2): 3.6}, "a": {(0, 1e-2): None, (1, 1e-2): None}},
        {"m": {(0, 1e-2): None, (1, 1e-2): None}, "a": {(0, 1e-2): 3.5, (1, 1e-2): 3.6}},
        {"m": {(0, 1e-2): None}, "a": {(0, 1e-2): None}, "placebo": {(0, 1e-2): None}},
        {"m": {(0, 1e-2): 3.5, (1, 1e-2): None}, "a": {(0, 1e-2): None, (1, 1e-2): 3.6}},
        {"m": {(s, 1e-2): 3.5 for s in range(2)}, "placebo": {(s, 1e-2): 3.5 for s in range(2)}},
    ],
    ids=["alone", "one seed", "arm lost", "baseline lost", "all lost", "no pair", "no spread"],
)
def test_a_poor_study_still_gets_its_report(tmp_path, losses):
    text = Reader(write_report(study(losses), tmp_path).read_text(encoding="utf-8")).text
    assert "nan" not in re.findall(r"[a-z]+", text.lower())
    assert "None" not in text
    for name in losses:
        assert name in text


def points_drawn(spec):
    """Rows of all marks of a picture."""
    if isinstance(spec, dict):
        rows = len(spec["values"]) if isinstance(spec.get("values"), list) else 0
        return rows + sum(points_drawn(part) for part in spec.values())
    return sum(points_drawn(part) for part in spec) if isinstance(spec, list | tuple) else 0


def test_what_is_drawn_over_steps_grows_with_the_arms_and_not_with_runs_or_steps():
    def over_steps(seeds, points):
        own = {(seed, rate): 3.6 + 0.01 * seed for seed in range(seeds) for rate in (3e-3, 1e-2)}
        losses = dict.fromkeys(("modern", *(f"variant-{n}" for n in range(4))), own)
        made = {chart.name: chart for chart in charts(study(losses, points))}
        return [points_drawn(made[name].wide) for name in ("training-loss", "gradient-norm")]

    few, many = over_steps(3, MOST_POINTS), over_steps(8, 3 * MOST_POINTS)
    assert min(few) > 5 * MOST_POINTS
    assert few == many


def test_a_line_never_ends_between_a_figure_and_its_percent_sign(written):
    text = re.sub(
        r"<style>.*?</style>", "", written[1].read_text(encoding="utf-8"), flags=re.DOTALL
    )
    answer = text[text.index('id="answer"') : text.index('id="table"')]
    assert len(re.findall(r"\d %", answer)) > 3
    assert re.sub(r'<span class="kept">[^<]*</span>', "", answer).count(" %") == 0
    assert kept("<b> −1.5 % & 95 %") == (
        '&lt;b&gt; <span class="kept">−1.5 %</span> &amp; <span class="kept">95 %</span>'
    )
