"""The client's transactions against a scripted producer: what is refused, what is taken, and how each of them ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

import lr_source
from lr_source import Entry, RoutingQueueClient, Transaction
from lr_source.settings import ClientOptions, ClientSettings
from lr_wire import codec
from lr_wire.errors import (
    BrokerError,
    ConfigError,
    InvalidEntry,
    InvalidName,
    NotInTransaction,
    OwnSite,
    PayloadTooLarge,
    ProducerFenced,
    ReplicationError,
    ResultUnknown,
    TransactionOpen,
    UsageError,
)
from lr_wire.records import ReplicationId, SendRecord
from tests.support.producers import FakeProducer, failed_delivery, fenced, kafka_error, timed_out


class ApplicationError(Exception):
    """Something that goes wrong in the application itself."""


def make_client(producer: FakeProducer, **settings: Any) -> RoutingQueueClient:
    client = RoutingQueueClient("policy", source="site-a", producer=producer, **settings)
    producer.calls.clear()
    return client


def written(producer: FakeProducer) -> list[SendRecord]:
    return [codec.decode_send(record["value"]) for record in producer.produced]


def test_the_public_names_can_be_imported() -> None:
    assert {name: hasattr(lr_source, name) for name in lr_source.__all__} == {
        "Entry": True,
        "RoutingQueueClient": True,
        "Transaction": True,
    }


def test_a_transaction_is_begun_written_and_committed() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    with client.transaction() as txn:
        assert producer.state == "InTransaction"
        first = txn.transmit_log_entry(b"one", ["site-b", "site-c"])
        second = txn.transmit_log_entry(b"two", ["site-c", "site-b", "site-b"])
        assert producer.produced == [], "the last record is not known before the end"
    [record] = written(producer)
    assert (record.client, record.txn, record.destinations) == ("policy", txn.id, ("site-b", "site-c"))
    assert (record.entries, record.record, record.last) == (2, 0, True)
    assert [first, second] == [ReplicationId(txn.id.incarnation, txn.id.first_sequence + index) for index in (0, 1)]
    assert producer.calls == ["list_topics", "commit"]


def test_nothing_to_replicate_is_committed_without_a_record() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    with client.transaction():
        pass
    with client.transaction() as txn:
        assert txn.transmit_log_entry(b"stays here", []) == ReplicationId(*txn.id)
    assert producer.produced == []
    assert producer.calls.count("commit") == 2


def test_sequence_numbers_grow_over_transactions_and_are_never_reused() -> None:
    """Not after an abort either, and a transaction without entries has an id of its own."""
    client = make_client(FakeProducer())
    ids = []
    for fail in (False, True, False):
        try:
            with client.transaction() as txn:
                ids += [txn.transmit_log_entry(b"x", ["site-b"]), txn.transmit_log_entry(b"y", [])]
                if fail:
                    raise ApplicationError
        except ApplicationError:
            pass
    assert [one.sequence for one in ids] == [0, 1, 2, 3, 4, 5]
    assert len({one.incarnation for one in ids}) == 1
    with client.transaction() as empty:
        pass
    with client.transaction() as next_one:
        assert empty.id != next_one.id


def test_two_clients_never_share_an_id() -> None:
    with make_client(FakeProducer()).transaction() as one, make_client(FakeProducer()).transaction() as other:
        assert one.id != other.id


@pytest.mark.parametrize(
    "make, error",
    [
        pytest.param(lambda: Entry("text", ["site-b"]), InvalidEntry, id="payload of text"),  # type: ignore[arg-type]
        pytest.param(lambda: Entry(bytearray(b"x"), ["site-b"]), InvalidEntry, id="payload that can change"),  # type: ignore[arg-type]
        pytest.param(lambda: Entry(None, ["site-b"]), InvalidEntry, id="no payload"),  # type: ignore[arg-type]
        pytest.param(lambda: Entry(b"x" * 101, ["site-b"]), PayloadTooLarge, id="payload beyond the limit"),
        pytest.param(lambda: Entry(b"x" * 101, []), PayloadTooLarge, id="the same without destinations"),
        pytest.param(lambda: Entry(b"x", ["site-b"], key=b"k" * 900), PayloadTooLarge, id="key too large"),
        pytest.param(
            lambda: Entry(b"x", ["site-b"], headers=[("h", b"v" * 900)]), PayloadTooLarge, id="header too large"
        ),
        pytest.param(lambda: Entry(b"", [f"{n:0>64}" for n in range(7)]), PayloadTooLarge, id="too many destinations"),
        pytest.param(lambda: Entry(b"x", ["site_b"]), InvalidName, id="wrong name"),
        pytest.param(lambda: Entry(b"x", ["site-b", "site-a"]), OwnSite, id="own site"),
        pytest.param(lambda: Entry(b"x", "site-b"), InvalidEntry, id="destinations of text"),
        pytest.param(lambda: Entry(b"x", ["site-b"], key="k"), InvalidEntry, id="key of text"),  # type: ignore[arg-type]
        pytest.param(lambda: Entry(b"x", ["site-b"], headers=[("h", "v")]), InvalidEntry, id="header of text"),  # type: ignore[list-item]
        pytest.param(lambda: Entry(b"x", ["site-b"], headers=[(b"h", b"v")]), InvalidEntry, id="header name of bytes"),  # type: ignore[list-item]
        pytest.param(
            lambda: Entry(b"x", ["site-b"], headers=[("\ud800", b"v")]), InvalidEntry, id="header name not UTF-8"
        ),
        pytest.param(lambda: Entry(b"x", ["site-b"], headers=["h"]), InvalidEntry, id="header without a value"),  # type: ignore[list-item]
    ],
)
def test_an_entry_that_is_refused_leaves_the_transaction_usable(
    make: Callable[[], Entry], error: type[ReplicationError]
) -> None:
    """Handed over alone or among others: it takes no place, and what is good arrives."""
    producer = FakeProducer()
    client = make_client(producer, max_payload_bytes=100, max_message_bytes=1000)
    wrong = make()
    with client.transaction() as txn:
        txn.transmit_log_entry(b"before", ["site-b"])
        with pytest.raises(error):
            txn.transmit_log_entry(wrong.payload, wrong.destinations, key=wrong.key, headers=wrong.headers)
        with pytest.raises(error) as refused:
            txn.transmit_log_entries([Entry(b"good", ["site-b"]), wrong])
        assert "at place 1" in refused.value.__notes__[0]
        txn.transmit_log_entry(b"after", ["site-b"])
    [record] = written(producer)
    assert record.entries == 2
    received = codec.decode_receive(codec.encode_receive_head(0, 1, 2, 0) + record.body)
    assert [(entry.index, entry.payload) for entry in received.entries] == [(0, b"before"), (1, b"after")]


def test_entries_may_come_from_a_generator_that_hands_over_others() -> None:
    producer = FakeProducer()
    client = make_client(producer)

    def entries(txn: Transaction) -> Iterator[Entry]:
        txn.transmit_log_entry(b"first", ["site-b"])
        yield Entry(b"second", ["site-b"])

    with client.transaction() as txn:
        assert [one.sequence for one in txn.transmit_log_entries(entries(txn))] == [1]


def test_what_is_not_an_entry_is_refused() -> None:
    with make_client(FakeProducer()).transaction() as txn, pytest.raises(InvalidEntry, match="a bytes at place 0"):
        txn.transmit_log_entries([b"payload"])  # type: ignore[list-item]


@pytest.mark.parametrize("ordering_key", [7, ["a"], 1.5])
def test_an_ordering_key_of_another_kind_is_refused(ordering_key: Any) -> None:
    producer = FakeProducer()
    client = make_client(producer)
    with pytest.raises(InvalidEntry, match="ordering key"):
        client.transaction(ordering_key=ordering_key).__enter__()
    assert producer.state == "Ready"


def test_the_ordering_key_alone_decides_the_partition() -> None:
    """Text and its UTF-8 bytes are the same key; without one it is the client's name."""
    producer = FakeProducer(partitions=1000)
    client = make_client(producer)
    keys: list[str | bytes | None] = ["customer-42", b"customer-42", "customer-43", None, "policy", ""]
    for key in keys:
        with client.transaction(ordering_key=key) as txn:
            txn.transmit_log_entries([Entry(b"x", ["site-b"]), Entry(b"y", ["site-c"])])
    partitions = [record["partition"] for record in producer.produced]
    assert partitions[::2] == partitions[1::2], "a transaction lies in one partition"
    text, binary, other, none, name, empty = partitions[::2]
    assert text == binary
    assert none == name
    assert len({text, other, none, empty}) == 4


def test_handing_over_outside_the_with_block_is_refused() -> None:
    producer = FakeProducer()
    txn = make_client(producer).transaction()
    attempts: list[Callable[[], object]] = [
        lambda: txn.transmit_log_entry(b"x", ["site-b"]),
        lambda: txn.transmit_log_entries([Entry(b"x", ["site-b"])]),
    ]
    for attempt in attempts:
        with pytest.raises(NotInTransaction, match="client policy has not been entered"):
            attempt()
    with pytest.raises(NotInTransaction):
        _ = txn.id
    with txn:
        pass
    for attempt in attempts:
        with pytest.raises(NotInTransaction, match="has ended"):
            attempt()
    assert producer.produced == []
    assert txn.id.first_sequence == 0, "its name is known for good"


def test_a_transaction_object_is_used_once() -> None:
    txn = make_client(FakeProducer()).transaction()
    with txn:
        pass
    with pytest.raises(UsageError, match="has ended"):
        txn.__enter__()


def test_transactions_do_not_nest() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    with client.transaction() as txn:
        with pytest.raises(TransactionOpen, match=f"in transaction {txn.id} already"):
            client.transaction().__enter__()
        with pytest.raises(TransactionOpen):
            client.join()
        txn.transmit_log_entry(b"x", ["site-b"])
    assert [record.entries for record in written(producer)] == [1]


def test_a_producer_that_is_in_a_transaction_is_left_alone() -> None:
    producer = FakeProducer(state="InTransaction")
    client = make_client(producer)
    with pytest.raises(TransactionOpen, match="use join"):
        client.transaction().__enter__()
    assert producer.calls == []
    producer.commit_transaction()
    with client.transaction():
        pass


@pytest.mark.parametrize("error", [ApplicationError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_aborts_and_is_raised_again(error: type[BaseException]) -> None:
    producer = FakeProducer()
    client = make_client(producer)
    raised = error()
    with pytest.raises(error) as caught, client.transaction() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
        raise raised
    assert caught.value is raised
    assert producer.produced == []
    assert producer.calls == ["list_topics", "abort"]
    with client.transaction():
        pass


def test_an_abort_that_fails_does_not_hide_the_exception_of_the_application() -> None:
    """It is told with it, and the producer counts as lost."""
    producer = FakeProducer()
    client = make_client(producer)
    producer.aborts = [fenced()]
    with capture_logs() as logs, pytest.raises(ApplicationError) as caught, client.transaction():
        raise ApplicationError
    assert "the abort that followed failed as well" in caught.value.__notes__[0]
    assert [entry["event"] for entry in logs] == ["transaction.abort_failed"]
    with pytest.raises(ProducerFenced):
        client.transaction().__enter__()


def test_a_callback_that_raises_during_the_abort_does_not_hide_the_exception_of_the_application() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.aborts = [LookupError("callback")]
    with pytest.raises(ApplicationError) as caught, client.transaction():
        raise ApplicationError
    assert "LookupError('callback')" in caught.value.__notes__[0]
    assert producer.state == "Ready"
    with client.transaction():
        pass


def test_a_commit_without_an_answer_makes_the_client_useless() -> None:
    """After it nothing is written any more: a late answer could end the next transaction."""
    producer = FakeProducer()
    client = make_client(producer, commit_timeout_s=0.2)
    producer.commits = [timed_out()] * 100
    with pytest.raises(ResultUnknown, match="whether it was committed is not known"), client.transaction():
        pass
    assert "abort" not in producer.calls
    for attempt in (client.transaction().__enter__, client.join):
        with pytest.raises(ResultUnknown, match="producer of client policy cannot be used any more"):
            attempt()


def test_a_fenced_commit_makes_the_client_useless() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.commits = [fenced()]
    with pytest.raises(ProducerFenced), client.transaction():
        pass
    with pytest.raises(ProducerFenced, match="cannot be used any more") as error:
        client.transaction().__enter__()
    assert error.value.fenced


def test_an_interrupted_commit_makes_the_client_useless() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.commits = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt), client.transaction():
        pass
    with pytest.raises(ResultUnknown, match="interrupted"):
        client.transaction().__enter__()


def test_a_commit_that_kafka_refuses_is_aborted_and_told_with_its_cause() -> None:
    """Not only "1 message(s) failed delivery": which of LR's records failed, and why."""
    producer = FakeProducer()
    client = make_client(producer)
    producer.commits = [failed_delivery()]
    with pytest.raises(BrokerError) as caught, client.transaction() as txn:
        txn.transmit_log_entry(b"x", ["site-b"], key=b"alone")
        txn.transmit_log_entry(b"y", ["site-b"])
        [record] = producer.produced
        record["on_delivery"](
            kafka_error(KafkaError.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed").args[0], None
        )
    assert f"transaction {txn.id} of client policy was aborted" in str(caught.value)
    assert "write to LRQ_Send_LogEntries: Topic authorization failed" in str(caught.value)
    assert caught.value.unauthorised
    assert producer.calls == ["list_topics", "commit", "abort"]
    with client.transaction():
        pass
    assert producer.calls[-2:] == ["list_topics", "commit"], "partitions are looked up again after a failure"


def test_a_failure_of_the_applications_own_records_is_told_as_kafka_does() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.commits = [failed_delivery()]
    with pytest.raises(BrokerError, match=r"was aborted: .*1 message\(s\) failed delivery"), client.transaction():
        pass


def test_a_record_that_was_merely_still_queued_is_not_taken_for_the_cause() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.commits = [failed_delivery()]
    with pytest.raises(BrokerError, match=r"1 message\(s\) failed delivery"), client.transaction() as txn:
        txn.transmit_log_entry(b"x", ["site-b"], key=b"alone")
        txn.transmit_log_entry(b"y", ["site-b"])
        producer.produced[0]["on_delivery"](kafka_error(KafkaError._PURGE_QUEUE).args[0], None)


def test_a_failure_that_the_application_swallows_still_aborts() -> None:
    """What was taken could not be written: without it the transaction would not be whole."""
    producer = FakeProducer()
    client = make_client(producer, max_record_bytes=10)
    producer.produces = [kafka_error(KafkaError._UNKNOWN_PARTITION, "unknown partition")]
    with pytest.raises(BrokerError, match="has failed and can only be aborted") as caught, client.transaction() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
        with pytest.raises(BrokerError, match="unknown partition"):
            txn.transmit_log_entry(b"y", ["site-b"])
        with pytest.raises(BrokerError, match="can only be aborted"):
            txn.transmit_log_entry(b"z", ["site-b"])
    assert caught.value.abortable
    assert producer.calls == ["list_topics", "abort"]


def test_a_commit_behind_the_clients_back_is_told() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    with pytest.raises(NotInTransaction, match="were not written"), client.transaction() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
        producer.commit_transaction()
    with pytest.raises(NotInTransaction, match="in no transaction"), client.transaction():
        producer.commit_transaction()
    with client.transaction():
        pass


def test_a_missing_send_queue_is_told_before_anything_is_written() -> None:
    producer = FakeProducer(partitions=None)
    client = make_client(producer)
    for _ in range(2):
        with pytest.raises(BrokerError, match="lr topics create"):
            client.transaction().__enter__()
        assert producer.state == "Ready"
    producer.partitions = 3
    with client.transaction() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
    assert len(producer.produced) == 1


def test_a_joined_transaction_is_neither_begun_nor_ended() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.begin_transaction()
    with client.join() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
    assert producer.state == "InTransaction"
    assert [record.last for record in written(producer)] == [True]
    assert producer.calls == ["list_topics"]


def test_join_without_a_transaction_is_refused_at_the_call() -> None:
    producer = FakeProducer()
    with pytest.raises(NotInTransaction, match="in no transaction"):
        make_client(producer).join()
    assert producer.state == "Ready"


def test_an_exception_in_a_joined_transaction_writes_nothing_more() -> None:
    producer = FakeProducer()
    client = make_client(producer)
    producer.begin_transaction()
    with capture_logs() as logs, pytest.raises(ApplicationError), client.join() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
        raise ApplicationError
    assert producer.produced == []
    assert producer.state == "InTransaction", "the application ends it"
    assert logs == []


def test_an_exception_after_some_records_of_a_joined_transaction_is_warned_of() -> None:
    """If the application committed now, a part of the transaction would be replicated."""
    producer = FakeProducer()
    client = make_client(producer, max_record_bytes=10)
    producer.begin_transaction()
    with capture_logs() as logs, pytest.raises(ApplicationError), client.join() as txn:
        txn.transmit_log_entries([Entry(b"x", ["site-b"])] * 3)
        raise ApplicationError
    [warning] = logs
    assert (warning["event"], warning["log_level"]) == ("transaction.joined_block_failed", "warning")
    assert (warning["txn"], warning["records_written"]) == (str(txn.id), 2)


def test_a_transaction_that_ended_inside_the_joined_block_is_told() -> None:
    """Entries were handed over and not written: after a commit they would be missing."""
    producer = FakeProducer()
    client = make_client(producer)
    producer.begin_transaction()
    with pytest.raises(NotInTransaction, match="ended while LR still held entries"), client.join() as txn:
        txn.transmit_log_entry(b"x", ["site-b"])
        producer.abort_transaction()
    assert producer.produced == []
    producer.begin_transaction()
    with client.join():
        producer.abort_transaction()  # nothing was handed over: nothing is missing


def test_two_threads_at_once_are_told_and_corrupt_nothing() -> None:
    """The second call is refused while the first is under way, here waiting for room in the producer's queue."""
    producer = FakeProducer()
    client = make_client(producer, max_record_bytes=10)
    waiting, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        assert go_on.wait(10)

    producer.on_poll = wait
    with client.transaction() as txn:
        txn.transmit_log_entry(b"0", ["site-b"])
        producer.produces = [BufferError()]
        other = threading.Thread(target=txn.transmit_log_entry, args=(b"1", ["site-b"]))
        other.start()
        assert waiting.wait(10)
        attempts: list[Callable[[], object]] = [
            lambda: txn.transmit_log_entry(b"2", ["site-b"]),
            lambda: txn.transmit_log_entries([Entry(b"3", ["site-b"])]),
            client.transaction().__enter__,
            client.join,
        ]
        for attempt in attempts:
            with pytest.raises(UsageError, match="two calls of client policy at the same time"):
                attempt()
        go_on.set()
        other.join()
    assert [record.record for record in written(producer)] == [0, 1]


def test_settings_and_keyword_arguments_are_the_same() -> None:
    assert set(ClientOptions.__annotations__) == {field.name for field in fields(ClientSettings)}


@pytest.mark.parametrize("name", sorted(ClientOptions.__annotations__))
def test_a_setting_must_be_greater_than_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        make_client(FakeProducer(), **{name: 0})


def test_a_payload_limit_that_no_record_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="would not fit into max_message_bytes"):
        make_client(FakeProducer(), max_payload_bytes=1_000_000)


@pytest.mark.parametrize("names", [{"client": "a_b"}, {"source": "a.b"}, {"client": ""}, {"source": "x" * 65}])
def test_wrong_names_are_refused_at_construction(names: dict[str, str]) -> None:
    with pytest.raises(InvalidName):
        RoutingQueueClient(**{"client": "policy", "source": "site-a", "producer": FakeProducer(), **names})  # type: ignore[arg-type]


def test_a_client_shows_what_it_is() -> None:
    assert repr(make_client(FakeProducer())) == "RoutingQueueClient('policy', source='site-a')"
