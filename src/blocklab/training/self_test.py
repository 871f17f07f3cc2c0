"""What is fastest for a share of a training: measured on a model that one device holds."""

from collections.abc import Callable

import torch

from blocklab.data.dataset import Dataset
from blocklab.model.config import ModelConfig
from blocklab.record import with_changes
from blocklab.training.config import TrainingConfig
from blocklab.training.numerics import Numerics
from blocklab.training.ranks import Alone
from blocklab.training.trainer import self_tested


def share_tested(
    config: ModelConfig,
    training: TrainingConfig,
    dataset: Dataset,
    ranks: Alone,
    device: str,
    say: Callable[[str], None] | None = None,
) -> Numerics:
    """The numerics for a training that `ranks` share, on a device each.

    Rank 0 times one block of the model, with embedding and head, on its share of a batch; the
    others take what it finds. Spread models are not compiled.
    """
    block = config.with_changes({"n_layers": 1, "layers": []})
    share = with_changes(
        training, {"batch_size": max(training.batch_size // ranks.size, training.accumulation)}
    )
    return ranks.told(
        lambda: self_tested(
            block,
            share,
            dataset,
            n_runs=0,
            threads=torch.get_num_threads(),
            devices=[device],
            say=say,
        )
    )
