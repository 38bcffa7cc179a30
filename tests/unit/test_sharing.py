"""A sink that has fallen behind and joins the shared scan again."""

from __future__ import annotations

from lr_source.reader.assembly import PartitionAssembler
from lr_source.reader.sharing import JoinPoint
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import SendRecord, TxnId

FIRST, SECOND = TxnId(b"producer", 1), TxnId(b"producer", 2)


def read(assembler: PartitionAssembler, offset: int, txn: TxnId, record: int, *, last: bool = False) -> None:
    """Let an assembler have one record."""
    sent = SendRecord(ClientName("policy"), txn, (SiteId("site-b"),), record, last, 1, b"", 0)
    assembler.add(offset, sent, lambda: 1000)


def test_a_transaction_that_the_shared_scan_has_no_beginning_of_is_brought_by_the_own_one() -> None:
    """A scan that began in the middle of a transaction can only give it torn, so the other must not leave it to it."""
    shared, own = PartitionAssembler(20), PartitionAssembler(10)
    read(shared, 21, FIRST, 1)
    point = JoinPoint({0: shared.passed}, shared.open_whole)
    read(own, 10, FIRST, 0)
    read(own, 21, FIRST, 1)
    assert not point.reached_by({0: own.passed}, own.open_before(point.passed[0]))
    read(own, 30, FIRST, 2, last=True)
    assert point.reached_by({0: own.passed}, own.open_before(point.passed[0]))


def test_transactions_that_begin_after_the_join_point_do_not_put_the_joining_off() -> None:
    """Under a steady load some transaction is always open; the shared scan brings those that it sees whole."""
    shared, own = PartitionAssembler(0), PartitionAssembler(0)
    read(shared, 0, FIRST, 0)
    point = JoinPoint({0: shared.passed}, shared.open_whole)
    read(own, 0, FIRST, 0)
    read(own, 1, SECOND, 0)
    assert own.open_transactions == {FIRST, SECOND}
    assert point.reached_by({0: own.passed}, own.open_before(point.passed[0]))
