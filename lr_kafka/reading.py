"""Reading a topic from somewhere up to where it ends now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import KafkaError, Message, TopicPartition

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_kafka.errors import translate
from lr_wire.errors import BrokerError

_BATCH = 1000
_POLL_S = 0.5


def read_to_end(
    cluster: Cluster,
    topic: str,
    *,
    start: Mapping[int, int] | None = None,
    isolation: str = "read_committed",
    patience_s: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Message]:
    """
    Yield the records of all partitions from `start` (default: the beginning) up to the high watermark as of the call.

    With `read_committed` that point can lie behind a transaction that is still open: the reading waits for it, since what
    comes after it may concern the caller. After `patience_s` without any progress it gives up with an error that says so.
    """
    admin = cluster.admin()
    info = topics.describe(admin, topic)
    if info is None:
        return
    partitions = range(info.partitions)
    first = topics.log_starts(admin, topic, partitions)
    ends = topics.high_watermarks(admin, topic, partitions)
    begin = {p: max(first[p], (start or {}).get(p, first[p])) for p in partitions}
    missing = {p for p in partitions if begin[p] < ends[p]}
    if not missing:
        return
    total = sum(ends[p] - begin[p] for p in missing)
    consumer = cluster.consumer(isolation_level=isolation)
    try:
        consumer.assign([TopicPartition(topic, p, begin[p]) for p in sorted(missing)])
        reached = dict(begin)
        waited = 0.0
        while missing:
            messages = consumer.consume(_BATCH, _POLL_S)
            waited = 0.0 if messages else waited + _POLL_S
            if waited >= patience_s:
                raise BrokerError(
                    f"{topic} on {cluster.site}: partition {min(missing)} cannot be read past offset {reached[min(missing)]}",
                    hint="a transaction is still open there; its time-out will end it",
                    retriable=True,
                )
            for message in messages:
                partition = message.partition()
                error = message.error()
                if error is None:
                    reached[partition] = message.offset() + 1
                    if message.offset() < ends[partition]:
                        yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    reached[partition] = message.offset()
                else:
                    problem = translate(error, f"read {topic} on {cluster.site}")
                    if not problem.retriable:
                        raise problem
            missing = {p for p in missing if reached[p] < ends[p]}
            if progress:
                progress(sum(min(reached[p], ends[p]) - begin[p] for p in reached), total)
    finally:
        consumer.close()
