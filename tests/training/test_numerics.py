"""Half precision is taken where it is faster, kept, and costs no more than its rounding."""

import copy
import shutil

import pytest
import torch

import blocklab as bl
from blocklab.data.dataset import Dataset
from blocklab.errors import BlocklabError
from blocklab.model import compiled_blocks
from blocklab.model.evaluation import evaluating
from blocklab.parts import attention
from blocklab.parts.context import AttentionContext
from blocklab.training.config import TrainingConfig
from blocklab.training.numerics import Numerics, chosen, compiled_if_worth_it, fastest
from blocklab.training.run import RunSpec, Stopped, train_run
from blocklab.training.trainer import Trainer

HALF = Numerics(dtype="bfloat16")
VOCABULARY = 300


def config(**changes):
    made = bl.presets.modern(
        d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=VOCABULARY, context_length=48
    )
    return made.with_changes(changes)


def tokens(n=6000):
    """Ids with a pattern to learn, so that logits grow."""
    noise = torch.randint(7, (n,), generator=torch.Generator().manual_seed(0))
    return (torch.arange(n) * 7 % 91 * 3 + noise) % VOCABULARY


def trainer(numerics, **changes):
    recipe = TrainingConfig(steps=60, batch_size=8, learning_rate=3e-3, inspect_every=None)
    return Trainer(config(**changes), corpus=tokens(), training=recipe, numerics=numerics)


def seconds(**by_dtype):
    """A clock on which half precision and float32 take what they are given, less by chunk."""
    asked = []

    def of(numerics):
        asked.append(numerics)
        return by_dtype[numerics.dtype] * (0.5 if numerics.chunk == by_dtype.get("good") else 1.0)

    return of, asked


def test_half_precision_must_be_notably_faster():
    for half, expected in ((0.5, "bfloat16"), (0.95, "float32"), (2.0, "float32")):
        clock, _ = seconds(float32=1.0, bfloat16=half)
        assert fastest(clock, rows=64, vocab_size=1000).dtype == expected


def test_a_chunk_that_is_faster_is_taken_and_none_is_tried_that_would_be_the_same():
    clock, asked = seconds(float32=1.0, bfloat16=2.0, good=64)
    assert fastest(clock, rows=2048, vocab_size=50257).chunk == 64
    clock, asked = seconds(float32=1.0, bfloat16=2.0, good=64)
    assert fastest(clock, rows=64, vocab_size=1000).chunk is None
    assert {one.chunk for one in asked} == {None}


@pytest.mark.parametrize(
    ("times", "expected"),
    [({8: 1.0, 4: 2.0}, 8), ({8: 4.0, 4: 3.0, 2: 3.0, 1: 5.0}, 2), ({8: 1, 4: 1, 2: 1, 1: 1}, 1)],
)
def test_as_many_threads_as_make_it_faster(times, expected):
    asked = []

    def clock(numerics):
        asked.append(numerics.threads)
        return times[numerics.threads]

    assert fastest(clock, rows=64, vocab_size=1000, threads=8).threads == expected
    assert min(asked) >= expected // 2
    assert fastest(clock if 1 in times else lambda _: 1.0, 64, 1000).threads == 1


def test_steps_and_evaluations_take_the_threads_of_their_numerics(monkeypatch):
    seen = []
    learning = trainer(Numerics(threads=3))
    learning.model.final_norm.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    learning.step()
    learning.evaluate()
    assert set(seen) == {3}
    assert torch.get_num_threads() == before


def compiler(cold, warm, step):
    """Timers on which eager steps take a second and compiled ones `step`; how many were made."""
    made = []

    def timer():
        made.append(len(made))
        first = {True: cold if len(made) == 1 else warm}

        def of(numerics):
            return first.pop(True, step) if numerics.compile else 1.0

        return of

    return timer


@pytest.mark.parametrize(
    ("steps", "n_runs", "processes", "pays"),
    [
        (1000, 1, 1, True),
        (150, 1, 1, False),
        (150, 10, 1, True),
        (205, 1, 1, True),
        (205, 1, 2, False),
        (30, 99, 9, True),
    ],
)
def test_compiling_must_save_more_than_it_costs_all_planned_runs(steps, n_runs, processes, pays):
    timer = compiler(cold=40.0, warm=10.0, step=0.75)
    assert compiled_if_worth_it(HALF, timer, steps, n_runs, processes).compile is pays


def test_a_long_training_is_compiled_and_one_that_routes_is_not(tmp_path):
    clock, _ = seconds(float32=1.0, bfloat16=1.0)

    def timer():
        first = [5.0]
        return lambda one: (first.pop() if first else 0.2) if one.compile else clock(one)

    recipe = TrainingConfig(batch_size=64, steps=10_000)
    large = config(d_model=256, n_layers=8, vocab_size=4096)
    assert chosen(large, recipe, timer, tmp_path).compile
    assert not chosen(large, recipe.model_copy(update={"steps": 50}), timer, tmp_path).compile
    routed = large.with_changes({"block.feed_forward": {"kind": "experts"}})
    assert not chosen(routed, recipe, timer, tmp_path).compile


def test_where_nothing_can_be_compiled_nothing_is():
    def timer():
        def of(numerics):
            if numerics.compile:
                raise RuntimeError("no compiler found")
            return 1.0

        return of

    assert compiled_if_worth_it(HALF, timer, 10**6, 1) == HALF


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing here can compile")
def test_a_compiled_step_is_the_same_step():
    plain, compiled = trainer(HALF), trainer(HALF.model_copy(update={"compile": True}))
    for _ in range(5):
        assert compiled.step() == pytest.approx(plain.step(), abs=2e-3)
    assert compiled.evaluate() == pytest.approx(plain.evaluate(), abs=2e-3)


@pytest.fixture
def as_it_is(monkeypatch):
    """Blocks are traced, and their graphs run as they are: no compiler is needed."""
    code = torch.compile(compiled_blocks._through, backend="eager", dynamic=False)
    monkeypatch.setattr(compiled_blocks, "_code", lambda: code)
    yield
    torch.compiler.reset()


def test_compiling_ahead_changes_nothing_and_is_in_no_steps_time(as_it_is):
    on = HALF.model_copy(update={"compile": True})
    ahead, meanwhile = trainer(on, dropout=0.2), trainer(on, dropout=0.2)
    meanwhile._compiled = on
    drawn = torch.get_rng_state()
    assert [ahead.step() for _ in range(3)] == [meanwhile.step() for _ in range(3)]
    assert torch.get_rng_state().equal(drawn)
    for path, parameter in meanwhile.model.named_parameters():
        assert ahead.model.get_parameter(path).equal(parameter)
    assert ahead.compile_seconds > ahead.train_seconds
    once = ahead.compile_seconds
    ahead.step()
    assert ahead.compile_seconds == once


class Centred(bl.parts.RMSNorm):
    """A norm that remembers what it saw."""

    def __init__(self, d, config):
        super().__init__(d, config)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        return super().forward(x - self.mean)


def test_compiling_ahead_leaves_buffers_alone(as_it_is):
    plain, compiled = trainer(Numerics()), trainer(Numerics(compile=True))
    for each in (plain, compiled):
        each.model.blocks[0].norm["attention"] = Centred(64, bl.parts.RMSNorm.Config())
    assert [compiled.step() for _ in range(2)] == pytest.approx([plain.step() for _ in range(2)])
    seen = (each.model.blocks[0].norm["attention"].mean for each in (plain, compiled))
    torch.testing.assert_close(*seen)


def test_what_cannot_be_compiled_is_said_in_a_line(monkeypatch):
    def without_a_compiler():
        raise torch._dynamo.exc.TorchDynamoException("no working C++ compiler\nmore of it")

    monkeypatch.setattr(compiled_blocks, "_code", without_a_compiler)
    said = "numerics.compile: .* cannot be compiled here: no working C.. compiler; set numerics"
    with pytest.raises(BlocklabError, match=said):
        trainer(Numerics(compile=True)).step()


def test_what_routes_is_trained_as_it_is(monkeypatch):
    monkeypatch.setattr(compiled_blocks, "_code", lambda: 1 / 0)
    on = HALF.model_copy(update={"compile": True})
    trainer(on, **{"block.feed_forward": {"kind": "experts", "n_experts": 2, "n_active": 1}}).step()


def test_no_round_begins_after_the_budget():
    clock, asked = seconds(float32=1.0, bfloat16=1.0)
    fastest(clock, rows=2048, vocab_size=50257, budget=0.0)
    assert len(asked) == 4


def test_a_choice_is_measured_once_and_found_again(tmp_path):
    large = config(d_model=256, n_layers=8, vocab_size=4096)
    recipe = TrainingConfig(batch_size=64)
    clock, asked = seconds(float32=1.0, bfloat16=0.5, good=None)
    first = chosen(large, recipe, lambda: clock, tmp_path)
    assert first.dtype == "bfloat16" and asked
    assert chosen(large, recipe, lambda: 1 / 0, tmp_path) == first
    with pytest.raises(ZeroDivisionError):
        chosen(large, recipe.model_copy(update={"batch_size": 32}), lambda: 1 / 0, tmp_path)


def test_a_small_model_is_not_measured(tmp_path):
    assert chosen(config(), TrainingConfig(batch_size=2), lambda: 1 / 0, tmp_path) == Numerics()


def test_the_loss_of_a_half_precision_step_is_that_of_float32_within_1e4():
    half = trainer(HALF)
    half.run(30)
    errors = []
    for _ in range(8):
        plain = trainer(Numerics())
        plain.model.load_state_dict(half.model.state_dict())
        plain.steps_done = half.steps_done
        errors.append(plain.step() - half.step())
    assert abs(sum(errors) / len(errors)) < 1e-4
    assert max(map(abs, errors)) < 1e-3


def test_its_gradients_err_by_the_rounding_of_half_precision():
    half = trainer(HALF)
    half.run(10)
    inputs, targets = half.windows.batch(half.steps_done)
    exact = copy.deepcopy(half.model).double()
    logits = exact(inputs)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    half._backward(inputs, targets)
    for (name, mine), true in zip(half.model.named_parameters(), exact.parameters(), strict=True):
        error = (mine.grad.double() - true.grad).norm() / true.grad.norm()
        assert mine.grad.dtype == torch.float32
        assert error < 0.02, (name, float(error))


def test_an_evaluation_is_float32_whatever_the_training():
    half, plain = trainer(HALF), trainer(Numerics())
    assert half.evaluate() == plain.evaluate()
    assert all(p.dtype == torch.float32 for p in half.model.parameters())


def test_half_precision_learns_as_well():
    half, plain = trainer(HALF), trainer(Numerics())
    half.run()
    plain.run()
    assert half.evaluate() == pytest.approx(plain.evaluate(), abs=0.03)


def test_a_half_precision_run_resumes_to_the_same_bits(tmp_path):
    spec = RunSpec(
        model=config(),
        training=TrainingConfig(steps=6, batch_size=4),
        data={},
        data_fingerprint="",
        seed=1,
        numerics=HALF,
    )
    data = Dataset.from_tokens(tokens())
    whole = train_run(spec, tmp_path / "whole", data)
    seen = []
    with pytest.raises(Stopped):
        train_run(
            spec,
            tmp_path / "parts",
            data,
            on_step=lambda step, *_: seen.append(step),
            should_stop=lambda: len(seen) == 3,
        )
    assert train_run(spec, tmp_path / "parts", data).validation_loss == whole.validation_loss
    bits = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert bits[0] == bits[1]


def test_another_precision_is_another_run():
    spec = RunSpec(model=config(), training=TrainingConfig(), data={}, data_fingerprint="", seed=1)
    assert spec.model_copy(update={"numerics": HALF}).id != spec.id


CASES = {
    "grouped": {},
    "windowed": {"block.attention.window": 5},
    "alibi": {"positions": {"kind": "alibi"}},
    "capped": {"block.attention.softcap": 4.0},
    "multi-query": {"block.attention.n_kv_heads": 1},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("padded", [False, True])
def test_attention_by_products_is_the_fused_one(changes, padded, monkeypatch):
    model = bl.Transformer(config(**changes), seed=2).double()
    ids = torch.randint(VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :6] = 0
    with evaluating(model), torch.no_grad():
        fused = model(ids, attention_mask=mask)
        monkeypatch.setattr(attention, "_products_are_faster", lambda *_: True)
        products = model(ids, attention_mask=mask)
    real = mask.bool()
    torch.testing.assert_close(products[real], fused[real], rtol=1e-10, atol=1e-12)


def test_products_are_for_half_precision_of_a_bounded_size():
    def shaped(length, dtype):
        return torch.empty(8, 8, length, 16, dtype=dtype)

    faster = attention._products_are_faster
    assert faster(shaped(256, torch.bfloat16), shaped(256, torch.bfloat16))
    assert not faster(shaped(256, torch.float32), shaped(256, torch.float32))
    assert not faster(shaped(1024, torch.bfloat16), shaped(1024, torch.bfloat16))


@pytest.mark.parametrize("size", [1.0, 8.0])
def test_scores_are_float32_from_the_product_on(size):
    """Large ones would lose a whole nat to half precision, and distances have none of it."""
    made = bl.Transformer(config(**CASES["alibi"]), seed=0).blocks[0].attention
    parts = [size * torch.randn(1, n, 300, 16, dtype=torch.bfloat16) for n in (4, 2, 2)]
    bias = -torch.arange(300.0).expand(4, 300, 300)
    places = torch.arange(300)
    wide = [x.double() for x in parts]
    exact = made._attend_by_products(*wide, bias.double(), AttentionContext(None, places))
    with HALF.computing():
        half = made._attend_by_products(*parts, bias, AttentionContext(None, places))
    error = (half.double() - exact).norm() / exact.norm()
    assert half.dtype == torch.bfloat16
    assert error < 0.004


def test_a_positions_bias_is_not_rounded_to_half_precision():
    queries = torch.zeros(1, 4, 300, 16, dtype=torch.bfloat16)
    positions = bl.Transformer(config(**CASES["alibi"]), seed=0).positions
    mask = AttentionContext(positions, torch.arange(300)).mask(queries, 300, None)
    assert mask.dtype == torch.float32
    assert len(mask[0, -1].unique()) == 300


@pytest.mark.parametrize("kind", ["add", "none", "scaled"])
def test_the_stream_stays_float32_in_half_precision(kind):
    made = bl.Transformer(config(**{"block.residual.kind": kind}), seed=0)
    seen = []
    for block in made.blocks:
        block.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    with HALF.computing():
        made.features(torch.zeros(1, 8, dtype=torch.long))
    assert set(seen) == {torch.float32}


def test_a_choice_made_with_other_threads_is_another_choice(tmp_path):
    large, recipe = config(d_model=256, n_layers=8, vocab_size=4096), TrainingConfig(batch_size=64)
    clock, _ = seconds(float32=1.0, bfloat16=0.5, good=None)
    chosen(large, recipe, lambda: clock, tmp_path)
    with pytest.raises(ZeroDivisionError):
        chosen(large, recipe, lambda: 1 / 0, tmp_path, threads=64)
