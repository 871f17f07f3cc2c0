"""Groups by role, updates against torch's own optimisers, and bitwise resumption."""

import copy
import math
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from blocklab.errors import BlocklabError
from blocklab.training.optimizer import (
    SGD,
    AdamW,
    Muon,
    NamedParameter,
    OptimizerConfig,
    build_optimizer,
    clip_gradients,
)

SHAPES = {
    "embedding.weight": ("embedding", (11, 8)),
    "positions.weight": ("position", (5, 8)),
    "norm.weight": ("gain", (8,)),
    "attention.qkv.weight": ("matrix", (24, 8)),
    "attention.qkv.bias": ("bias", (24,)),
    "attention.out.weight": ("writer", (8, 8)),
    "experts.up.weight": ("matrix", (3, 16, 8)),
    "mixing": ("other", (4, 4)),
    "temperature": ("other", ()),
    "head.weight": ("head", (11, 8)),
}
DECAYED = {
    "embedding.weight",
    "positions.weight",
    "attention.qkv.weight",
    "attention.out.weight",
    "experts.up.weight",
    "mixing",
    "head.weight",
}
CONFIGS = [
    AdamW(),
    AdamW(decay_everything=True),
    SGD(weight_decay=0.1, nesterov=True),
    SGD(momentum=0.0),
    Muon(),
    Muon(adamw_ratio=0.1, adjust_lr_fn="original"),
]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [
        NamedParameter(path, role, nn.Parameter(torch.randn(shape, generator=generator).to(dtype)))
        for path, (role, shape) in SHAPES.items()
    ]


def give_gradients(named, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in named:
        p.parameter.grad = torch.randn(p.parameter.shape, generator=generator).to(p.parameter.dtype)


def values(named):
    return {p.path: p.parameter.detach().clone() for p in named}


def decay_alone(config, **fields):
    """Which parameters shrink in a step with zero gradients: the decay, and nothing else."""
    named = parameters()
    before = values(named)
    for p in named:
        p.parameter.grad = torch.zeros_like(p.parameter)
    build_optimizer(config, named, 0.1).step(1.0)
    return {path for path, tensor in values(named).items() if not tensor.equal(before[path])}


@pytest.mark.parametrize("config", [AdamW(), SGD(weight_decay=0.1), Muon()])
def test_decay_touches_matrices_and_never_gains_or_biases(config):
    assert decay_alone(config) == DECAYED


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_decay_everything_touches_every_parameter(kind):
    assert decay_alone(kind(weight_decay=0.1, decay_everything=True)) == set(SHAPES)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_groups_cover_every_parameter_exactly_once(config):
    named = parameters()
    optimizer = build_optimizer(config, named, 0.1)
    assert sum(group.n_tensors for group in optimizer.groups) == len(named)
    assert sum(group.n_parameters for group in optimizer.groups) == sum(
        p.parameter.numel() for p in named
    )
    before = values(named)
    give_gradients(named, 2)
    optimizer.step(1.0)
    assert all(not tensor.equal(before[path]) for path, tensor in values(named).items())


def test_muon_gets_the_two_dimensional_hidden_matrices_and_adamw_the_rest():
    groups = build_optimizer(Muon(), parameters(), 0.1).groups
    assert [(g.name, g.optimizer, g.decay, g.n_tensors) for g in groups] == [
        ("hidden matrices", "muon", 0.1, 2),
        ("matrices", "adamw", 0.1, 5),
        ("gains and biases", "adamw", 0.0, 3),
    ]


def test_muon_without_a_hidden_matrix_is_refused():
    named = [p for p in parameters() if p.role not in ("matrix", "writer")]
    with pytest.raises(BlocklabError, match="muon would get nothing"):
        build_optimizer(Muon(), named, 0.1)


def test_a_tied_tensor_listed_twice_is_refused_with_both_names():
    named = parameters()
    named.append(NamedParameter("tied.weight", "head", named[0].parameter))
    with pytest.raises(BlocklabError, match=r"tied\.weight.*embedding\.weight"):
        build_optimizer(AdamW(), named, 0.1)


def test_a_path_listed_twice_is_refused():
    named = parameters()
    named.append(NamedParameter("norm.weight", "gain", nn.Parameter(torch.ones(8))))
    with pytest.raises(BlocklabError, match=r"norm\.weight"):
        build_optimizer(AdamW(), named, 0.1)


def test_an_unknown_role_names_the_nearest():
    with pytest.raises(BlocklabError, match="did you mean 'matrix'"):
        build_optimizer(AdamW(), [NamedParameter("w", "matrx", nn.Parameter(torch.ones(2)))], 0.1)


def test_frozen_parameters_are_left_out_and_all_frozen_is_refused():
    named = parameters()
    named[0].parameter.requires_grad_(False)
    groups = build_optimizer(AdamW(), named, 0.1).groups
    assert sum(group.n_tensors for group in groups) == len(named) - 1
    for p in named:
        p.parameter.requires_grad_(False)
    with pytest.raises(BlocklabError, match="none of 10"):
        build_optimizer(AdamW(), named, 0.1)


def test_a_config_that_forgets_a_parameter_is_refused():
    class Forgetful(AdamW):
        def groups(self, parameters):
            return super().groups(parameters[1:])

    with pytest.raises(BlocklabError, match=r"exactly one group: embedding\.weight"):
        build_optimizer(Forgetful(), parameters(), 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adamw_is_the_published_update_in_every_dtype(dtype):
    config = AdamW(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2)
    named = parameters(dtype)
    optimizer = build_optimizer(config, named, 0.01)
    expected = {path: tensor.double() for path, tensor in values(named).items()}
    m = {path: torch.zeros_like(tensor) for path, tensor in expected.items()}
    v = copy.deepcopy(m)
    for t in range(1, 5):
        give_gradients(named, t)
        rate = 0.01 / t
        for p in named:
            g = p.parameter.grad.double()
            m[p.path] = 0.8 * m[p.path] + 0.2 * g
            v[p.path] = 0.9 * v[p.path] + 0.1 * g * g
            update = (m[p.path] / (1 - 0.8**t)) / ((v[p.path] / (1 - 0.9**t)).sqrt() + 1e-6)
            kept = 1 - rate * 0.2 if p.path in DECAYED else 1
            expected[p.path] = expected[p.path] * kept - rate * update
        optimizer.step(1 / t)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.03}[dtype]
    for p in named:
        torch.testing.assert_close(
            p.parameter.detach().double(), expected[p.path], rtol=tolerance, atol=tolerance
        )


def torchs_own(config, named):
    """PyTorch's optimisers for the same groups, at rate 0.01."""

    def of(algorithm, members, decay, rate):
        tensors = [p.parameter for p in members]
        if algorithm == "muon":
            own = {"momentum": config.momentum, "adjust_lr_fn": config.adjust_lr_fn}
            return torch.optim.Muon(tensors, lr=rate, weight_decay=decay, **own)
        if algorithm == "sgd":
            own = {"momentum": config.momentum, "nesterov": config.nesterov}
            return torch.optim.SGD(tensors, lr=rate, weight_decay=decay, fused=True, **own)
        own = {"betas": config.betas, "eps": config.eps, "fused": True}
        return torch.optim.AdamW(tensors, lr=rate, weight_decay=decay, **own)

    groups = [group for group in config.groups(named) if group.members]
    return [of(g.optimizer, g.members, g.decay, 0.01 * g.ratio) for g in groups]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_an_update_is_pytorchs_own_to_the_bit(config):
    ours, theirs = parameters(), parameters()
    optimizer, references = build_optimizer(config, ours, 0.01), torchs_own(config, theirs)
    for step in range(4):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        optimizer.step(1.0)
        for reference in references:
            reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert one.parameter.equal(other.parameter), one.path


def test_training_imports_no_compiler():
    """It would take most of a second, and a hundred megabytes, in every process."""
    lines = """
        import sys, torch
        import blocklab as bl
        config = bl.presets.gpt2(
            d_model=8, n_layers=1, n_heads=1, context_length=4, vocab_size=5
        )
        trainer = bl.Trainer(config, corpus=torch.arange(400) % 5, batch_size=2)
        trainer.step()
        trainer.evaluate()
        print(*{"torch._dynamo", "torch._inductor"} & set(sys.modules))
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(lines)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == ""


def test_muons_update_has_the_size_of_adamws_and_its_ratio_slows_adamw_only():
    moved = {}
    for ratio in (1.0, 0.1):
        named = parameters()
        before = values(named)
        give_gradients(named, 3)
        build_optimizer(Muon(weight_decay=0, adamw_ratio=ratio), named, 0.01).step(1.0)
        moved[ratio] = {path: new - before[path] for path, new in values(named).items()}
    for path in ("attention.qkv.weight", "attention.out.weight"):
        assert moved[1.0][path].equal(moved[0.1][path])
        rms = moved[1.0][path].square().mean().sqrt()
        assert 0.1 * 0.01 < rms < 0.4 * 0.01
    torch.testing.assert_close(
        moved[1.0]["norm.weight"] * 0.1, moved[0.1]["norm.weight"], rtol=1e-3, atol=1e-8
    )


def test_the_factor_scales_the_peak_rate_of_each_step_and_does_not_compound():
    moves = []
    for factors in ([1.0], [0.5], [0.25, 0.5]):
        named = parameters()
        optimizer = build_optimizer(SGD(momentum=0.0), named, 0.2)
        for factor in factors:
            before = values(named)
            give_gradients(named, 4)
            optimizer.step(factor)
        moves.append(values(named)["mixing"] - before["mixing"])
    torch.testing.assert_close(moves[1], moves[0] / 2)
    torch.testing.assert_close(moves[2], moves[1])


def test_zero_grad_forgets_the_gradients():
    named = parameters()
    optimizer = build_optimizer(Muon(), named, 0.1)
    give_gradients(named, 1)
    optimizer.zero_grad()
    assert all(p.parameter.grad is None for p in named)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_resuming_from_state_tensors_is_bitwise(config, stop):
    def train(named, optimizer, steps):
        for step in steps:
            give_gradients(named, step)
            optimizer.step(1 / (step + 1))

    straight = parameters()
    train(straight, build_optimizer(config, straight, 0.01), range(6))

    first = parameters()
    before = build_optimizer(config, first, 0.01)
    train(first, before, range(stop))
    saved = {name: tensor.clone() for name, tensor in before.state_tensors().items()}

    second = parameters()
    with torch.no_grad():
        for mine, theirs in zip(second, first, strict=True):
            mine.parameter.copy_(theirs.parameter)
    after = build_optimizer(config, second, 0.01)
    after.load_state_tensors(saved)
    assert {name: t.tolist() for name, t in after.state_tensors().items()} == {
        name: t.tolist() for name, t in saved.items()
    }
    train(second, after, range(stop, 6))
    for resumed, uninterrupted in zip(second, straight, strict=True):
        assert resumed.parameter.equal(uninterrupted.parameter)


def stepped(config):
    named = parameters()
    optimizer = build_optimizer(config, named, 0.01)
    give_gradients(named, 1)
    optimizer.step(1.0)
    return optimizer


def test_the_state_is_named_by_what_it_is_and_the_parameters_path():
    state = stepped(AdamW()).state_tensors()
    assert set(state) == {
        f"{name}/{path}" for name in ("step", "exp_avg", "exp_avg_sq") for path in SHAPES
    }
    assert state["step/norm.weight"].item() == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("exp_avg_sq/norm.weight"), "norm.weight"),
        (lambda s: s.update({"exp_avg/nowhere": torch.ones(1)}), "unknown parameter 'nowhere'"),
        (lambda s: s.update({"exp_avg/norm.weight": torch.ones(9)}), r"exp_avg \(9,\)"),
        (lambda s: s.update({"momentum_buffer/norm.weight": torch.ones(8)}), "another optimiser"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(change, words):
    state = dict(stepped(AdamW()).state_tensors())
    change(state)
    target = stepped(AdamW())
    before = {name: tensor.clone() for name, tensor in target.state_tensors().items()}
    with pytest.raises(BlocklabError, match=words):
        target.load_state_tensors(state)
    after = target.state_tensors()
    assert set(after) == set(before)
    assert all(after[name].equal(before[name]) for name in before)


def test_loaded_state_takes_the_parameters_dtype():
    named = parameters(torch.float64)
    optimizer = build_optimizer(AdamW(), named, 0.01)
    optimizer.load_state_tensors(
        {name: tensor.float() for name, tensor in stepped(AdamW()).state_tensors().items()}
    )
    give_gradients(named, 2)
    optimizer.step(1.0)
    kept = optimizer.state_tensors()
    assert {t.dtype for name, t in kept.items() if name.startswith("exp_")} == {torch.float64}


def test_loaded_state_is_a_copy():
    state = {name: tensor.clone() for name, tensor in stepped(AdamW()).state_tensors().items()}
    target = stepped(AdamW())
    target.load_state_tensors(state)
    state["exp_avg/norm.weight"].fill_(7)
    assert not target.state_tensors()["exp_avg/norm.weight"].eq(7).any()


def test_loading_forgets_what_was_there():
    target = stepped(AdamW())
    target.load_state_tensors({})
    assert target.state_tensors() == {}


@pytest.mark.parametrize("limit", [0.5, 3.0, 1e6, math.inf])
def test_clipping_agrees_with_torch(limit):
    ours, theirs = parameters(), parameters()
    give_gradients(ours, 5)
    give_gradients(theirs, 5)
    norm = clip_gradients([p.parameter for p in ours], limit)
    expected = torch.nn.utils.clip_grad_norm_([p.parameter for p in theirs], limit)
    assert norm == expected.item()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.parameter.grad, other.parameter.grad, rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_shows_in_the_norm_and_stays_where_it_is(bad):
    named = parameters()
    give_gradients(named, 6)
    named[3].parameter.grad[0, 0] = bad
    norm = clip_gradients((p.parameter for p in named), 1.0)
    assert not math.isfinite(norm)
    finite = [bool(p.parameter.grad.isfinite().all()) for p in named]
    assert finite == [index != 3 for index in range(len(named))]


def test_the_slot_knows_its_kinds_and_bad_values_are_named():
    assert OptimizerConfig.parse({}) == AdamW()
    assert OptimizerConfig.parse({"kind": "muon", "ns_steps": 3}) == Muon(ns_steps=3)
    with pytest.raises(BlocklabError, match="nesterov needs a momentum"):
        SGD(momentum=0, nesterov=True)
    with pytest.raises(BlocklabError, match="betas"):
        AdamW(betas=(0.9, 1.0))
    with pytest.raises(BlocklabError, match="learning_rate"):
        build_optimizer(AdamW(), parameters(), math.nan)
