"""A compiler must see any model as one graph: nothing is fused across a break."""

import pytest
import torch
from hypothesis import Phase, assume, given, settings

import blocklab as bl
from blocklab.model.compiling import for_every_model
from blocklab.model.config import ModelConfig
from tests.model.strategies import configs, random_tokens, randomized

NO_SHRINKING = (Phase.explicit, Phase.generate)  # tracing takes seconds
some_configs = settings(max_examples=12, deadline=None, derandomize=True, phases=NO_SHRINKING)


@pytest.fixture(autouse=True)
def nothing_is_kept():
    yield
    torch.compiler.reset()


@some_configs
@given(configs())
def test_training_is_one_graph_in_every_combination(config: ModelConfig) -> None:
    assume(not config.routes)
    model = randomized(config.with_changes({"dropout": 0.0})).float().train()
    tokens = random_tokens()
    for dtype in (torch.float32, torch.bfloat16):
        torch.compiler.reset()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            seen = torch._dynamo.explain(model.features)(tokens)
        assert seen.graph_break_count == 0, seen.break_reasons


def test_the_twelfth_model_of_a_process_is_compiled_like_the_first():
    made = []

    def as_it_stands(graph, _):
        made.append(graph)
        return graph.forward

    for n in range(12):
        model = bl.Transformer(
            bl.presets.gpt2(d_model=8 * (n + 1), n_layers=1, n_heads=1, vocab_size=5)
        )
        features = torch.compile(model.features, backend=as_it_stands, dynamic=False)
        with for_every_model():
            features(torch.zeros(1, 3, dtype=torch.long))
        assert len(made) == n + 1


@some_configs
@given(configs())
def test_what_is_compiled_computes_the_same(config: ModelConfig) -> None:
    assume(not config.routes)
    torch.compiler.reset()
    model = randomized(config.with_changes({"dropout": 0.0})).train()
    tokens = random_tokens()
    traced = torch.compile(model.features, backend="eager", dynamic=False)
    torch.testing.assert_close(traced(tokens), model.features(tokens), rtol=1e-9, atol=1e-10)
