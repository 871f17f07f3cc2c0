"""Which token follows: the rules by which one is chosen from its logits, and their random numbers.

Every sequence has a random stream of its own, so what one is drawn does not depend on which others
stand in the batch.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklab.errors import BlocklabError
from blocklab.expected import require_number, require_whole, require_whole_numbers
from blocklab.streams import stream_seed


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. The rules act in this order, each on what the one before has left.

    Raises BlocklabError for a value that is no number or outside its range.
    """

    repetition_penalty: float = 1.0
    """Logits of tokens that the prompt or the new text already has are divided by it where they are
    positive, else multiplied (Keskar et al. 2019). 1 changes nothing."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the likeliest token, whatever the next three say."""
    top_k: int | None = None
    """Draw from the k likeliest."""
    top_p: float | None = None
    """Draw from the fewest tokens whose probabilities reach p (Holtzman et al. 2019)."""
    min_p: float | None = None
    """Draw from tokens at least this times as probable as the likeliest (Nguyen et al. 2024)."""
    seed: int | Sequence[int] | None = None
    """One seed a sequence, or one for all: sequence i then has `seed + i`. Null: never the same."""

    def __post_init__(self) -> None:
        self._require_numbers()
        if not 0 <= self.temperature < math.inf:
            raise BlocklabError(f"temperature must be 0 or more, not {self.temperature}")
        if not 0 < self.repetition_penalty < math.inf:
            raise BlocklabError(
                f"repetition_penalty must be above 0, not {self.repetition_penalty}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise BlocklabError(f"top_k must be 1 or more, not {self.top_k}")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0 < share <= 1:
                raise BlocklabError(f"{name} must be above 0 and at most 1, not {share}")

    def _require_numbers(self) -> None:
        for name in ("repetition_penalty", "temperature", "top_p", "min_p"):
            value = getattr(self, name)
            if value is not None or name in ("repetition_penalty", "temperature"):
                require_number(value, name)
        if self.top_k is not None:
            require_whole(self.top_k, "top_k")
        if isinstance(self.seed, Sequence):
            require_whole_numbers(self.seed, "seed")
        elif self.seed is not None:
            require_whole(self.seed, "seed")

    def streams(self, n_sequences: int) -> list[random.Random]:
        """The random stream of each sequence."""
        if self.seed is None:
            return [random.Random() for _ in range(n_sequences)]
        if isinstance(self.seed, Sequence):
            seeds = list(self.seed)
        else:
            seeds = [int(self.seed) + i for i in range(n_sequences)]
        if len(seeds) != n_sequences:
            raise BlocklabError(
                f"seed gives {len(seeds)} seeds for {n_sequences} sequences; "
                "give one each, or a single number"
            )
        return [random.Random(stream_seed(seed, "generation")) for seed in seeds]


class Choice:
    """Chooses the next token of each sequence, step by step, after the prompt `tokens` (B, T)."""

    def __init__(
        self, sampling: Sampling, tokens: Tensor, attention_mask: Tensor | None, vocab_size: int
    ) -> None:
        self.sampling = sampling
        self.streams = sampling.streams(len(tokens))
        self.met: Tensor | None = None  # (B, vocab_size)
        if sampling.repetition_penalty != 1.0:
            ids = tokens.long()
            real = torch.ones_like(ids) if attention_mask is None else attention_mask.long()
            counts = torch.zeros(len(ids), vocab_size, dtype=torch.long, device=ids.device)
            self.met = counts.scatter_add_(1, ids, real) > 0

    def next(self, logits: Tensor) -> Tensor:
        """Ids (B,) for logits (B, vocab_size)."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        smallest, largest = logits.aminmax()  # a NaN is both
        if not math.isfinite(smallest) or not math.isfinite(largest):
            raise BlocklabError(
                "the model's logits are not finite: has it diverged? `blocklab inspect` shows where"
            )
        if self.met is not None:
            penalty = self.sampling.repetition_penalty
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            # What an extreme penalty makes infinite, or of infinity times nothing, is a number too.
            logits = torch.where(self.met, penalised.nan_to_num(), logits)
        ids = logits.argmax(-1) if self.sampling.temperature == 0 else self._drawn(logits)
        if self.met is not None:
            self.met.scatter_(1, ids[:, None], True)
        return ids

    def _drawn(self, logits: Tensor) -> Tensor:
        # From the largest down, so that a small temperature overflows to zero probability only;
        # one that the logits' precision rounds to zero would turn the largest into NaN.
        temperature = max(self.sampling.temperature, torch.finfo(logits.dtype).tiny)
        scores = (logits - logits.amax(-1, keepdim=True)) / temperature
        scores, ids = self._kept(scores)
        reached = scores.softmax(-1).cumsum(-1)
        # Above 0 and at most 1: the first token that reaches it has a probability of its own.
        uniform = [[1 - stream.random()] for stream in self.streams]
        wanted = torch.tensor(uniform, dtype=reached.dtype, device=reached.device)
        place = torch.searchsorted(reached, wanted * reached[:, -1:])
        return (place if ids is None else ids.gather(-1, place)).squeeze(-1)

    def _kept(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores with those that may not be drawn at -inf, and their ids where they are sorted."""
        rules, ids = self.sampling, None
        if rules.top_k is not None and rules.top_k < scores.shape[-1]:
            scores, ids = scores.topk(rules.top_k)
        elif rules.top_p is not None:
            scores, ids = scores.sort(-1, descending=True)
        if rules.top_p is not None:
            probabilities = scores.softmax(-1)
            excluded = probabilities.cumsum(-1) - probabilities >= rules.top_p
            excluded[:, 0] = False  # whatever rounding says
            scores = scores.masked_fill(excluded, -math.inf)
        if rules.min_p is not None:
            scores = scores.masked_fill(scores < math.log(rules.min_p), -math.inf)
        return scores, ids
