"""What we write is what the safetensors library reads."""

import io

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklab.errors import BlocklabError
from blocklab.training.tensors import _NAMES, _write, write_tensors

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def tensors(draw):
    chosen = draw(
        st.dictionaries(st.text(max_size=5), st.tuples(st.sampled_from(list(_NAMES)), SHAPES))
    )
    return {
        name: torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
        .bitwise_and(1 if dtype == torch.bool else 255)
        .view(dtype)
        .reshape(shape)
        for name, (dtype, shape) in chosen.items()
        if name != "__metadata__"
    }


@settings(max_examples=50, deadline=None)
@given(tensors(), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_every_type_and_shape_is_read_back_with_what_was_said_about_it(
    tmp_path_factory, stored, metadata
):
    path = tmp_path_factory.mktemp("tensors") / "file.safetensors"
    write_tensors(path, stored, metadata)
    with safetensors.safe_open(path, framework="pt") as file:
        assert (file.metadata() or {}) == metadata
        assert set(file.keys()) == set(stored)
    for name, tensor in safetensors.torch.load_file(path).items():
        assert (tensor.dtype, tensor.shape) == (stored[name].dtype, stored[name].shape)
        assert torch.equal(_bytes(tensor), _bytes(stored[name]))


def _bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def test_every_number_begins_at_a_multiple_of_its_size():
    stored = {str(dtype): torch.ones(3, dtype=dtype) for dtype in _NAMES}
    file = io.BytesIO()
    _write(file, stored, {"odd": "x" * 13})
    start = 8 + int.from_bytes(file.getvalue()[:8], "little")
    assert start % 8 == 0
    named = safetensors.deserialize(file.getvalue())
    assert len(named) == len(stored)
    offset = 0
    for name, about in sorted(named, key=lambda item: -stored[item[0]].element_size()):
        assert offset % stored[name].element_size() == 0
        offset += len(about["data"])


def test_no_tensor_is_copied_on_its_way_to_the_disk():
    class Watched(io.BytesIO):
        def write(self, data):
            if isinstance(data, memoryview):
                addresses.append(np.frombuffer(data, np.uint8).ctypes.data)
            return super().write(data)

    addresses = []
    stored = {"a": torch.ones(5), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    _write(Watched(), stored, {})
    assert addresses == [tensor.data_ptr() for tensor in stored.values()]


def test_a_type_that_the_format_lacks_is_refused_by_name(tmp_path):
    with pytest.raises(BlocklabError, match=r"'phase': torch\.complex128"):
        write_tensors(tmp_path / "x", {"phase": torch.ones(2, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []
