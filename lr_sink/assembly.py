"""
Transactions from records, all or nothing.

The reader writes a source transaction's records for this sink one after the other into one partition, within one Kafka
transaction: record 0 of n, 1 of n ... With `read_committed` they become visible together. So whatever does not fit (a
number that is missing or comes twice, a count that is not met, a partition that ends in the middle) is no matter of
waiting: it is torn, and said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from lr_wire import codec
from lr_wire.errors import WireError
from lr_wire.records import Applied, LogEntry, ReceiveRecord, RunningTotal, TxnId

R = TypeVar("R")
"""The record as it came from Kafka: kept, since a dead letter needs the original."""


@dataclass(frozen=True, slots=True)
class Whole(Generic[R]):
    """All records of one source transaction."""

    txn: TxnId
    entries: tuple[LogEntry, ...]
    completed_at: int
    bodies: tuple[bytes, ...]
    raw: tuple[R, ...]
    first_offset: int
    next_offset: int

    def after(self, applied: Applied) -> Applied:
        """Give the position once this transaction is applied, too."""
        total = applied.total
        checksum = total.checksum
        for body in self.bodies:
            checksum = codec.extend_checksum(checksum, body)
        counted = RunningTotal(total.transactions + 1, total.entries + len(self.entries), checksum)
        return Applied(self.next_offset, counted, self.completed_at)


@dataclass(frozen=True, slots=True)
class Torn(Generic[R]):
    """Records that make no transaction, and why."""

    reason: str
    raw: tuple[R, ...]
    first_offset: int
    next_offset: int

    def after(self, applied: Applied) -> Applied:
        """Give the position behind these records. They count as nothing: the reader's total does not know them."""
        return Applied(self.next_offset, applied.total, applied.completed_at)


@dataclass(frozen=True, slots=True)
class _Part(Generic[R]):
    offset: int
    record: ReceiveRecord
    raw: R


class Assembler(Generic[R]):
    """The records of one partition, one after the other."""

    def __init__(self) -> None:
        """Begin between two transactions."""
        self._parts: list[_Part[R]] = []

    def feed(self, offset: int, value: bytes | None, raw: R) -> list[Whole[R] | Torn[R]]:
        """Take the next record; give what it completes or shows to be torn, in the order of the queue."""
        try:
            record = codec.decode_receive(value)
        except WireError as error:
            cut = self._cut("a record that cannot be understood follows")
            return [*cut, Torn(str(error), (raw,), offset, offset + 1)]
        part = _Part(offset, record, raw)
        found: list[Whole[R] | Torn[R]] = []
        if misfit := self._misfit(record):
            found += self._cut(misfit)
            if record.record != 0:
                found.append(_torn(f"record {record.record} of {record.records} without those before it", [part]))
                return found
        self._parts.append(part)
        if len(self._parts) == record.records:
            parts, self._parts = self._parts, []
            found.append(_join(parts))
        return found

    def at_end(self) -> list[Torn[R]]:
        """Take note that the partition has no further record now: a transaction that has begun is torn."""
        return self._cut("the queue ends there")

    def _misfit(self, record: ReceiveRecord) -> str:
        """Tell why a record does not continue what has begun; empty if it does."""
        if not self._parts:
            return "" if record.record == 0 else "nothing has begun"
        first = self._parts[0].record
        if record.txn != first.txn:
            return f"a record of transaction {record.txn} follows"
        if record.record != len(self._parts):
            return f"record {record.record} follows"
        same = attrgetter("records", "entries_in_txn", "completed_at")
        return "" if same(record) == same(first) else "the next record tells other counts"

    def _cut(self, then: str) -> list[Torn[R]]:
        parts, self._parts = self._parts, []
        if not parts:
            return []
        first = parts[0].record
        return [_torn(f"transaction {first.txn} has {len(parts)} of its {first.records} records, then {then}", parts)]


def _join(parts: Sequence[_Part[R]]) -> Whole[R] | Torn[R]:
    first = parts[0].record
    entries = sorted((entry for part in parts for entry in part.record.entries), key=attrgetter("index"))
    if len(entries) != first.entries_in_txn:
        return _torn(f"transaction {first.txn} has {len(entries)} of its {first.entries_in_txn} entries", parts)
    if len({entry.index for entry in entries}) != len(entries):
        return _torn(f"two entries of transaction {first.txn} have the same index", parts)
    return Whole(
        first.txn,
        tuple(entries),
        first.completed_at,
        tuple(part.record.body for part in parts),
        tuple(part.raw for part in parts),
        parts[0].offset,
        parts[-1].offset + 1,
    )


def _torn(reason: str, parts: Sequence[_Part[R]]) -> Torn[R]:
    return Torn(reason, tuple(part.raw for part in parts), parts[0].offset, parts[-1].offset + 1)
