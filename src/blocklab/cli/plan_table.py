"""A plan as a terminal shows it: the arms with their sizes, the runs, the time they would take."""

import time

import torch
from rich.console import Console
from rich.table import Table

from blocklab.model.count import count
from blocklab.study.folder import StudyFolder
from blocklab.study.plan import PlannedArm
from blocklab.study.runner import Prepared
from blocklab.training.trainer import Trainer

TIMED_STEPS = 3


def print_plan(ready: Prepared, place: StudyFolder, workers: int) -> None:
    """What would be trained, after matching, and an estimate from a few real steps of each arm."""
    plan = ready.plan
    baseline = count(plan.arms[0].config)
    seconds = {arm.name: seconds_a_step(arm, ready) for arm in plan.arms}
    table = Table(title=plan.study.question, title_justify="left")
    for name in ("arm", "changes", "parameters", "vs baseline", "FLOPs/token", "ms/step"):
        table.add_column(name, justify="left" if name in ("arm", "changes") else "right")
    for arm in plan.arms:
        size = count(arm.config)
        changes = {**arm.changes, **{f"matched {k}": v for k, v in arm.matched.items()}}
        table.add_row(
            arm.name,
            "\n".join(f"{path}: {value}" for path, value in changes.items())
            or ("another initial draw" if arm.role == "placebo" else "—"),
            f"{size.total:,}",
            "—" if arm.role != "variant" else f"{size.total / baseline.total - 1:+.2%}",
            f"{size.flops_per_token():,}",
            f"{1000 * seconds[arm.name]:.0f}",
        )
    console = Console(highlight=False)
    console.print(table)
    missing = [run for run in plan.runs if not (place.run_folder(run) / "run.json").exists()]
    work = sum(plan.steps_of(run) * seconds[run.arm] for run in missing)
    study = plan.study
    rates = ", ".join(f"{rate:g}" for rate in study.training.learning_rates)
    console.print(
        f"{len(plan.runs)} runs: {len(plan.arms)} arms × {study.seeds} seeds × learning rates "
        f"{rates}; {len(plan.runs) - len(missing)} already finished in {place.path}"
    )
    steps = plan.steps_of(plan.runs[0])
    tokens = steps * study.training.batch_size * plan.arms[0].config.context_length
    console.print(
        f"{steps:,} steps a run ({tokens:,} tokens, {tokens / ready.text.train_tokens:.2f} epochs "
        f"of {study.data.corpus}); validation on {ready.text.validation_tokens:,} tokens at most"
    )
    console.print(
        f"about {work / workers / 60:.1f} minutes on {workers} workers, evaluation not counted"
    )


def seconds_a_step(arm: PlannedArm, ready: Prepared) -> float:
    """Time of one training step on one thread, after a first one that warms up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rate = arm.training.learning_rates[0]
        trainer = Trainer(arm.config, corpus=ready.dataset, training=arm.training.at(rate), seed=1)
        trainer.step()
        began = time.perf_counter()
        for _ in range(TIMED_STEPS):
            trainer.step()
        return (time.perf_counter() - began) / TIMED_STEPS
    finally:
        torch.set_num_threads(threads)
