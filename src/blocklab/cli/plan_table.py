"""A plan as a terminal shows it: the arms with their sizes, the runs, the time they would take."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from blocklab.cli.progress import where
from blocklab.cli.screen import console
from blocklab.model.count import count
from blocklab.report.circumstances import ranged
from blocklab.report.formats import counted, duration, paths_and_values, plain_value, rate
from blocklab.report.limits import off_size
from blocklab.study.course import Course, Known, all_courses
from blocklab.study.folder import StudyFolder
from blocklab.study.matching import MEASURES, natural_width, states_width
from blocklab.study.plan import Plan, PlannedArm, n_tokens
from blocklab.study.rates import search_grid
from blocklab.study.runner import Prepared
from blocklab.study.study import Study
from blocklab.study.timing import peak_memory_of_a_step, rough_seconds_a_step
from blocklab.study.wording import percent


def print_plan(ready: Prepared, place: StudyFolder, workers: int) -> None:
    """What would be trained, after matching, and an estimate from a few real steps of each arm."""
    arms = ready.plan.cells[0].arms
    numerics = ready.plan.numerics
    timed = rough_seconds_a_step(arms, ready.dataset, numerics)
    seconds = dict(zip((arm.name for arm in arms), timed, strict=True))
    memory = {arm.name: peak_memory_of_a_step(arm, ready.dataset, numerics) for arm in arms}
    screen = console(soft_wrap=True)
    screen.print(_sizes(arms, seconds, memory, ready.plan.study.question))
    for arm in arms[1:]:
        screen.print(f"  {arm.name}: {_told(arm)}")
        if arm.name in ready.differences:
            screen.print(f"    seen: {ready.differences[arm.name]}")
        if off := _off_size(arm, ready.plan, seconds):
            screen.print(f"    {off}")
    for path, levels in ready.plan.study.nuisances.items():
        screen.print(f"  nuisance {path}: {', '.join(map(plain_value, levels))}")
    for rung in ready.plan.ladder:
        base = rung.plan.arms[0]
        screen.print(
            f"  ladder: again at {rung.plan.rung}: {count(base.config).total:,} parameters, "
            f"{n_tokens(base):,} tokens a run",
        )
    for line in _lengths(ready, place, seconds, workers):
        screen.print(line)


def _sizes(
    arms: Sequence[PlannedArm],
    seconds: Mapping[str, float],
    memory: Mapping[str, int],
    question: str,
) -> Table:
    baseline = count(arms[0].config)
    table = Table(title=question, title_justify="left")
    for name in ("arm", "parameters", "against baseline", "FLOPs/token", "ms/step", "MiB"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm in arms:
        size = count(arm.config)
        difference = size.total - baseline.total
        table.add_row(
            arm.name,
            f"{size.total:,}",
            f"{difference:+,} ({percent(difference / baseline.total, 2, signed=True)})"
            if arm.changes
            else "—",
            f"{'≥ ' if size.untold_scores else ''}{size.flops_per_token():,}",
            f"{1000 * seconds[arm.name]:.0f}",
            f"{memory[arm.name] / 2**20:,.0f}",
        )
    return table


def _told(arm: PlannedArm) -> str:
    if arm.role == "placebo":
        return "the baseline from another initial draw, on the same batches"
    declared, solved = paths_and_values(arm.changes), paths_and_values(arm.matched)
    return f"{declared}; to match sizes: {solved}" if solved else declared


def _off_size(arm: PlannedArm, plan: Plan, seconds: Mapping[str, float]) -> str:
    """That an arm is not matched, in the setting or on the rung where it is furthest off."""
    match, base = plan.study.match, plan.arms[0]
    if arm.role != "variant":
        return ""
    found = [off_size(match, seconds[arm.name], seconds[base.name])] if match == "time" else []
    for part in plan.whole if match in MEASURES else ():
        for cell in part.cells:
            there = next(other for other in cell.arms if other.name == arm.name)
            sizes = (MEASURES[match](one.config) for one in (there, cell.arms[0]))
            found.append(off_size(match, *sizes))
    off = max((share for share in found if share is not None), key=abs, default=None)
    if off is None:
        return ""
    why = ""
    if natural_width(arm.config) is None:
        why = ", as it has no feed-forward width to solve for"
    elif states_width(arm.changes, arm.config):
        why = ", as its feed-forward width is stated"
    return f"not matched by {match}: {percent(off, 1, signed=True)} against {base.name}{why}"


def _lengths(
    ready: Prepared, place: StudyFolder, seconds: Mapping[str, float], workers: int
) -> Iterator[str]:
    plan, study, text = ready.plan, ready.plan.study, ready.text
    known = place.known()
    ways = all_courses(plan, known)
    expected = sum(way.n_expected for way in ways)
    found = sum(run.id in known for way in ways for run in way.runs)
    yield f"{counted(expected, 'run')}{_made_of(plan)}; {found} already finished in {place.path}"
    swept = min(study.training.validation_tokens or text.validation_tokens, text.validation_tokens)
    steps = [arm.training.n_steps(arm.config.context_length) or 0 for arm in plan.arms]
    tokens = [n_tokens(arm) for arm in plan.arms]
    epochs = [n / text.train_tokens for n in tokens]
    yield (
        f"{ranged(steps, noun='step')} a run: {ranged(tokens, noun='token')}, "
        f"{ranged(epochs, '{:.2f}'.format, 'epoch')} of {study.data.corpus}; each final loss over "
        f"{swept:,} validation tokens"
    )
    left = _seconds_left(plan, ways, known, seconds, swept)
    yield f"about {duration(left / workers)} on {counted(workers, 'worker')}"


def _seconds_left(
    plan: Plan, ways: Sequence[Course], known: Known, seconds: Mapping[str, float], swept: int
) -> float:
    """Of one worker, from the seconds that a step of each arm takes at the first setting."""
    flops = {arm.name: count(arm.config).flops_per_token() for arm in plan.cells[0].arms}
    total = 0.0
    for way in ways:
        done = sum(run.id in known for run in way.runs)
        # The timed arms stand for those of other settings and rungs, by their arithmetic.
        share = count(way.arm.config).flops_per_token() / flops[way.arm.name]
        # A forward pass is a third of a step's work.
        n_steps = way.runs[0].steps * (1 + swept / n_tokens(way.arm) / 3)
        total += (way.n_expected - done) * n_steps * seconds[way.arm.name] * share
    return total


def _made_of(plan: Plan) -> str:
    """`: 5 arms, 5 seeds, learning rates …`."""
    study = plan.study
    given = study.training.learning_rates
    rates = ", ".join(map(rate, search_grid(given) if study.search else given))
    n_arms = len(plan.cells[0].arms)
    if study.search:
        return (
            f" or so: the rate of {counted(n_arms, 'arm')}{where(plan)} searched from {rates} on "
            f"with one seed, then {_seeds(study)} at three rates each"
        )
    return f": {counted(n_arms, 'arm')}{where(plan)}, {_seeds(study)}, learning rates {rates}"


def _seeds(study: Study) -> str:
    first, *further = study.looks
    return counted(first, "seed") + "".join(f" ({n} if something is open then)" for n in further)
