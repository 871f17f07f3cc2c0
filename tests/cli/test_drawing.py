"""Whoever names a seed wants something drawn."""

import pytest

import blocklab as bl


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=256, context_length=32)
    model = bl.Transformer(config, seed=0)
    place = tmp_path_factory.mktemp("there") / "model"
    return bl.export_huggingface(model, place, tokenizer=bl.load_tokenizer("bytes"))


def test_a_seed_draws_as_every_option_to_draw_does(run, folder):
    def written(*options):
        code, said, errors = run("generate", folder, "one", "--max-new-tokens", 12, *options)
        assert code == 0, errors
        return said, errors

    seeded = {seed: written("--seed", seed)[0] for seed in (1, 2, 3)}
    assert len(set(seeded.values())) == 3
    assert seeded[1] == written("--seed", 1)[0] == written("--seed", 1, "--temperature", 1)[0]
    greedy, told = written("--seed", 1, "--temperature", 0)
    assert greedy == written()[0]
    assert "temperature 0 takes the likeliest token, whatever else is asked" in told
    assert "temperature" not in written("--temperature", 0)[1]


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", "float16", "half", "fp32", "float64"])
def test_every_type_writes(run, folder, dtype):
    code, said, errors = run("generate", folder, "one", "--max-new-tokens", 3, "--dtype", dtype)
    assert code == 0, errors
    assert said.startswith("one")
