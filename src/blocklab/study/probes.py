"""Probes of a built model: does every part do what its kind says, and nothing it must not do?

Each probe gives its findings as sentences that name the place; none is a clean bill. They hold for
any parts, the user's own too; what only one kind of part promises is probed in `part_probes`. They
are run on a `shaken` model, where no first value of 0 or 1 hides what a part computes.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocklab.errors import BlocklabError
from blocklab.model.block import BlockConfig
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer
from blocklab.parts.attention import AttentionConfig, CausalAttention
from blocklab.parts.context import AttentionContext
from blocklab.parts.experts import Experts
from blocklab.parts.feed_forward import FeedForwardConfig
from blocklab.parts.norm import NormConfig
from blocklab.parts.part import PartConfig
from blocklab.parts.residual import ResidualConfig
from blocklab.streams import stream_seed
from blocklab.study.own_faults import faults_named
from blocklab.training.loss import next_token_loss
from blocklab.training.optimizer import OptimizerConfig, checked_groups, named_parameters

PROBE_SEED = 20_170_612
PROBE_SEQUENCES = 2
MOST_LOGITS = 2**23
"""Of one sequence, beyond which there is no second one."""
PROBE_LENGTH = 64
"""Tokens of a sequence, where the whole context is not needed."""

ROUNDING = 1e-4
"""A difference relative to the values themselves that float32 can make and no part should."""

KEEPS_STATE = (
    "it keeps something from pass to pass that no checkpoint holds; keep it in a buffer "
    "(self.register_buffer), so that a run can be resumed"
)

CALLED: tuple[type[PartConfig], ...] = (
    BlockConfig,
    NormConfig,
    AttentionConfig,
    FeedForwardConfig,
    ResidualConfig,
)
"""Kinds of part that act when they are called; positions act through methods of their own."""


def probe_tokens(model: Transformer, length: int | None = None) -> Tensor:
    """Random tokens (B, T), the same at every call; by default of the whole context."""
    context = model.config.context_length
    generator = torch.Generator().manual_seed(PROBE_SEED)
    length = min(length or context, context)
    few = length * model.config.rows > MOST_LOGITS
    shape = (1 if few else PROBE_SEQUENCES, length)
    return torch.randint(model.config.rows, shape, generator=generator)


def shake(model: Transformer) -> None:
    """Move every weight a little off the values it was built with, each by a stream of its own.

    The stream goes with its place in the model, not its name: a part under new names stays equal.
    """
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            std = 0.3 / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 0.1
            generator = torch.Generator().manual_seed(stream_seed(PROBE_SEED, "shake", place))
            parameter.add_(std * torch.randn(parameter.shape, generator=generator))


@contextmanager
def seeded(seed: int = PROBE_SEED) -> Iterator[None]:
    """Dropout and whatever else draws from torch draws from `seed` inside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def parts_of(model: nn.Module, *slots: type[PartConfig]) -> dict[str, nn.Module]:
    """Every part of these slots in the model, by path, nested ones too."""
    kinds = [kind for slot in slots for kind in slot.kinds().values()]
    modules = tuple(kind.module for kind in kinds if issubclass(kind, PartConfig))
    return {path: module for path, module in model.named_modules() if isinstance(module, modules)}


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Buffers are afterwards what they were: a part of the user's own may move its own."""
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, before in kept:
                setattr(module, name, buffer.copy_(before))


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """A look at what a model computes in evaluation, which leaves it as it was.

    Raises BlocklabError, naming the part, where one of the user's own fails.
    """
    with faults_named(model), state_kept(model), torch.no_grad(), evaluating(model):
        yield


@dataclass(frozen=True)
class TrainingPass:
    """One forward and backward pass in training mode, over whole contexts."""

    losses: Tensor
    """Of every position (B * T,), to each of which all its logits add."""
    gradients: dict[str, Tensor | None]
    called: frozenset[str]
    """Paths of the parts that were called."""


def training_pass(model: Transformer) -> TrainingPass:
    """Gradients of the mean next-token loss; the same twice, dropout included."""
    tokens = probe_tokens(model)
    called: set[str] = set()
    hooks = [
        part.register_forward_hook(lambda *_, path=path: called.add(path))
        for path, part in parts_of(model, *CALLED).items()
    ]
    with faults_named(model), state_kept(model):
        try:
            with seeded():
                hidden = model.train().features(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        model.zero_grad()
        # As a training step takes it: all logits at once would be several times what that needs.
        loss = next_token_loss(model.head, hidden.flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.loss.backward()  # type: ignore[no-untyped-call]
    gradients = {path: p.grad for path, p in model.named_parameters() if p.requires_grad}
    return TrainingPass(loss.rows, gradients, frozenset(called))


def evaluated(model: Transformer) -> Tensor:
    """Logits without dropout, over whole contexts: a window shows only beyond its length.

    Raises BlocklabError, naming the part, where one of the user's own fails.
    """
    with probing(model):
        return model(probe_tokens(model))  # type: ignore[no-any-return]


def start_loss(logits: Tensor, tokens: Tensor) -> float:
    """Mean next-token loss, nats, of an untouched model on random tokens (B, T)."""
    return float(F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten()))


def starts_too_high(model: Transformer, logits: Tensor) -> Iterator[str]:
    """A loss at step 0 more than 1 nat above guessing evenly, from the untouched model's logits."""
    loss, uniform = start_loss(logits, probe_tokens(model)), math.log(model.config.rows)
    if not math.isfinite(loss):
        yield f"the loss at step 0 is {loss:.2f} nats: {_first_not_finite(model)}"
    elif loss > uniform + 1:
        yield (
            f"the loss at step 0 is {loss:.2f} nats, more than 1 above ln V = {uniform:.2f}; "
            "draw the head or the residual writers smaller (initialization.head_std, "
            "initialization.residual_writers)"
        )


def _first_not_finite(model: Transformer) -> str:
    """Where an untouched model first has a value that is no finite number."""
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.isfinite().all():
            return f"{path} starts with values that are not finite"
    outputs = _outputs(model, probe_tokens(model), training=False)
    found = (path for path, output in outputs.items() if not output.isfinite().all())
    return f"{next(found, 'the loss')} is the first with values that are not finite"


def never_called(model: Transformer, traced: TrainingPass) -> Iterator[str]:
    """A part that is built and then left out of the forward pass."""
    for path in parts_of(model, *CALLED):
        reached = any(
            _has_gradient(gradient)
            for name, gradient in traced.gradients.items()
            if name.startswith(f"{path}.")
        )
        if path not in traced.called and not reached:
            yield f"{path} is built but never called in a forward pass"


def without_gradient(model: Transformer, traced: TrainingPass) -> Iterator[str]:
    """Parameters that training could never move.

    A gradient of 0 may have vanished on its way through many blocks, which is a result and no
    fault; such a parameter must then move the output of its own block.
    """
    names = [
        name
        for name, gradient in traced.gradients.items()
        if not _has_gradient(gradient) and not _may_have_none(model, name)
    ]
    vanished = [name for name in names if traced.gradients[name] is not None]
    dead = set(names) - _moving_their_block(model, vanished)
    names = [name for name in names if name in dead]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"no gradient reaches {', '.join(names[:3])}{more}: the loss does not depend on it"


def _moving_their_block(model: Transformer, names: list[str]) -> set[str]:
    """Those of the parameters that act where they stand, whatever comes after."""
    if not names:
        return set()
    parameters = [model.get_parameter(name) for name in names]
    moving: set[str] = set()
    with faults_named(model), seeded(), evaluating(model):
        for output in filter(lambda output: output.requires_grad, _segments(model)):
            total = (output * torch.randn(output.shape)).sum()
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
            moving |= {n for n, g in zip(names, gradients, strict=True) if _has_gradient(g)}
    return moving


def _segments(model: Transformer) -> Iterator[Tensor]:
    """The stream as it enters the blocks, then each block and the head on a random stream."""
    calls: list[tuple[Tensor, AttentionContext]] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
        for block in model.blocks
    ]
    try:
        model(probe_tokens(model, PROBE_LENGTH))
    finally:
        for hook in hooks:
            hook.remove()
    entering = calls[0][0]
    yield entering
    for block, (x, context) in zip(model.blocks, calls, strict=True):
        yield block(torch.randn(x.shape), replace(context, shared={}))
    yield model.head(model.final_norm(torch.randn(entering.shape)))


def _has_gradient(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _may_have_none(model: Transformer, name: str) -> bool:
    """Norms of queries and keys where a window of one leaves nothing to choose, and a router whose
    one expert always weighs 1: it learns from the balancing loss alone."""
    part, _, leaf = name.rpartition(".router.")
    if leaf and isinstance(experts := model.get_submodule(part), Experts):
        return experts.n_active == 1 and experts.normalized
    path, _, inner = name.rpartition(".attention.")
    if not inner.startswith(("query_norm.", "key_norm.")):
        return False
    attention = model.get_submodule(f"{path}.attention")
    return isinstance(attention, CausalAttention) and attention.window == 1


def sees_the_future(model: Transformer) -> Iterator[str]:
    """Later tokens, in the same sequence, that change what a model computes before them."""
    tokens = probe_tokens(model, PROBE_LENGTH)
    length = tokens.shape[1]
    for place in sorted({length // 2, length - 1} - {0}):
        other = tokens.clone()
        other[:, place:] = (tokens[:, place:] + 1) % model.config.rows
        for training in (True, False):
            before = _outputs(model, tokens, training)
            after = _outputs(model, other, training)
            leaking = [
                path
                for path in before
                if _apart(before[path][:, :place], after[path][:, :place]) > ROUNDING
            ]
            if leaking:
                mode = "training" if training else "evaluation"
                yield (
                    f"{leaking[0]} sees the future: in {mode} tokens from place {place} on change "
                    "what it puts out before them"
                )
                return


def _outputs(
    model: Transformer, tokens: Tensor, training: bool, seed: int = PROBE_SEED
) -> dict[str, Tensor]:
    """What each part puts out by place (B, T, …), inner parts first, and at last the logits."""
    outputs: dict[str, Tensor] = {}

    def keep(path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.shape[:2] == tokens.shape:
                outputs[path] = output

        return hook

    hooks = [
        part.register_forward_hook(keep(path)) for path, part in parts_of(model, *CALLED).items()
    ]
    try:
        with probing(model), seeded(seed):
            logits = model.train(training)(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs | {"the model": logits}


def _apart(one: Tensor, other: Tensor) -> float:
    """Largest difference relative to the largest value; what is not finite in both is equal."""
    difference = (one - other).abs().nan_to_num(0.0).max()
    return float(difference / one.abs().nan_to_num(0.0).max().clamp(min=1e-30))


def draws_wrongly(model: Transformer) -> Iterator[str]:
    """Dropout that stays on in evaluation, is off in training, or cannot be repeated; and what is
    kept from pass to pass where no checkpoint holds it.
    """
    tokens = probe_tokens(model, PROBE_LENGTH)
    evaluated = _outputs(model, tokens, training=False)
    differing = _first_difference(evaluated, _outputs(model, tokens, training=False, seed=1))
    if differing is not None:
        why = "something random stays on, as dropout may"
        if _keeps_state(model, tokens, training=False):
            why = KEEPS_STATE
        yield f"two evaluations differ at {differing}: {why}"
    trained = _outputs(model, tokens, training=True)
    differing = _first_difference(trained, _outputs(model, tokens, training=True))
    if differing is not None:
        why = "it draws random numbers that are not torch's, so that no run could be repeated or "
        why += "resumed"
        if _keeps_state(model, tokens, training=True):
            why = KEEPS_STATE
        yield f"two training passes from one seed differ at {differing}: {why}"
    if model.config.dropout > 0 and _first_difference(trained, evaluated) is None:
        yield f"dropout is {model.config.dropout:g} but training equals evaluation"


def _keeps_state(model: Transformer, tokens: Tensor, *, training: bool) -> bool:
    """Whether two passes from one seed differ only because the first left something behind."""
    try:
        one, other, again = (copy.deepcopy(model) for _ in range(3))
    except RuntimeError:
        return False  # a tensor with a history, kept by a part, cannot be copied
    first = _outputs(one, tokens, training)
    second = _outputs(one, tokens, training)
    fresh = (_outputs(copied, tokens, training) for copied in (other, again))
    repeatable = all(_first_difference(first, outputs) is None for outputs in fresh)
    return repeatable and _first_difference(first, second) is not None


def _first_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> str | None:
    """The first part whose output differs. A later one, or the logits, may no longer show it."""
    return next((path for path in one if not same_bits(one[path], other[path])), None)


def ill_grouped(model: Transformer, optimizer: OptimizerConfig) -> Iterator[str]:
    """An optimiser that misses a parameter, or promises an update or a decay to none."""
    parameters = [p for p in named_parameters(model) if p.parameter.requires_grad]
    try:
        # Torch's own optimisers take a second to import, and say nothing more.
        groups = checked_groups(optimizer, parameters)
    except BlocklabError as error:
        yield str(error)
        return
    sizes = Counter({group.optimizer: 0 for group in groups})
    for group in groups:
        sizes[group.optimizer] += len(group.members)
        if group.decay > 0 and not group.members:
            yield f"optimizer: group '{group.name}' decays by {group.decay:g} but is empty"
    for name, size in sizes.items():
        if not size:
            yield f"optimizer: {name} gets none of {len(parameters)} parameters"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, values that are no numbers too."""
    return torch.equal(one.nan_to_num(), other.nan_to_num())
