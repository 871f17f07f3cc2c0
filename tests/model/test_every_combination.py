"""What must hold for a model of any parts: nothing here knows which ones were drawn."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.torch import load_model, save_model
from torch import nn

import blocklab.parts.experts
from blocklab.generation.cache import KeyValueCache
from blocklab.model.config import ModelConfig
from blocklab.model.count import count
from blocklab.model.transformer import Transformer
from tests.model.strategies import CONTEXT, configs, for_every_config, random_tokens, randomized

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@for_every_config
@given(configs())
def test_the_count_lists_exactly_the_built_parameters(config: ModelConfig) -> None:
    table = count(config)
    built = [(name, tuple(p.shape)) for name, p in Transformer(config).named_parameters()]
    assert [(row.path, row.shape) for row in table.rows] == built
    assert table.total == sum(p.numel() for p in Transformer(config).parameters())
    assert sum(table.subtotals.values()) == table.total
    assert sum(row.share for row in table.rows) == pytest.approx(1.0)


@for_every_config
@given(configs())
def test_matrix_parameters_are_the_multiplications_of_one_token(config: ModelConfig) -> None:
    model = Transformer(config).eval()
    multiplications = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda _, inputs, out: multiplications.append(
                    inputs[0].shape[:-1].numel() * inputs[0].shape[-1] * out.shape[-1]
                )
            )

    class Counting:
        """What experts use of torch's functions."""

        one_hot = staticmethod(F.one_hot)

        @staticmethod
        def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            multiplications.append(len(x) * weight.numel())
            return F.linear(x, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocklab.parts.experts, "F", Counting)
        model(random_tokens(batch=2, length=4))
    assert count(config).matrix_parameters == sum(multiplications) / (2 * 4)


@for_every_config
@given(configs(), st.integers(1, CONTEXT))
def test_flops_are_six_a_matrix_parameter_and_twelve_a_score(
    config: ModelConfig, length: int
) -> None:
    scores = sum(
        attention.n_heads * attention.head_dim * min(length, attention.window or length)
        for attention in (block.attention for block in Transformer(config).blocks)
    )
    table = count(config)
    assert table.flops_per_token(length) == 6 * table.matrix_parameters + 12 * scores


@for_every_config
@given(configs(), st.integers(1, CONTEXT - 1))
def test_a_token_changes_no_logits_before_it(config: ModelConfig, place: int) -> None:
    model, tokens = randomized(config), random_tokens()
    changed = tokens.clone()
    changed[:, place] = (tokens[:, place] + 1) % config.rows
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :place], after[:, :place], **CLOSE)
    assert not torch.equal(before[:, place], after[:, place])


@for_every_config
@given(configs(), st.lists(st.integers(1, CONTEXT), max_size=3))
def test_chunks_through_the_cache_give_the_full_logits(
    config: ModelConfig, cuts: list[int]
) -> None:
    """No cut is one prefill, every token a chunk is decoding."""
    model, tokens = randomized(config), random_tokens()
    full = model(tokens)
    one_by_one = list(range(CONTEXT + 1))
    for bounds in (sorted({0, *cuts, CONTEXT}), [0, *one_by_one[4:]], one_by_one):
        cache = KeyValueCache.of(model, len(tokens), CONTEXT)
        pieces = [
            model(tokens[:, start:end], cache=cache) for start, end in itertools.pairwise(bounds)
        ]
        torch.testing.assert_close(torch.cat(pieces, dim=1), full, **CLOSE)


@for_every_config
@given(configs(), st.lists(st.integers(1, CONTEXT), min_size=2, max_size=4), st.booleans())
def test_a_left_padded_batch_gives_the_logits_of_each_sequence_alone(
    config: ModelConfig, lengths: list[int], cached: bool
) -> None:
    model, width = randomized(config), max(lengths)
    tokens = random_tokens(len(lengths), width)
    mask = torch.stack([torch.arange(width) >= width - length for length in lengths]).long()
    cache = KeyValueCache.of(model, len(lengths), width) if cached else None
    if cache is not None and width > 1:
        head = model(tokens[:, :-1], mask[:, :-1], cache)
        batched = torch.cat((head, model(tokens[:, -1:], mask, cache)), dim=1)
    else:
        batched = model(tokens, mask)
    assert batched.isfinite().all()
    for i, length in enumerate(lengths):
        alone = model(tokens[i : i + 1, width - length :])
        torch.testing.assert_close(batched[i : i + 1, width - length :], alone, **CLOSE)


@for_every_config
@given(configs())
def test_two_models_of_one_seed_are_equal_and_leave_the_global_generator_alone(
    config: ModelConfig,
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = Transformer(config, seed=3), Transformer(config, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    other = Transformer(config, seed=4)
    for (name, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


@for_every_config
@given(configs(), configs())
def test_tensors_that_two_variants_share_start_equal(one: ModelConfig, two: ModelConfig) -> None:
    """Whatever else differs, as long as both draw alike: same init, same depth, same tying."""
    two = two.with_changes(
        {
            "initialization": one.initialization,
            "embedding": one.embedding,
            "n_layers": one.n_layers,
            "tie_embeddings": one.tie_embeddings,
        }
    )
    drawn = {
        name: spec.shape
        for name, spec in one.parameters().items()
        if spec.role not in ("gain", "other")
    }
    first = dict(Transformer(one, seed=0).named_parameters())
    second = dict(Transformer(two, seed=0).named_parameters())
    shared = [n for n, shape in drawn.items() if n in second and second[n].shape == shape]
    assume(len(shared) > 1)
    for name in shared:
        assert torch.equal(first[name], second[name]), name


@for_every_config
@given(configs())
def test_every_parameter_gets_a_gradient(config: ModelConfig) -> None:
    """But queries' and keys' norms where a window of one leaves nothing to choose, and a router
    whose one expert always weighs 1: only the balancing loss reaches it."""
    model, tokens = randomized(config), random_tokens(4)
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if "query_norm" in name or "key_norm" in name:
            block = model.blocks[int(name.split(".")[1])]
            if block.attention.window == 1:
                continue
        if name.endswith("feed_forward.router.weight"):
            experts = model.get_submodule(name.removesuffix(".router.weight"))
            if experts.n_active == 1 and experts.normalized:
                continue
        assert parameter.grad.abs().max() > 0, name


@for_every_config
@given(configs())
def test_dropout_acts_in_training_and_only_there(config: ModelConfig) -> None:
    model, tokens = randomized(config), random_tokens()
    assert torch.equal(model(tokens), model(tokens))
    evaluated = model(tokens)
    trained = model.train()(tokens)
    if config.dropout == 0:
        torch.testing.assert_close(trained, evaluated, **CLOSE)
        return
    assert not torch.equal(trained, evaluated)
    assert not torch.equal(trained, model(tokens))


@for_every_config
@given(config=configs())
def test_a_tied_head_is_one_tensor_after_every_move(
    tmp_path_factory: pytest.TempPathFactory, config: ModelConfig
) -> None:
    config = config.with_changes({"tie_embeddings": True})
    model, tokens = randomized(config), random_tokens()
    expected = model(tokens)
    with torch.device("meta"):
        empty = Transformer(config)
    empty = empty.double().to_empty(device="cpu").eval()
    empty.load_state_dict(model.state_dict())
    assigned = Transformer(config).eval()
    assigned.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    file = tmp_path_factory.mktemp("tied") / "model.safetensors"
    save_model(model, str(file))
    read = Transformer(config).double().eval()
    load_model(read, str(file))
    for moved in (copy.deepcopy(model), empty, assigned, read, model.float().double()):
        assert moved.head.weight is moved.embedding.weight
        assert "head.weight" not in dict(moved.named_parameters())
        torch.testing.assert_close(moved(tokens), expected, rtol=1e-5, atol=1e-5)


@for_every_config
@given(configs())
def test_an_untied_head_stays_a_tensor_of_its_own(config: ModelConfig) -> None:
    model = Transformer(config.with_changes({"tie_embeddings": False})).double()
    assert model.head.weight is not model.embedding.weight
    assert model.head.weight.data_ptr() != model.embedding.weight.data_ptr()


@for_every_config
@given(configs())
def test_a_config_survives_its_plain_form(config: ModelConfig) -> None:
    assert ModelConfig.parse(config.plain()) == config
