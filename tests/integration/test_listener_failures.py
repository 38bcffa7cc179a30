"""A listener whose application, records or queue do not behave: retry, halt, dead letter, trim."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lr_kafka import topics
from lr_kafka.clients import TopicPartition
from lr_sink import QueueState, SqlPositionStore, Step, Transaction
from lr_sink.deadletter import DeadLetters
from lr_wire import naming
from lr_wire.errors import ApplyFailed, BrokerError, NotAtomic, QueueReplaced, QueueTrimmed, UsageError, WireError
from lr_wire.naming import ClientName
from lr_wire.records import Applied
from tests.support.brokers import Site
from tests.support.listener import Recorder, drive
from tests.support.receive_queue import ReceiveQueue, Sent, cluster_of, sent, total_of


@pytest.fixture
def sink(sites: Callable[..., list[Site]]) -> Site:
    (site,) = sites("site-b")
    return site


def refusing(*payloads: bytes) -> Callable[[Transaction], bool]:
    """Refuse the transactions that begin with one of these."""
    return lambda txn: txn.entries[0].payload not in payloads


def headers_of(record: object) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers()}  # type: ignore[attr-defined]


# --- again


@pytest.mark.parametrize("how", ["False", "an exception"])
def test_what_is_not_taken_comes_again_with_growing_waits(sink: Site, how: str) -> None:
    """Attempts are counted, nothing overtakes within the partition, and other partitions go on meanwhile."""
    queue = ReceiveQueue(sink, partitions=2)
    queue.write(sent(b"first"), sent(b"stubborn", b"x", split=[[0], [1]]), sent(b"behind"), partition=0)
    queue.write(sent(b"elsewhere"), partition=1)

    def answer(txn: Transaction) -> bool:
        if txn.entries[0].payload == b"stubborn" and txn.attempt < 6:
            if how == "False":
                return False
            raise ValueError("not today")
        # Elsewhere goes on while the stubborn one waits.
        return txn.partition == 0 or len(listener.calls) > 3

    with Recorder(sink, answer=answer, max_attempts=10) as listener, capture_logs() as logs:
        drive(listener, lambda: len(listener.applied) == 4)
        drive(listener, lambda: set(listener.states().values()) == {QueueState.RUNNING})
    assert listener.payloads(0) == [[b"first"], [b"stubborn", b"x"], [b"behind"]]
    assert [txn.attempt for txn in listener.calls if txn.entries[0].payload == b"stubborn"] == [1, 2, 3, 4, 5, 6]
    waits = [
        item["again_in_s"] for item in logs if item["event"] == "listener.transaction_failed" and item["partition"] == 0
    ]
    assert len(waits) == 5
    assert waits[0] <= 0.01 < waits[-1] <= 0.1
    assert not listener.errors
    assert queue.applied(0).total.transactions == 3


def test_a_waiting_partition_shows_itself_and_holds_nobody_up(sink: Site) -> None:
    queue = ReceiveQueue(sink, partitions=2)
    queue.write(sent(b"stubborn"), sent(b"behind"), partition=0)
    with Recorder(sink, answer=refusing(b"stubborn"), retry_initial_s=1000.0, retry_max_s=1000.0) as listener:
        drive(listener, lambda: QueueState.RETRYING in listener.states().values())
        (found,) = [found for found in listener.status() if found.partition == 0]
        assert (found.state, found.next_offset, found.attempt) == (QueueState.RETRYING, 0, 1)
        assert found.reason == "on_transaction returned False"
        for number in range(20):
            queue.write(sent(str(number).encode()), partition=1)
        drive(listener, lambda: len(listener.applied) == 20)
    assert len(listener.payloads(1)) == 20
    assert queue.applied(0) == Applied(0)


# --- halt


def test_after_the_last_attempt_the_partition_halts_and_says_so_once(sink: Site) -> None:
    """The others go on; starting again tries again."""
    queue = ReceiveQueue(sink, partitions=2)
    queue.write(sent(b"good"), sent(b"bad"), sent(b"behind"), partition=0)
    with Recorder(sink, answer=refusing(b"bad"), max_attempts=3) as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        queue.write(*(sent(str(number).encode()) for number in range(5)), partition=1)
        drive(listener, lambda: len(listener.payloads(1)) == 5)
        assert listener.payloads(0) == [[b"good"]]
        assert [txn.attempt for txn in listener.calls if txn.entries[0].payload == b"bad"] == [1, 2, 3]
        (error,) = listener.errors
        assert isinstance(error, ApplyFailed)
        for fact in (queue.topic, "partition 0", "offset 1", "3 attempts", "returned False"):
            assert fact in str(error)
        (halted,) = [found for found in listener.status() if found.state is QueueState.HALTED]
        assert (halted.partition, halted.next_offset, halted.reason) == (0, 1, str(error))
    with Recorder(sink) as listener:
        drive(listener, lambda: listener.payloads(0) == [[b"bad"], [b"behind"]])


def test_an_application_that_raises_in_on_error_does_no_harm(sink: Site) -> None:
    class Touchy(Recorder):
        def on_error(self, error: Exception) -> None:
            raise RuntimeError("and now this")

    queue = ReceiveQueue(sink, partitions=2)
    queue.write(sent(b"bad"), partition=0)
    with Touchy(sink, answer=refusing(b"bad"), max_attempts=1) as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        queue.write(sent(b"good"), partition=1)
        drive(listener, lambda: listener.payloads() == [[b"good"]])


def test_a_forgotten_answer_halts_at_the_first_transaction(sink: Site) -> None:
    queue = ReceiveQueue(sink)
    queue.write(sent(b"one"))

    class Forgetful(Recorder):
        def on_transaction(self, txn: Transaction) -> bool:
            self.calls.append(txn)
            return None  # type: ignore[return-value]

    with Forgetful(sink) as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        assert len(listener.calls) == 1
        (error,) = listener.errors
        assert isinstance(error, UsageError)
        assert "returned None" in str(error)


# --- dead letter


def test_what_is_given_up_goes_to_the_dead_letters_once_as_it_was(sink: Site) -> None:
    """Original bytes, key and headers; why, whence and when beside them. It counts as received; the rest goes on."""
    queue = ReceiveQueue(sink, partitions=2)
    good, bad, behind = sent(b"good"), sent(b"bad", b"x", b"y", split=[[0], [2, 1]]), sent(b"behind")
    queue.write(good, partition=1)
    queue.write_values(bad.values(), partition=1, key=b"\x00key", headers=[("own", b"\xff"), ("none", None)])
    queue.write(behind, partition=1)
    with Recorder(sink, answer=refusing(b"bad"), max_attempts=2, on_failure="dead_letter") as listener:
        steps = drive(listener, lambda: len(listener.applied) == 2)
    assert steps.count(Step.DEAD_LETTERED) == 1
    assert listener.payloads() == [[b"good"], [b"behind"]]
    letters = queue.dead_letters()
    assert [letter.value() for letter in letters] == bad.values()
    assert {letter.key() for letter in letters} == {b"\x00key"}
    for offset, letter in zip((2, 3), letters, strict=True):
        tag, own, none, *ours = letter.headers() or []
        assert (tag, own, none) == (("lrq_recv_policy", b""), ("own", b"\xff"), ("none", None))
        facts = {name: (value or b"").decode() for name, value in ours}
        assert "2 attempts; the last time on_transaction returned False" in facts.pop("lr_deadletter_reason")
        assert facts.pop("lr_deadletter_time").startswith("20")
        assert facts == {
            "lr_deadletter_topic": queue.topic,
            "lr_deadletter_partition": "1",
            "lr_deadletter_offset": str(offset),
        }
    assert queue.applied(1).total == total_of([good, bad, behind])
    (error,) = listener.errors
    assert isinstance(error, ApplyFailed)
    assert queue.log_start(1) == queue.applied(1).next_offset


def test_dead_letters_of_many_transactions_keep_their_order(sink: Site) -> None:
    queue = ReceiveQueue(sink)
    batch = [sent(f"{number}".encode()) for number in range(12)]
    bad = {item.payloads[0] for item in batch if item.payloads[0] not in {b"0", b"5"}}
    queue.write(*batch)
    with Recorder(sink, answer=refusing(*bad), max_attempts=1, on_failure="dead_letter") as listener:
        drive(listener, lambda: queue.applied().total.transactions == 12)
    assert listener.payloads() == [[b"0"], [b"5"]]
    assert [letter.value() for letter in queue.dead_letters()] == [
        item.values()[0] for item in batch if item.payloads[0] in bad
    ]
    assert queue.applied().total == total_of(batch)
    assert len(listener.errors) == 10


def test_a_dead_letter_that_fails_is_written_later_and_nothing_before_it_comes_again(
    sink: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that were not committed yet are, before the dead letter is tried."""
    queue = ReceiveQueue(sink)
    batch = [sent(str(number).encode()) for number in range(5)]
    queue.write(*batch)
    write, tried = DeadLetters.write, []

    def fail_twice(self: DeadLetters, *args: Any) -> None:
        tried.append(queue.applied().next_offset)
        if len(tried) <= 2:
            raise BrokerError("the cluster is away", retriable=True)
        write(self, *args)

    monkeypatch.setattr(DeadLetters, "write", fail_twice)
    settings: dict[str, Any] = {"max_attempts": 1, "on_failure": "dead_letter", "ack_s": 1000.0}
    with Recorder(sink, answer=refusing(b"3"), **settings) as listener:
        drive(listener, lambda: len(listener.applied) == 4)
    assert tried == [3, 3, 3]
    assert listener.payloads() == [[b"0"], [b"1"], [b"2"], [b"4"]]
    assert len(queue.dead_letters()) == 1
    assert len(listener.errors) == 1
    assert queue.applied().total == total_of(batch)


def test_a_dead_letter_that_cannot_be_written_halts(sink: Site) -> None:
    """Nothing is skipped for want of a place to keep it."""
    queue = ReceiveQueue(sink)
    queue.write(sent(b"bad" * 100))
    spec = naming.dead_letter_topic(ClientName("policy"), naming.SiteId("site-a"))
    topics.create(queue.admin, spec, 1, {"max.message.bytes": "100"})
    with Recorder(sink, answer=lambda _: False, max_attempts=1, on_failure="dead_letter") as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        (error,) = listener.errors
        assert "MSG_SIZE_TOO_LARGE" in str(error)
    assert queue.applied() == Applied(0)
    assert not queue.dead_letters()


# --- records that make no transaction


def broken_log() -> tuple[Sent, list[bytes | None], Sent]:
    torn = sent(b"torn", b"half", split=[[0], [1]])
    return sent(b"good"), [torn.values()[0], b"\x00garbage", None, torn.values()[1]], sent(b"behind")


def test_records_that_make_no_transaction_halt_their_partition(sink: Site) -> None:
    """Never a part of a transaction, never a step past it."""
    queue = ReceiveQueue(sink, partitions=2)
    good, bad, behind = broken_log()
    queue.write(good)
    queue.write_values(bad)
    queue.write(behind)
    queue.write(sent(b"elsewhere"), partition=1)
    with Recorder(sink, max_attempts=1) as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values() and len(listener.applied) == 2)
        assert sorted(listener.payloads()) == [[b"elsewhere"], [b"good"]]
        (error,) = listener.errors
        assert isinstance(error, WireError)
        for fact in (queue.topic, "partition 0", "offset 2", "1 of its 2 records"):
            assert fact in str(error)
    assert queue.applied(0).next_offset == 1


def test_records_that_make_no_transaction_go_to_the_dead_letters(sink: Site) -> None:
    """Each once, in order, with its own reason; they do not count as received."""
    queue = ReceiveQueue(sink)
    good, bad, behind = broken_log()
    queue.write(good)
    queue.write_values(bad)
    queue.write(behind)
    with Recorder(sink, on_failure="dead_letter") as listener:
        drive(listener, lambda: len(listener.applied) == 2)
    letters = queue.dead_letters()
    assert bad == [letter.value() for letter in letters]
    reasons = [headers_of(letter)["lr_deadletter_reason"] for letter in letters]
    for expected, reason in zip(
        ("1 of its 2 records", "not a RoutingTableEntryMsg", "no value", "without those before it"),
        reasons,
        strict=True,
    ):
        assert expected in reason
    assert queue.applied().total == total_of([good, behind])
    assert len(listener.errors) == 4


def test_a_transaction_that_does_not_end_is_told_without_waiting_for_more(sink: Site) -> None:
    """All records of a transaction become visible together, so the end of the queue is the end of the wait."""
    queue = ReceiveQueue(sink)
    queue.write_values(sent(b"a", b"b", split=[[0], [1]]).values()[:1])
    with Recorder(sink) as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        assert "the queue ends there" in str(listener.errors[0])
        assert not listener.calls


# --- trim


def test_a_queue_that_was_trimmed_before_the_start_is_told(sink: Site) -> None:
    """With a position, and without one; never skipped over, and the other partitions go on."""
    queue = ReceiveQueue(sink, partitions=3)
    for partition in range(3):
        queue.write(*(sent(f"{partition}{number}".encode()) for number in range(10)), partition=partition)

    def first_three(txn: Transaction) -> bool:
        return txn.partition == 0 and txn.position.next_offset <= 3

    with Recorder(sink, answer=first_three) as listener:
        drive(listener, lambda: queue.applied(0).next_offset == 3)
    queue.delete_before(5, partition=0)
    queue.delete_before(1, partition=1)
    with Recorder(sink) as listener:
        drive(listener, lambda: len(listener.applied) == 10 and len(listener.errors) == 2)
        assert len(listener.payloads(2)) == 10
        errors = {
            partition: error
            for error in listener.errors
            for partition in (0, 1)
            if f"partition {partition}" in str(error)
        }
        assert all(isinstance(error, QueueTrimmed) for error in errors.values())
        for fact in (queue.topic, "applied up to offset 3", "begins at offset 5", "2 offsets", "LR_listener_policy"):
            assert fact in str(errors[0])
        for fact in ("nothing is applied yet", "begins at offset 1"):
            assert fact in str(errors[1])
        states = {found.partition: (found.state, found.reason) for found in listener.status()}
        assert states[0] == (QueueState.HALTED, str(errors[0]))
        assert states[1] == (QueueState.HALTED, str(errors[1]))
        queue.write(sent(b"later"), partition=0)
        for _ in range(20):
            listener.step()
        assert states[0] == (QueueState.HALTED, str(errors[0])), "it stays halted"
        assert len(listener.errors) == 2
    assert queue.applied(0).next_offset == 3
    assert queue.committed(1) is None


def test_an_operator_can_let_it_go_on_behind_the_gap(sink: Site) -> None:
    """With Kafka's own tools, as the error says."""
    queue = ReceiveQueue(sink)
    queue.write(*(sent(str(number).encode()) for number in range(5)))
    queue.delete_before(2)
    with Recorder(sink) as listener:
        drive(listener, lambda: bool(listener.errors))
    consumer = cluster_of(sink).consumer(group="LR_listener_policy")
    consumer.commit(offsets=[TopicPartition(queue.topic, 0, 2)], asynchronous=False)
    consumer.close()
    with Recorder(sink) as listener:
        drive(listener, lambda: listener.payloads() == [[b"2"], [b"3"], [b"4"]])
    assert queue.applied().total.transactions == 3


def test_a_queue_that_is_trimmed_while_running_is_told(sink: Site) -> None:
    """The records behind the gap are not delivered."""
    queue = ReceiveQueue(sink, partitions=2)
    queue.write(*(sent(f"{number}".encode()) for number in range(10)))

    def answer(txn: Transaction) -> bool:
        # A transaction that comes again drops what was fetched behind it, so those records must be read anew.
        if txn.entries[0].payload == b"1" and txn.attempt == 1:
            queue.delete_before(8)
            return False
        return True

    # What is applied but not committed yet when the gap is met counts as applied.
    with Recorder(sink, answer=answer, ack_s=1000.0) as listener:
        drive(listener, lambda: bool(listener.errors))
        (error,) = listener.errors
        assert isinstance(error, QueueTrimmed)
        for fact in (queue.topic, "partition 0", "applied up to offset 2", "begins at offset 8"):
            assert fact in str(error)
        queue.write(sent(b"elsewhere"), partition=1)
        drive(listener, lambda: listener.payloads(1) == [[b"elsewhere"]])
        assert listener.payloads(0) == [[b"0"], [b"1"]]
        states = {found.partition: found.state for found in listener.status()}
        assert states == {0: QueueState.HALTED, 1: QueueState.RUNNING}


def test_a_strangers_commit_halts(sink: Site) -> None:
    """Nobody knows what was applied."""
    queue = ReceiveQueue(sink)
    queue.write(sent(b"one"))
    consumer = cluster_of(sink).consumer(group="LR_listener_policy")
    consumer.commit(offsets=[TopicPartition(queue.topic, 0, 1, metadata="stranger")], asynchronous=False)
    consumer.close()
    with Recorder(sink) as listener:
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        assert "stranger" in str(listener.errors[0])


def test_a_member_whose_place_is_taken_ends_with_an_error(sink: Site) -> None:
    """Two listeners with the same group.instance.id: the first can do nothing more, and says so instead of waiting."""
    ReceiveQueue(sink).write(sent(b"one"))
    with Recorder(sink, group_instance_id="twin") as first:
        drive(first, lambda: len(first.applied) == 1)
        with Recorder(sink, group_instance_id="twin") as second:
            drive(second, lambda: len(second.status()) == 1)
            with pytest.raises(BrokerError, match=r"same group\.instance\.id"):
                drive(first, lambda: False)


# --- a position store that does not fit


def test_a_queue_that_was_made_anew_is_told_if_the_position_is_in_a_store(sink: Site, tmp_path: Path) -> None:
    """Its offsets mean other transactions; the consumer group forgets by itself, a database does not."""
    queue = ReceiveQueue(sink)
    queue.write(*(sent(str(number).encode()) for number in range(3)))
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        store = SqlPositionStore(connection)

        def save(txn: Transaction) -> bool:
            store.save(txn.position)
            connection.commit()
            return True

        with Recorder(sink, answer=save, positions=store) as listener:
            drive(listener, lambda: len(listener.applied) == 3)
        for deleted in queue.admin.delete_topics([queue.topic]).values():
            deleted.result(30)
        while topics.describe(queue.admin, queue.topic):
            pass
        again = ReceiveQueue(sink)
        again.write(*(sent(str(number).encode()) for number in range(100)))
        with Recorder(sink, answer=save, positions=store) as listener:
            drive(listener, lambda: QueueState.HALTED in listener.states().values())
            assert isinstance(listener.errors[0], QueueReplaced)
            assert not listener.calls


def test_success_without_a_stored_position_halts_at_once(sink: Site, tmp_path: Path) -> None:
    """Calling again could apply the data twice, so there is one call."""
    queue = ReceiveQueue(sink)
    queue.write(sent(b"one"), sent(b"two"))
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as connection,
        Recorder(sink, positions=SqlPositionStore(connection)) as listener,
    ):
        drive(listener, lambda: QueueState.HALTED in listener.states().values())
        assert len(listener.calls) == 1
        (error,) = listener.errors
        assert "save(txn.position)" in str(error)
        assert isinstance(error.__cause__, NotAtomic)
    assert queue.applied() == Applied(0)
