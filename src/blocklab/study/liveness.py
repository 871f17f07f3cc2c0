"""Does a variant change anything? Asked before a second is spent on training it."""

import hashlib

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.model.config import ModelConfig
from blocklab.model.transformer import Transformer
from blocklab.study.plan import Plan

PROBE_SEED = 20_170_612
PROBE_SEQUENCES = 2


def require_differences(plan: Plan) -> None:
    """Raise BlocklabError, naming the variant, when one would train what the baseline trains.

    Its records must differ, and a model whose record differs must differ in its parameters, its
    logits at step 0 or the gradients there: a flag that takes no effect is found here.
    """
    baseline, *others = plan.arms
    own: tuple[object, ...] | None = None
    for arm in others:
        if arm.role == "placebo" or arm.training != baseline.training:
            continue
        if arm.config == baseline.config:
            raise BlocklabError(
                f"variants.{arm.name}: does not differ from the baseline; every path is set to "
                "the value it has there"
            )
        own = own or _fingerprint(baseline.config)
        if _fingerprint(arm.config) == own:
            raise BlocklabError(
                f"variants.{arm.name}: the record differs from the baseline but the model does "
                "not: same parameters, logits and gradients at step 0. The change takes no effect"
            )


def _fingerprint(config: ModelConfig) -> tuple[object, ...]:
    """Everything about the untrained model that a change could show in, to the last bit."""
    model = Transformer(config, seed=PROBE_SEED)
    shapes = tuple((path, tuple(p.shape)) for path, p in model.named_parameters())
    weights = tuple(_bits(p) for p in model.parameters())
    generator = torch.Generator().manual_seed(PROBE_SEED)
    # Whole contexts: a window shows only in sequences longer than it.
    shape = (PROBE_SEQUENCES, config.context_length)
    tokens = torch.randint(config.rows, shape, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(PROBE_SEED)
        logits = model.train()(tokens)
    logits.logsumexp(-1).sum().backward()
    gradients = tuple(_bits(p.grad) for p in model.parameters() if p.grad is not None)
    evaluated = model.eval()(tokens)
    return shapes, weights, _bits(logits), gradients, _bits(evaluated)


def _bits(tensor: Tensor) -> str:
    return hashlib.blake2b(tensor.detach().contiguous().numpy().tobytes()).hexdigest()
