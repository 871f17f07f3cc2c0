"""In what precision, and in what portions, a training computes: chosen by measuring where it runs.

Half precision pays where the processor has it, and only for products that are large enough; the
weights, the residual stream, the norms, the softmax and the loss stay float32 (see `trainer`). The
choice decides a run's bits, so it is made once, written down, and found again.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from blocklab.data.cache import digest, read_json, writable_cache, write_json
from blocklab.dtypes import stored_name
from blocklab.model.config import ModelConfig
from blocklab.model.count import count
from blocklab.record import Record
from blocklab.training.config import TrainingConfig
from blocklab.training.devices import PROCESSOR, names_of
from blocklab.training.loss import default_chunk

CHOICES = 3
"""Raised whenever what is chosen from, or how fast it is, changes: older choices are made anew."""

WORTH_MEASURING = 1e9
"""Floating-point operations of a step under which half precision cannot save anything notable."""

WORTH_CHANGING = 1.15
"""How many times faster half precision must be to be worth its rounding."""

WORTH_ANOTHER_CHUNK = 1.05

WORTH_TRYING_TO_COMPILE = 120.0
"""Seconds of training, all planned runs together, under which a compiler hardly pays: measured, it
takes 5 (on a new machine 16) once and 1 in every process, and saves a tenth to a fifth."""

HOPELESS = 10.0
"""How many times slower a first step is than a warm one elsewhere where no more are tried."""

SECONDS = 5.0
"""What a self-test may take."""

ROUNDS = 4


class Numerics(Record):
    """What decides a run's bits beside its records: chosen once a study."""

    device: str = PROCESSOR
    """The processor, or an accelerator: cuda, mps …"""
    dtype: Annotated[Literal["float32", "bfloat16"], BeforeValidator(stored_name)] = "float32"
    """Of the matrix products in training; all else, and every evaluation, is float32."""
    compile: bool = False
    """Whether the blocks are compiled for training, those of our own with our own attention. Every
    process pays for it once. Dropout then drops others, from the same random numbers."""
    chunk: int | None = Field(None, gt=0)
    """Rows of logits that the loss holds at most; null is the rule of `loss.default_chunk`."""
    threads: int = Field(1, gt=0)
    """Of a training step and an evaluation."""

    def computing(self) -> AbstractContextManager[object]:
        """Around a training's forward pass: its products are taken in `dtype`."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)

    def narrowed(self, hidden: Tensor) -> Tensor:
        """What the head's products start from."""
        return hidden if self.dtype == "float32" else hidden.to(torch.bfloat16)


@contextmanager
def using_threads(n: int) -> Iterator[None]:
    """So many of torch's threads inside, as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SecondsOf = Callable[[Numerics], float]
"""Seconds of one training step; the first call of each pays for warming up, and for compiling."""


def chosen(
    config: ModelConfig,
    training: TrainingConfig,
    timer: Callable[[], SecondsOf],
    cache: Path | None = None,
    n_runs: int = 1,
    threads: int = 1,
    devices: Sequence[str] = (PROCESSOR,),
    at_once: Callable[[str], int] = lambda device: 1,
    say: Callable[[str], None] | None = None,
) -> Numerics:
    """The fastest numerics for training this model here, measured once a machine and model.

    `timer` makes what times a step, and is only asked where there is something to measure. What
    was found is kept in the cache, so that the same training has the same bits tomorrow. `n_runs`
    runs of this model and length are planned: whether compiling pays depends on both. A run may
    take up to `threads` threads; one whose steps are too small to share takes one. The first of
    `devices` is the one for steps too small to measure; another is left out where it cannot train
    this model. `say` is told of what takes longer than the usual seconds.
    """
    step = count(config).flops_per_token() * training.batch_size * config.context_length
    if step < WORTH_MEASURING:
        return Numerics(device=devices[0])
    root, _ = writable_cache(cache)
    steps = training.n_steps(config.context_length) or 0
    where: tuple[int | str, ...] = (
        threads,
        *devices,
        *map(at_once, devices),
        *names_of(tuple(devices)),
    )
    situation = _situation(config, training, steps, n_runs, *where)
    entry = root / "numerics" / f"{situation}.json"
    known = read_json(entry)
    if known is not None:
        return Numerics.parse(known, at=str(entry))
    rows = training.batch_size * config.context_length // training.accumulation
    seconds_of = timer()
    found = fastest(seconds_of, rows, config.rows, threads, devices, at_once)
    long = n_runs * steps * seconds_of(found) >= WORTH_TRYING_TO_COMPILE
    if long and not config.routes:
        if say is not None:
            say("compiling one step, to see whether that pays: up to half a minute")
        processes = min(at_once(found.device), n_runs)
        found = compiled_if_worth_it(found, timer, steps, n_runs, processes)
    write_json(entry, found.plain())
    return found


def fastest(
    seconds_of: SecondsOf,
    rows: int,
    vocab_size: int,
    threads: int = 1,
    devices: Sequence[str] = (PROCESSOR,),
    at_once: Callable[[str], int] = lambda device: 1,
    budget: float = SECONDS,
) -> Numerics:
    """Float32, or half precision where it is at least `WORTH_CHANGING` times faster; then half the
    threads, and half of those, while fewer are not slower; then the chunk of the loss, where half
    or twice the usual one is `WORTH_ANOTHER_CHUNK` times faster. All of it on each device, of
    which the one is taken that makes most steps a second, `at_once` runs side by side.

    Candidates take turns, and each counts by its best; no round begins after `budget` seconds,
    which every device has for itself.

    Args:
        rows: positions that the loss is taken over at once.
        threads: the most that may be taken; beside an accelerator one is enough.
        devices: accelerators are tried first; a processor that is hopeless beside them is left
            out, and so is whatever cannot train this model. Raises what the last one raised where
            none can.
    """
    found: Numerics | None = None
    least, failure = math.inf, Exception()
    for device in sorted(devices, key=lambda name: name == PROCESSOR):
        start = Numerics(device=device, threads=threads if device == PROCESSOR else 1)
        try:
            if found is not None and seconds_of(start) / at_once(device) > HOPELESS * least:
                continue
            other, seconds = _fastest_on(start, seconds_of, rows, vocab_size, budget)
        except Exception as error:  # out of memory, an operator that it lacks
            failure = error
            continue
        if seconds / at_once(device) < least:
            found, least = other, seconds / at_once(device)
    if found is None:
        raise failure
    return found


def _fastest_on(
    plain: Numerics, seconds_of: SecondsOf, rows: int, vocab_size: int, budget: float
) -> tuple[Numerics, float]:
    """The fastest on the device of `plain`, and the seconds of its step."""
    until = time.perf_counter() + budget
    half = plain.model_copy(update={"dtype": "bfloat16"})
    best = _timed(seconds_of, (plain, half), until)
    found = half if best[plain] >= WORTH_CHANGING * best[half] else plain
    usual = default_chunk(vocab_size, torch.bfloat16 if found is half else torch.float32)
    found, seconds = _with_fewer_threads(seconds_of, found, best[found], until)
    if rows <= usual or time.perf_counter() > until:
        return found, seconds
    others = [found.model_copy(update={"chunk": chunk}) for chunk in (usual // 2, usual * 2)]
    best = _timed(seconds_of, (found, *others), until)
    quickest = min(best, key=lambda candidate: best[candidate])
    taken = quickest if best[found] >= WORTH_ANOTHER_CHUNK * best[quickest] else found
    return taken, best[taken]


def _with_fewer_threads(
    seconds_of: SecondsOf, found: Numerics, seconds: float, until: float
) -> tuple[Numerics, float]:
    """Threads wait for one another: small steps are not sooner done by many."""
    while found.threads > 1 and time.perf_counter() < until:
        fewer = found.model_copy(update={"threads": found.threads // 2})
        best = _timed(seconds_of, (found, fewer), until)
        if best[fewer] > best[found]:
            break
        found, seconds = fewer, best[fewer]
    return found, seconds


def compiled_if_worth_it(
    plain: Numerics,
    timer: Callable[[], SecondsOf],
    steps: int,
    n_runs: int,
    processes: int = 1,
) -> Numerics:
    """Compiled, where what that saves over all planned runs is more than what it costs them.

    The first compilation fills a cache on disk, and every process that trains some of the runs
    reads it once: how long that takes is measured by forgetting all but the cache. Where nothing
    can be compiled, nothing is.
    """
    compiled = plain.model_copy(update={"compile": True})
    try:
        cold = _all_of_it(timer(), compiled)
        torch.compiler.reset()
        seconds_of = timer()
        warm = _all_of_it(seconds_of, compiled)
        seconds = _timed(seconds_of, (plain, compiled), math.inf)
    except Exception:  # whatever a compiler raises on a machine without one
        return plain
    saved = n_runs * steps * (seconds[plain] - seconds[compiled])
    return compiled if saved > cold + processes * warm else plain


def _all_of_it(seconds_of: SecondsOf, numerics: Numerics) -> float:
    """Seconds of a step with what other processes did for it: a compiler starts some."""
    began = time.perf_counter()
    own = seconds_of(numerics)
    return max(own, time.perf_counter() - began)


def _timed(
    seconds_of: SecondsOf, candidates: Sequence[Numerics], until: float
) -> dict[Numerics, float]:
    """Least seconds of each; the first step of each only warms up."""
    for candidate in candidates:
        seconds_of(candidate)
    best = dict.fromkeys(candidates, math.inf)
    for taken in range(ROUNDS):
        if taken and time.perf_counter() > until:
            break
        for candidate in candidates:
            best[candidate] = min(best[candidate], seconds_of(candidate))
    return best


def _situation(
    config: ModelConfig, training: TrainingConfig, steps: int, n_runs: int, *where: int | str
) -> str:
    """What the choice depends on: the machine, torch, the sizes of a step, and how many follow.

    `where`: the threads and devices to choose from.
    """
    recipe = (training.batch_size, training.accumulation, steps, n_runs)
    machine = (platform.machine(), _processor(), torch.__version__, *where)
    return digest(
        "numerics", CHOICES, *machine, json.dumps(config.plain(), sort_keys=True), *recipe
    )


def _processor() -> str:
    """The processor's model and abilities, as far as the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "".join(dict.fromkeys(x for x in lines if x.startswith(("model name", "flags"))))
