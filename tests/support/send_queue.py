"""
A send queue and its hand: transactions written record by record, so that a test decides what interleaves, what is left
out and what is wrong.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster, KafkaError, Message, Producer
from lr_kafka.reading import place
from lr_wire import codec, naming
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Header, TxnId

TOPIC = naming.SEND_LOG_ENTRIES
TIMEOUT_S = 30.0

_writers = itertools.count()


def create(cluster: Cluster, partitions: int = 1) -> None:
    """Make the send queue as `lr topics create` does."""
    spec = layout.send_queue(partitions)
    assert topics.create(cluster.admin(), spec.name, spec.partitions, spec.config)


def recreate(cluster: Cluster, partitions: int = 1) -> None:
    """Delete the send queue and make it anew: the same name, another topic."""
    admin = cluster.admin()
    old = topics.describe(admin, TOPIC)
    for deleted in admin.delete_topics([TOPIC]).values():
        deleted.result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while topics.describe(admin, TOPIC) is not None:
        assert time.monotonic() < deadline, f"{TOPIC} is still there"
        time.sleep(0.01)
    create(cluster, partitions)
    while (new := topics.describe(admin, TOPIC)) is None:
        assert time.monotonic() < deadline, f"{TOPIC} does not come"
        time.sleep(0.01)
    assert old is not None
    assert new.id != old.id


def grow(cluster: Cluster, partitions: int) -> None:
    """Add partitions, and return when the cluster shows them; producers that were made before may still not know."""
    admin = cluster.admin()
    assert topics.grow(admin, TOPIC, partitions)
    deadline = time.monotonic() + TIMEOUT_S
    while len(admin.list_topics(TOPIC, TIMEOUT_S).topics[TOPIC].partitions) < partitions:
        assert time.monotonic() < deadline, f"{TOPIC} does not grow"
        time.sleep(0.01)


def trim(cluster: Cluster, before: Mapping[int, int]) -> None:
    """Delete the records before the given offsets, as retention would."""
    assert topics.delete_before(cluster.admin(), TOPIC, before) == dict(before)


def ends(cluster: Cluster, partitions: int = 1) -> dict[int, int]:
    """Give the offset after the last record or marker of each partition."""
    return topics.high_watermarks(cluster.admin(), TOPIC, range(partitions))


def into(offsets: list[int]) -> Callable[[KafkaError | None, Message], None]:
    """Make a delivery callback that collects offsets, and fails on what is not delivered."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error.str()
        offsets.append(place(message)[1])

    return delivered


class Writer:
    """One transactional producer of a client: what an application with LR has, with every step in the open."""

    def __init__(self, cluster: Cluster, client: str = "policy") -> None:
        self.client = ClientName(client)
        self._incarnation = os.urandom(16)
        self._sequence = 0
        self.producer: Producer = cluster.producer(transactional_id=f"app-{client}-{next(_writers)}", linger_ms=0)
        self.producer.init_transactions(TIMEOUT_S)

    def begin(self, partition: int = 0) -> OpenTransaction:
        """Begin a transaction."""
        self.producer.begin_transaction()
        return OpenTransaction(self, partition, self._incarnation, self._sequence)

    def send(
        self, *payloads: bytes, to: Sequence[str] = ("site-b",), partition: int = 0, last: bool = True
    ) -> OpenTransaction:
        """Commit a transaction with one record for each payload, all to the same destinations."""
        txn = self.begin(partition)
        for number, payload in enumerate(payloads):
            txn.add([payload], to, last=last and number == len(payloads) - 1)
        txn.commit()
        return txn

    def raw(
        self,
        *values: bytes | None,
        headers: Iterable[Header] = (),
        key: bytes | None = None,
        partition: int = 0,
    ) -> list[int]:
        """Commit records as they are; give their offsets."""
        offsets: list[int] = []
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(
                TOPIC,
                value,
                key,
                partition,
                headers=list(headers),
                on_delivery=into(offsets),
            )
        self.producer.commit_transaction(TIMEOUT_S)
        return offsets

    def closed(self, entries: int) -> None:
        """Use the numbers of a transaction up."""
        self._sequence += max(1, entries)


class OpenTransaction:
    """A transaction that is being written."""

    def __init__(self, writer: Writer, partition: int, incarnation: bytes, first_sequence: int) -> None:
        self.id = TxnId(incarnation, first_sequence)
        self.partition = partition
        self.offsets: list[int] = []
        """Of its records, once they are flushed."""

        self.values: list[bytes] = []
        self._writer = writer
        self._entries = 0

    def add(
        self,
        payloads: Sequence[bytes],
        to: Sequence[str] = ("site-b",),
        *,
        last: bool = False,
        number: int | None = None,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        extra: bytes = b"",
        timestamp_ms: int = 0,
    ) -> bytes:
        """Write a record and wait until it is in the log; `extra` is put behind the body. Gives the body."""
        sites = [SiteId(site) for site in to]
        indexes = range(self._entries, self._entries + len(payloads))
        self._entries += len(payloads)
        body = codec.encode_body(payloads, indexes, self.id, 1_700_000_000_000, key, headers) + extra
        value = codec.encode_send(
            codec.encode_destinations(sites),
            self._writer.client,
            len(self.values) if number is None else number,
            last,
            body,
        )
        self.values.append(value)
        producer = self._writer.producer
        producer.produce(
            TOPIC,
            value,
            partition=self.partition,
            headers=[(naming.log_entry_tag(site), b"") for site in sites],
            timestamp=timestamp_ms,
            on_delivery=into(self.offsets),
        )
        assert producer.flush(TIMEOUT_S) == 0
        return body

    def commit(self) -> None:
        """Commit."""
        self._writer.producer.commit_transaction(TIMEOUT_S)
        self._writer.closed(self._entries)

    def abort(self) -> None:
        """Abort."""
        self._writer.producer.abort_transaction(TIMEOUT_S)
        self._writer.closed(self._entries)
