"""
From a complete transaction to what each destination gets of it. Pure.

A destination gets the records that are tagged for it, without the destinations, each with its place among them.
Nothing in that depends on the destination itself: destinations that get the same records share one `Delivery`, so the
bytes are built once however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lr_source.reader.assembly import CompleteTransaction
from lr_wire.codec import encode_receive_head
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Header, SendRecord, TxnId


@dataclass(slots=True)
class Outgoing:
    """One record for a receive queue."""

    value: bytes
    head_size: int
    timestamp_ms: int

    @property
    def body(self) -> memoryview:
        """What the running checksum covers."""
        return memoryview(self.value)[self.head_size :]


@dataclass(slots=True)
class Delivery:
    """What one transaction has for a destination."""

    client: ClientName
    partition: int
    txn: TxnId
    first_offset: int
    last_offset: int
    completed_at: int
    terminated: bool
    entries: int
    size: int
    records: list[Outgoing]


@dataclass(slots=True)
class Reject:
    """Records that must not be delivered: they belong together, and go to the dead letter as they are."""

    reason: str
    client: ClientName
    partition: int
    # None: not part of a transaction that can be told.
    transaction: CompleteTransaction | None
    records: list[RejectedRecord]

    @property
    def size(self) -> int:
        """Bytes that it holds in memory."""
        return sum(len(record.value or b"") for record in self.records)


@dataclass(slots=True)
class RejectedRecord:
    """A record of the send queue as it was found."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def route(partition: int, transaction: CompleteTransaction, only: SiteId | None = None) -> Mapping[SiteId, Delivery]:
    """Give each destination of a whole transaction what it gets; `only` one of them, if the others do not matter."""
    records = transaction.records
    if only is not None:
        records = [record for record in records if only in record.destinations]
        return {only: _delivery(partition, transaction, records)} if records else {}
    if len(records) == 1:
        return dict.fromkeys(records[0].destinations, _delivery(partition, transaction, records))
    numbers: dict[SiteId, list[int]] = {}
    for number, record in enumerate(records):
        for destination in record.destinations:
            numbers.setdefault(destination, []).append(number)
    made: dict[tuple[int, ...], Delivery] = {}
    routed = {}
    for destination, chosen in numbers.items():
        key = tuple(chosen)
        if key not in made:
            made[key] = _delivery(partition, transaction, [records[number] for number in chosen])
        routed[destination] = made[key]
    return routed


def reject_torn(partition: int, transaction: CompleteTransaction) -> Mapping[SiteId, Reject]:
    """Give each destination of a transaction that lacks a record what must go to its dead letter."""
    reason = (
        f"transaction {transaction.txn} is not whole: a record of it left the log or could not be understood, "
        f"{len(transaction.records)} records are here, the first of them is number {transaction.records[0].record}"
    )
    rejects: dict[SiteId, Reject] = {}
    for record in transaction.records:
        found = RejectedRecord(record.offset, record.timestamp_ms, None, record.value, [])
        for destination in record.destinations:
            reject = rejects.setdefault(destination, Reject(reason, transaction.client, partition, transaction, []))
            reject.records.append(found)
    return rejects


def _delivery(partition: int, transaction: CompleteTransaction, records: list[SendRecord]) -> Delivery:
    count = len(records)
    # Most transactions are one record: the sum's own machinery would cost them more than all the rest.
    entries = records[0].entries if count == 1 else sum(record.entries for record in records)
    completed_at = transaction.completed_at
    outgoing = []
    size = 0
    for number, record in enumerate(records):
        head = encode_receive_head(number, count, entries, completed_at)
        value = head + record.value[record.body_offset :]
        size += len(value)
        outgoing.append(Outgoing(value, len(head), record.timestamp_ms))
    return Delivery(
        transaction.client,
        partition,
        transaction.txn,
        transaction.first_offset,
        transaction.last_offset,
        completed_at,
        transaction.terminated,
        entries,
        size,
        outgoing,
    )
