"""
Transactions from the records of one partition of the send queue. Pure.

Records of many producers' transactions interleave in a partition. `PartitionAssembler` collects them by transaction and
gives each one out when it is complete, so the order of what comes out is the order of completion.

A transaction is complete with the record that says it is the last one. One that the application committed around LR
has no such record. Such a transaction is complete when the reading has passed the high watermark seen on first
meeting it: a record that a `read_committed` reader is shown belongs to a committed transaction, whose commit marker
lies below that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lr_wire.naming import ClientName
from lr_wire.records import SendRecord, TxnId


@dataclass(slots=True)
class CompleteTransaction:
    """All records of one transaction, in the order in which they were written."""

    client: ClientName
    txn: TxnId
    records: list[SendRecord]
    first_offset: int
    last_offset: int
    # The offset at which it was known to be complete; never falls from one transaction of a partition to the next.
    completed_at: int
    # False: no record said that it is the last one.
    terminated: bool = True
    # A record of it is not in the log any more, or could not be understood: it must not be delivered.
    torn: bool = False


@dataclass(slots=True)
class _OpenTransaction:
    transaction: CompleteTransaction
    # Everything of it lies below this offset.
    bound: int
    # A record that could not be understood lies behind its first one: it may have been one of its own.
    suspect: bool = False


class PartitionAssembler:
    """The transactions of one partition that are not complete yet, and how far the partition was read."""

    def __init__(self, start: int) -> None:
        """Begin reading at `start`."""
        self.passed = start
        # In the order of first meeting, hence of first offsets; and of bounds, since a high watermark only grows.
        # An OrderedDict, because a dict whose head is taken away again and again is slow to find its head.
        self._open: OrderedDict[TxnId, _OpenTransaction] = OrderedDict()

    @property
    def resume_from(self) -> int:
        """Where a reader that knows nothing must begin in order to see every incomplete transaction whole."""
        for oldest in self._open.values():
            return oldest.transaction.first_offset
        return self.passed

    @property
    def open_transactions(self) -> frozenset[TxnId]:
        """The transactions that are not complete yet."""
        return frozenset(self._open)

    @property
    def open_whole(self) -> frozenset[TxnId]:
        """Those of them that were seen from their first record on: the reading may have begun in their middle."""
        return frozenset(txn for txn, found in self._open.items() if not found.transaction.torn)

    def open_before(self, offset: int) -> frozenset[TxnId]:
        """Those of them that began before `offset`."""
        return frozenset(txn for txn, found in self._open.items() if found.transaction.first_offset < offset)

    def add(self, offset: int, record: SendRecord, high_watermark: Callable[[], int]) -> Sequence[CompleteTransaction]:
        """Take the record at `offset` in; give out what is complete now."""
        record.offset = offset
        self.passed = offset + 1
        txn = record.txn
        found = self._open.get(txn)
        if found is None:
            transaction = CompleteTransaction(record.client, txn, [record], offset, offset, offset)
            transaction.torn = record.record != 0
            if not record.last:
                self._open[txn] = _OpenTransaction(transaction, high_watermark())
        else:
            transaction = found.transaction
            if record.record != len(transaction.records) or record.client != transaction.client:
                transaction.torn = True
            transaction.records.append(record)
            transaction.last_offset = transaction.completed_at = offset
            if record.last:
                del self._open[txn]
        if not self._open:
            return (transaction,)
        complete = self._passed_bounds()
        if record.last:
            complete.append(transaction)
        return complete

    def unreadable(self, offset: int) -> Sequence[CompleteTransaction]:
        """
        Pass a record that cannot be understood; give out what is complete now.

        It may be a record of any open transaction. One in the middle leaves a gap in the numbers. The last one leaves
        nothing: a transaction that then ends without a last record is not known to be whole, and counts as torn.
        """
        for found in self._open.values():
            found.suspect = True
        return self.advance(offset + 1)

    def advance(self, passed: int) -> Sequence[CompleteTransaction]:
        """Note that there is nothing more before `passed`; give out what is complete now."""
        if passed <= self.passed:
            return ()
        self.passed = passed
        return self._passed_bounds()

    def _passed_bounds(self) -> list[CompleteTransaction]:
        complete = []
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.bound > self.passed:
                break
            transaction = oldest.transaction
            transaction.completed_at = self.passed - 1
            transaction.terminated = False
            transaction.torn = transaction.torn or oldest.suspect
            complete.append(transaction)
            del self._open[transaction.txn]
        return complete
