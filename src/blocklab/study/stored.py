"""What a study's folder has come to: its result from the runs that are finished there."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch

from blocklab.model.count import count
from blocklab.study.across_cells import interactions, over_cells
from blocklab.study.cost import Cost, cost_of
from blocklab.study.course import Known, all_courses, courses
from blocklab.study.evidence import at_look, tuned_windows
from blocklab.study.folder import Circumstances, StudyFolder
from blocklab.study.plan import Plan, PlannedArm, PlannedRun, plan
from blocklab.study.plugins import load_plugins
from blocklab.study.results import Arm, Facts, RungResult, RunResult, Scale, StudyResult
from blocklab.study.rungs import ladders
from blocklab.study.summary import summarised
from blocklab.training.run import RunOutcome, finished


def stored_result(folder: str | Path) -> StudyResult:
    """The result from what a folder holds; trains nothing and needs no corpus."""
    place, planned, circumstances = _stored(folder)
    return collected(planned, circumstances, place)


@dataclass(frozen=True)
class StoredRun:
    """A run that a study asks for, as far as it has come."""

    run: PlannedRun
    folder: Path
    outcome: RunOutcome | None
    """None while it is not finished, and before it has begun."""


def stored_runs(folder: str | Path) -> list[StoredRun]:
    """Every run that a study asks for so far; trains nothing and needs no corpus."""
    place, planned, _ = _stored(folder)
    known = place.known()
    planned = at_look(planned, courses(planned, known), place.windows_of)
    folders = [(run, place.run_folder(run)) for run in _asked(planned, known)]
    return [StoredRun(run, where, finished(where)) for run, where in folders]


def _stored(folder: str | Path) -> tuple[StudyFolder, Plan, Circumstances]:
    place = StudyFolder(Path(folder))
    fingerprints = load_plugins(place.plugins)
    study, circumstances = place.read()
    return place, plan(study, circumstances.text, fingerprints), circumstances


def _asked(plan: Plan, known: Known) -> list[PlannedRun]:
    return [run for way in all_courses(plan, known) for run in way.runs]


def collected(plan: Plan, circumstances: Circumstances, place: StudyFolder) -> StudyResult:
    """The result from whatever runs of the plan are finished."""
    known = place.known()
    plan = at_look(plan, courses(plan, known), place.windows_of)
    asked = _asked(plan, known)
    done = [run for run in asked if run.id in known]
    found = (place.result_of(run) for run in done)
    runs: tuple[RunResult, ...] = tuple(run for run in found if run is not None)
    arms, cells = _arms(plan, known, runs, place)
    rungs = [
        (rung.axis, RungResult(rung.plan.rung, rung.size, _arms(rung.plan, known, runs, place)[0]))
        for rung in plan.ladder
    ]
    result = StudyResult(
        facts=_facts(plan, circumstances, len(asked) - len(done), cost_of(place.path)),
        arms=arms,
        runs=runs,
        interactions=interactions(plan, arms, cells),
        cells=cells if len(cells) > 1 else {},
        ladders=ladders(plan, arms, rungs, finished=len(done) == len(asked)),
    )
    drawn = {run.id for run in result.drawn()}
    with_curves = (place.with_curves(run) if run.id in drawn else run for run in runs)
    return replace(result, runs=tuple(with_curves))


def _arms(
    plan: Plan, known: Known, runs: Sequence[RunResult], place: StudyFolder
) -> tuple[tuple[Arm, ...], dict[str, tuple[Arm, ...]]]:
    """The arms over all cells of one plan, and in each."""
    ways = courses(plan, known)
    cells = {
        cell.arms[0].cell: summarised(
            cell, [way for way in ways if way.arm.cell == cell.arms[0].cell], runs, place.windows_of
        )
        for cell in plan.cells
    }
    if len(cells) == 1:
        return next(iter(cells.values())), cells
    windows = [
        {
            way.arm.name: tuned_windows(plan, way, place.windows_of)
            for way in ways
            if way.arm.cell == c
        }
        for c in cells
        if all(way.reading is not None for way in ways)
    ]
    return over_cells(plan, cells, windows), cells


def _scale(arm: PlannedArm) -> Scale:
    """Of one planned arm at its setting."""
    config, training = arm.config, arm.training
    return Scale(
        n_parameters=count(config).total,
        d_model=config.d_model,
        n_layers=config.n_layers,
        context_length=config.context_length,
        batch_size=training.batch_size,
        steps=training.n_steps(config.context_length) or 0,
    )


def _facts(plan: Plan, circumstances: Circumstances, n_missing: int, cost: Cost | None) -> Facts:
    text = circumstances.text
    study = plan.study
    swept = study.training.validation_tokens or text.validation_tokens
    numerics = plan.numerics
    return Facts(
        question=study.question,
        budget=study.budget,
        command=circumstances.command,
        corpus=study.data.corpus,
        tokenizer=text.tokenizer,
        vocab_size=text.vocab_size,
        unigram_entropy=text.unigram_entropy,
        train_tokens=text.train_tokens,
        validation_tokens=min(swept, text.validation_tokens),
        scales=tuple(dict.fromkeys(map(_scale, plan.arms))),
        seeds=plan.seeds,
        learning_rates=study.training.learning_rates,
        match=study.match,
        versions={
            "blocklab": version("blocklab"),
            "torch": torch.__version__,
            "Python": platform.python_version(),
            "device": numerics.device,
            "dtype": numerics.dtype,
            "compiled": "yes" if numerics.compile else "no",
            "threads a run": str(numerics.threads),
        },
        notes=text.notes,
        delta=study.delta,
        looked=study.looked,
        looks=study.looks,
        judged_seeds=plan.judging_seeds,
        n_missing=n_missing,
        level=plan.look.level,
        searched=study.search,
        differences=circumstances.differences,
        cost=cost,
    )
