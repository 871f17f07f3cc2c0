"""One type, whatever it is called, wherever one is named."""

from pathlib import Path

import pytest
import torch

import blocklab as bl
from blocklab.cli.models import named_model
from blocklab.dtypes import dtype_called
from blocklab.errors import BlocklabError
from blocklab.training.numerics import Numerics

CALLED = {
    torch.float32: ["float32", "fp32", "torch.float32", torch.float32],
    torch.bfloat16: ["bf16", "bfloat16", "BF16", "torch.bfloat16", torch.bfloat16],
    torch.float16: ["float16", "fp16", "half", torch.float16],
    torch.float64: ["float64", "fp64", "double", torch.float64],
}
NAMES = [(name, dtype) for dtype, names in CALLED.items() for name in names]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = bl.presets.gpt2(d_model=16, n_heads=2, n_layers=1, vocab_size=256)
    model = bl.Transformer(config, seed=0)
    folder = tmp_path_factory.mktemp("there") / "model"
    return bl.export_huggingface(model, folder, tokenizer=bl.load_tokenizer("bytes"))


@pytest.mark.parametrize(("name", "dtype"), NAMES, ids=str)
def test_python_and_the_command_line_take_every_name(
    checkpoint: Path, name: str | torch.dtype, dtype: torch.dtype
) -> None:
    assert bl.load(checkpoint, dtype=name).model.embedding.weight.dtype == dtype
    if isinstance(name, str):
        assert named_model(str(checkpoint), name).model.embedding.weight.dtype == dtype


@pytest.mark.parametrize("name", ["int8", "bf61", "", torch.int8], ids=str)
def test_another_type_is_answered_with_the_same_list_everywhere(
    checkpoint: Path, name: str | torch.dtype
) -> None:
    offered = "expected one of float32, bf16, float16, float64"
    with pytest.raises(BlocklabError, match=f"^dtype {name}: {offered}$"):
        bl.load(checkpoint, dtype=name)
    with pytest.raises(BlocklabError, match=f"^--dtype {name}: {offered}$"):
        named_model(str(checkpoint), str(name))


def test_a_study_may_call_a_type_as_the_command_line_does_and_stores_one_name() -> None:
    for name in ("bf16", "bfloat16"):
        assert Numerics.parse({"dtype": name}).plain()["dtype"] == "bfloat16"
    assert Numerics.parse({"dtype": "fp32"}) == Numerics()
    with pytest.raises(BlocklabError, match=r"dtype: .* does not fit"):
        Numerics.parse({"dtype": "fp16"})


def test_every_type_that_is_offered_is_one_that_is_taken() -> None:
    with pytest.raises(BlocklabError) as refused:
        dtype_called("?")
    offered = str(refused.value).partition("one of ")[2].split(", ")
    assert {dtype_called(name) for name in offered} == CALLED.keys()
