"""The report: one page that stands alone, with its tables and charts as files beside it."""

from collections.abc import Sequence
from pathlib import Path

from blocklab.files import write_atomically
from blocklab.report import (
    circumstances,
    formats,
    insides,
    limits,
    results_csv,
    table,
    verdicts,
    warmup,
    words,
)
from blocklab.report.charts import charts
from blocklab.report.standalone import rendered, written_chart
from blocklab.study.results import Arm, LadderResult, StudyResult

PAGE = "report.html"


def write_report(result: StudyResult, folder: Path) -> Path:
    """Write the page, the tables and the charts into the folder; returns the page's path.

    Leaves `report.html`, `results.csv`, `table.{csv,md,tex}` and `charts/NAME.{svg,png}`. A file
    is replaced only when its successor is whole.
    """
    figures = [
        {"name": chart.name, "title": chart.title, "reading": chart.reading}
        | written_chart(chart, folder)
        for chart in charts(result)
    ]
    texts = {
        "results.csv": results_csv.as_csv(result),
        "table.csv": table.as_csv(result),
        "table.md": table.as_markdown(result),
        "table.tex": table.as_latex(result),
        PAGE: page(result, figures),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return folder / PAGE


def page(result: StudyResult, figures: list[dict[str, str]]) -> str:
    """The page as text; each figure has name, title, reading and two pictures, wide and narrow."""
    facts = result.facts
    shown = table.columns(result)
    values = {
        "facts": facts,
        "question": formats.clean(facts.question),
        "size": circumstances.kicker(result),
        "warnings": limits.warnings(result),
        "headline": words.headline(result),
        "answers": [_answer(arm, result) for arm in result.arms],
        "interactions": words.interactions(result),
        "columns": [column for column in shown if column.heading != "Changes"],
        "rows": [
            _table_row(arm, row, shown)
            for arm, row in zip(result.arms, table.rows(result), strict=True)
        ],
        "notes": table.NOTES,
        "figures": figures,
        "insides": insides.rows(result.shown()),
        "inside_columns": insides.COLUMNS,
        "inside_note": insides.note(result),
        "variants": [formats.clean(arm.name) for arm in result.arms if arm.role == "variant"],
        "settings": [
            {"name": formats.clean(name), "found": _effects(arms)}
            for name, arms in result.cells.items()
        ],
        "warmup": warmup.warmup_table(result),
        "warmup_note": warmup.NOTE,
        "ladders": [_ladder(ladder, result) for ladder in result.ladders],
        "differences": [
            (formats.clean(name), formats.clean(seen)) for name, seen in facts.differences.items()
        ],
        "limits": limits.limits(result),
        "circumstances": circumstances.circumstances(result),
    }
    return rendered("report.html.j2", values)


def _answer(arm: Arm, result: StudyResult) -> dict[str, str]:
    """The sentence, parted after the arm's name, which the page sets apart."""
    name = formats.clean(arm.name)
    text = words.sentence(arm, result)
    return {"role": arm.role, "name": name, "rest": text.removeprefix(name)}


def _table_row(arm: Arm, row: table.Row, shown: Sequence[table.Column]) -> dict[str, object]:
    name, changes, *cells = table.cells(row, shown)
    return {"role": arm.role, "name": name, "changes": changes, "cells": cells}


def _effects(arms: Sequence[Arm]) -> list[dict[str, str]]:
    """What each variant did in one place, as a cell of a table."""
    found = []
    for arm in arms:
        if arm.role != "variant":
            continue
        effect = arm.effect
        text = "–" if effect is None else formats.fixed(effect.mean, 3, signed=True)
        if effect is not None and effect.low is not None and effect.high is not None:
            low, high = (formats.fixed(end, 3, signed=True) for end in (effect.low, effect.high))
            text += f" ({low} to {high})"
        elif effect is not None:
            text += f" (no interval: {formats.clean(effect.no_interval)})"
        found.append({"effect": formats.real_minus(text), "verdict": verdicts.word(arm)})
    return found


def _ladder(ladder: LadderResult, result: StudyResult) -> dict[str, object]:
    rungs = [
        {
            "name": formats.clean(rung.name) or "the study itself",
            "size": f"{formats.compact(rung.size)} {ladder.axis}",
            "found": _effects(rung.arms),
        }
        for rung in ladder.rungs
    ]
    variants = [arm.name for arm in result.arms if arm.role == "variant"]
    words = [ladder.trends[name].word if name in ladder.trends else "–" for name in variants]
    return {"axis": ladder.axis, "rungs": rungs, "trends": words}
