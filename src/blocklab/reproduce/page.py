"""The page of published figures beside ours, and each experiment's table."""

from collections.abc import Sequence

from blocklab.report import formats
from blocklab.report.page import Page, Section, Table
from blocklab.reproduce.comparison import tally
from blocklab.reproduce.runner import Outcome, rows_of

WORDS = {
    "match": "equal in every printed digit",
    "close": "within the tolerance stated beforehand",
    "off": "neither",
}


def table_of(outcome: Outcome) -> Table:
    """Published beside ours, the difference, and the word."""
    rows = outcome.found.rows
    wordy = any(len(row.ours) > 40 for row in rows)
    return Table(
        ("figure", "published", "ours", "difference", "agreement"),
        tuple(
            (
                row.what,
                formats.real_minus(row.published),
                formats.real_minus(row.ours),
                formats.real_minus(row.difference),
                row.word,
            )
            for row in rows
        ),
        words=(0, 1, 2) if wordy else (0,),
        marked={i: row.word for i, row in enumerate(rows)},
    )


def counted(outcomes: Sequence[Outcome]) -> str:
    """`153 match, 20 are close and none is off`."""
    found = tally(rows_of(outcomes))
    parts = []
    if "match" in found:
        parts.append(f"{found['match']} {'matches' if found['match'] == 1 else 'match'}")
    if "close" in found:
        parts.append(f"{found['close']} {'is' if found['close'] == 1 else 'are'} close")
    off = found.get("off", 0)
    parts.append({0: "none is off", 1: "1 is off"}.get(off, f"{off} are off"))
    return formats.listed(parts)


def reproduction_page(outcomes: Sequence[Outcome], command: str) -> Page:
    """One section an experiment, after a table of them all."""
    return Page(
        title="Published figures beside ours",
        kicker=f"{formats.counted(len(outcomes), 'experiment')} · "
        f"{formats.counted(len(rows_of(outcomes)), 'figure')}",
        headline=f"Of the figures that were published, {counted(outcomes)} ("
        + "; ".join(f"{word}: {meaning}" for word, meaning in WORDS.items())
        + ").",
        sections=(
            Section("all", "All experiments", tables=(_overview(outcomes),)),
            *(
                Section(
                    outcome.experiment.name,
                    outcome.experiment.title,
                    paragraphs=(outcome.obtained.strip(), *outcome.found.notes),
                    tables=(table_of(outcome),),
                    charts=outcome.found.charts,
                )
                for outcome in outcomes
            ),
        ),
        command=command,
    )


def _overview(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for outcome in outcomes:
        found = tally(outcome.found.rows)
        numbers = (str(found.get(word, "")) for word in WORDS)
        rows.append((outcome.experiment.name, *numbers))
    return Table(("experiment", *WORDS), tuple(rows), words=(0,))
