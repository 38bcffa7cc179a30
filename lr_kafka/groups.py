"""What a consumer group has committed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from lr_kafka.errors import kafka_errors
from lr_kafka.topics import REQUEST_TIMEOUT_S
from lr_wire.errors import BrokerError

_RETRY_S = 0.2


class Committed(NamedTuple):
    """A committed offset with what was written beside it."""

    offset: int
    metadata: str


def committed(admin: AdminClient, group: str, topic: str, partitions: Iterable[int]) -> dict[int, Committed]:
    """Give what `group` has committed for each partition; partitions without a commit are left out."""
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    if not wanted:
        return {}
    until = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            found = _ask(admin, group, wanted)
        except BrokerError as error:
            # The group's coordinator is not there for a moment after a start or a move, and librdkafka does not wait.
            if not error.retriable or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)
        else:
            return {item.partition: Committed(item.offset, item.metadata or "") for item in found if item.offset >= 0}


def _ask(admin: AdminClient, group: str, wanted: list[TopicPartition]) -> list[TopicPartition]:
    with kafka_errors(f"read the committed offsets of group {group}"):
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        answer = admin.list_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S)[group].result()
        for item in answer.topic_partitions:
            if item.error is not None:
                raise KafkaException(item.error)
        return list(answer.topic_partitions)
