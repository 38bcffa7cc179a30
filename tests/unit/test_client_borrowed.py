"""The application's producer in LR's hands: waiting, committing again, and telling what went wrong."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from lr_kafka.borrowed import BorrowedProducer
from lr_wire.errors import (
    BrokerError,
    NotInTransaction,
    NotTransactional,
    PayloadTooLarge,
    ProducerFenced,
    ResultUnknown,
    TransactionOpen,
    UsageError,
)
from tests.support.producers import FakeProducer, failed_delivery, fenced, kafka_error, timed_out


class Clock:
    """Time that passes only while somebody waits or is said to have waited."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def borrow(producer: FakeProducer, clock: Clock | None = None) -> BorrowedProducer:
    clock = clock or Clock()
    borrowed = BorrowedProducer(producer, clock=clock, sleep=clock.sleep)
    producer.calls.clear()
    return borrowed


def begun(producer: FakeProducer, clock: Clock | None = None) -> BorrowedProducer:
    borrowed = borrow(producer, clock)
    borrowed.begin()
    return borrowed


def write(borrowed: BorrowedProducer, patience_s: float = 5.0) -> None:
    borrowed.produce("topic", 1, b"value", [("tag", b"")], 1234, lambda _error, _message: None, patience_s)


def test_only_a_producer_can_be_borrowed() -> None:
    with pytest.raises(UsageError, match=r"a str is not a confluent_kafka\.Producer"):
        BorrowedProducer("localhost:9092")  # type: ignore[arg-type]


def test_looking_at_a_producer_leaves_it_as_it_was() -> None:
    for state in ("Init", "Ready", "InTransaction"):
        producer = FakeProducer(state=state)
        BorrowedProducer(producer)
        assert producer.state == state


@pytest.mark.parametrize(
    "state, error",
    [
        ("Init", NotTransactional),
        ("WaitPID", NotTransactional),
        ("InTransaction", TransactionOpen),
        ("Other", UsageError),
    ],
)
def test_a_transaction_that_cannot_begin_says_why(state: str, error: type[UsageError]) -> None:
    borrowed = borrow(FakeProducer(state=state))
    with pytest.raises(error):
        borrowed.begin()


def test_an_open_transaction_is_found_without_ending_it() -> None:
    producer = FakeProducer(state="InTransaction")
    borrow(producer).require_open()
    assert producer.state == "InTransaction"


@pytest.mark.parametrize("state, error", [("Ready", NotInTransaction), ("Init", NotTransactional)])
def test_a_missing_transaction_is_told(state: str, error: type[UsageError]) -> None:
    producer = FakeProducer(state=state)
    with pytest.raises(error):
        borrow(producer).require_open()
    assert producer.state == state


def test_a_record_is_handed_over_as_it_is() -> None:
    producer = FakeProducer()
    write(begun(producer))
    [record] = producer.produced
    del record["on_delivery"]
    assert record == {
        "topic": "topic",
        "value": b"value",
        "partition": 1,
        "timestamp": 1234,
        "headers": [("tag", b"")],
    }
    assert producer.calls == [], "callbacks of the application are not served without need"


def test_a_full_queue_is_waited_for() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.produces = [BufferError(), BufferError()]
    write(borrowed)
    assert len(producer.produced) == 1
    assert producer.calls == ["poll", "poll"]


def test_a_queue_that_stays_full_is_an_error_at_the_deadline() -> None:
    clock = Clock()
    producer = FakeProducer()
    borrowed = begun(producer, clock)
    producer.produces = [BufferError()] * 1000
    producer.on_poll = lambda: clock.sleep(0.1)
    with pytest.raises(BrokerError, match="full for 5 s") as error:
        write(borrowed)
    assert error.value.retriable
    assert clock.now == pytest.approx(105.0, abs=0.2)


def test_an_exception_of_a_callback_during_the_wait_comes_out() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.produces = [BufferError()]

    def raise_it() -> None:
        raise LookupError("from a callback")

    producer.on_poll = raise_it
    with pytest.raises(LookupError):
        write(borrowed)
    assert producer.produced == []


@pytest.mark.parametrize("behind_a_callback", [False, True])
def test_a_fatal_error_during_the_wait_is_told(behind_a_callback: bool) -> None:
    """confluent-kafka raises it from poll(), and as a SystemError if a delivery callback was served after it."""
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.produces = [BufferError()]

    def raise_it() -> None:
        if behind_a_callback:
            raise SystemError("returned a result with an exception set") from fenced()
        raise fenced()

    producer.on_poll = raise_it
    with pytest.raises(ProducerFenced):
        write(borrowed)


@pytest.mark.parametrize(
    "raised, error",
    [
        (kafka_error(KafkaError._STATE, "Erroneous state"), NotInTransaction),
        (kafka_error(KafkaError.MSG_SIZE_TOO_LARGE, "too large"), PayloadTooLarge),
        (kafka_error(KafkaError._UNKNOWN_PARTITION, "unknown"), BrokerError),
    ],
)
def test_a_record_that_is_not_taken_says_why(raised: Exception, error: type[Exception]) -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.produces = [raised]
    with pytest.raises(error):
        write(borrowed)


def test_a_fatal_error_of_produce_is_told_by_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """produce() says no more than "fatal"; that another instance took over is found out."""
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.produces = [kafka_error(KafkaError._FATAL, "Local: Fatal error")]

    def refuse() -> None:
        raise fenced()

    monkeypatch.setattr(producer, "begin_transaction", refuse)
    with pytest.raises(ProducerFenced):
        write(borrowed)


def test_a_commit_that_times_out_is_committed_again_and_never_aborted() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.commits = [timed_out(), timed_out()]
    borrowed.commit(10)
    assert producer.calls == ["commit"] * 3


def test_a_commit_without_an_answer_is_unknown_at_the_deadline() -> None:
    clock = Clock()
    producer = FakeProducer()
    borrowed = begun(producer, clock)
    producer.commits = [timed_out()] * 1000
    with pytest.raises(ResultUnknown, match="not answered within 10 s: whether it was committed is not known") as error:
        borrowed.commit(10)
    assert "new producer" in error.value.hint
    assert set(producer.calls) == {"commit"}
    assert clock.now == pytest.approx(110.0, abs=0.2)


def test_a_commit_that_must_be_aborted_says_so() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.commits = [timed_out(), failed_delivery()]
    with pytest.raises(BrokerError, match="failed delivery") as error:
        borrowed.commit(10)
    assert error.value.abortable


def test_a_fenced_commit_is_not_tried_again() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.commits = [fenced()]
    with pytest.raises(ProducerFenced) as error:
        borrowed.commit(10)
    assert not error.value.abortable
    assert producer.calls == ["commit"]


def test_exceptions_of_callbacks_do_not_hide_that_the_commit_succeeded() -> None:
    """confluent-kafka raises them from commit_transaction(), in place of its result."""
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.commits = [LookupError("first"), LookupError("second")]
    with pytest.raises(LookupError, match="first") as error:
        borrowed.commit(10)
    assert producer.state == "Ready"
    assert "the commit of the transaction itself succeeded" in error.value.__notes__[0]


def test_exceptions_of_callbacks_do_not_hide_a_commit_that_had_ended_before() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.commits = [LookupError("raised by the last callback"), kafka_error(KafkaError._STATE, "in state Ready")]
    with pytest.raises(LookupError, match="last callback") as error:
        borrowed.commit(10)
    assert "succeeded" in error.value.__notes__[0]


def test_exceptions_of_callbacks_do_not_hide_that_the_commit_failed() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.commits = [LookupError("from a callback"), failed_delivery()]
    with pytest.raises(BrokerError) as error:
        borrowed.commit(10)
    assert error.value.abortable
    assert isinstance(error.value.__cause__, LookupError)


def test_a_commit_of_what_the_application_ended_itself_is_told() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.state = "Ready"
    with pytest.raises(NotInTransaction):
        borrowed.commit(10)


def test_an_abort_of_what_the_application_ended_itself_is_nothing_to_do() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.state = "Ready"
    borrowed.abort(10)


def test_an_abort_is_tried_again() -> None:
    producer = FakeProducer()
    borrowed = begun(producer)
    producer.aborts = [timed_out()]
    borrowed.abort(10)
    assert producer.calls == ["abort"] * 2


def test_the_partitions_of_a_topic_that_is_missing_are_an_error_with_what_to_do() -> None:
    with pytest.raises(BrokerError, match=r"LRQ_Send_LogEntries does not exist.*lr topics create"):
        borrow(FakeProducer(partitions=None)).partitions("LRQ_Send_LogEntries", 5)
