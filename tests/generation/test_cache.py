"""The cache's shapes and limits; that it changes no logits is proven for every combination."""

import pytest
import torch

import blocklab as bl
from blocklab.errors import BlocklabError
from blocklab.generation.cache import KeyValueCache

CONFIG = bl.presets.llama(
    d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, vocab_size=11, context_length=8
)


def test_buffers_hold_key_value_heads_and_not_heads() -> None:
    cache = KeyValueCache(CONFIG, batch_size=3, capacity=8)
    shapes = [(layer.keys.shape, layer.values.shape) for layer in map(cache.layer, range(2))]
    assert shapes == [((3, 2, 8, 8), (3, 2, 8, 8))] * 2


def test_each_layer_has_its_own_sizes() -> None:
    config = CONFIG.with_changes(
        {"blocks.1.attention.n_kv_heads": 4, "blocks.1.attention.head_dim": 6}
    )
    cache = KeyValueCache(config, batch_size=1, capacity=5)
    assert cache.layer(0).keys.shape == (1, 2, 5, 8)
    assert cache.layer(1).keys.shape == (1, 4, 5, 6)


def test_buffers_are_of_the_models_dtype_and_stay_where_they_are() -> None:
    model = bl.Transformer(CONFIG).double().eval()
    cache = KeyValueCache.of(model, batch_size=1, capacity=8)
    place = cache.layer(0).keys.data_ptr()
    for _ in range(3):
        model(torch.zeros(1, 2, dtype=torch.long), cache=cache)
    assert cache.length == 6
    assert cache.complete
    assert cache.layer(0).keys.dtype == torch.float64
    assert cache.layer(0).keys.data_ptr() == place


def test_what_is_appended_comes_back_after_what_was_there() -> None:
    cache = KeyValueCache(CONFIG, batch_size=1, capacity=5)
    keys, values = torch.randn(2, 1, 2, 4, 8).unbind()
    cache.layer(0).extend(keys[:, :, :3], values[:, :, :3])
    cache.advance(3)
    all_keys, all_values = cache.layer(0).extend(keys[:, :, 3:], values[:, :, 3:])
    assert torch.equal(all_keys, keys)
    assert torch.equal(all_values, values)


WINDOWED = CONFIG.with_changes({"blocks.1.attention.window": 3})


def test_a_windowed_layer_holds_its_window_and_no_more() -> None:
    cache = KeyValueCache(WINDOWED, batch_size=1, capacity=8)
    assert cache.layer(0).keys.shape == (1, 2, 8, 8)
    assert cache.layer(1).keys.shape == (1, 2, 3, 8)
    assert KeyValueCache(WINDOWED, batch_size=1, capacity=2).layer(1).keys.shape == (1, 2, 2, 8)


@pytest.mark.parametrize("chunks", [[1] * 8, [8], [2, 1, 1, 4], [5, 1, 2], [3, 3, 2], [1, 7]])
def test_a_ring_gives_each_query_its_window_in_the_order_it_says(chunks: list[int]) -> None:
    cache = KeyValueCache(WINDOWED, batch_size=1, capacity=8)
    numbers = torch.arange(8.0).view(1, 1, 8, 1).expand(1, 2, 8, 8)
    start = 0
    for n in chunks:
        new = numbers[:, :, start : start + n]
        keys, values = cache.layer(1).extend(new, -new)
        cache.advance(n)
        start += n
        seen = keys[0, 0, :, 0].int().tolist()
        assert torch.equal(keys, -values)
        if n == 1:
            expected = range(max(0, start - 3), start)
            assert seen == sorted(expected, key=lambda slot: slot % len(expected))
        else:
            assert seen == list(range(max(0, start - n - 2), start))


def test_one_token_too_many_is_refused_by_number() -> None:
    model = bl.Transformer(CONFIG).eval()
    cache = KeyValueCache.of(model, batch_size=1, capacity=5)
    model(torch.zeros(1, 5, dtype=torch.long), cache=cache)
    with pytest.raises(BlocklabError, match="6 tokens do not fit a cache with room for 5"):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)


def test_a_mask_must_cover_the_cached_tokens_too() -> None:
    model = bl.Transformer(CONFIG).eval()
    cache = KeyValueCache.of(model, batch_size=1, capacity=5)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    model(tokens, torch.ones(1, 2), cache)
    with pytest.raises(BlocklabError, match=r"shape \(1, 2\), expected \(1, 4\)"):
        model(tokens, torch.ones(1, 2), cache)
