"""The main table: one row of plain strings an arm, shown as HTML, CSV, Markdown and LaTeX alike."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace

from blocklab.report import formats
from blocklab.report.formats import fixed
from blocklab.report.standing import seeds_read
from blocklab.report.verdicts import word
from blocklab.study.results import Arm, StudyResult
from blocklab.study.wording import percent


@dataclass(frozen=True)
class Row:
    """One arm in plain strings with ASCII minus signs; what is unknown is empty."""

    arm: str
    changes: str
    matched: str
    validation_loss: str
    spread: str
    loss_seeds: str
    """`4 of 5 seeds` where not all of them have a loss."""
    effect: str
    effect_seeds: str
    """`4 of 5 seeds` where not all pairs are complete."""
    interval_low: str
    interval_high: str
    no_interval: str
    """Why an effect has none."""
    verdict: str
    best_rate: str
    edge: str
    diverged: str
    runs: str
    stalled: str
    runs_at_best: str
    """Reporting runs at the best rate, among which the stalled ones are counted."""
    stable_margin: str
    rate_sensitivity: str
    sensitive_seeds: str
    """`4 of 5 seeds` where not all of them have a sensitivity, `1 seed` where only that was trained
    at every rate of the grid.
    """
    spikes_per_thousand: str
    spikes_runs: str
    """`4 of 5 runs` where not all of those at the best rate have spikes measured."""
    recall: str
    """A share of one."""
    recall_runs: str
    """`4 of 5 runs` where not all of those at the best rate have a recall."""
    parameters: str
    parameters_high: str
    """Where settings of the nuisances differ: the largest; the plain field is the smallest."""
    flops_per_token: str
    flops_per_token_high: str
    tokens_per_second: str
    tokens_per_second_high: str
    peak_memory: str


@dataclass(frozen=True)
class Column:
    """How a reader sees part of a row: a heading, its unit, and the cell's text."""

    heading: str
    unit: str
    cell: Callable[[Row], str]
    is_number: bool = True
    may_be_left_out: bool = False
    """Where no row has anything to show in it."""
    counts: Callable[[Row], str] = lambda row: ""
    """Of how many seeds or runs the figure is, where it is not of all."""

    def text(self, row: Row) -> str:
        """The cell with its counts: `0.259 (4 of 5 seeds)`, or `none (1 of 5 seeds)`."""
        figure, counts = self.cell(row), self.counts(row)
        return f"{figure or 'none'} ({counts})" if counts else figure


def rows(result: StudyResult) -> list[Row]:
    """All arms in the order of the study."""
    return [_row(arm, result) for arm in result.arms]


def _row(arm: Arm, result: StudyResult) -> Row:
    effect = arm.effect
    settings = result.at_settings(arm.name)
    loss_seeds = formats.part_of(*seeds_read(arm, result), "seed")
    parameters, parameters_high = _ends([one.n_parameters for one in settings])
    flops, flops_high = _ends([one.flops_per_token for one in settings])
    speed, speed_high = _ends([one.tokens_per_second for one in settings])
    return Row(
        arm=arm.name,
        changes=formats.changes(arm),
        matched=_matched(settings),
        validation_loss=_number(arm.mean),
        spread=_number(arm.spread),
        loss_seeds=loss_seeds if arm.mean is not None else "",
        effect=_number(effect.mean if effect else None, signed=True),
        effect_seeds=_pairs(arm, result),
        interval_low=_number(effect.low if effect else None, signed=True),
        interval_high=_number(effect.high if effect else None, signed=True),
        no_interval=effect.no_interval if effect else "",
        verdict=word(arm),
        best_rate=_rate(arm),
        edge="" if result.facts.searched else arm.edge or "",
        diverged=str(arm.n_diverged),
        runs=str(arm.n_runs),
        stalled=str(arm.n_stalled),
        runs_at_best=str(arm.n_at_best),
        stable_margin=arm.margin.words if arm.margin is not None else "",
        rate_sensitivity=_number(arm.sensitivity.mean if arm.sensitivity else None),
        sensitive_seeds=_sensitive_seeds(arm, result),
        spikes_per_thousand=_number(arm.spikes_per_thousand, 1),
        spikes_runs=_runs(arm.spikes_per_thousand, arm.n_spikes, arm),
        recall=_number(arm.recall),
        recall_runs=_runs(arm.recall, arm.n_recall, arm),
        parameters=parameters,
        parameters_high=parameters_high,
        flops_per_token=flops,
        flops_per_token_high=flops_high,
        tokens_per_second=speed,
        tokens_per_second_high=speed_high,
        peak_memory=str(max(one.peak_memory for one in settings)),
    )


def _ends(values: Sequence[float | None]) -> tuple[str, str]:
    """The smallest, and the largest where it is another; empty where none is known."""
    known = [round(value) for value in values if value is not None]
    if not known:
        return "", ""
    low, high = min(known), max(known)
    return str(low), str(high) if high != low else ""


def _matched(settings: Sequence[Arm]) -> str:
    """What was solved for a fair size, at every setting: one value, or all that were found."""
    found: dict[str, list[object]] = {}
    for arm in settings:
        for path, value in arm.matched.items():
            values = found.setdefault(path, [])
            if value not in values:
                values.append(value)
    return "; ".join(
        f"{formats.clean(path)}: {' or '.join(map(formats.plain_value, values))}"
        for path, values in found.items()
    )


def _rate(arm: Arm) -> str:
    best = arm.tuned_rate or arm.best_rate
    return "" if best is None else formats.rate(best)


def _number(value: float | None, decimals: int = 3, signed: bool = False) -> str:
    return "" if value is None else fixed(value, decimals, signed)


def _pairs(arm: Arm, result: StudyResult) -> str:
    """Of how many seeds an effect is, where it is not of all that losses are read from."""
    if arm.effect is None:
        return ""
    return formats.part_of(len(arm.effect.differences), len(result.judged_seeds), "seed")


def _sensitive_seeds(arm: Arm, result: StudyResult) -> str:
    found = arm.sensitivity
    if found is None or found.counts or found.n >= len(result.facts.seeds):
        return found.counts if found else ""
    return formats.counted(found.n, "seed")


def _runs(value: float | None, n: int, arm: Arm) -> str:
    """Of how many runs at the best rate a mean is, where it is not of all."""
    return "" if value is None else formats.part_of(n, arm.n_at_best, "run")


def _between(first: str, sign: str, second: str) -> str:
    return f"{first}{sign}{second}" if second else first


def _interval(row: Row) -> str:
    """An effect without one says so: its sentence has room for why."""
    return "none" if row.no_interval else _between(row.interval_low, " to ", row.interval_high)


def _whole(low: str, high: str, shown: Callable[[int], str] = formats.thousands) -> str:
    if not low:
        return ""
    return _between(shown(int(low)), " to ", shown(int(high)) if high else "")


COLUMNS: Sequence[Column] = (
    Column("Arm", "", lambda row: formats.clean(row.arm), is_number=False),
    Column("Changes", "", lambda row: _between(row.changes, " · matched: ", row.matched), False),
    Column(
        "Loss",
        "nats ± sd",
        lambda row: _between(row.validation_loss, " ± ", row.spread),
        counts=lambda row: row.loss_seeds,
    ),
    Column("Effect", "nats", lambda row: row.effect, counts=lambda row: row.effect_seeds),
    Column("Interval", "nats", _interval),
    Column("Verdict", "", lambda row: row.verdict, is_number=False, may_be_left_out=True),
    Column(
        "Best rate",
        "",
        lambda row: row.best_rate + (f" ({row.edge})" if row.edge else ""),
        may_be_left_out=True,
    ),
    Column("Diverged", "runs", lambda row: f"{row.diverged}/{row.runs}"),
    Column("Stalled", "runs", lambda row: f"{row.stalled}/{row.runs_at_best}"),
    Column("Stable margin", "× best rate", lambda row: row.stable_margin, may_be_left_out=True),
    Column(
        "Rate sensitivity",
        "nats",
        lambda row: row.rate_sensitivity,
        may_be_left_out=True,
        counts=lambda row: row.sensitive_seeds,
    ),
    Column(
        "Spikes",
        "per 1,000 steps",
        lambda row: row.spikes_per_thousand,
        may_be_left_out=True,
        counts=lambda row: row.spikes_runs,
    ),
    Column(
        "Recall",
        "of answers",
        lambda row: percent(float(row.recall), 1) if row.recall else "",
        may_be_left_out=True,
        counts=lambda row: row.recall_runs,
    ),
    Column("Parameters", "", lambda row: _whole(row.parameters, row.parameters_high)),
    Column(
        "FLOPs",
        "a token",
        lambda row: _whole(row.flops_per_token, row.flops_per_token_high, formats.compact),
    ),
    Column(
        "Speed", "tokens/s", lambda row: _whole(row.tokens_per_second, row.tokens_per_second_high)
    ),
    Column("Memory", "peak MiB", lambda row: formats.mebibytes(int(row.peak_memory))),
)
NOTES = (
    "Loss: validation loss, mean over the seeds at the arm’s best rate, with the sample standard "
    "deviation. Effect: the arm minus the baseline, seed by seed; negative is better. Intervals "
    "hold one at a time, verdicts for all variants together (Holm); there is none where a best rate"
    " was not found, or a seed stands alone. Best rate: where rates were searched, the lowest point"
    " of the curve; else marked where it stands at the lowest or highest of the grid. Diverged: "
    "over all rates. Stalled: of the runs at the best rate, those within 0.05 nats of the unigram "
    "entropy. Stable margin: the smallest rate from which some seed diverges at every higher one, "
    "with how many where not all do, over the best rate trained. Rate sensitivity: what a rate of "
    "the grid loses against the best, on average over the seeds that learn at any. Where rates "
    "were searched, those beyond the reported ones have the searching seed alone. Spikes: of the "
    "training loss, mean over the runs at the best rate that are long enough. A figure that is not "
    "of all seeds or runs says of how many: one that diverged is in no mean of losses. Sizes, "
    "speed and memory: from the smallest to the largest setting, memory at its most."
)


def columns(result: StudyResult) -> list[Column]:
    """The columns that have something to show."""
    shown = rows(result)
    interval = f"{percent(result.level)} interval"
    named = [replace(c, heading=interval) if c.heading == "Interval" else c for c in COLUMNS]
    return [
        column
        for column in named
        if not column.may_be_left_out or any(column.text(row) for row in shown)
    ]


def cells(row: Row, shown: Sequence[Column]) -> list[str]:
    """A row's texts, one a column, with real minus signs where numbers stand."""
    return [
        formats.real_minus(column.text(row)) if column.is_number else column.text(row)
        for column in shown
    ]


def as_csv(result: StudyResult) -> str:
    """Every field on its own, for a program; memory in bytes, losses in nats."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows(result))
    return out.getvalue()


def as_markdown(result: StudyResult) -> str:
    shown = columns(result)
    head = [_heading(column, " ") for column in shown]
    rule = ["---:" if column.is_number else ":---" for column in shown]
    body = [[_markdown(cell) for cell in cells(row, shown)] for row in rows(result)]
    lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *body)]
    return "\n".join(lines) + f"\n\n{NOTES}\n"


def as_latex(result: StudyResult) -> str:
    """A table for `booktabs`; what the changes are is left to the caption, for want of width."""
    shown = [column for column in columns(result) if column.heading != "Changes"]
    head = [rf"\shortstack{{{_latex(c.heading)}\\{_latex(c.unit) or '~'}}}" for c in shown]
    body = [[_latex(cell) for cell in cells(row, shown)] for row in rows(result)]
    made_of = " ".join(
        f"{_latex(row.arm)}: {_latex(COLUMNS[1].cell(row))}." for row in rows(result) if row.changes
    )
    caption = " ".join(filter(None, (_latex(result.facts.question), made_of, _latex(NOTES))))
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{''.join('r' if c.is_number else 'l' for c in shown)}}}",
            r"\toprule",
            _tex_line(head),
            r"\midrule",
            *map(_tex_line, body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _heading(column: Column, gap: str) -> str:
    return f"{column.heading}{gap}({column.unit})" if column.unit else column.heading


def _tex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|~#&])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "’": "'",
    "·": r"\textperiodcentered{}",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in formats.clean(text))
