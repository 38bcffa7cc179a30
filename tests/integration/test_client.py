"""The source client on a real broker: what a reader of the send queue sees, and what librdkafka refuses, and how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, SerializingProducer
from confluent_kafka.serialization import StringSerializer

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster
from lr_kafka.reading import read_to_end
from lr_source import Entry, RoutingQueueClient
from lr_wire import codec, naming
from lr_wire.errors import (
    BrokerError,
    NotInTransaction,
    NotTransactional,
    PayloadTooLarge,
    ProducerFenced,
    ResultUnknown,
    TransactionOpen,
)
from lr_wire.naming import SiteId
from lr_wire.records import LogEntry, SendRecord
from tests.support.brokers import Broker, BrokerFactory, Site, admin, create_topic, topic_names

PARTITIONS = 4
OWN_TOPIC = "orders"


class ApplicationError(Exception):
    """Something that goes wrong in the application itself."""


@dataclass
class Read:
    """One record of the send queue as a reader sees it."""

    message: Message
    sent: SendRecord = field(init=False)
    entries: tuple[LogEntry, ...] = field(init=False)
    tags: list[tuple[str, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self.tags = cast("list[tuple[str, bytes]]", self.message.headers())
        self.sent = codec.decode_send(self.message.value())
        head = codec.encode_receive_head(0, 1, self.sent.entries, 0)
        self.entries = codec.decode_receive(head + self.sent.body).entries


class Source:
    """A source site with the send queue and a topic of the application."""

    def __init__(self, site: Site | Broker) -> None:
        self._site = site
        self.bootstrap_servers = site.bootstrap_servers
        self.cluster = Cluster(SiteId("site-a"), {"bootstrap.servers": site.bootstrap_servers})
        self.make_send_queue()
        create_topic(site, OWN_TOPIC)

    def make_send_queue(self, partitions: int = PARTITIONS) -> None:
        spec = layout.send_queue(partitions)
        create_topic(self._site, spec.name, partitions=partitions, **spec.config)

    def producer(self, transactional_id: str = "application", *, init: bool = True, **settings: Any) -> Producer:
        producer = Producer(self.config(transactional_id, **settings))
        if init:
            producer.init_transactions(30)
        return producer

    def config(self, transactional_id: str = "application", **settings: Any) -> dict[str, Any]:
        given = {name if callable(value) else name.replace("_", "."): value for name, value in settings.items()}
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "transactional.id": transactional_id,
            "log_level": 2,
            **given,
        }

    def client(self, producer: Producer, **settings: Any) -> RoutingQueueClient:
        return RoutingQueueClient("policy", source="site-a", producer=producer, **settings)

    def read(self, isolation: str = "read_committed") -> list[Read]:
        messages = read_to_end(self.cluster, naming.SEND_LOG_ENTRIES, isolation=isolation)
        return [Read(message) for message in messages]

    def own_values(self) -> list[bytes | None]:
        return [message.value() for message in read_to_end(self.cluster, OWN_TOPIC)]


@pytest.fixture
def source(sites: Callable[..., list[Site]]) -> Source:
    [site] = sites("site-a")
    return Source(site)


def test_a_committed_transaction_is_visible_whole_and_as_it_was_handed_over(source: Source) -> None:
    """In one partition, numbered, the last record marked, tagged for each destination; own records beside it."""
    producer = source.producer()
    client = source.client(producer)
    before_ms = time.time_ns() // 1_000_000
    with client.transaction() as txn:
        producer.produce(OWN_TOPIC, value=b"order 1")
        ids = [
            txn.transmit_log_entry(b"zero", ["site-c", "site-b"]),
            txn.transmit_log_entry(b"one", ["site-b"]),
            txn.transmit_log_entry(b"two", ["site-b", "site-c", "site-b"]),
            txn.transmit_log_entry(b"three", ["site-b"], key=b"k", headers=[("h", b"v"), ("n", None)]),
            txn.transmit_log_entry(b"four", []),
            *txn.transmit_log_entries([Entry(b"five", ("site-c",)), Entry(b"six", ["site-b"])]),
        ]
        producer.produce(OWN_TOPIC, value=b"order 2")
    after_ms = time.time_ns() // 1_000_000

    records = source.read()
    assert len({record.message.partition() for record in records}) == 1
    assert [record.sent.record for record in records] == [0, 1, 2, 3]
    assert [record.sent.last for record in records] == [False, False, False, True]
    assert {(record.sent.client, record.sent.txn) for record in records} == {("policy", txn.id)}
    for record in records:
        tags = [name for name, _ in record.tags]
        assert [naming.parse_log_entry_tag(tag) for tag in tags] == list(record.sent.destinations)
        assert record.message.timestamp()[1] == record.entries[0].source_time_ms
        assert before_ms <= record.entries[0].source_time_ms <= after_ms
    arrived = {
        entry.index: (entry.payload, entry.id, record.sent.destinations, entry.key, entry.headers)
        for record in records
        for entry in record.entries
    }
    both = ("site-b", "site-c")
    assert arrived == {
        0: (b"zero", ids[0], both, None, ()),
        1: (b"one", ids[1], ("site-b",), None, ()),
        2: (b"two", ids[2], both, None, ()),
        3: (b"three", ids[3], ("site-b",), b"k", (("h", b"v"), ("n", None))),
        5: (b"five", ids[5], ("site-c",), None, ()),
        6: (b"six", ids[6], ("site-b",), None, ()),
    }
    assert source.own_values() == [b"order 1", b"order 2"]


def test_a_large_transaction_arrives_in_order_through_a_small_queue(source: Source) -> None:
    """The producer's local queue holds ten messages: the client waits for room and loses nothing."""
    producer = source.producer(queue_buffering_max_messages=10)
    client = source.client(producer, max_record_bytes=100, max_open_bytes=1000)
    destinations = [["site-b"], ["site-c"], ["site-b", "site-c"]]
    with client.transaction() as txn:
        for number in range(3000):
            txn.transmit_log_entry(b"%d" % number, destinations[number % 3])
    records = source.read()
    assert [record.sent.record for record in records] == list(range(len(records)))
    assert [record.sent.last for record in records] == [False] * (len(records) - 1) + [True]
    assert len(records) > 300
    payloads = {entry.index: entry.payload for record in records for entry in record.entries}
    assert payloads == {number: b"%d" % number for number in range(3000)}


def test_an_exception_leaves_no_trace(source: Source) -> None:
    """Not even of records that the broker already had."""
    producer = source.producer()
    client = source.client(producer, max_record_bytes=10)
    with pytest.raises(ApplicationError), client.transaction() as txn:
        producer.produce(OWN_TOPIC, value=b"never")
        txn.transmit_log_entries([Entry(b"never", ["site-b"])] * 5)
        assert producer.flush(30) == 0
        raise ApplicationError
    assert [record.sent.record for record in source.read("read_uncommitted")] == [0, 1, 2, 3]
    assert source.read() == []
    assert source.own_values() == []
    with client.transaction() as txn:
        txn.transmit_log_entry(b"now", ["site-b"])
    assert [record.entries[0].payload for record in source.read()] == [b"now"]


def test_a_process_killed_before_its_commit_leaves_no_trace(source: Source) -> None:
    program = """
        import sys, time
        from confluent_kafka import Producer
        from lr_source import Entry, RoutingQueueClient
        producer = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "application"})
        producer.init_transactions(30)
        client = RoutingQueueClient("policy", source="site-a", producer=producer, max_record_bytes=10)
        with client.transaction() as txn:
            txn.transmit_log_entries([Entry(b"never", ["site-b"])] * 5)
            assert producer.flush(30) == 0
            print("written", flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), source.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert len(source.read("read_uncommitted")) == 4
    source.producer()  # the next instance ends what the killed one left behind
    assert source.read() == []


def test_transactions_of_two_clients_interleave_in_partitions_of_their_own(source: Source) -> None:
    clients = [source.client(source.producer(f"application-{number}"), max_record_bytes=10) for number in range(2)]
    with clients[0].transaction(ordering_key="customer-1") as one, clients[1].transaction("customer-2") as other:
        for number in range(3):
            one.transmit_log_entry(b"one %d" % number, ["site-b"])
            other.transmit_log_entry(b"other %d" % number, ["site-b"])
    by_txn: dict[Any, list[Read]] = {}
    for record in source.read():
        by_txn.setdefault(record.sent.txn, []).append(record)
    assert set(by_txn) == {one.id, other.id}
    partitions = [{record.message.partition() for record in records} for records in by_txn.values()]
    assert [len(found) for found in partitions] == [1, 1]
    assert partitions[0] != partitions[1], "these two keys differ with four partitions"
    for records in by_txn.values():
        assert [record.sent.last for record in records] == [False, False, True]


def test_bytes_do_not_grow_with_the_number_of_destinations(source: Source) -> None:
    """Fifty destinations cost their names, twice, and nothing else: payloads are stored once."""
    client = source.client(source.producer())
    with client.transaction() as txn:
        txn.transmit_log_entry(b"", [])  # sequence number 0 is a byte shorter than 1 to 127
    payload = os.urandom(1000)
    sizes = []
    for count in (1, 50):
        with client.transaction() as txn:
            for _ in range(20):
                txn.transmit_log_entry(payload, [f"sink-{number:02}" for number in range(count)])
        record = source.read()[-1]
        assert len(record.sent.destinations) == count
        assert record.sent.entries == 20
        tags = sum(len(name) + len(value) for name, value in record.tags)
        sizes.append(len(record.message.value() or b"") + tags)
    assert len(source.read()) == 2, "one record each"
    name = len("sink-00")
    tag = len("lrq_logentry_") + name
    assert sizes[1] - sizes[0] == 49 * (2 + name + tag)


def test_join_commits_with_the_application(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    producer.produce(OWN_TOPIC, value=b"order")
    with client.join(ordering_key=b"customer-1") as txn:
        txn.transmit_log_entry(b"joined", ["site-b"])
        producer.produce(OWN_TOPIC, value=b"order 2")
    assert nothing_is_committed(source)
    producer.commit_transaction(30)
    [record] = source.read()
    assert (record.sent.txn, record.sent.last, record.entries[0].payload) == (txn.id, True, b"joined")
    assert source.own_values() == [b"order", b"order 2"]


def nothing_is_committed(source: Source) -> bool:
    stable = topics.last_stable_offsets(source.cluster.admin(), naming.SEND_LOG_ENTRIES, range(PARTITIONS))
    return set(stable.values()) == {0}


def test_join_aborts_with_the_application(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    with client.join() as txn:
        txn.transmit_log_entry(b"never", ["site-b"])
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    assert len(source.read("read_uncommitted")) == 1
    assert source.read() == []


@pytest.mark.parametrize("write_before", [False, True])
def test_an_abort_inside_the_joined_block_is_safe(source: Source, write_before: bool) -> None:
    """What LR still held is not written anywhere, one clear error says so, and the next transaction works."""
    producer = source.producer()
    client = source.client(producer, max_record_bytes=10 if write_before else 1000)
    producer.begin_transaction()
    with pytest.raises(NotInTransaction, match="ended while LR still held entries"), client.join() as txn:
        txn.transmit_log_entries([Entry(b"never", ["site-b"])] * 2)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)
    producer.begin_transaction()
    with client.join() as txn:
        txn.transmit_log_entry(b"now", ["site-b"])
    producer.commit_transaction(30)
    assert len(source.read("read_uncommitted")) == 1 + write_before
    assert [record.entries[0].payload for record in source.read()] == [b"now"]


def test_an_exception_in_the_joined_block_leaves_the_abort_to_the_application(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    with pytest.raises(ApplicationError), client.join() as txn:
        txn.transmit_log_entry(b"never", ["site-b"])
        raise ApplicationError
    producer.abort_transaction(30)
    with client.transaction() as txn:
        txn.transmit_log_entry(b"now", ["site-b"])
    assert [record.entries[0].payload for record in source.read("read_uncommitted")] == [b"now"]


def test_two_clients_take_part_in_one_transaction(source: Source) -> None:
    """The second joins the transaction of the first: two transactions for the destinations, committed together."""
    producer = source.producer()
    policy = source.client(producer)
    inventory = RoutingQueueClient("inventory", source="site-a", producer=producer)
    with pytest.raises(ApplicationError), policy.transaction() as one, inventory.join() as other:
        one.transmit_log_entry(b"never", ["site-b"])
        other.transmit_log_entry(b"never", ["site-b"])
        raise ApplicationError
    with policy.transaction() as one, inventory.join() as other:
        one.transmit_log_entry(b"one", ["site-b"])
        other.transmit_log_entry(b"other", ["site-b"])
    found = {record.sent.client: (record.sent.txn, record.sent.last) for record in source.read("read_uncommitted")}
    assert found == {"policy": (one.id, True), "inventory": (other.id, True)}
    assert len(source.read()) == 2


def test_a_producer_without_a_transactional_id_is_refused_at_construction(source: Source) -> None:
    producer = Producer({"bootstrap.servers": source.bootstrap_servers})
    with pytest.raises(NotTransactional, match=r"no transactional\.id"):
        source.client(producer)


def test_a_producer_that_was_not_initialised_is_told_at_the_first_transaction(source: Source) -> None:
    """It may still be initialised after the client was made."""
    producer = source.producer(init=False)
    client = source.client(producer)
    with pytest.raises(NotTransactional, match=r"init_transactions\(\) was not called"):
        client.transaction().__enter__()
    with pytest.raises(NotTransactional, match=r"init_transactions\(\) was not called"):
        client.join()
    producer.init_transactions(30)
    with client.transaction() as txn:
        txn.transmit_log_entry(b"now", ["site-b"])
    assert len(source.read()) == 1


def test_a_transaction_inside_the_applications_own_is_refused_and_that_goes_on(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    producer.produce(OWN_TOPIC, value=b"order")
    with pytest.raises(TransactionOpen, match="in a transaction already"):
        client.transaction().__enter__()
    producer.commit_transaction(30)
    assert source.own_values() == [b"order"]


def test_a_client_may_be_made_inside_a_transaction(source: Source) -> None:
    producer = source.producer()
    producer.begin_transaction()
    producer.produce(OWN_TOPIC, value=b"order")
    with source.client(producer).join() as txn:
        txn.transmit_log_entry(b"joined", ["site-b"])
    producer.commit_transaction(30)
    assert (len(source.read()), source.own_values()) == (1, [b"order"])


def test_join_without_a_transaction_is_refused_at_the_call(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    with pytest.raises(NotInTransaction, match="in no transaction"):
        client.join()
    producer.begin_transaction()
    producer.produce(OWN_TOPIC, value=b"order")
    producer.commit_transaction(30)
    with pytest.raises(NotInTransaction, match="in no transaction"):
        client.join()


def test_join_in_a_transaction_that_has_failed_says_to_abort(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    producer.produce(OWN_TOPIC, partition=99)
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    with pytest.raises(BrokerError, match=r"has failed.*call abort_transaction") as error:
        client.join()
    assert error.value.abortable
    producer.abort_transaction(30)
    with client.transaction():
        pass


def serve_fatal_error(producer: Producer) -> None:
    """Wait for the broker's refusal. confluent-kafka raises it, or what became of it behind a delivery callback."""
    with pytest.raises((KafkaException, SystemError)):
        producer.flush(30)


def test_a_fenced_producer_is_told_at_the_commit_and_ever_after(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    with pytest.raises(ProducerFenced), client.transaction() as txn:
        txn.transmit_log_entry(b"never", ["site-b"])
        source.producer()
    with pytest.raises(ProducerFenced, match="cannot be used any more"):
        client.transaction().__enter__()
    assert source.read() == []


def test_a_fenced_producer_is_told_at_the_call_as_soon_as_it_knows(source: Source) -> None:
    """librdkafka says no more than "fatal error" there; LR finds out why."""
    producer = source.producer()
    client = source.client(producer, max_record_bytes=10)
    with pytest.raises(ProducerFenced), client.transaction() as txn:
        source.producer()
        txn.transmit_log_entries([Entry(b"never", ["site-b"])] * 2)
        serve_fatal_error(producer)
        with pytest.raises(ProducerFenced, match="another instance has taken over"):
            txn.transmit_log_entry(b"never", ["site-b"])
        with pytest.raises(ProducerFenced, match="can only be aborted"):
            txn.transmit_log_entry(b"never", [])
    with pytest.raises(ProducerFenced):
        client.transaction().__enter__()
    assert source.read() == []


def test_a_producer_fenced_in_the_applications_hands_is_told(source: Source) -> None:
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    source.producer()
    producer.produce(OWN_TOPIC, value=b"never")
    serve_fatal_error(producer)
    with pytest.raises(ProducerFenced):
        client.join()
    with pytest.raises(ProducerFenced):
        client.transaction().__enter__()


def test_a_commit_of_the_application_that_has_not_ended_is_told(source: Source) -> None:
    """After a commit that was fenced under way, librdkafka waits for it to be called again, whatever else is asked."""
    producer = source.producer()
    client = source.client(producer)
    producer.begin_transaction()
    producer.produce(OWN_TOPIC, value=b"never")
    assert producer.flush(30) == 0
    source.producer()
    producer.produce(OWN_TOPIC, value=b"never")
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    for attempt in (client.join, client.transaction().__enter__):
        with pytest.raises(BrokerError, match="earlier commit or abort of the producer has not come to its end"):
            attempt()


def test_the_largest_payload_gets_through_to_many_destinations(source: Source) -> None:
    """LR's arithmetic is on the safe side of librdkafka's and the broker's."""
    client = source.client(source.producer())
    longest = [f"{number:0>64}" for number in range(500)]
    with client.transaction() as txn:
        txn.transmit_log_entry(os.urandom(900_000), longest)
        with pytest.raises(PayloadTooLarge, match="the limit is 900000"):
            txn.transmit_log_entry(os.urandom(900_001), ["site-b"])
    [record] = source.read()
    assert len(record.entries[0].payload) == 900_000
    assert len(record.sent.destinations) == 500


@pytest.mark.parametrize("key, headers", [(None, []), (b"k" * 5000, [(f"{n:03}" * 10, b"v" * 50) for n in range(100)])])
@pytest.mark.parametrize("destinations", [1, 300])
def test_an_entry_that_just_fits_gets_through(
    source: Source, key: bytes | None, headers: list[tuple[str, bytes | None]], destinations: int
) -> None:
    client = source.client(source.producer(), max_payload_bytes=999_999)
    sites = [f"{number:0>64}" for number in range(destinations)]
    low, high = 1, 999_999
    with client.transaction() as txn:
        while high - low > 1:  # find the largest that is taken; those tried on the way are taken as well
            middle = (low + high) // 2
            try:
                txn.transmit_log_entry(bytes(middle), sites, key=key, headers=headers)
            except PayloadTooLarge:
                high = middle
            else:
                low = middle
    largest = max(len(entry.payload) for record in source.read() for entry in record.entries)
    assert largest == low > 900_000 - destinations * 200 - 20_000


def test_a_producer_with_a_smaller_limit_is_told_what_to_set(source: Source) -> None:
    producer = source.producer(message_max_bytes=10_000)
    client = source.client(producer)
    with pytest.raises(PayloadTooLarge, match="set max_message_bytes"), client.transaction() as txn:
        txn.transmit_log_entry(b"x" * 20_000, ["site-b"])
    client = source.client(producer, max_message_bytes=10_000, max_payload_bytes=9_000)
    with client.transaction() as txn:
        with pytest.raises(PayloadTooLarge):
            txn.transmit_log_entry(b"x" * 20_000, ["site-b"])
        txn.transmit_log_entries([Entry(b"x" * 4_000, ["site-b"])] * 5)
    assert sum(record.sent.entries for record in source.read()) == 5


def test_a_record_that_the_broker_refuses_is_named_and_aborts(sites: Callable[..., list[Site]]) -> None:
    """librdkafka alone would say "1 message(s) failed delivery"."""
    [site] = sites("site-a")
    cluster = Cluster(SiteId("site-a"), {"bootstrap.servers": site.bootstrap_servers})
    create_topic(site, naming.SEND_LOG_ENTRIES, max_message_bytes="5000")
    producer = Producer({"bootstrap.servers": site.bootstrap_servers, "transactional.id": "application"})
    producer.init_transactions(30)
    client = RoutingQueueClient("policy", source="site-a", producer=producer)
    with pytest.raises(BrokerError, match=r"aborted: write to .*MSG_SIZE_TOO_LARGE"), client.transaction() as txn:
        txn.transmit_log_entry(os.urandom(6000), ["site-b"])
    # librdkafka counted the refused record, the broker did not: it notices with the next one, and recovers then.
    with pytest.raises(BrokerError, match=r"was aborted: .*OUT_OF_ORDER_SEQUENCE_NUMBER"), client.transaction() as txn:
        txn.transmit_log_entry(b"once more", ["site-b"])
    with client.transaction() as txn:
        txn.transmit_log_entry(b"now", ["site-b"])
    assert len(list(read_to_end(cluster, naming.SEND_LOG_ENTRIES))) == 1


def test_a_missing_send_queue_is_told_with_what_to_do(sites: Callable[..., list[Site]]) -> None:
    [site] = sites("site-a")
    producer = Producer({"bootstrap.servers": site.bootstrap_servers, "transactional.id": "application"})
    producer.init_transactions(30)
    client = RoutingQueueClient("policy", source="site-a", producer=producer)
    with pytest.raises(BrokerError, match=r"LRQ_Send_LogEntries does not exist.*lr topics create"):
        client.transaction().__enter__()
    create_topic(site, naming.SEND_LOG_ENTRIES)
    with client.transaction() as txn:
        txn.transmit_log_entry(b"now", ["site-b"])


def test_a_send_queue_made_anew_with_fewer_partitions_is_noticed(source: Source) -> None:
    """The transaction that meets it is aborted; the next one goes where there is a partition."""
    producer = source.producer()
    client = source.client(producer)
    with client.transaction() as txn:
        txn.transmit_log_entry(b"before", ["site-b"])
    assert [record.message.partition() for record in source.read()] == [1]
    administrator = source.cluster.admin()
    administrator.delete_topics([naming.SEND_LOG_ENTRIES])[naming.SEND_LOG_ENTRIES].result(30)
    source.make_send_queue(partitions=1)
    known = producer.list_topics(timeout=30).topics
    while naming.SEND_LOG_ENTRIES not in known or len(known[naming.SEND_LOG_ENTRIES].partitions) != 1:
        known = producer.list_topics(timeout=30).topics  # librdkafka looks by itself every few minutes
    with pytest.raises(BrokerError, match="_UNKNOWN_PARTITION"), client.transaction() as txn:
        txn.transmit_log_entry(b"refused", ["site-b"])
    with client.transaction() as txn:
        txn.transmit_log_entry(b"after", ["site-b"])
    assert [record.entries[0].payload for record in source.read()] == [b"after"]


def test_callbacks_of_the_application_are_for_its_own_records(source: Source) -> None:
    """One that it configured for all records is not called for LR's; the others are called as ever."""
    told: list[tuple[str, bytes | None]] = []

    def general(_error: KafkaError | None, message: Message) -> None:
        told.append(("general", message.value()))

    def particular(_error: KafkaError | None, message: Message) -> None:
        told.append(("particular", message.value()))

    producer = source.producer(on_delivery=general)
    client = source.client(producer, max_record_bytes=10)
    with client.transaction() as txn:
        producer.produce(OWN_TOPIC, value=b"1")
        producer.produce(OWN_TOPIC, value=b"2", on_delivery=particular)
        txn.transmit_log_entries([Entry(b"x", ["site-b"])] * 3)
    assert sorted(told) == [("general", b"1"), ("particular", b"2")]
    assert len(source.read()) == 3


def test_callbacks_that_raise_do_not_hide_that_the_commit_succeeded(source: Source) -> None:
    """confluent-kafka raises their exceptions from commit_transaction(), in place of its result."""

    def fail(_error: KafkaError | None, _message: Message) -> None:
        raise ApplicationError

    producer = source.producer()
    client = source.client(producer)
    with pytest.raises(ApplicationError) as raised, client.transaction() as txn:
        for _ in range(100):
            producer.produce(OWN_TOPIC, value=b"order", on_delivery=fail)
        txn.transmit_log_entry(b"committed", ["site-b"])
    assert "the commit of the transaction itself succeeded" in raised.value.__notes__[0]
    with client.transaction() as txn:
        txn.transmit_log_entry(b"next", ["site-b"])
    assert [record.entries[0].payload for record in source.read()] == [b"committed", b"next"]
    assert source.own_values() == [b"order"] * 100


def test_a_serializing_producer_leaves_lrs_bytes_alone(source: Source) -> None:
    producer: SerializingProducer[str, str] = SerializingProducer(
        source.config() | {"value.serializer": StringSerializer("utf_16")}
    )
    producer.init_transactions(30)
    client = source.client(producer)
    with client.transaction() as txn:
        producer.produce(OWN_TOPIC, value="order")
        txn.transmit_log_entry(b"payload", ["site-b"])
    assert [record.entries[0].payload for record in source.read()] == [b"payload"]
    assert source.own_values() == ["order".encode("utf_16")]


def test_a_broker_that_makes_topics_by_itself_does_not_make_the_send_queue(fresh_broker: BrokerFactory) -> None:
    """It would have one partition and settings that break guarantees."""
    broker = fresh_broker("site-a", properties={"auto.create.topics.enable": "true"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "application"})
    producer.init_transactions(30)
    client = RoutingQueueClient("policy", source="site-a", producer=producer)
    with pytest.raises(BrokerError, match="lr topics create"):
        client.transaction().__enter__()
    create_topic(broker, "marker")
    assert topic_names(admin(broker.bootstrap_servers)) == {"marker"}


@pytest.mark.chaos
def test_a_broker_that_does_not_answer(fresh_broker: BrokerFactory) -> None:
    """Looking at the producer needs no broker; a commit waits for one; at its deadline the result is unknown."""
    broker = fresh_broker("site-a")
    source = Source(broker)
    producer = source.producer()
    client = source.client(producer, commit_timeout_s=2.0)
    with client.transaction() as txn:
        txn.transmit_log_entry(b"before", ["site-b"])
    broker.pause()
    began = time.monotonic()
    source.client(producer)
    with pytest.raises(NotInTransaction):
        client.join()
    with client.transaction():
        pass
    assert time.monotonic() - began < 1.0
    with pytest.raises(ResultUnknown, match="not answered within 2 s"), client.transaction() as txn:
        txn.transmit_log_entry(b"unknown", ["site-b"])
    assert 2.0 <= time.monotonic() - began < 10.0
    with pytest.raises(ResultUnknown, match="cannot be used any more"):
        client.transaction().__enter__()
    broker.resume()
    successor = source.client(source.producer())
    with successor.transaction() as txn:
        txn.transmit_log_entry(b"after", ["site-b"])
    payloads = [record.entries[0].payload for record in source.read()]
    assert payloads in ([b"before", b"after"], [b"before", b"unknown", b"after"])
