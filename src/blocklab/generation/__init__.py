"""Writing text with a model: sampling token by token, with a cache of keys and values."""

from blocklab.generation.cache import KeyValueCache
from blocklab.generation.sampler import generate, sample_tokens

__all__ = ["KeyValueCache", "generate", "sample_tokens"]
