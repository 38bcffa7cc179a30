"""Which partition of the send queue a transaction goes to."""

from __future__ import annotations

import time
from collections.abc import Callable

import xxhash


def partition_of(ordering_key: bytes, partitions: int) -> int:
    """Give the partition of a key: the same in every process and version, as long as the count stays."""
    return xxhash.xxh3_64_intdigest(ordering_key) % partitions


class PartitionCount:
    """How many partitions the send queue has, asked now and then."""

    def __init__(self, ask: Callable[[], int], max_age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._max_age_s = max_age_s
        self._clock = clock
        self._count = 0
        self._asked_at = 0.0

    def get(self) -> int:
        """Give the count; ask if it is not known or old."""
        now = self._clock()
        if not self._count or now - self._asked_at > self._max_age_s:
            self._count = self._ask()
            self._asked_at = now
        return self._count

    def forget(self) -> None:
        """Ask at the next time: something went wrong that could come from a count that is no longer true."""
        self._count = 0
