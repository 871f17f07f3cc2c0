"""Recall: how many of a synthetic language's determined answers a model gives.

There positions and attention show before the loss does: the answers are a small share of the
tokens, and certain for whoever looks them up.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklab.data.dataset import DataConfig
from blocklab.data.synthetic import SYNTHETIC
from blocklab.data.windows import IGNORED, ValidationWindows
from blocklab.errors import BlocklabError
from blocklab.model.evaluation import evaluating
from blocklab.model.transformer import Transformer

Answers: TypeAlias = Callable[[NDArray[np.integer]], NDArray[np.bool_]]
"""Which tokens (..., T) of some windows are determined answers."""


def answers_of(data: DataConfig) -> Answers:
    """The answers of a corpus. Raises BlocklabError for one that has none."""
    kind, _, name = data.corpus.partition(":")
    language = SYNTHETIC.get(name) if kind == "synthetic" else None
    if language is None or not language.answer_offsets:
        known = ", ".join(f"synthetic:{n}" for n, one in SYNTHETIC.items() if one.answer_offsets)
        raise BlocklabError(
            f"metrics: recall is of determined answers, and data.corpus '{data.corpus}' has none; "
            f"those that have some: {known}"
        )
    if data.resolved_tokenizer() != "bytes":
        raise BlocklabError(
            f"metrics: recall counts characters, and data.tokenizer is {data.tokenizer}; give bytes"
        )
    return language.answers


def require_answers(windows: ValidationWindows, answers: Answers) -> None:
    """Raises BlocklabError where no window holds an answer."""
    if not any(bool(_asked(*batch, answers).any()) for batch in windows.batches(64)):
        raise BlocklabError(
            f"metrics: recall: no window of context_length {windows.context_length} holds an "
            "answer; a window must hold a whole line after the end of another"
        )


@torch.no_grad()
def recall(
    model: Transformer,
    windows: ValidationWindows,
    answers: Answers,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> float:
    """Share of the answers in all windows at which the model's likeliest token is the right one.

    `device` is where the model is.
    """
    right = asked = 0
    with evaluating(model):
        for inputs, targets in windows.batches(batch_size):  # each (B, T)
            where = _asked(inputs, targets, answers)
            likeliest = model(inputs.to(device)).argmax(-1).cpu()
            right += int((likeliest == targets)[where].sum())
            asked += int(where.sum())
    return right / asked


def _asked(inputs: Tensor, targets: Tensor, answers: Answers) -> Tensor:
    """Which targets (B, T) are answers."""
    known = targets.where(targets != IGNORED, 0)
    rows = torch.cat([inputs[:, :1], known], dim=1)  # (B, T + 1)
    return torch.from_numpy(answers(rows.numpy())[:, 1:]) & (targets != IGNORED)
