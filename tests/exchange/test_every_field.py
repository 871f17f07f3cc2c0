"""No field of any config.json may change what transformers computes and leave our logits alone.

Each field of each reference is changed in turn. Whatever both sides then still load must give the
same logits; refusing is always allowed, computing something else never.
"""

import copy
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import blocklab as bl
from tests.exchange.references import CASES, choose_exact_experts, ids, reference, save

transformers = pytest.importorskip("transformers")

OTHER_WORDS = ("silu", "gelu", "gelu_new", "relu", "full_attention", "yarn", "linear", "default")


def changed(value: object) -> Iterator[object]:
    """Other values that a field might have."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2, max(1, value // 2))
    elif isinstance(value, float):
        yield from (value * 2 + 0.25, value / 2)
    elif isinstance(value, str):
        yield from (word for word in OTHER_WORDS if word != value)
    elif isinstance(value, list) and value:
        yield value[::-1]
        yield [value[0]] * len(value)
    elif value is None:
        yield from (4, True, 0.5, "gelu")
    yield None


def mutations(config: dict) -> Iterator[tuple[str, dict]]:
    for name, value in config.items():
        if name in ("model_type", "architectures"):
            continue
        without = copy.deepcopy(config)
        del without[name]
        yield f"{name} missing", without
        if isinstance(value, dict):
            for inner, mutated in mutations(value):
                yield f"{name}.{inner}", config | {name: mutated}
        for other in changed(value):
            yield f"{name}={other!r}", config | {name: copy.deepcopy(other)}


def theirs(folder: Path, described: dict) -> torch.Tensor | None:
    """Transformers' logits with this config.json, None where it refuses."""
    (folder / "config.json").write_text(json.dumps(described))
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
        )
        if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
            return None
        choose_exact_experts(model.config)
        with torch.no_grad():
            return model.eval()(ids(24)).logits
    except Exception:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_changed_field_is_refused_or_means_what_it_means_to_transformers(
    tmp_path: Path, name: str
) -> None:
    save(reference(name), tmp_path)
    original = json.loads((tmp_path / "config.json").read_text())
    compared, wrong = 0, []
    for what, described in mutations(original):
        (tmp_path / "config.json").write_text(json.dumps(described))
        try:
            with torch.no_grad():
                ours = bl.load(tmp_path, dtype=torch.float64).model(ids(24))
        except bl.BlocklabError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs(tmp_path, described)
        if expected is None:
            continue
        compared += 1
        if not torch.allclose(ours, expected, rtol=0, atol=1e-4):
            wrong.append(f"{what}: off by {float((ours - expected).abs().max()):.2g}")
    assert wrong == []
    assert compared > 10
