"""Random streams that do not disturb one another.

Data order, initialisation, dropout and evaluation each draw from a stream of their own, named by
labels. A stream's seed is a pure function of those labels, so adding a variant, an evaluation or a
worker moves no other stream.
"""

import hashlib


def stream_seed(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for the stream named by `labels` under `seed`.

    Labels are joined with their type, so ("1",) and (1,) name different streams.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *labels))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
