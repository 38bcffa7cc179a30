"""
Receive queues, filled the way a reader fills them: a source transaction's records one after the other in one partition,
within one transaction of a transactional producer.

    queue = ReceiveQueue(sink, partitions=3)
    queue.write(sent(b"one", b"two"), sent(b"three"), partition=1)
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Producer

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster, Record
from lr_kafka.groups import Committed, committed
from lr_kafka.reading import read_to_end
from lr_wire import codec, naming
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Applied, Header, RunningTotal, TxnId
from tests.support.brokers import Broker, Site

_sequence = itertools.count(1, 1000)


@dataclass(frozen=True)
class Sent:
    """A source transaction: the payloads in the application's order, and which of them share a record."""

    payloads: tuple[bytes, ...]
    split: tuple[tuple[int, ...], ...]
    txn: TxnId
    completed_at: int

    def bodies(self) -> list[bytes]:
        """Give the bodies of its records."""
        return [
            codec.encode_body([self.payloads[i] for i in part], part, self.txn, 1_700_000_000_000)
            for part in self.split
        ]

    def values(self) -> list[bytes]:
        """Give its records."""
        count = len(self.split)
        return [
            codec.encode_receive_head(number, count, len(self.payloads), self.completed_at) + body
            for number, body in enumerate(self.bodies())
        ]


def sent(*payloads: bytes, split: Sequence[Sequence[int]] | None = None, completed_at: int | None = None) -> Sent:
    """Make a transaction; in one record, unless `split` tells which indexes go into which record."""
    sequence = next(_sequence)
    parts = tuple(map(tuple, split)) if split else (tuple(range(len(payloads))),)
    return Sent(payloads, parts, TxnId(b"incarnation", sequence), sequence if completed_at is None else completed_at)


def total_of(transactions: Sequence[Sent]) -> RunningTotal:
    """Count what a reader counts for these transactions."""
    checksum = 0
    for transaction in transactions:
        for body in transaction.bodies():
            checksum = codec.extend_checksum(checksum, body)
    return RunningTotal(len(transactions), sum(len(item.payloads) for item in transactions), checksum)


def cluster_of(site: Site | Broker, name: str = "site-b") -> Cluster:
    """Give the cluster of a site, quiet about brokers that a test takes away."""
    return Cluster(SiteId(name), {"bootstrap.servers": site.bootstrap_servers, "log_level": 0})


@dataclass
class ReceiveQueue:
    """One receive queue, made on the given site, and its only writer."""

    site: Site | Broker
    client: str = "policy"
    source: str = "site-a"
    partitions: int = 1
    cluster: Cluster = field(init=False)
    topic: str = field(init=False)
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = cluster_of(self.site)
        self.admin = self.cluster.admin()
        spec = layout.receive_queue(ClientName(self.client), SiteId(self.source), self.partitions)
        self.topic = spec.name
        topics.create(self.admin, spec.name, spec.partitions, spec.config)
        self.producer = self.cluster.producer(transactional_id=f"test-reader-{uuid.uuid4()}")
        self.producer.init_transactions(30)

    def write(self, *transactions: Sent, partition: int = 0) -> None:
        """Write transactions, all in one transaction of the producer as a reader under load does."""
        self.write_values([value for item in transactions for value in item.values()], partition=partition)

    def write_values(
        self,
        values: Sequence[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        abort: bool = False,
    ) -> None:
        """Write records as they are."""
        tag: list[tuple[str, str | bytes | None]] = [(naming.receive_tag(ClientName(self.client)), b""), *headers]
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(self.topic, value=value, key=key, partition=partition, headers=tag)
            self.producer.poll(0)
        if abort:
            self.producer.flush(30)
            self.producer.abort_transaction(30)
        else:
            self.producer.commit_transaction(30)

    def grow(self, partitions: int) -> None:
        """Give the queue more partitions."""
        topics.grow(self.admin, self.topic, partitions)
        # Until the producer knows of them it refuses to write there.
        while len(self.producer.list_topics(self.topic, timeout=30).topics[self.topic].partitions) < partitions:
            pass

    def log_start(self, partition: int = 0) -> int:
        """Give the first offset that is still there."""
        return topics.log_starts(self.admin, self.topic, [partition])[partition]

    def end(self, partition: int = 0) -> int:
        """Give the offset after the last record."""
        return topics.high_watermarks(self.admin, self.topic, [partition])[partition]

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Take the head of the queue away, as a retention that should not be there does."""
        topics.delete_before(self.admin, self.topic, {partition: offset})

    def committed(self, partition: int = 0) -> Committed | None:
        """Give what the listener's group has committed."""
        group = naming.listener_group(ClientName(self.client))
        return committed(self.admin, group, self.topic, [partition]).get(partition)

    def applied(self, partition: int = 0) -> Applied:
        """Give how far the listener says it is; nothing at all is offset 0."""
        found = self.committed(partition)
        return Applied.from_commit(*found) if found else Applied(0)

    def dead_letters(self) -> list[Record]:
        """Give the dead letters of this queue."""
        topic = naming.dead_letter_topic(ClientName(self.client), SiteId(self.source))
        return [cast("Record", message) for message in read_to_end(self.cluster, topic)]
