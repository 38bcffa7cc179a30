"""Waits that grow with each failure."""

from __future__ import annotations

import random


class Backoff:
    """The wait before the next attempt: doubling from `initial_s` to `max_s`, with jitter, reset by success only."""

    def __init__(self, initial_s: float, max_s: float) -> None:
        """Begin with `initial_s`."""
        self._initial_s = initial_s
        self._max_s = max_s
        self.failures = 0

    def next_s(self) -> float:
        """Count a failure and give the wait after it; the jitter keeps many waiters from coming back together."""
        # Past 2**32 the product is beyond any maximum; the bound keeps the power from overflowing a float.
        longest = min(self._max_s, self._initial_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return random.uniform(longest / 2, longest)  # noqa: S311 - not cryptography

    def reset(self) -> None:
        """Begin again: the whole chain worked."""
        self.failures = 0
