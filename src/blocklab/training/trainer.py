"""The training loop: one step, many steps, an evaluation.

A run is a pure function of its records and its seed: batches depend on (seed, step) alone, dropout
has a stream of its own for every step, and evaluating moves neither. An accelerator may add in
another order each time, and is then that only up to rounding.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from blocklab.data.dataset import Dataset, require_windows
from blocklab.data.windows import IGNORED, TrainingWindows, ValidationWindows
from blocklab.errors import BlocklabError
from blocklab.expected import require
from blocklab.model.compiled_blocks import compiled
from blocklab.model.compiling import for_every_model
from blocklab.model.config import ModelConfig
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer
from blocklab.parts.experts import Routing, watched_routing
from blocklab.record import with_changes
from blocklab.streams import stream_seed
from blocklab.training.balance import balance_of_part, balances, buffers_kept, chosen_by_all
from blocklab.training.config import TrainingConfig
from blocklab.training.devices import (
    PROCESSOR,
    available_devices,
    random_numbers,
    usable_device,
    wait_for,
)
from blocklab.training.divergence import bad_gradient, bad_parameter
from blocklab.training.loss import Loss, next_token_loss
from blocklab.training.measures import StepInspection
from blocklab.training.memory import keep_freed_memory
from blocklab.training.numerics import Numerics, SecondsOf, chosen, using_threads
from blocklab.training.observed import Divergence, Evaluation, StepMetrics, Trained
from blocklab.training.optimizer import build_optimizer, clip_gradients, named_parameters
from blocklab.training.ranks import ALONE, Alone, require_shares
from blocklab.training.texts import Text, dataset_of, resolved_vocabulary

EVALUATED_AT_ONCE = 2048
"""Tokens. Measured on a Zen 5, 4 layers of 64 to 256: half or twice as many take up to a tenth
longer."""


class Trainer:
    """Trains one model on one corpus.

    `corpus` is a name or a path, whose text `tokenizer` cuts, a prepared Dataset, or token ids: a
    tensor (n,), an array or a list of integers. `batch_size` and `learning_rate` override those of
    `training`. `vocab_size` null in the config is taken from the tokenizer, of token ids the
    largest. `draw` names another initial draw under the same seed, data and dropout. `numerics`
    null is what a self-test of a few seconds found fastest for this model on this machine's
    processor, with torch's threads or fewer; steps and evaluations take the threads that it says.
    `Numerics(device="cuda")` trains on an accelerator; the model is then there. `ranks` are the
    processes that it is spread over, this one among them. Raises BlocklabError for bad sizes, too
    little text, a vocabulary larger than the model's, or a tokenizer where there is no text.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        corpus: Text = "python-library",
        tokenizer: str | None = None,
        training: TrainingConfig | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        draw: str = "",
        numerics: Numerics | None = None,
        ranks: Alone = ALONE,
    ) -> None:
        require(ModelConfig, config, "config")
        keep_freed_memory()
        given = {"batch_size": batch_size, "learning_rate": learning_rate}
        changes = {name: value for name, value in given.items() if value is not None}
        self.training = TrainingConfig.parse((training or TrainingConfig()).plain() | changes)
        self.seed = seed
        self.ranks = ranks
        require_shares(self.training, ranks)
        self.dataset = dataset_of(corpus, tokenizer, config.vocab_size)
        self.config = resolved_vocabulary(config, self.dataset.vocab_size)
        context = self.config.context_length
        require_windows(self.dataset, context)
        # Before there is a model: the self-test has one of its own.
        self.numerics = numerics or self_tested(
            self.config,
            self.training,
            self.dataset,
            threads=torch.get_num_threads(),
            devices=(PROCESSOR,),
        )
        # Drawn on the processor: the same values wherever it is trained.
        self.model = Transformer(self.config, seed=stream_seed(seed, "model", draw))
        self.windows = TrainingWindows(self.dataset.train, context, self.training.batch_size, seed)
        swept = self.dataset.validation[: self.training.validation_tokens]
        self.validation = ValidationWindows(swept, context)
        self._settle(self.numerics.device)
        self.total_steps = self.training.n_steps(context)
        self.schedule_began = 0
        """Steps done before it; it ends with `total_steps`."""
        self.steps_done = 0
        self.train_seconds = 0.0
        self.inspect_seconds = 0.0
        """Of them, what looking into the model took."""
        self.compile_seconds = 0.0
        """Beside them, what compiling took."""
        self._compiled: Numerics | None = None
        self.diverged: Divergence | None = None

    def _settle(self, device: str) -> None:
        """Put the model there, with no gradients and an optimiser that has seen nothing."""
        self.device = usable_device(device)
        self.ranks.place(self.model, self.device)
        self.model.zero_grad()
        self.optimizer = build_optimizer(
            self.training.optimizer, named_parameters(self.model), self.training.learning_rate
        )

    def step(self) -> float:
        """One optimiser step as a run makes it; gives the batch's mean loss before the update."""
        return self.measured_step().train_loss

    def measured_step(self) -> StepMetrics:
        """One optimiser step with everything that is logged about it."""
        with using_threads(self.numerics.threads):
            return self._measured_step()

    def _measured_step(self) -> StepMetrics:
        self.model.train()
        if self.numerics.compile and self._compiled != self.numerics:
            self._compile()
        began = time.perf_counter()
        inputs, targets = self._batch()
        looking = StepInspection(self.model, inputs) if self._inspects() else None
        loss, log_z = self._backward(inputs, targets)
        if looking is not None:
            looking.before_update()
        norm = clip_gradients(self.model.parameters(), self.training.clip or math.inf)
        factor = self._factor()
        if self.diverged is None and not (math.isfinite(loss) and math.isfinite(norm)):
            # While the gradients are still there.
            where = bad_gradient(self.model) if math.isfinite(loss) else "loss"
            self.diverged = Divergence(self.steps_done + 1, where)
        self.optimizer.step(factor)
        self.optimizer.zero_grad()
        self.steps_done += 1
        inspection = None
        if looking is not None:
            inspection = looking.after_update()
            self.inspect_seconds += looking.seconds
        self.train_seconds += time.perf_counter() - began
        rate = self.training.learning_rate * factor
        return StepMetrics(self.steps_done, loss, rate, norm, log_z, inspection)

    def _compile(self) -> None:
        """By a pass that leaves weights and buffers alone, so that no step's time is a compiler's.

        Raises BlocklabError where that fails.
        """
        if self.ranks.size > 1:
            raise BlocklabError(
                "numerics.compile: a model spread over several processes is not compiled; set "
                "numerics.compile to false"
            )
        began = time.perf_counter()
        try:
            with buffers_kept(self.model):
                self._backward(*self._batch())
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().split("\n")[0]
            raise BlocklabError(
                f"numerics.compile: this model cannot be compiled here: {reason}; "
                "set numerics.compile to false"
            ) from error
        self.optimizer.zero_grad()
        self._compiled = self.numerics
        self.compile_seconds += time.perf_counter() - began

    def steps(self, until: int) -> Iterator[StepMetrics]:
        """Steps until `until` are done, or until `diverged` says that a value is not finite."""
        while self.steps_done < until and self.diverged is None:
            yield self.measured_step()
        if self.diverged is None and (where := bad_parameter(self.model)) is not None:
            self.diverged = Divergence(self.steps_done, where)

    def run(
        self, steps: int | None = None, on_step: Callable[[StepMetrics], None] | None = None
    ) -> Trained:
        """Train for `steps` more steps (default: until what the training record says).

        Without a length in the record the schedule, warm-up included, is laid over these steps,
        whatever was trained before. Raises BlocklabError for fewer than one step, and where nothing
        says how many.
        """
        if steps is not None and steps < 1:
            raise BlocklabError(f"steps is {steps}, expected 1 or more")
        length = self.training.n_steps(self.config.context_length)
        if steps is None and length is None:
            raise BlocklabError("how long? give steps, training.steps or training.tokens")
        until = length or 0 if steps is None else self.steps_done + steps
        if length is None:
            self.schedule_began, self.total_steps = self.steps_done, until
        metrics = []
        for measured in self.steps(until):
            metrics.append(measured)
            if on_step is not None:
                on_step(measured)
        return Trained(self.model, metrics, self.diverged)

    def evaluate(self) -> float:
        """Token-weighted mean loss over the validation tokens, nats; the same twice."""
        return self.evaluation().mean

    @torch.no_grad()
    def evaluation(self) -> Evaluation:
        """The loss of every validation window, in the order of the text."""
        windows, at_once = self.validation.n_windows, self._windows_at_once()
        losses = torch.zeros(windows, dtype=torch.float64)
        n_targets = torch.zeros(windows, dtype=torch.int64)
        with evaluating(self.model), using_threads(self.numerics.threads):
            for turn, counts in self.ranks.turns(math.ceil(windows / at_once)):
                here = slice(turn * at_once, (turn + 1) * at_once)
                inputs, targets = self.validation.batch(here.start, at_once)
                asked = (targets != IGNORED).sum(1)  # (windows of this batch,)
                inputs, targets = self._moved(inputs, targets)
                hidden = self.model.features(inputs).flatten(0, 1)
                rows = self._loss(hidden, targets, int(asked.sum())).rows
                if counts:
                    losses[here] = rows.view(targets.shape).cpu().double().sum(1) / asked
                    n_targets[here] = asked
        self.ranks.let_go(self.model)
        return Evaluation(self.ranks.added(losses), self.ranks.added(n_targets))

    def _windows_at_once(self) -> int:
        """How many validation windows are read together: on a processor what its caches hold."""
        few = max(EVALUATED_AT_ONCE // self.config.context_length, 1)
        return few if self.device.type == PROCESSOR else max(few, self.training.batch_size)

    def _moved(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """A batch to where the model is."""
        return inputs.to(self.device), targets.to(self.device)

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the next step, this process's share of them, each (B, T)."""
        inputs, targets = self.windows.batch(self.steps_done)
        return self._moved(self.ranks.share(inputs), self.ranks.share(targets))

    def _inspects(self) -> bool:
        every = self.training.inspect_every
        return every is not None and self.steps_done % every == 0

    def _factor(self) -> float:
        """The schedule's factor on the peak rate for the next step; 1 while no length is known."""
        if self.total_steps is None:
            return 1.0
        steps = self.total_steps - self.schedule_began
        step = min(self.steps_done - self.schedule_began, steps - 1)
        return self.training.schedule.factor(step, steps)

    def _backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Gradients of the mean loss over all targets, whatever the micro-batches' sizes."""
        # Sequences of different shares drop different numbers.
        apart = (self.ranks.rank,) if self.ranks.rank else ()
        seed = stream_seed(self.seed, "dropout", self.steps_done, *apart)
        n = self.training.accumulation
        parts = list(zip(inputs.tensor_split(n), targets.tensor_split(n), strict=True))
        chosen = self._chosen(parts, seed) if n > 1 and balances(self.model) else None
        with random_numbers(self.device, seed):
            loss, log_z = self.ranks.sums(*self._accumulated(parts, chosen))
        return loss, log_z

    @torch.no_grad()
    def _chosen(self, parts: Sequence[tuple[Tensor, Tensor]], seed: int) -> list[Tensor]:
        """What experts take of the whole step, each (E,), from a pass ahead of the one that learns.

        Both drop the same numbers.
        """
        with random_numbers(self.device, seed), buffers_kept(self.model):
            routed = [(y.numel() / self._n_targets, self._read(x)[1]) for x, y in parts]
        return chosen_by_all(routed, self.ranks)

    def _accumulated(
        self, parts: Sequence[tuple[Tensor, Tensor]], chosen: Sequence[Tensor] | None
    ) -> tuple[float, float]:
        """Micro-batch by micro-batch: this share of the mean loss, and of that of log Z."""
        loss = log_z = 0.0
        for x, y in parts:
            hidden, routing = self._read(x)
            part = self._loss(self.numerics.narrowed(hidden), y, self._n_targets)
            share = y.numel() / self._n_targets
            if routing and chosen is None and self.ranks.size > 1:
                chosen = chosen_by_all([(share, routing)], self.ranks)
            # Experts are kept in balance by a loss of their own, which no reported loss includes.
            balance = balance_of_part(routing, chosen)
            whole = part.loss if balance is None else part.loss + share * balance
            whole.backward()  # type: ignore[no-untyped-call]
            loss += part.loss.item()
            log_z += part.log_z.item() * y.numel() / self._n_targets
        return loss, log_z

    @property
    def _n_targets(self) -> int:
        """Of a whole step."""
        return self.training.batch_size * self.config.context_length

    def _read(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """The stream at the head, (B * T, d_model), and what every router did."""
        with self.numerics.computing(), watched_routing() as routing:
            return self._features(tokens).flatten(0, 1), routing

    def _loss(self, hidden: Tensor, targets: Tensor, n_targets: int) -> Loss:
        return next_token_loss(
            self.model.head,
            hidden,
            targets.flatten(),
            n_targets=n_targets,
            chunk=self.numerics.chunk,
        )

    def _features(self, tokens: Tensor) -> Tensor:
        """The model up to its head, its blocks compiled where the numerics say so."""
        if not self.numerics.compile or self.config.routes:
            return self.model.features(tokens)
        with for_every_model():
            return self.model.features(tokens, through=compiled)

    def seconds_of_a_step(self, numerics: Numerics, *, wall: bool = False) -> float:
        """One further step in these numerics: processor time of one thread, otherwise wall time.

        What else the machine does is no part of the former, but of several threads some may wait,
        and an accelerator works beside the processor. `wall` asks for wall time in any case, to
        compare with those. On another device than the one before, the optimiser begins anew.
        """
        if numerics.device != self.numerics.device:
            self._settle(numerics.device)
        self.numerics = numerics
        alone = numerics.threads == 1 and numerics.device == PROCESSOR
        clock = time.process_time if alone and not wall else time.perf_counter
        began = clock()
        self.step()
        wait_for(self.device)
        return clock() - began


def self_tested(
    config: ModelConfig,
    training: TrainingConfig,
    dataset: Dataset,
    n_runs: int = 1,
    threads: int = 1,
    devices: Sequence[str] | None = None,
    at_once: Callable[[str], int] = lambda device: 1,
    say: Callable[[str], None] | None = None,
) -> Numerics:
    """The numerics that are fastest for `n_runs` trainings of this model here.

    `devices` are those to choose from; null means whatever is there, `at_once` how many runs each
    will train side by side. See `numerics.chosen`.
    """

    def timer() -> SecondsOf:
        recipe = with_changes(training, {"inspect_every": None})
        numerics = Numerics(device=there[0])
        trainer = Trainer(config, corpus=dataset, training=recipe, numerics=numerics)
        # One clock for all that are compared.
        return partial(trainer.seconds_of_a_step, wall=threads > 1 or there != (PROCESSOR,))

    there = tuple(devices or available_devices())
    return chosen(
        config,
        training,
        timer,
        n_runs=n_runs,
        threads=threads,
        devices=there,
        at_once=at_once,
        say=say,
    )
