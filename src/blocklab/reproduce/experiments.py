"""Every experiment by its name, in the order in which a reader meets them."""

from collections.abc import Sequence

from blocklab.errors import BlocklabError, nearest
from blocklab.reproduce import (
    deep_and_untrained,
    four_way_ablation,
    parameters,
    parts_by_hand,
    time_machine,
    untrained,
)
from blocklab.reproduce.experiment import Experiment

EXPERIMENTS = (
    Experiment("layer-norm", "Layer norm by hand", parts_by_hand.layer_norm),
    Experiment("gelu-tanh", "GELU against ReLU", parts_by_hand.gelu_tanh),
    Experiment("gpt2-124m-parameters", "GPT-2 124M, counted", parameters.parameters),
    Experiment("untrained-gpt2-124m", "GPT-2 124M before training", untrained.untrained),
    Experiment(
        "residual-gradients",
        "Gradients with and without residuals",
        deep_and_untrained.residual_gradients,
    ),
    Experiment(
        "position-similarity",
        "Positions with and without residuals",
        deep_and_untrained.similarity,
    ),
    Experiment("swiglu-hidden", "Width of the gated feed-forward", parts_by_hand.swiglu_hidden),
    Experiment("rms-norm", "RMSNorm against its formula", parts_by_hand.rms_norm),
    Experiment(
        "placement-gradients",
        "Why post-norm needs warm-up",
        deep_and_untrained.placement_gradients,
    ),
    Experiment(
        "four-way-ablation",
        "The four-way ablation of the modern block",
        four_way_ablation.four_way,
        "ten minutes on two cores",
    ),
    Experiment(
        "time-machine",
        "The Time Machine with and without residuals",
        time_machine.time_machine,
        "three quarters of an hour",
    ),
)


def chosen(names: Sequence[str], *, quick: bool = False) -> list[Experiment]:
    """The experiments with these names, all without any; `quick` leaves out those that train.

    Raises BlocklabError for a name that means none.
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name in names:
        if name.replace("_", "-") not in known:
            raise BlocklabError(f"no experiment '{name}'; {nearest(name, known)}")
    picked = [known[name.replace("_", "-")] for name in names] or list(EXPERIMENTS)
    return [experiment for experiment in picked if not (quick and experiment.long)]
