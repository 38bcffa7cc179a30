"""Finds out where a partition of a queue is to be begun."""

from __future__ import annotations

from dataclasses import dataclass

from lr_kafka import topics
from lr_kafka.clients import AdminClient
from lr_kafka.member import GroupMember, TopicPart
from lr_sink import positions
from lr_sink.positions import GroupPosition, Start
from lr_sink.store import PositionStore
from lr_sink.transaction import TxnPosition
from lr_wire.errors import BrokerError


@dataclass(frozen=True, slots=True)
class Opening:
    """Where to begin, in which queue."""

    start: Start
    queue_id: str


class Opener:
    """Reads the group's position, the store's, and where the queue begins and ends."""

    def __init__(
        self, member: GroupMember, admin: AdminClient, store: PositionStore | None, group: str, timeout_s: float
    ) -> None:
        """`timeout_s` is how long to wait for the committed offset."""
        self._member = member
        self._admin = admin
        self._store = store
        self._group = group
        self._timeout_s = timeout_s

    def open(self, part: TopicPart) -> Opening:
        """
        Find where to begin, and bring the store up to date if a dead letter has overtaken it.

        Raises QueueTrimmed or QueueReplaced if it cannot be begun, WireError if the committed offset is not LR's; a
        BrokerError, or whatever the store's database raises, if it must be tried again.
        """
        queue, partition = part
        info = topics.describe(self._admin, queue)
        if info is None:
            raise BrokerError(f"{queue} is gone", hint="the group notices by itself", retriable=True)
        stored = self._store.load(queue, partition) if self._store else None
        positions.check_identity(queue, partition, stored, info.id)
        found = self._member.committed_offset(part, self._timeout_s)
        committed = GroupPosition.parse(*found) if found else None
        start = positions.choose(stored.applied if stored else None, committed, has_store=self._store is not None)
        log_start = topics.log_starts(self._admin, queue, [partition])[partition]
        log_end = topics.high_watermarks(self._admin, queue, [partition])[partition]
        positions.check(queue, partition, start, log_start, log_end, self._group)
        if self._store and start.tell_store:
            self._store.move(TxnPosition(queue, partition, info.id, start.applied, start.stored))
            start = Start(start.applied, start.applied.next_offset)
        return Opening(start, info.id)
