"""`results.csv`: one row a run, every number as it is, for whoever computes on."""

import csv
import io
import math

from blocklab.study.results import RunResult, StudyResult

COLUMNS = (
    "variant", "seed", "learning_rate", "validation_loss", "train_loss", "diverged", "diverged_at",
    "diverged_in", "start_loss", "steps", "tokens", "epochs", "seconds", "tokens_per_second",
    "peak_memory", "run", "cell", "rung", "spikes", "gradient_norm_median", "gradient_norm_p999",
    "clipped_share", "log_z", "largest_attention_logit", "stream_rms", "stream_growth",
    "update_ratio", "position_similarity", "recall",
)  # fmt: skip


def as_csv(result: StudyResult) -> str:
    """Losses in nats, empty for a diverged run; memory in bytes; numbers read back exactly."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(run) for run in result.runs)
    return out.getvalue()


def _row(run: RunResult) -> list[str]:
    diverged = run.diverged_at is not None
    return [
        run.arm,
        str(run.seed),
        _exact(run.learning_rate),
        "" if diverged else _exact(run.validation_loss),
        "" if diverged else _exact(run.train_loss),
        str(diverged).lower(),
        _exact(run.diverged_at),
        run.diverged_in or "",
        _exact(run.start_loss),
        str(run.steps),
        str(run.tokens),
        _exact(run.epochs),
        _exact(run.seconds),
        _exact(run.tokens_per_second),
        str(run.peak_memory),
        run.id,
        run.cell,
        run.rung,
        _exact(run.spikes.events if run.spikes else None),
        *(_exact(value) for value in _norms(run)),
        _exact(run.log_z),
        *(_exact(value) for value in _insides(run)),
        _exact(run.recall),
    ]


def _norms(run: RunResult) -> tuple[float | None, float | None, float | None]:
    """Median and 99.9th percentile of the gradient's norm, and the share of clipped steps."""
    norms = run.norms
    return (norms.median, norms.p999, norms.clipped) if norms else (None, None, None)


def _insides(run: RunResult) -> tuple[float | None, ...]:
    found = run.insides
    if found is None:
        return (None,) * 5
    return (
        found.largest_attention_logit,
        found.stream_rms,
        found.stream_growth,
        found.update_ratio,
        found.position_similarity,
    )


def _exact(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else float.__repr__(value)
