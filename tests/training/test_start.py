"""Weights that a training starts from, in a model that may be shorter than theirs."""

import pytest
import torch

import blocklab as bl
from blocklab.model.transformer import Transformer
from blocklab.training.start import require_fitting, starting_weights
from tests.training.test_trainer import VOCABULARY, tiny, tokens


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_shorter_model_computes_as_the_one_it_starts_from(positions):
    config = tiny(**{"positions.kind": positions})
    start = Transformer(config, seed=1)
    short = config.with_changes({"context_length": 5})
    require_fitting(short, start)
    model = Transformer(short, seed=2)
    model.load_state_dict(starting_weights(short, start), strict=False)
    batch = tokens(10).view(2, 5)
    assert torch.equal(model(batch), start(batch))


def test_a_table_of_another_size_is_refused():
    config = tiny(**{"positions.kind": "learned"})
    start = Transformer(config, seed=1)
    for changes, said in (
        ({"context_length": 17}, r"positions\.weight: the model has shape \(17, 32\), the weights"),
        ({"vocab_size": VOCABULARY - 1}, r"embedding\.weight: the model has shape \(63, 32\)"),
        ({"n_layers": 3}, r"blocks\.2\.norm\.attention\.weight: .* the weights None"),
    ):
        with pytest.raises(bl.BlocklabError, match=said):
            require_fitting(config.with_changes(changes), start)
