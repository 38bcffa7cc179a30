"""What an audit looks at, and what it finds. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum

from lr_wire.naming import SessionKey
from lr_wire.records import Applied, RunningTotal, TxnId


class Kind(StrEnum):
    """What can be wrong with what a sink has."""

    MISSING = "missing"
    """A transaction that the position counts as forwarded is not in the queue, and was not applied either."""

    DUPLICATE = "duplicate"
    """A transaction, or a record of it, is there more than once."""

    TORN = "torn"
    """Some of a transaction's records are there, others are not."""

    OUT_OF_ORDER = "out_of_order"
    """A transaction, or a record within it, does not stand where it was completed at the source."""

    MISROUTED = "misrouted"
    """It is there, but belongs to another sink, client or partition."""

    CHANGED = "changed"
    """The bytes, or the place in the transaction, are not those of the source."""

    PHANTOM = "phantom"
    """The source has no such transaction: it was aborted there, or never written."""

    TOTALS = "totals"
    """The running counts and checksums of both ends differ, and nothing that is still there explains it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What one whole transaction of the source's log has for a session."""

    txn: TxnId
    completed_at: int
    last_offset: int
    digests: tuple[int, ...]
    """Of the records' bodies, in their order."""

    entries: int
    terminated: bool = True
    """False: no record says that it is the last one, so each reader finds out at another offset that it is complete."""


@dataclass(frozen=True, slots=True)
class Got:
    """One record of a receive queue."""

    offset: int
    txn: TxnId
    record: int
    records: int
    completed_at: int
    digest: int
    entries: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Broken:
    """A record of a receive queue that cannot be understood."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The running totals of one session partition up to the cut; None where one end cannot tell."""

    reader: RunningTotal | None = None
    """What the reader wrote with the position."""

    source: RunningTotal | None = None
    """The same, computed again from the source's log, if that still begins at offset 0."""

    sink: RunningTotal | None = None
    """What the listener has applied, extended by what waits in the queue."""


@dataclass(slots=True)
class Evidence:
    """All that is known about one partition of a session, at one cut."""

    session: SessionKey
    partition: int

    # The source's log.
    sent: Sequence[Sent] = ()
    """Transactions that the position says are forwarded, in the order of completion."""

    pending: Sequence[Sent] = ()
    """Transactions that are still to be forwarded."""

    torn_at_source: AbstractSet[TxnId] = frozenset()
    """Transactions that the source's log does not have whole; the reader must not deliver them."""

    headless: AbstractSet[TxnId] = frozenset()
    """Transactions whose beginning has left the source's log: nothing can be said about them."""

    source_start: int = 0
    source_start_ms: int = 0
    """When the oldest record that the source's log still has was written."""

    # The sink's queue.
    got: Sequence[Got] = ()
    broken: Sequence[Broken] = ()
    queue_start: int = 0
    applied: Applied | None = None

    # The sink's position.
    cut: int | None = None
    """`forwarded_through` as read before the queue, so everything up to it must be there; None without a position."""

    newest_cut: int | None = None
    """`forwarded_through` as read after the queue, so nothing beyond it may be there."""

    totals: Totals = Totals()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: Kind
    session: SessionKey
    partition: int
    detail: str
    txn: TxnId | None = None
    offset: int | None = None
    """In the receive queue."""


class TotalsResult(StrEnum):
    """What comparing the running totals gave."""

    MATCH = "match"
    DIFFER = "differ"
    UNKNOWN = "unknown"
    """One end has nothing to compare with."""


@dataclass(slots=True)
class PartitionReport:
    """The audit of one partition of a session."""

    session: SessionKey
    partition: int
    forwarded: int = 0
    """Transactions, as the reader counts them."""

    applied: int = 0
    """Transactions, as the listener counts them."""

    waiting: int = 0
    """Transactions that are in the queue and not applied yet."""

    pending: int = 0
    """Transactions in the source's log that are not forwarded yet."""

    compared: int = 0
    """Transactions that both logs still have, compared record by record."""

    totals: TotalsResult = TotalsResult.UNKNOWN
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a transaction of the source's log belongs."""

    session: SessionKey
    partition: int
    sent: Sent
