"""
What a sink must have, computed from the send queue itself.

Deliberately not by the reader's code: this knows the wire format (the generated classes) and one rule. A transaction
is complete with its last record; transactions are in the order in which they were completed.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from lr_wire.naming import SEND_LOG_ENTRIES
from lr_wire.v1.entry_pb2 import RoutingTableEntryMsg
from tests.support.brokers import admin

_log = logging.getLogger("lr.librdkafka")

TxnKey = tuple[bytes, int]
"""Incarnation and first sequence number."""


@dataclass(frozen=True)
class Expected:
    """One record that a sink must have, and where in its transaction."""

    txn: TxnKey
    record: int
    records: int
    entries: int
    content: bytes
    """All that both queues carry of it, encoded."""


@dataclass
class LoggedTransaction:
    """A committed transaction of the send queue."""

    txn: TxnKey
    client: str
    first_offset: int
    last_offset: int = -1
    terminated: bool = False
    records: list[RoutingTableEntryMsg] = field(default_factory=list)

    def expected_at(self, sink: str) -> list[Expected]:
        """Give the records that a sink must have of it."""
        chosen = [record for record in self.records if sink in record.destinations]
        entries = sum(len(record.opaque_payload) for record in chosen)
        return [Expected(self.txn, n, len(chosen), entries, content(record)) for n, record in enumerate(chosen)]


class SendLog:
    """The committed transactions of a source, by partition, in the order of their completion."""

    def __init__(self, bootstrap_servers: str, *, within_s: float = 30.0) -> None:
        """Read all that is there; transactions that are still open are waited for."""
        self.partitions: dict[int, list[LoggedTransaction]] = {}
        partitions = len(
            admin(bootstrap_servers).list_topics(SEND_LOG_ENTRIES, 10.0).topics[SEND_LOG_ENTRIES].partitions
        )
        for partition, messages in read_all(bootstrap_servers, SEND_LOG_ENTRIES, partitions, within_s).items():
            found: dict[TxnKey, LoggedTransaction] = {}
            for offset, value in messages:
                record = RoutingTableEntryMsg.FromString(value)
                txn = (record.incarnation, record.first_sequence)
                logged = found.setdefault(txn, LoggedTransaction(txn, record.send.client, offset))
                logged.last_offset = offset
                logged.terminated = record.send.last
                logged.records.append(record)
            self.partitions[partition] = sorted(found.values(), key=lambda logged: logged.last_offset)

    @property
    def transactions(self) -> list[LoggedTransaction]:
        """All of them."""
        return [logged for found in self.partitions.values() for logged in found]

    def expected(self, sink: str) -> dict[tuple[str, int], list[Expected]]:
        """Give what the sink must have, by client and partition, in order."""
        expected: dict[tuple[str, int], list[Expected]] = defaultdict(list)
        for partition, found in self.partitions.items():
            for logged in found:
                if records := logged.expected_at(sink):
                    expected[logged.client, partition] += records
        return dict(expected)

    @property
    def unterminated(self) -> set[TxnKey]:
        """Transactions that no record says the end of; where they stand among the others is up to the reader."""
        return {logged.txn for logged in self.transactions if not logged.terminated}

    def overlapping(self) -> int:
        """Count the transactions that were open while another one of the same partition was completed."""
        return sum(
            any(other.last_offset > logged.first_offset for other in found[:place])
            for found in self.partitions.values()
            for place, logged in enumerate(found)
        )


def content(record: RoutingTableEntryMsg) -> bytes:
    """Give all of a record but what differs between a send queue and a receive queue."""
    copy = RoutingTableEntryMsg()
    copy.CopyFrom(record)
    for name in ("destinations", "send", "receive"):
        copy.ClearField(name)
    return copy.SerializeToString(deterministic=True)


def high_watermarks(bootstrap_servers: str, topic: str, partitions: int, *, committed: bool = False) -> dict[int, int]:
    """Give where each partition ends: for everybody, or for a `read_committed` consumer."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    client = admin(bootstrap_servers)
    futures = client.list_offsets(wanted, isolation_level=level, request_timeout=10.0)
    return {where.partition: future.result(10.0).offset for where, future in futures.items()}


def read_all(
    bootstrap_servers: str, topic: str, partitions: int, within_s: float
) -> dict[int, list[tuple[int, bytes]]]:
    """Read the committed records of a topic up to where it ends now, waiting for open transactions."""
    ends = high_watermarks(bootstrap_servers, topic, partitions)
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in ends}
    reached = dict.fromkeys(ends, 0)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "send-log",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "error_cb": lambda _error: None,
        },
        logger=_log,
    )
    deadline = time.monotonic() + within_s
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        while any(reached[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end {ends}, only to {reached}"
            message = consumer.poll(0.2)
            if message is None or (message.error() is not None and message.offset() is None):
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if message.error() is None:
                found[partition].append((offset, message.value() or b""))
                reached[partition] = offset + 1
            else:
                reached[partition] = max(reached[partition], offset)
    finally:
        consumer.close()
    return found
