"""A random order of n things that is computed, never stored: memory does not grow with n.

A keyed Feistel network permutes a power of four not smaller than n; cycle walking keeps to the
first n (Black & Rogaway 2002). Knows nothing of windows or tokens.
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8  # four make a random-looking permutation of large halves; small halves need more
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al. 2014): every bit in reaches every bit out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Permutation:
    """A permutation of range(n), a pure function of (n, key). n up to 2**62."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))  # bits in each half
        seeds = [(key + (i + 1) * _GOLDEN) & _MASK for i in range(_ROUNDS)]
        self._keys = _mixed(np.array(seeds, dtype=np.uint64))

    def __call__(self, places: NDArray[np.integer]) -> NDArray[np.int64]:
        """What stands at each of `places`, each in range(n)."""
        found = self._network(places.astype(np.uint64))
        # At most four slots a thing, so a walk is short; the network is a bijection, so it ends.
        while (outside := found >= np.uint64(self.n)).any():
            found[outside] = self._network(found[outside])
        return found.astype(np.int64)

    def _network(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low = np.uint64((1 << int(self._half)) - 1)
        left, right = x >> self._half, x & low
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & low)
        return (left << self._half) | right
