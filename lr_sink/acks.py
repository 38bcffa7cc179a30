"""
Applied positions on their way into the consumer group's committed offsets, in batches.

One commit is under way at a time. Two could overtake one another when the first is repeated after a failure, and the
group would forget what it had already: the transactions in between would come a second time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from lr_kafka.backoff import Backoff
from lr_kafka.groups import Committed
from lr_kafka.member import TopicPart
from lr_sink.positions import GroupPosition
from lr_sink.settings import ListenerSettings
from lr_wire.errors import BrokerError

log = structlog.get_logger()


class Committer(Protocol):
    """What carries the commits out: a `GroupMember`."""

    def commit(self, offsets: Mapping[TopicPart, Committed]) -> None:
        """Send a commit; its result comes later."""

    def commit_now(self, offsets: Mapping[TopicPart, Committed]) -> None:
        """Commit and wait for the result."""


class Acks:
    """What is applied but not committed yet."""

    def __init__(
        self,
        committer: Committer,
        settings: ListenerSettings,
        on_durable: Callable[[TopicPart, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_durable` is called with what the group has committed for sure."""
        self._committer = committer
        self._settings = settings
        self._on_durable = on_durable
        self._clock = clock
        self._backoff = Backoff(settings.retry_initial_s, settings.retry_max_s)
        self._waiting: dict[TopicPart, GroupPosition] = {}
        self._sent: dict[TopicPart, GroupPosition] = {}
        self._transactions = 0
        self._due = math.inf
        self.in_flight = False

    @property
    def due(self) -> float:
        """When there is something to send next."""
        return math.inf if self.in_flight else self._due

    @property
    def empty(self) -> bool:
        """Whether everything applied is committed."""
        return not (self._waiting or self.in_flight)

    def applied(self, part: TopicPart, position: GroupPosition) -> None:
        """Take a position after a transaction was applied."""
        if not self._waiting:
            self._due = min(self._due, self._clock() + self._settings.ack_s)
        self._waiting[part] = position
        self._transactions += 1
        if self._transactions >= self._settings.ack_transactions and not self._backoff.failures:
            self._due = 0.0

    def holds(self, part: TopicPart) -> bool:
        """Tell whether a position of this partition is not committed yet."""
        return part in self._waiting or part in self._sent

    def hurry(self) -> None:
        """Send what is there as soon as possible: somebody waits for it. After a failure its wait is kept, though."""
        if self._waiting and not self._backoff.failures:
            self._due = 0.0

    def send(self) -> None:
        """Send what is there, unless a commit is under way."""
        if self.in_flight:
            return
        self._due = math.inf
        if not self._waiting:
            return
        self._sent, self._waiting = self._waiting, {}
        self._transactions = 0
        self.in_flight = True
        try:
            self._committer.commit(_offsets(self._sent))
        except BrokerError as problem:
            self.answered(dict.fromkeys(self._sent, problem))

    def answered(self, results: Mapping[TopicPart, BrokerError | None]) -> None:
        """Take note of what became of the commit that was sent."""
        sent, self._sent = self._sent, {}
        self.in_flight = False
        problems = {part: problem for part, problem in results.items() if problem and part in sent}
        for part, position in sent.items():
            if part not in problems:
                self._on_durable(part, position.applied.next_offset)
            else:
                # A newer position that came meanwhile replaces it.
                self._waiting.setdefault(part, position)
        if problems:
            wait_s = self._backoff.next_s()
            self._due = self._clock() + wait_s
            log.warning("listener.commit_failed", error=str(next(iter(problems.values()))), again_in_s=round(wait_s, 1))
        else:
            self._backoff.reset()

    def surrender(self, parts: Collection[TopicPart]) -> None:
        """Commit what is left of partitions that go to another member, at once."""
        left = {part: at for part, at in (self._sent | self._waiting).items() if part in parts}
        self.forget(parts)
        if left:
            try:
                self._committer.commit_now(_offsets(left))
            except BrokerError as problem:
                # The next owner begins at the position before, and gets again what no position store knows of.
                log.warning("listener.commit_failed", error=str(problem), partitions=[tuple(part) for part in left])

    def forget(self, parts: Collection[TopicPart]) -> None:
        """Leave partitions alone: they are another member's, or a newer position was committed otherwise."""
        for part in parts:
            self._sent.pop(part, None)
            self._waiting.pop(part, None)


def _offsets(positions: Mapping[TopicPart, GroupPosition]) -> dict[TopicPart, Committed]:
    return {part: Committed(at.applied.next_offset, at.metadata()) for part, at in positions.items()}
