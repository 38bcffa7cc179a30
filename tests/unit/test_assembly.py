"""Transactions from interleaved records."""

from __future__ import annotations

from lr_source.reader.assembly import PartitionAssembler
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import SendRecord, TxnId


def record(txn: int, number: int, *, last: bool = False, client: str = "policy") -> SendRecord:
    """Make a record of a transaction."""
    return SendRecord(ClientName(client), TxnId(b"i", txn), (SiteId("site-b"),), number, last, 1, b"v", 0)


def high_watermark(value: int = 100) -> int:
    """Stand for a log that ends far away."""
    return value


def test_a_transaction_comes_out_with_its_last_record() -> None:
    """Interleaved transactions come out in the order of their last records."""
    assembler = PartitionAssembler(0)
    assert not assembler.add(0, record(1, 0), high_watermark)
    assert not assembler.add(1, record(2, 0), high_watermark)
    assert assembler.resume_from == 0
    (second,) = assembler.add(2, record(2, 1, last=True), high_watermark)
    assert (second.txn.first_sequence, second.first_offset, second.last_offset) == (2, 1, 2)
    (first,) = assembler.add(3, record(1, 1, last=True), high_watermark)
    assert (first.txn.first_sequence, first.completed_at, first.torn, first.terminated) == (1, 3, False, True)
    assert assembler.resume_from == assembler.passed == 4


def test_an_unterminated_transaction_is_complete_behind_the_high_watermark_of_first_meeting() -> None:
    """Not one offset before, and later growth of the log does not matter."""
    assembler = PartitionAssembler(0)
    assert not assembler.add(0, record(1, 0), lambda: 5)
    assert not assembler.add(2, record(1, 1), lambda: 50)
    assert not assembler.advance(4)
    assert assembler.resume_from == 0
    (complete,) = assembler.advance(5)
    assert (complete.terminated, complete.torn, len(complete.records)) == (False, False, 2)
    assert assembler.resume_from == 5


def test_another_transaction_s_record_can_complete_an_unterminated_one() -> None:
    """What is complete earlier comes out earlier."""
    assembler = PartitionAssembler(0)
    assembler.add(0, record(1, 0), lambda: 2)
    first, second = assembler.add(3, record(2, 0, last=True), high_watermark)
    assert (first.txn.first_sequence, first.terminated, first.completed_at) == (1, False, 3)
    assert (second.txn.first_sequence, second.terminated, second.completed_at) == (2, True, 3)


def test_a_transaction_whose_head_is_missing_is_torn() -> None:
    """A record that is not the first one without the ones before it."""
    assembler = PartitionAssembler(5)
    (complete,) = assembler.add(5, record(1, 1, last=True), high_watermark)
    assert complete.torn


def test_a_transaction_with_a_gap_is_torn() -> None:
    """A record between the first and the last one is missing."""
    assembler = PartitionAssembler(0)
    assembler.add(0, record(1, 0), high_watermark)
    (complete,) = assembler.add(1, record(1, 2, last=True), high_watermark)
    assert complete.torn


def test_a_record_of_another_client_under_the_same_id_tears_the_transaction() -> None:
    """Two clients never share a transaction id, so something is wrong."""
    assembler = PartitionAssembler(0)
    assembler.add(0, record(1, 0), high_watermark)
    (complete,) = assembler.add(1, record(1, 1, last=True, client="other"), high_watermark)
    assert complete.torn


def test_what_cannot_be_understood_makes_an_unterminated_transaction_torn() -> None:
    """It may have been the last record; a transaction that says itself that it is whole is not touched."""
    assembler = PartitionAssembler(0)
    assembler.add(0, record(1, 0), lambda: 4)
    assembler.add(1, record(2, 0), lambda: 4)
    assert not assembler.unreadable(2)
    (second,) = assembler.add(3, record(2, 1, last=True), lambda: 4)[1:]
    assert (second.txn.first_sequence, second.torn) == (2, False)


def test_an_unterminated_transaction_before_or_after_garbage_is_whole() -> None:
    """Garbage concerns only what is open when it comes."""
    assembler = PartitionAssembler(0)
    assembler.unreadable(0)
    assembler.add(1, record(1, 0), lambda: 3)
    (first,) = assembler.advance(3)
    assert (first.terminated, first.torn) == (False, False)
    assembler.add(3, record(2, 0), lambda: 6)
    assembler.unreadable(4)
    (second,) = assembler.advance(6)
    assert (second.terminated, second.torn) == (False, True)


def test_advancing_never_steps_back() -> None:
    """An end-of-partition event can be older than the newest record."""
    assembler = PartitionAssembler(10)
    assert not assembler.advance(5)
    assert assembler.passed == 10
