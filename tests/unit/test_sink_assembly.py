"""Transactions from the records of a receive queue: whole, or said to be torn, and nothing skipped."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, given
from hypothesis import strategies as st

from lr_sink.assembly import Assembler, Torn, Whole
from lr_wire import codec
from lr_wire.records import Applied, TxnId
from tests.support.receive_queue import Sent, sent, total_of

Item = Whole[int] | Torn[int]


@dataclass(frozen=True)
class Logged:
    """A record in a model of a queue."""

    offset: int
    value: bytes | None
    sent: Sent


@st.composite
def transactions(draw: st.DrawFn, min_records: int = 1) -> Sent:
    """Any payloads, in any split into records."""
    payloads = draw(st.lists(st.binary(max_size=5), min_size=min_records, max_size=6))
    places = draw(
        st.lists(st.integers(0, 3), min_size=len(payloads), max_size=len(payloads)).filter(
            lambda found: len(set(found)) >= min_records
        )
    )
    split = [[i for i, place in enumerate(places) if place == wanted] for wanted in sorted(set(places))]
    return sent(*payloads, split=draw(st.permutations(split)))


@st.composite
def logs(draw: st.DrawFn, min_records: int = 1) -> list[Logged]:
    """Transactions one after the other, with gaps in the offsets where markers and aborted records are."""
    offset = draw(st.integers(0, 100))
    log = []
    for transaction in draw(st.lists(transactions(min_records), min_size=1, max_size=5)):
        for value in transaction.values():
            log.append(Logged(offset, value, transaction))
            offset += 1
        offset += draw(st.integers(0, 3))
    return log


def assembled(log: list[Logged]) -> list[Item]:
    """Feed a whole log; each record's raw form is its place in the list."""
    assembler: Assembler[int] = Assembler()
    found: list[Item] = []
    for place, record in enumerate(log):
        found += assembler.feed(record.offset, record.value, place)
    return [*found, *assembler.at_end()]


def whole(items: list[Item]) -> list[TxnId]:
    return [item.txn for item in items if isinstance(item, Whole)]


def in_order(log: list[Logged]) -> list[Sent]:
    return list(dict.fromkeys(record.sent for record in log))


@given(logs())
def test_every_transaction_comes_out_whole_and_in_order(log: list[Logged]) -> None:
    """Whatever the split into records, entries are in the application's order and nothing is missing."""
    items = assembled(log)
    assert [item.txn for item in in_order(log)] == whole(items)
    for item, original in zip(items, in_order(log), strict=True):
        assert isinstance(item, Whole)
        assert original.payloads == tuple(entry.payload for entry in item.entries)
        assert list(range(len(original.payloads))) == [entry.index for entry in item.entries]
        assert original.completed_at == item.completed_at


@given(logs())
def test_the_total_is_the_readers_total(log: list[Logged]) -> None:
    """Counting on from transaction to transaction gives what a reader counts over the same records."""
    applied = Applied(0)
    for item in assembled(log):
        applied = item.after(applied)
    assert total_of(in_order(log)) == applied.total
    assert applied.next_offset == log[-1].offset + 1


@given(logs(), st.data())
def test_a_restart_between_two_transactions_changes_nothing(log: list[Logged], data: st.DataObject) -> None:
    """Beginning anew at any transaction's next offset gives the rest."""
    items = assembled(log)
    cut = data.draw(st.integers(0, len(items) - 1))
    at = items[cut].next_offset
    rest = assembled([record for record in log if record.offset >= at])
    assert whole(items[cut + 1 :]) == whole(rest)
    assert not [item for item in rest if isinstance(item, Torn)]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[list[Logged], list[Logged]]:
    """A log of transactions of several records, before and after one record was dropped, doubled or moved."""
    log = draw(logs(min_records=2))
    at = draw(st.integers(0, len(log) - 1))
    match draw(st.sampled_from(["drop", "double", "move"])):
        case "drop":
            spoilt = log[:at] + log[at + 1 :]
        case "double":
            spoilt = [*log[: at + 1], log[at], *log[at + 1 :]]
        case _:
            to = draw(st.integers(0, len(log) - 1))
            assume(to != at)
            rest = log[:at] + log[at + 1 :]
            spoilt = [*rest[:to], log[at], *rest[to:]]
    return log, spoilt


@given(damaged())
def test_a_missing_doubled_or_misplaced_record_is_noticed(logs_: tuple[list[Logged], list[Logged]]) -> None:
    """The damage is told, no transaction comes out changed, and every record is either in a transaction or torn."""
    log, spoilt = logs_
    items = assembled(spoilt)
    assert [item for item in items if isinstance(item, Torn)]
    known = {item.txn: item for item in in_order(log)}
    for item in items:
        if isinstance(item, Whole):
            assert known[item.txn].payloads == tuple(entry.payload for entry in item.entries)
    assert list(range(len(spoilt))) == [place for item in items for place in item.raw]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), transactions().map(lambda item: item.values()[0]))))
def test_whatever_the_bytes_no_record_is_skipped(values: list[bytes | None]) -> None:
    """Garbage never raises; each record is delivered or told to be torn, in order, with offsets that add up."""
    log = [Logged(offset, value, sent(b"")) for offset, value in enumerate(values)]
    items = assembled(log)
    assert list(range(len(values))) == [place for item in items for place in item.raw]
    edges = [0, *(item.next_offset for item in items)]
    assert [item.first_offset for item in items] == edges[:-1]


def test_a_torn_run_and_the_transaction_behind_it_both_come_out() -> None:
    """A transaction that breaks off does not take the next one with it."""
    broken = sent(b"a", b"b", split=[[0], [1]])
    good = sent(b"c")
    torn, found = assembled([Logged(3, broken.values()[0], broken), Logged(7, good.values()[0], good)])
    assert isinstance(torn, Torn)
    assert (torn.first_offset, torn.next_offset) == (3, 4)
    assert f"transaction {broken.txn} has 1 of its 2 records, then a record of transaction {good.txn}" in torn.reason
    assert isinstance(found, Whole)
    assert (found.first_offset, found.next_offset) == (7, 8)


def test_a_transaction_that_does_not_end_is_torn_at_the_end_of_the_queue() -> None:
    """Records of a transaction become visible together: at the end of the queue there is nothing to wait for."""
    broken = sent(b"a", b"b", split=[[0], [1]])
    assembler: Assembler[int] = Assembler()
    assert not assembler.feed(0, broken.values()[0], 0)
    (torn,) = assembler.at_end()
    assert "1 of its 2 records, then the queue ends there" in torn.reason
    assert not assembler.at_end()


def test_wrong_counts_are_torn() -> None:
    """A transaction must have as many entries as it says, each with its own index."""
    txn = TxnId(b"x", 1)
    body = codec.encode_body([b"a", b"b"], [0, 1], txn, 0)
    too_few = codec.encode_receive_head(0, 1, 3, 5) + body
    (torn,) = Assembler[int]().feed(0, too_few, 0)
    assert isinstance(torn, Torn)
    assert "2 of its 3 entries" in torn.reason

    assembler: Assembler[int] = Assembler()
    assert not assembler.feed(0, codec.encode_receive_head(0, 2, 4, 5) + body, 0)
    (torn,) = assembler.feed(1, codec.encode_receive_head(1, 2, 4, 5) + body, 1)
    assert isinstance(torn, Torn)
    assert "same index" in torn.reason

    assembler = Assembler()
    assert not assembler.feed(0, codec.encode_receive_head(0, 2, 4, 5) + body, 0)
    first, second = assembler.feed(1, codec.encode_receive_head(1, 3, 4, 5) + body, 1)
    assert isinstance(first, Torn)
    assert isinstance(second, Torn)
    assert "other counts" in first.reason
    assert "without those before it" in second.reason


def test_torn_records_do_not_count() -> None:
    """The reader's total knows nothing of them."""
    before = Applied(3, total_of([sent(b"a")]), 9)
    (torn,) = Assembler[int]().feed(7, b"garbage", 0)
    assert Applied(8, before.total, 9) == torn.after(before)
