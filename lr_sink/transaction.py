"""What an application is given: one whole source transaction, and the position that stands for having applied it."""

from __future__ import annotations

from dataclasses import dataclass

from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Applied, LogEntry, TxnId


@dataclass(frozen=True, slots=True)
class TxnPosition:
    """
    How far a partition of a queue is applied once its transaction is; stored together with the data it makes for
    exactly once (`SqlPositionStore.save`).
    """

    queue: str
    partition: int
    queue_id: str
    """Tells the queue from a later one of the same name, whose offsets mean something else."""

    applied: Applied

    follows: int | None
    """The offset that must be stored now, before this one; None if nothing is. Anything else is another's work."""

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.applied.next_offset

    def __str__(self) -> str:
        """Write it as people read it."""
        return f"{self.queue} partition {self.partition} offset {self.next_offset}"


@dataclass(frozen=True, slots=True)
class Transaction:
    """All that one source transaction has for this site and client."""

    id: TxnId
    source: SiteId
    client: ClientName
    queue: str
    partition: int
    entries: tuple[LogEntry, ...]
    """In the order in which the source's application handed them over."""

    position: TxnPosition
    completed_at: int
    """Where in the source's send queue the transaction was complete: grows within a partition."""

    attempt: int = 1
    """1 at the first call for this transaction, 2 at the second ..."""
