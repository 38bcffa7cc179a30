"""Reading a topic from somewhere up to where it ends now, or for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import KafkaError, Message, TopicPartition

from lr_kafka import topics
from lr_kafka.clients import Cluster, Record
from lr_kafka.errors import translate
from lr_wire.errors import BrokerError
from lr_wire.records import Header

_BATCH = 1000
_POLL_S = 0.5

# The broker keeps a fetch at the end of a partition waiting for this long, and only its answer shows the end: whoever
# reads to the end waits for it every time. The default of half a second is for those who stay.
_END_WAIT_MS = 20

Progress = Callable[[int, int], None]
"""Told how many offsets are done, and of how many."""


def read_to_end(
    cluster: Cluster,
    topic: str,
    *,
    start: Mapping[int, int] | None = None,
    isolation: str = "read_committed",
    patience_s: float = 30.0,
    progress: Progress | None = None,
) -> Iterator[Message]:
    """
    Yield the records of all partitions from `start` (default: the beginning) up to the high watermark as of the call.

    With `read_committed` that point can lie behind a transaction that is still open: the reading waits for it, since
    what comes after it may concern the caller. After `patience_s` without progress it gives up with an error.
    """
    admin = cluster.admin()
    info = topics.describe(admin, topic)
    if info is None:
        return
    partitions = range(info.partitions)
    first = topics.log_starts(admin, topic, partitions)
    ends = topics.high_watermarks(admin, topic, partitions)
    ranges = {p: (max(first[p], (start or {}).get(p, first[p])), ends[p]) for p in partitions}
    yield from read_range(cluster, topic, ranges, isolation=isolation, patience_s=patience_s, progress=progress)


def read_range(
    cluster: Cluster,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    isolation: str = "read_committed",
    patience_s: float = 30.0,
    progress: Progress | None = None,
) -> Iterator[Message]:
    """
    Yield the records of the given partitions from the first offset of each range up to before its second.

    A first offset that is no longer in the log is an error (code `_AUTO_OFFSET_RESET`), never skipped over.
    """
    ends = {p: end for p, (_, end) in ranges.items()}
    reached = {p: begin for p, (begin, end) in ranges.items() if begin < end}
    missing = set(reached)
    if not missing:
        return
    total = sum(ends[p] - reached[p] for p in missing)
    consumer = cluster.consumer(isolation_level=isolation, fetch_wait_max_ms=_END_WAIT_MS)
    try:
        consumer.assign([TopicPartition(topic, p, reached[p]) for p in sorted(missing)])
        moved_at = time.monotonic()
        while missing:
            first = consumer.poll(_POLL_S)
            # `consume` waits for all it was asked for, so it is only asked for what is there already.
            for message in (first, *consumer.consume(_BATCH, 0)) if first is not None else ():
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    problem = translate(error, f"read {topic} on {cluster.site}")
                    if not problem.retriable:
                        raise problem
                    continue
                partition, offset = place(message)
                now_at = offset if error is not None else offset + 1
                if now_at > reached[partition]:
                    reached[partition] = now_at
                    moved_at = time.monotonic()
                if error is None and offset < ends[partition]:
                    yield message
            if time.monotonic() - moved_at > patience_s:
                raise _stuck(cluster, topic, min(missing), reached[min(missing)])
            missing = {p for p in missing if reached[p] < ends[p]}
            if progress:
                progress(total - sum(ends[p] - reached[p] for p in missing), total)
    finally:
        consumer.close()


def follow(
    cluster: Cluster, topic: str, starts: Mapping[int, int], *, isolation: str = "read_committed"
) -> Iterator[Message | None]:
    """Yield the records of the given partitions from `starts` on, for ever; None whenever there is nothing new."""
    consumer = cluster.consumer(isolation_level=isolation)
    try:
        consumer.assign([TopicPartition(topic, p, offset) for p, offset in starts.items()])
        while True:
            message = consumer.poll(_POLL_S)
            error = message.error() if message is not None else None
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                problem = translate(error, f"follow {topic} on {cluster.site}")
                if not problem.retriable:
                    raise problem
    finally:
        consumer.close()


def place(message: Message) -> tuple[int, int]:
    """Give the partition and the offset of a record or of an end of partition: they have both, other events may not."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def headers_of(message: Record) -> list[Header] | None:
    """
    Give the headers of a record; None if they cannot be read.

    Kafka lets their names be any bytes. The client library wants UTF-8, and for anything else it raises a SystemError
    and is left with a broken list: ask once.
    """
    try:
        return message.headers() or []
    except SystemError:
        return None


def _stuck(cluster: Cluster, topic: str, partition: int, offset: int) -> BrokerError:
    return BrokerError(
        f"{topic} on {cluster.site}: partition {partition} cannot be read past offset {offset}",
        hint="a transaction is still open there and its time-out will end it, or the cluster does not answer",
        retriable=True,
    )
