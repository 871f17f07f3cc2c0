"""Compiled reading gives the logits of the model as it is, and knows when it may and when it pays.

What a compiler would see is traced and run as it stands; one slow test compiles for real.
"""

import copy
import shutil

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.generation import compiled, sampler
from blocklab.generation.cache import KeyValueCache
from blocklab.model import compiling
from blocklab.model.config import ModelConfig
from blocklab.parts import few_rows
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
    return made


@pytest.fixture
def traced(monkeypatch):
    return only_traced(monkeypatch)


@some_configs
@given(configs(), st.integers(1, 4), st.sampled_from([1, 2, few_rows.BY_SUMS + 1]), st.booleans())
def test_the_logits_are_the_models_in_every_combination(
    config: ModelConfig, length: int, n_sequences: int, padded: bool
) -> None:
    model, tokens = randomized(config), random_tokens(batch=n_sequences)
    assume(compiled.compilable(model))
    mask = torch.ones_like(tokens)
    mask[0, : length - 1] = 0
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        only_traced(patch)
        cache, other = (KeyValueCache.of(model, n_sequences, CONTEXT) for _ in range(2))
        prompt = tokens[:, :length], mask[:, :length] if padded else None
        model(*prompt, cache=cache)
        model(*prompt, cache=other)
        reading = compiled.CompiledReading(model, n_sequences)
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


def test_a_part_that_was_changed_by_hand_has_code_of_its_own(traced):
    model = bl.Transformer(SMALL.with_changes({"n_layers": 4}), seed=0)
    model.blocks[2].attention.scale *= 2
    model.blocks[3].register_forward_hook(lambda module, inputs, y: -y)
    plain, ours = (
        bl.generate(model, PROMPT, max_new_tokens=20, compiled=way) for way in (False, True)
    )
    assert torch.equal(ours, plain)
    assert len(traced) == 4  # three kinds of blocks, and the head


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
    assert compiled.compilable(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not compiled.compilable(model)


def test_compiling_pays_for_many_tokens_of_a_large_model():
    model = bl.Transformer(SMALL.with_changes({"tie_embeddings": False}))
    read = sum(p.nbytes for p in model.parameters()) - model.embedding.weight.nbytes
    enough = int(compiled.COMPILED_FROM // read) + 1
    assert compiled.worth_compiling(model, enough)
    assert not compiled.worth_compiling(model, enough - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"block.feed_forward": {"kind": "experts", "n_experts": 2, "n_active": 1, "d_ff": 8}},
        {"use_cache": False},
    ],
    ids=["experts", "no cache"],
)
def test_what_cannot_be_compiled_is_refused_before_the_first_token(changes, monkeypatch):
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    arguments = {k: changes.pop(k) for k in tuple(changes) if k == "use_cache"}
    model = bl.Transformer(SMALL.with_changes(changes), seed=0)
    with pytest.raises(BlocklabError, match="compiled code writes with a cache only"):
        sampler.sample_tokens(model, PROMPT, max_new_tokens=2, compiled=True, **arguments)
    bl.generate(model, PROMPT, max_new_tokens=2, **arguments)


def test_without_a_compiler_text_is_written_as_ever_and_whoever_insists_is_told(monkeypatch):
    tried = []

    def broken(*_: object) -> torch.Tensor:
        tried.append(True)
        raise RuntimeError("no g++ here")

    monkeypatch.setattr(compiling, "_compiled", broken)
    monkeypatch.setattr(compiled, "_codes", {})
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    model = bl.Transformer(SMALL, seed=0)
    plain = bl.generate(model, PROMPT, max_new_tokens=9, compiled=False)
    assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=9), plain)
    with pytest.raises(BlocklabError, match=r"nothing can be compiled here: no g\+\+ here"):
        bl.generate(model, PROMPT, max_new_tokens=9, compiled=True)
    assert len(tried) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing here can compile")
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
