"""Compiled reading gives the logits of the model as it is, and knows when it may and when it pays.

What a compiler would see is traced and run as it stands; one slow test compiles for real.
"""

import copy
import functools
import gc
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import MethodType

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.generation import compiled, sampler
from blocklab.generation.cache import KeyValueCache
from blocklab.model import compiling
from blocklab.model.config import ModelConfig
from blocklab.parts import few_rows
from blocklab.parts.attention import CausalAttention
from tests.model.strategies import CONTEXT, configs, random_tokens, randomized

NO_SHRINKING = (Phase.explicit, Phase.generate)  # tracing takes seconds
some_configs = settings(max_examples=10, deadline=None, derandomize=True, phases=NO_SHRINKING)

SMALL = bl.presets.llama(
    d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, vocab_size=32, context_length=128
).with_changes({"block.feed_forward.d_ff": 64, "initialization.head_std": 1.0})
PROMPT = torch.tensor([[1, 2, 3]])


def only_traced(monkeypatch):
    """Everything but the machine code; gives a list that grows with everything compiled."""
    made = []

    def as_it_stands(graph, _):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(compiling, "_compiled", as_it_stands)
    monkeypatch.setattr(compiled, "_codes", {})
    monkeypatch.setattr(compiled, "_failed", set())
    return made


def only_failing(monkeypatch, error):
    """A compiler that raises; gives a list that grows with every attempt."""
    tried = []

    def broken(*_):
        tried.append(True)
        raise type(error)(*error.args)  # a new one: it holds on to the frames that it passed

    monkeypatch.setattr(compiling, "_compiled", broken)
    monkeypatch.setattr(compiled, "_codes", {})
    monkeypatch.setattr(compiled, "_failed", set())
    return tried


@pytest.fixture
def traced(monkeypatch):
    return only_traced(monkeypatch)


@some_configs
@given(configs(), st.integers(1, 4), st.sampled_from([1, 2, few_rows.BY_SUMS + 1]), st.booleans())
def test_the_logits_are_the_models_in_every_combination(
    config: ModelConfig, length: int, n_sequences: int, padded: bool
) -> None:
    model, tokens = randomized(config), random_tokens(batch=n_sequences)
    assume(not compiled.obstacle(model))
    mask = torch.ones_like(tokens)
    mask[0, : length - 1] = 0
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        only_traced(patch)
        cache, other = (KeyValueCache.of(model, n_sequences, CONTEXT) for _ in range(2))
        prompt = tokens[:, :length], mask[:, :length] if padded else None
        model(*prompt, cache=cache)
        model(*prompt, cache=other)
        reading = compiled.CompiledReading(model, n_sequences, padded=padded)
        for place in range(length, CONTEXT):
            new = tokens[:, place : place + 1]
            seen = mask[:, : place + 1] if padded else None
            expected = model(new, seen, cache=other)[:, -1]
            found = reading.logits(new, cache, seen)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert cache.complete and cache.length == CONTEXT


def test_layers_built_alike_caches_and_places_share_what_was_compiled(traced):
    model = bl.Transformer(SMALL.with_changes({"n_layers": 5}), seed=0)
    for prompt, new in ((3, 2), (3, 60), (3, 9), (1, 100), (20, 5)):
        bl.generate(model, random_tokens(1, prompt), max_new_tokens=new, compiled=True)
    assert len(traced) == 2  # the block and the head


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("n_sequences", [1, few_rows.BY_SUMS, few_rows.BY_SUMS + 1])
def test_the_text_is_the_one_that_is_written_without(n_sequences):
    model = bl.Transformer(SMALL, seed=0)
    prompt, mask = random_tokens(n_sequences, 3), torch.ones(n_sequences, 3, dtype=torch.long)
    mask[-1, :2] = 0
    for padding in (None, mask):
        plain, ours = (
            bl.generate(model, prompt, max_new_tokens=140, attention_mask=padding, compiled=way)
            for way in (False, True)
        )
        assert torch.equal(ours, plain)


def test_prompts_of_other_lengths_share_code_with_padding_too(traced):
    model = bl.Transformer(SMALL, seed=0)
    for length in (3, 4, 9):
        mask = torch.ones(2, length, dtype=torch.long)
        mask[0, 0] = 0
        prompt = random_tokens(2, length)
        bl.generate(model, prompt, max_new_tokens=5, attention_mask=mask, compiled=True)
    assert len(traced) == 2


def test_a_part_that_was_changed_by_hand_has_code_of_its_own(traced):
    model = bl.Transformer(SMALL.with_changes({"n_layers": 4}), seed=0)
    model.blocks[2].attention.scale *= 2
    plain, ours = (
        bl.generate(model, PROMPT, max_new_tokens=20, compiled=way) for way in (False, True)
    )
    assert torch.equal(ours, plain)
    assert len(traced) == 3  # two kinds of blocks, and the head


def test_weights_that_are_tied_otherwise_have_code_of_their_own(traced):
    model = bl.Transformer(SMALL, seed=0)
    norms = [model.blocks[i].norm for i in (0, 1)]
    norms[0]["feed_forward"].weight = norms[0]["attention"].weight
    with torch.no_grad():
        norms[0]["attention"].weight.mul_(3)
    plain, ours = (
        bl.generate(model, PROMPT, max_new_tokens=20, compiled=way) for way in (False, True)
    )
    assert torch.equal(ours, plain)
    assert len(traced) == 3


def replace_a_method(model: bl.Transformer) -> None:
    feed_forward = model.blocks[0].feed_forward
    feed_forward.forward = MethodType(lambda self, x: -x, feed_forward)


def replace_a_private_method(model: bl.Transformer) -> None:
    attention, ours = model.blocks[1].attention, type(model.blocks[1].attention)._project
    attention._project = MethodType(lambda self, x, c: ours(self, -x, c), attention)


@functools.wraps(nn.functional.silu)
def like_silu(x: torch.Tensor) -> torch.Tensor:
    return -x


class Doubled(nn.Module):
    """Somebody else's part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replace_a_method, "blocks.0.feed_forward.forward is a method"),
        (
            lambda model: model.blocks[1].register_forward_hook(lambda m, x, y: -y),
            "blocks.1 has a hook",
        ),
        (
            lambda model: model.blocks[0].norm.register_forward_pre_hook(lambda m, x: x),
            "blocks.0.norm has a hook",
        ),
        (lambda model: setattr(model, "final_norm", Doubled()), "final_norm is a Doubled"),
        (
            lambda model: setattr(model.blocks[0].attention, "scale", torch.tensor(0.5)),
            "blocks.0.attention.scale is a Tensor",
        ),
        (
            lambda model: setattr(model.blocks[0].feed_forward, "activation", lambda x: x),
            "blocks.0.feed_forward.activation is a function",
        ),
        (
            lambda model: prune.random_unstructured(model.blocks[0].attention.qkv, "weight", 0.5),
            "blocks.0.attention.qkv has a hook",
        ),
        (lambda model: spectral_norm(model.head), "head is a ParametrizedHead"),
        (replace_a_private_method, "blocks.1.attention._project is a method"),
        (
            lambda model: setattr(model, "features", lambda *_: torch.zeros(1, 1, 32)),
            "the model.features is a function",
        ),
        (
            lambda model: setattr(model.blocks[0].feed_forward, "activation", like_silu),
            "blocks.0.feed_forward.activation is a function",
        ),
    ],
)
def test_what_tracing_might_not_tell_is_not_compiled(change, reason, traced, monkeypatch):
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    model = bl.Transformer(SMALL.with_changes({"tie_embeddings": False}), seed=0)
    change(model)
    with pytest.raises(BlocklabError, match=f"{reason}, and only blocklab's own parts"):
        bl.generate(model, PROMPT, max_new_tokens=4, compiled=True)
    bl.generate(model, PROMPT, max_new_tokens=4)
    assert not traced


def test_a_model_of_somebodys_own_is_not_compiled():
    class Mine(bl.Transformer):
        def features(self, *arguments):
            return -super().features(*arguments)

    reason = compiled.obstacle(Mine(SMALL, seed=0))
    assert (reason or "").startswith("the model is a ")


def test_a_class_that_was_changed_since_is_compiled_anew(traced, monkeypatch):
    model = bl.Transformer(SMALL, seed=0)
    bl.generate(model, PROMPT, max_new_tokens=5, compiled=True)
    before, ours = len(traced), CausalAttention._project
    monkeypatch.setattr(CausalAttention, "_project", lambda self, x, c: ours(self, -x, c))
    plain, after = (
        bl.generate(model, PROMPT, max_new_tokens=20, compiled=way) for way in (False, True)
    )
    assert torch.equal(after, plain)
    assert len(traced) == before + 1


def test_tokens_past_the_context_do_not_count_for_compiling(traced, monkeypatch):
    model = bl.Transformer(SMALL, seed=0)  # of 128 tokens
    read = sum(p.nbytes for p in model.parameters()) - model.embedding.weight.nbytes
    monkeypatch.setattr(compiled, "COMPILED_FROM", 130 * read)
    bl.generate(model, PROMPT, max_new_tokens=140)
    assert not traced
    monkeypatch.setattr(compiled, "COMPILED_FROM", 120 * read)
    bl.generate(model, PROMPT, max_new_tokens=140)
    assert traced


def test_hooks_on_all_modules_keep_everything_from_being_compiled():
    model = bl.Transformer(SMALL, seed=0)
    hook = register_module_forward_hook(lambda module, x, y: None)
    try:
        assert "hooks on all modules" in (compiled.obstacle(model) or "")
    finally:
        hook.remove()
    assert compiled.obstacle(model) is None


def test_texts_are_written_in_several_threads_at_once(traced):
    model, other = (bl.Transformer(SMALL, seed=seed) for seed in (0, 1))
    jobs = [(model, True), (other, True), (model, False), (model, True), (other, False)]
    plain = {m: bl.generate(m, PROMPT, max_new_tokens=30, compiled=False) for m in (model, other)}
    with ThreadPoolExecutor(len(jobs)) as threads:
        texts = [
            threads.submit(bl.generate, m, PROMPT, max_new_tokens=30, compiled=way)
            for m, way in jobs
        ]
    for (m, _), text in zip(jobs, texts, strict=True):
        assert torch.equal(text.result(), plain[m])
    assert len(traced) == 2
    assert not torch.compiler.is_compiling()


def test_a_model_that_is_moved_meanwhile_is_read_as_ever(traced):
    model = bl.Transformer(SMALL, seed=0)
    steps = sampler.sample_tokens(model, PROMPT, max_new_tokens=9, compiled=True)
    for _ in range(3):
        next(steps)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    with pytest.raises(BlocklabError, match="the model was moved meanwhile"):
        next(steps)
    assert traced


def test_code_is_not_used_where_another_length_would_go_another_way(traced, monkeypatch):
    model = bl.Transformer(SMALL, seed=0)
    model.blocks[1].attention.window = 8  # the cache, made by the record, goes on beyond it
    plain = bl.generate(model, PROMPT, max_new_tokens=20, compiled=False)
    with pytest.raises(BlocklabError, match="compiled for 2 to 8 cannot serve 9"):
        bl.generate(model, PROMPT, max_new_tokens=20, compiled=True)
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=20), plain)
    assert traced


def test_weights_that_were_trained_on_are_the_ones_that_are_read(traced):
    model = bl.Transformer(SMALL, seed=0)
    before = bl.generate(model, PROMPT, max_new_tokens=20, compiled=True)
    n_codes = len(traced)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)
    after = bl.generate(model, PROMPT, max_new_tokens=20, compiled=True)
    assert torch.equal(after, bl.generate(model, PROMPT, max_new_tokens=20, compiled=False))
    assert not torch.equal(before, after)
    assert len(traced) == n_codes


def test_under_autocast_nothing_is_compiled_that_would_ignore_it():
    model = bl.Transformer(SMALL, seed=0)
    assert compiled.obstacle(model) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled.obstacle(model) == "autocast is on"


def test_compiling_pays_for_many_tokens_of_a_large_model():
    model = bl.Transformer(SMALL.with_changes({"tie_embeddings": False}))
    read = sum(p.nbytes for p in model.parameters()) - model.embedding.weight.nbytes
    enough = int(compiled.COMPILED_FROM // read) + 1
    assert compiled.worth_compiling(model, enough)
    assert not compiled.worth_compiling(model, enough - 1)


@pytest.mark.parametrize(
    ("changes", "arguments", "reason"),
    [
        (
            {"block.feed_forward": {"kind": "experts", "n_experts": 2, "n_active": 1, "d_ff": 8}},
            {},
            "its experts are chosen token by token",
        ),
        ({}, {"use_cache": False}, "there is no cache"),
        ({"context_length": 2}, {}, "the prompt is longer than the context"),
    ],
    ids=["experts", "no cache", "long prompt"],
)
def test_what_cannot_be_compiled_is_refused_before_the_first_token(
    changes, arguments, reason, monkeypatch
):
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    model = bl.Transformer(SMALL.with_changes(changes), seed=0)
    with pytest.raises(BlocklabError, match=f"no compiled code can write this text: {reason}"):
        sampler.sample_tokens(model, PROMPT, max_new_tokens=2, compiled=True, **arguments)
    bl.generate(model, PROMPT, max_new_tokens=2, **arguments)


def test_without_a_compiler_text_is_written_as_ever_and_whoever_insists_is_told(monkeypatch):
    tried = only_failing(monkeypatch, RuntimeError("no g++ here"))
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    model = bl.Transformer(SMALL, seed=0)
    plain = bl.generate(model, PROMPT, max_new_tokens=9, compiled=False)
    for _ in range(3):
        assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=9), plain)
    assert len(tried) == 1  # what failed is not tried for every text
    with pytest.raises(BlocklabError, match=r"can write this text: no g\+\+ here"):
        bl.generate(model, PROMPT, max_new_tokens=9, compiled=True)


@pytest.mark.usefixtures("traced")
def test_whoever_insists_gets_what_failed_only_once(monkeypatch):
    working = compiling._compiled
    only_failing(monkeypatch, OSError("no space left on device"))
    model = bl.Transformer(SMALL, seed=0)
    with pytest.raises(BlocklabError, match="no space left"):
        bl.generate(model, PROMPT, max_new_tokens=9, compiled=True)
    monkeypatch.setattr(compiling, "_compiled", working)
    plain = bl.generate(model, PROMPT, max_new_tokens=9, compiled=False)
    assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=9, compiled=True), plain)


def test_where_only_the_head_fails_the_text_goes_on(monkeypatch):
    made = only_traced(monkeypatch)
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    as_it_stands = compiling._compiled

    def but_the_head(graph, inputs):
        if made:
            raise RuntimeError("not the head")
        return as_it_stands(graph, inputs)

    monkeypatch.setattr(compiling, "_compiled", but_the_head)
    model = bl.Transformer(SMALL, seed=0)
    plain = bl.generate(model, PROMPT, max_new_tokens=9, compiled=False)
    assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=9), plain)
    assert made


@pytest.mark.parametrize("fails", [False, True])
def test_no_model_is_kept_alive_by_its_code(fails, monkeypatch):
    if fails:
        only_failing(monkeypatch, RuntimeError("no g++ here"))
    else:
        only_traced(monkeypatch)
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    model = bl.Transformer(SMALL, seed=0)
    bl.generate(model, PROMPT, max_new_tokens=9)
    weight = weakref.ref(model.blocks[0].attention.qkv.weight)
    del model
    gc.collect()
    assert weight() is None


NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler here")


@pytest.mark.slow
@NEEDS_A_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prompt", [3, 9])
def test_machine_code_counts_padding_beyond_a_window(dtype: torch.dtype, prompt: int) -> None:
    config = SMALL.with_changes(
        {"block.attention.window": 6, "layers": [{"at": "1", "block.attention.window": 11}]}
    )
    model, tokens = bl.Transformer(config, seed=0).to(dtype).eval(), random_tokens(3, 40)
    mask = torch.ones_like(tokens)
    mask[0, : prompt - 1], mask[1, 0] = 0, 0
    exact = copy.deepcopy(model).double()
    reading = compiled.CompiledReading(model, 3, padded=True)
    cache = KeyValueCache.of(model, 3, 40)
    with torch.no_grad():
        model(tokens[:, :prompt], mask[:, :prompt], cache=cache)
        found = [
            reading.logits(tokens[:, i : i + 1], cache, mask[:, : i + 1]) for i in range(prompt, 40)
        ]
        errors = [
            (logits.double() - exact(tokens, mask)[:, prompt:]).pow(2).mean().sqrt()
            for logits in (torch.stack(found, 1), model(tokens, mask)[:, prompt:])
        ]
    assert errors[0] <= 1.2 * errors[1]


@pytest.mark.slow
@NEEDS_A_COMPILER
@pytest.mark.parametrize("n_sequences", [1, few_rows.BY_SUMS, few_rows.BY_SUMS + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_machine_code_is_as_exact_as_the_model_as_it_is(
    dtype: torch.dtype, n_sequences: int
) -> None:
    model, tokens = bl.Transformer(SMALL, seed=0).to(dtype).eval(), random_tokens(n_sequences, 40)
    exact = copy.deepcopy(model).double()
    reading = compiled.CompiledReading(model, n_sequences)
    cache = KeyValueCache.of(model, n_sequences, 40)
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        found = [reading.logits(tokens[:, i : i + 1], cache) for i in range(5, 40)]
        errors = [
            (logits.double() - exact(tokens)[:, 5:]).pow(2).mean().sqrt()
            for logits in (torch.stack(found, 1), model(tokens)[:, 5:])
        ]
    assert errors[0] <= 1.2 * errors[1]
