"""
Deletes what is applied from the receive queues.

Only below a position that the group has committed for sure: whatever happens next, no listener asks for it again. That
the deletion works is not needed for anything but disk space, so a failure is logged and tried again later.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import structlog

from lr_kafka.backoff import Backoff
from lr_kafka.member import TopicPart
from lr_wire.errors import BrokerError

log = structlog.get_logger()

# Missing rights, say, will not come soon: ask ever less often, down to this.
_MAX_WAIT_S = 600.0

DeleteBefore = Callable[[str, Mapping[int, int]], object]
"""Deletes the records of a topic before an offset in each partition."""


class Trimmer:
    """What can be deleted but is not yet."""

    def __init__(
        self, delete_before: DeleteBefore, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Delete at most every `interval_s`."""
        self._delete_before = delete_before
        self._interval_s = interval_s
        self._clock = clock
        self._backoff = Backoff(interval_s, max(interval_s, _MAX_WAIT_S))
        self._waiting: dict[TopicPart, int] = {}
        self.due = math.inf

    def durable(self, part: TopicPart, next_offset: int) -> None:
        """Take note that everything before `next_offset` is applied, and that this is recorded for good."""
        if not self._waiting:
            self.due = self._clock() + self._interval_s
        self._waiting[part] = next_offset

    def forget(self, parts: Collection[TopicPart]) -> None:
        """Leave partitions alone that are another member's now: it deletes for itself."""
        for part in parts:
            self._waiting.pop(part, None)

    def delete(self) -> None:
        """Delete what is there, one request per queue."""
        waiting, self._waiting = self._waiting, {}
        self.due = math.inf
        queues: dict[str, dict[int, int]] = defaultdict(dict)
        for part, offset in waiting.items():
            queues[part.topic][part.partition] = offset
        failed = False
        for queue, offsets in queues.items():
            try:
                self._delete_before(queue, offsets)
            except BrokerError as problem:
                failed = True
                self._waiting |= {TopicPart(queue, partition): offset for partition, offset in offsets.items()}
                log.warning("listener.delete_failed", queue=queue, error=str(problem))
        if failed:
            self.due = self._clock() + self._backoff.next_s()
        elif queues:
            self._backoff.reset()
