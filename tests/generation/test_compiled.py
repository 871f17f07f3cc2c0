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
from blocklab.model.config import ModelConfig
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

    monkeypatch.setattr(
        compiled, "_compiled", lambda f: torch.compile(f, fullgraph=True, backend=as_it_stands)
    )
    return made


@pytest.fixture
def traced(monkeypatch):
    torch.compiler.reset()
    yield only_traced(monkeypatch)
    torch.compiler.reset()


@some_configs
@given(configs(), st.integers(1, 4))
def test_the_logits_are_the_models_in_every_combination(config: ModelConfig, length: int) -> None:
    model, tokens = randomized(config), random_tokens(batch=1)
    assume(compiled.compilable(model))
    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        only_traced(patch)
        cache, other = (KeyValueCache.of(model, 1, CONTEXT) for _ in range(2))
        model(tokens[:, :length], cache=cache)
        model(tokens[:, :length], cache=other)
        reading = compiled.CompiledReading(model)
        for place in range(length, CONTEXT):
            new = tokens[:, place : place + 1]
            expected = model(new, cache=other)[:, -1]
            torch.testing.assert_close(reading.logits(new, cache), expected, rtol=1e-9, atol=1e-10)
    assert cache.complete and cache.length == CONTEXT


def test_layers_built_alike_caches_and_places_share_what_was_compiled(traced):
    model = bl.Transformer(SMALL.with_changes({"n_layers": 5}), seed=0)
    for prompt, new in ((3, 2), (3, 60), (3, 9), (1, 100), (20, 5)):
        bl.generate(model, random_tokens(1, prompt), max_new_tokens=new, compiled=True)
    assert len(traced) == 2  # the block and the head


@pytest.mark.usefixtures("traced")
def test_the_text_is_the_one_that_is_written_without():
    model = bl.Transformer(SMALL, seed=0)
    plain = bl.generate(model, PROMPT, max_new_tokens=140, compiled=False)
    assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=140, compiled=True), plain)


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
        {"tokens": PROMPT.repeat(2, 1)},
        {"attention_mask": torch.tensor([[0, 1, 1]])},
        {"use_cache": False},
    ],
    ids=["experts", "two sequences", "padding", "no cache"],
)
def test_what_cannot_be_compiled_is_refused_before_the_first_token(changes, monkeypatch):
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    given_to = {"tokens", "attention_mask", "use_cache"}
    model = bl.Transformer(
        SMALL.with_changes({k: v for k, v in changes.items() if k not in given_to}), seed=0
    )
    arguments = {"tokens": PROMPT} | {k: v for k, v in changes.items() if k in given_to}
    tokens = arguments.pop("tokens")
    with pytest.raises(BlocklabError, match="only one sequence at a time"):
        sampler.sample_tokens(model, tokens, max_new_tokens=2, compiled=True, **arguments)
    bl.generate(model, tokens, max_new_tokens=2, **arguments)


def test_without_a_compiler_text_is_written_as_ever_and_whoever_insists_is_told(monkeypatch):
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no g++ here")

    monkeypatch.setattr(compiled, "_compiled", lambda function: broken)
    monkeypatch.setattr(compiled, "COMPILED_FROM", 0)
    model = bl.Transformer(SMALL, seed=0)
    plain = bl.generate(model, PROMPT, max_new_tokens=9, compiled=False)
    assert torch.equal(bl.generate(model, PROMPT, max_new_tokens=9), plain)
    with pytest.raises(BlocklabError, match=r"nothing can be compiled here: no g\+\+ here"):
        bl.generate(model, PROMPT, max_new_tokens=9, compiled=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing here can compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_machine_code_is_as_exact_as_the_model_as_it_is(dtype: torch.dtype) -> None:
    model, tokens = bl.Transformer(SMALL, seed=0).to(dtype).eval(), random_tokens(1, 40)
    exact = copy.deepcopy(model).double()
    reading, cache = compiled.CompiledReading(model), KeyValueCache.of(model, 1, 40)
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        found = [reading.logits(tokens[:, i : i + 1], cache) for i in range(5, 40)]
        errors = [
            (logits.double() - exact(tokens)[0, 5:]).pow(2).mean().sqrt()
            for logits in (torch.cat(found), model(tokens)[0, 5:])
        ]
    assert errors[0] <= 1.2 * errors[1]
