"""What a consumer group has committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from lr_kafka.errors import kafka_errors
from lr_kafka.topics import REQUEST_TIMEOUT_S


class Committed(NamedTuple):
    """A committed offset with what was written beside it."""

    offset: int
    metadata: str


def committed(admin: AdminClient, group: str, topic: str, partitions: Iterable[int]) -> dict[int, Committed]:
    """Give what `group` has committed for each partition; partitions without a commit are left out."""
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    if not wanted:
        return {}
    with kafka_errors(f"read the committed offsets of group {group}"):
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        answer = admin.list_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S)[group].result()
        for item in answer.topic_partitions:
            if item.error is not None:
                raise KafkaException(item.error)
    return {
        item.partition: Committed(item.offset, item.metadata or "")
        for item in answer.topic_partitions
        if item.offset >= 0
    }
