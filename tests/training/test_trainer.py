"""A run is a pure function of its records and its seed."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blocklab as bl
from blocklab.data.dataset import Dataset
from blocklab.training import trainer as trainer_module
from blocklab.training.config import TrainingConfig
from blocklab.training.trainer import Trainer

VOCABULARY = 64


def tokens(n=4000, seed=0):
    return torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed))


def tiny(**changes):
    config = bl.presets.modern(
        d_model=32, n_layers=2, n_heads=2, vocab_size=VOCABULARY, context_length=16
    )
    return config.with_changes({"block.feed_forward.d_ff": 48, **changes})


def trainer(config=None, *, seed=1, draw="", **training):
    recipe = TrainingConfig.parse({"batch_size": 4, "steps": 8, "learning_rate": 1e-2} | training)
    return Trainer(config or tiny(), corpus=tokens(), training=recipe, seed=seed, draw=draw)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_loss_of_a_step_is_the_mean_cross_entropy_of_its_batch():
    made = trainer()
    inputs, targets = made.windows.batch(0)
    with torch.no_grad():
        logits = made.model.double()(inputs)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    made.model.float()
    assert made.step() == pytest.approx(float(expected), abs=1e-5)


def test_an_adamw_step_is_torchs_own_on_the_same_gradients():
    # An eps this large keeps Adam from turning rounding errors of tiny gradients into whole steps.
    adamw = {"kind": "adamw", "eps": 1e-3}
    made = trainer(clip=None, schedule={"kind": "constant", "warmup": 0}, optimizer=adamw)
    reference = trainer()
    inputs, targets = reference.windows.batch(0)
    logits = reference.model(inputs)
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    matrices = [p for p in reference.model.parameters() if p.ndim > 1]
    vectors = [p for p in reference.model.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    torch.optim.AdamW(groups, lr=1e-2, betas=made.training.optimizer.betas, eps=1e-3).step()
    made.step()
    assert torch.allclose(weights(made.model), weights(reference.model), atol=1e-5)


def test_accumulation_over_unequal_micro_batches_gives_the_whole_batchs_gradients():
    whole, parts = trainer(batch_size=5), trainer(batch_size=5, accumulation=3)
    a = [whole.step() for _ in range(4)]
    b = [parts.step() for _ in range(4)]
    assert a == pytest.approx(b, abs=1e-5)
    assert torch.allclose(weights(whole.model), weights(parts.model), atol=1e-4)


FEED_FORWARDS = {
    "mlp": {"kind": "mlp"},
    "gated": {"kind": "gated", "d_ff": 48},
    "experts": {"kind": "experts", "n_experts": 4, "d_ff": 24, "balance": 1.0},
    "experts unbalanced": {"kind": "experts", "n_experts": 4, "d_ff": 24, "balance": 0.0},
    "one expert of many": {"kind": "experts", "n_active": 1, "d_ff": 24, "balance": 0.5},
}


def gradients(feed_forward, dropout=0.0, **training):
    config = tiny(**{"block.feed_forward": feed_forward, "dropout": dropout})
    if feed_forward["kind"] == "experts":
        # Balanced apart, by a coefficient of their own.
        config = config.with_changes({"blocks.1.feed_forward.balance": 2 * feed_forward["balance"]})
    made = trainer(config, **training)
    made.model.double()
    made._backward(*made._batch())
    return torch.cat([p.grad.flatten() for p in made.model.parameters()])


@pytest.mark.parametrize("accumulation", [2, 3, 6])
@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_micro_batches_give_the_gradients_of_one_batch(name, accumulation):
    """Also where experts are balanced, over the whole step; shares may differ in size."""
    whole = gradients(FEED_FORWARDS[name], batch_size=10)
    parts = gradients(FEED_FORWARDS[name], batch_size=10, accumulation=accumulation)
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)


def test_what_is_balanced_over_micro_batches_is_the_pass_that_learns():
    """With dropout in it, drawn once: shares of another pass would be other shares."""
    experts = FEED_FORWARDS["experts"]
    made = trainer(tiny(**{"block.feed_forward": experts, "dropout": 0.3}), accumulation=2)
    told, kept = [], trainer_module.balance_of_part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trainer_module,
            "balance_of_part",
            lambda routing, chosen: told.append((routing, chosen)) or kept(routing, chosen),
        )
        made.step()
    for layer in range(2):
        passed = torch.stack([routing[layer].chosen for routing, _ in told]).mean(0)
        for _, chosen in told:
            torch.testing.assert_close(chosen[layer].float(), passed)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    config = tiny(dropout=0.2)
    losses = [[m.train_loss for m in trainer(config, seed=s).run().metrics] for s in (1, 1, 2)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_evaluating_between_steps_changes_nothing():
    config = tiny(dropout=0.2)
    plain, watched = trainer(config), trainer(config)
    for _ in range(5):
        first = watched.evaluate()
        assert watched.evaluate() == first
        torch.rand(3)  # whatever the caller draws
        assert plain.step() == watched.step()


def test_a_step_leaves_torchs_global_random_numbers_alone():
    made = trainer(tiny(dropout=0.2))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    made.step()
    assert torch.equal(torch.rand(3), expected)


def test_another_draw_sees_the_same_batches_from_other_weights():
    baseline, placebo = trainer(), trainer(draw="placebo")
    for step in range(3):
        for a, b in zip(baseline.windows.batch(step), placebo.windows.batch(step), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(weights(baseline.model), weights(placebo.model))


def test_changing_a_part_leaves_shared_tensors_and_batches_as_they_were():
    baseline, variant = trainer(), trainer(tiny(**{"block.feed_forward.kind": "mlp"}))
    theirs = dict(variant.model.named_parameters())
    shared = [
        name
        for name, p in baseline.model.named_parameters()
        if name in theirs and theirs[name].shape == p.shape
    ]
    assert any("attention.qkv" in name for name in shared)
    for name in shared:
        assert torch.equal(dict(baseline.model.named_parameters())[name], theirs[name]), name


def test_evaluation_does_not_depend_on_the_batch_size():
    losses = [trainer(batch_size=size).evaluate() for size in (1, 3, 16)]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def test_evaluation_is_the_mean_over_every_validation_token():
    made = trainer()
    ids = torch.tensor(made.dataset.validation.astype("int64"))
    total, n = 0.0, 0
    for start in range(0, len(ids) - 1, 16):
        window = ids[start : start + 17]
        with torch.no_grad():
            logits = made.model.eval()(window[None, :-1])[0]
        total += float(F.cross_entropy(logits, window[1:], reduction="sum"))
        n += len(window) - 1
    assert n == len(ids) - 1
    assert made.evaluate() == pytest.approx(total / n, abs=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_with_its_step_and_place():
    made = trainer(learning_rate=1e30, clip=None, schedule={"kind": "constant", "warmup": 0})
    trained = made.run()
    assert trained.diverged is not None
    assert trained.diverged.step == len(trained.metrics) <= 8
    assert trained.diverged.where


def test_a_gradient_that_is_not_finite_is_named():
    made = trainer()
    path, parameter = next(iter(made.model.named_parameters()))
    parameter.register_hook(lambda gradient: gradient * math.nan)
    trained = made.run()
    assert trained.diverged is not None
    assert (trained.diverged.step, trained.diverged.where) == (1, f"gradient of {path}")


def test_a_run_learns():
    made = Trainer(
        tiny(),
        corpus=torch.arange(4000) % 7,
        training=TrainingConfig(steps=60, batch_size=4, learning_rate=1e-2),
    )
    before = made.evaluate()
    trained = made.run()
    assert trained.diverged is None
    assert made.evaluate() < before / 4


def test_steps_can_be_given_to_run_alone():
    made = Trainer(tiny(), corpus=tokens(), batch_size=4, learning_rate=1e-3)
    assert len(made.run(steps=3).metrics) == 3
    with pytest.raises(bl.BlocklabError, match="how long"):
        Trainer(tiny(), corpus=tokens(), batch_size=4).run()


@pytest.mark.parametrize("steps", [0, -3])
def test_a_run_of_no_steps_is_refused_and_leaves_the_trainer_as_it_was(steps):
    made = Trainer(tiny(), corpus=tokens(), batch_size=4)
    with pytest.raises(bl.BlocklabError, match=f"steps is {steps}, expected 1 or more"):
        made.run(steps)
    assert math.isfinite(made.step())


@pytest.mark.parametrize("before", [0, 3])
def test_without_a_length_the_schedule_is_laid_over_each_runs_own_steps(before):
    made = Trainer(tiny(), corpus=tokens(), batch_size=4, learning_rate=1e-3)
    for _ in range(before):
        made.step()
    expected = [1e-3 * made.training.schedule.factor(step, 10) for step in range(10)]
    for _ in range(2):
        assert [step.learning_rate for step in made.run(10).metrics] == expected
    assert made.measured_step().learning_rate == expected[-1]
    with pytest.raises(bl.BlocklabError, match="how long"):
        made.run()


def test_a_length_in_the_record_decides_the_schedule_however_the_steps_are_taken():
    whole, parts = trainer(), trainer()
    rates = [step.learning_rate for step in whole.run().metrics]
    parts.step()
    assert [step.learning_rate for step in parts.run(3).metrics] == rates[1:4]
    assert [step.learning_rate for step in parts.run().metrics] == rates[4:]


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused():
    with pytest.raises(bl.BlocklabError, match="vocab_size"):
        Trainer(tiny(vocab_size=16), corpus=tokens())


@pytest.mark.parametrize(
    "given",
    [Tensor.numpy, Tensor.tolist, lambda ids: tuple(ids.tolist()), Tensor.short],
    ids=["array", "list", "tuple", "int16"],
)
def test_token_ids_are_the_same_in_a_tensor_an_array_or_a_list(given):
    ids = tokens()
    made = [Trainer(tiny(), corpus=of, batch_size=4) for of in (ids, given(ids))]
    assert made[0].dataset.fingerprint == made[1].dataset.fingerprint
    assert made[0].step() == made[1].step()


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (tokens().bfloat16(), r"^tokens are torch\.bfloat16 of shape \(4000,\), expected one dim"),
        (tokens().float(), r"^tokens are float32 of shape \(4000,\)"),
        (tokens().float().numpy(), r"^tokens are float32 of shape \(4000,\)"),
        (tokens().bool(), r"^tokens are bool"),
        (tokens()[None], r"^tokens are int64 of shape \(1, 4000\)"),
        (torch.tensor(3), r"^tokens are int64 of shape \(\)"),
        ([1, 2.5], r"^tokens are float64"),
        (["a", "b"], r"^tokens are <U1"),
        ([[1], [1, 2]], r"^tokens are of several shapes"),
        ([], r"^tokens are float64 of shape \(0,\)"),
        ({"a": 1}, r"^corpus: found dict, expected a name, a path, a Dataset, or token ids"),
        (None, r"^corpus: found NoneType, expected"),
    ],
)
def test_what_is_no_corpus_is_refused_by_what_it_is(corpus, message):
    with pytest.raises(bl.BlocklabError, match=message):
        Trainer(tiny(), corpus=corpus)


@pytest.mark.parametrize("corpus", [tokens(), tokens().tolist(), Dataset.from_tokens(tokens())])
def test_a_tokenizer_without_a_text_is_refused(corpus):
    with pytest.raises(bl.BlocklabError, match="tokenizer 'no-such': there is no text to cut"):
        Trainer(tiny(), corpus=corpus, tokenizer="no-such")


def test_too_few_validation_tokens_are_refused_by_their_path():
    with pytest.raises(bl.BlocklabError, match=r"^training\.validation_tokens: 1 does not fit"):
        TrainingConfig.parse({"validation_tokens": 1}, at="training")
    assert trainer(validation_tokens=2).evaluation().n_targets.tolist() == [1]


def test_too_little_text_is_refused_with_the_counts():
    with pytest.raises(bl.BlocklabError, match="17"):
        Trainer(tiny(), corpus=tokens(40))


def test_a_null_vocabulary_is_taken_from_the_text():
    config = tiny().model_copy(update={"vocab_size": None})
    assert Trainer(config, corpus=tokens()).config.vocab_size == VOCABULARY
