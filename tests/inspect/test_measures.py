"""Stream sizes, norms, hidden units, the lens and update ratios against plain computations."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

import blocklab as bl
from blocklab.model.config import ModelConfig
from tests.model.strategies import configs, for_every_config, random_tokens, randomized


@pytest.fixture
def model() -> bl.Transformer:
    return randomized(
        bl.presets.gpt2(d_model=16, n_heads=2, n_layers=3, vocab_size=13, context_length=10)
    )


@for_every_config
@given(configs())
def test_stream_sizes_are_those_of_blocks_called_one_by_one(config: ModelConfig) -> None:
    model, tokens = randomized(config), random_tokens()
    sizes = bl.inspect.stream_sizes(model, tokens)
    streams: list[torch.Tensor] = []
    handles = [model.blocks[0].register_forward_pre_hook(lambda _, i: streams.append(i[0]))]
    handles += [b.register_forward_hook(lambda *a: streams.append(a[2])) for b in model.blocks]
    model(tokens)
    for handle in handles:
        handle.remove()
    expected = [stream.square().mean().sqrt().item() for stream in streams]
    assert sizes.rms == pytest.approx(expected)
    assert sizes.growth**config.n_layers == pytest.approx(expected[-1] / expected[0])


def test_a_layer_norm_gives_out_the_rms_of_its_gain(model: bl.Transformer) -> None:
    for block in model.blocks:
        for norm in block.norm.values():
            norm.weight.data.fill_(2.0)
            norm.bias.data.zero_()
    *measures, final = bl.inspect.norm_measures(model, random_tokens())
    assert [m.path for m in measures] == [
        f"blocks.{i}.norm.{name}" for i in range(3) for name in ("attention", "feed_forward")
    ]
    assert final.path == "final_norm"
    for measured in measures:
        assert measured.output_rms == pytest.approx(2.0, abs=1e-3)
        assert measured.gain == (2.0, 2.0)


def test_norm_inputs_are_measured_position_by_position(model: bl.Transformer) -> None:
    tokens = random_tokens()
    x = bl.inspect.record(model, tokens, "final_norm")["final_norm"].inputs[0].flatten(0, 1)
    measured = bl.inspect.norm_measures(model, tokens)[-1]
    sizes = [math.sqrt(sum(v * v for v in row) / 16) for row in x.tolist()]
    assert measured.input_rms == pytest.approx(x.square().mean().sqrt().item())
    assert measured.smallest_input_rms == pytest.approx(min(sizes))
    relative = torch.tensor(
        [[abs(v) / size for v in row] for row, size in zip(x.tolist(), sizes, strict=True)]
    )
    assert measured.largest_coordinate == pytest.approx(relative.max().item())
    assert measured.coordinate == int(relative.max(0).values.argmax())


@pytest.mark.parametrize("kind", ["mlp", "gated"])
def test_units_cut_off_at_their_weights_are_counted_as_dead(kind: str) -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=2, vocab_size=13).with_changes(
        {"block.feed_forward": {"kind": kind, "d_ff": 24, "activation": "relu", "bias": False}}
    )
    model = randomized(config)
    model.blocks[1].feed_forward.expand.weight.data[:5] = 0
    first, second = bl.inspect.hidden_units(model, random_tokens())
    assert first is not None
    assert second is not None
    assert (first.units, second.units) == (24, 24)
    assert second.dead - first.dead >= 4
    assert second.dead >= 5


def test_what_all_positions_pass_beside_experts_is_not_taken_for_the_whole_part() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13).with_changes(
        {"block.feed_forward": {"kind": "experts", "d_ff": 24, "shared_d_ff": 8}}
    )
    assert bl.inspect.hidden_units(randomized(config), random_tokens()) == [None]


def test_outliers_and_kurtosis_are_those_of_known_activations() -> None:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13).with_changes(
        {"block.feed_forward": {"kind": "mlp", "d_ff": 100, "activation": "identity"}}
    )
    model = bl.Transformer(config, seed=0)
    expand = model.blocks[0].feed_forward.expand
    with torch.no_grad():
        expand.weight.zero_()
        expand.bias.fill_(1.0)
        expand.bias[7] = 50.0
    (units,) = bl.inspect.hidden_units(model, random_tokens())
    assert units is not None
    size = math.sqrt((99 + 2500) / 100)
    assert units.rms == pytest.approx(size)
    assert units.largest == pytest.approx(50 / size)
    assert units.outliers == pytest.approx(0.01)
    assert units.kurtosis == pytest.approx((99 + 50**4) / 100 / size**4, rel=1e-5)
    assert units.dead == 0


def test_the_lens_ends_at_the_models_own_loss_and_starts_at_the_embeddings(
    model: bl.Transformer,
) -> None:
    tokens, targets = random_tokens(), random_tokens(seed=1)
    lens = bl.inspect.logit_lens(model, tokens, targets)
    own = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    assert lens[-1].loss == pytest.approx(own)
    assert (lens[-1].divergence, lens[-1].agreement) == (pytest.approx(0, abs=1e-12), 1.0)
    embedded = model.embedding(tokens) * model.embedding_scale + model.positions.weight[:10]
    logits = model.head(model.final_norm(embedded)).flatten(0, 1)
    final = model(tokens).flatten(0, 1)
    assert lens[0].loss == pytest.approx(F.cross_entropy(logits, targets.flatten()).item())
    divergence = F.kl_div(
        logits.log_softmax(-1), final.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    assert lens[0].divergence == pytest.approx(divergence.item())
    agreeing = (logits.argmax(-1) == final.argmax(-1)).double().mean()
    assert lens[0].agreement == pytest.approx(agreeing.item())


def test_the_lens_reads_evenly_spread_positions(model: bl.Transformer) -> None:
    tokens, targets = random_tokens(), random_tokens(seed=1)
    few = bl.inspect.logit_lens(model, tokens, targets, positions=5)
    losses = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
    assert few[-1].loss == pytest.approx(losses[::4].mean().item())


def test_update_ratios_of_plain_gradient_descent_are_known(model: bl.Transformer) -> None:
    tokens, targets = random_tokens(), random_tokens(seed=1)
    norms = bl.inspect.gradient_norms(model, tokens, targets)
    sizes = {name: p.detach().norm().item() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    ratios = bl.inspect.update_ratios(model, step, steps=1)
    for name, ratio in ratios.items():
        assert ratio == pytest.approx(0.1 * norms[name] / sizes[name], rel=1e-6), name


def test_a_parameter_that_leaves_zero_has_no_finite_ratio() -> None:
    model = bl.Transformer(bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=13))

    def step() -> None:
        with torch.no_grad():
            model.final_norm.bias += 1.0

    ratios = bl.inspect.update_ratios(model, step, steps=2)
    assert ratios["final_norm.bias"] == math.inf
    assert ratios["final_norm.weight"] == 0.0


def test_numbers_by_path_are_grouped_by_block() -> None:
    grouped = bl.inspect.by_block({"blocks.0.a.weight": 1.0, "blocks.1.a.weight": 2.0, "head": 3.0})
    assert grouped == {"a.weight": {0: 1.0, 1: 2.0}}


def test_an_inspection_s_loss_is_that_of_all_positions_and_says_how_many_the_lens_reads(
    model: bl.Transformer,
) -> None:
    tokens, targets = random_tokens(40), random_tokens(40, seed=1)
    found = bl.inspect.inspect_model(model, tokens, targets)
    own = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    assert found.loss == pytest.approx(own)
    assert found.plain()["loss"] == found.loss
    assert found.lens_positions == 134 < tokens.numel()
    assert found.lens[-1].loss != pytest.approx(own)
