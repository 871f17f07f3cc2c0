"""Writing text with a model: sampling token by token, with a cache of keys and values."""

from blocklab.generation.cache import KeyValueCache
from blocklab.generation.sampler import PastContext, generate, sample_tokens
from blocklab.generation.sampling import Sampling
from blocklab.generation.text import Written, generate_text

__all__ = [
    "KeyValueCache",
    "PastContext",
    "Sampling",
    "Written",
    "generate",
    "generate_text",
    "sample_tokens",
]
