"""A compiler must see any model as one graph: nothing is fused across a break."""

import pytest
import torch
from hypothesis import Phase, assume, given, settings

import blocklab as bl
from blocklab.model import compiled_blocks
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


@pytest.fixture
def compilations(monkeypatch):
    """Every graph that a block is compiled to from here on."""
    made = []

    def as_it_stands(graph, _):
        made.append(graph)
        return graph.forward

    code = torch.compile(compiled_blocks._through, backend=as_it_stands, dynamic=False)
    monkeypatch.setattr(compiled_blocks, "_code", lambda: code)
    return made


def small(preset, n_layers):
    return preset(d_model=24, n_layers=n_layers, n_heads=2, context_length=8, vocab_size=11)


def by_compiled_blocks(model, tokens):
    with for_every_model():
        return model.features(tokens, through=compiled_blocks.compiled)


@some_configs
@given(configs())
def test_a_block_is_one_graph_and_computes_the_same_in_every_combination(config):
    assume(not config.routes)
    torch.compiler.reset()
    model = randomized(config.with_changes({"dropout": 0.0})).train()
    tokens = random_tokens()
    code = torch.compile(compiled_blocks._through, backend="eager", dynamic=False, fullgraph=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_blocks, "_code", lambda: code)
        found = by_compiled_blocks(model, tokens)
    expected = model.features(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    weights = [p for p in model.parameters() if p.requires_grad]
    by_code, plain = (
        torch.autograd.grad(out.square().sum(), weights, allow_unused=True)
        for out in (found, expected)
    )
    torch.testing.assert_close(by_code, plain, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "none"])
def test_one_code_serves_all_layers_and_all_models_that_are_built_alike(positions, compilations):
    def model(n_layers, **changes):
        config = small(bl.presets.modern, n_layers)
        return bl.Transformer(config.with_changes({"positions": {"kind": positions}, **changes}))

    tokens = torch.randint(11, (2, 8))
    for seen in (model(1), model(3), model(2)):
        by_compiled_blocks(seen, tokens).sum().backward()
        assert len(compilations) == 1
    by_compiled_blocks(model(2, **{"block.norm": {"kind": "layer"}}), tokens)
    assert len(compilations) == 2


@pytest.mark.parametrize("length", [64, 65, 130])
def test_queries_in_several_blocks_see_what_they_may(length, compilations):
    config = small(bl.presets.modern, 1).with_changes({"context_length": length})
    model, tokens = bl.Transformer(config).double(), torch.randint(11, (2, length))
    torch.testing.assert_close(by_compiled_blocks(model, tokens), model.features(tokens))
    assert len(compilations) == 1


def test_a_layer_that_is_built_otherwise_has_code_of_its_own(compilations):
    config = small(bl.presets.gpt2, 3)
    config = config.with_changes({"layers": [{"at": "1", "block.placement": "post"}]})
    model, tokens = bl.Transformer(config).eval(), torch.randint(11, (2, 8))
    found = by_compiled_blocks(model, tokens)
    assert len(compilations) == 2
    torch.testing.assert_close(found, model.features(tokens))


class Heads(bl.parts.CausalAttention):
    """Somebody's own attention."""


def test_anothers_attention_is_called_as_it_is(compilations):
    """It may keep the first layer's values in the context, or turn a part of each head."""
    model, tokens = bl.Transformer(small(bl.presets.modern, 2)), torch.randint(11, (2, 8))
    for block in model.blocks:
        block.attention.__class__ = Heads
    assert by_compiled_blocks(model, tokens).equal(model.features(tokens))
    assert compilations == []


@pytest.mark.parametrize("hooked_first", [False, True])
def test_a_hook_acts_whatever_was_compiled_before(hooked_first, compilations):
    config, tokens = small(bl.presets.modern, 2), torch.randint(11, (2, 8))
    plain, hooked = bl.Transformer(config, seed=0), bl.Transformer(config, seed=0)
    hooked.blocks[1].attention.register_forward_hook(lambda *_: 0 * _[2])
    both = (hooked, plain) if hooked_first else (plain, hooked)
    for model in both:
        torch.testing.assert_close(by_compiled_blocks(model, tokens), model.features(tokens))
    assert not by_compiled_blocks(plain, tokens).allclose(by_compiled_blocks(hooked, tokens))


def test_tables_of_a_rotation_are_given_to_a_blocks_code(compilations):
    """Computed within it they are computed anew for every head of every sequence."""
    model = bl.Transformer(small(bl.presets.modern, 1))
    by_compiled_blocks(model, torch.randint(11, (2, 8)))
    operators = {str(node.target) for node in compilations[0].graph.nodes}
    assert not {name for name in operators if "cos" in name or "sin" in name}
