"""What LR asks of and does to topics, as plain blocking functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from lr_kafka.errors import kafka_errors

# Asking for one topic that is not there is the least that a cluster can be asked for.
_NO_TOPIC = "LR_No_Such_Topic"

# An admin request that is not answered by then counts as failed; librdkafka retries underneath until that.
REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that exists: its id tells it from an earlier one of the same name."""

    name: str
    id: str
    partitions: int


def describe(admin: AdminClient, topic: str) -> TopicInfo | None:
    """Describe a topic; None if there is none."""
    with kafka_errors(f"describe topic {topic}"):
        future = admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)[topic]
        try:
            found = future.result()
        except KafkaException as exception:
            if exception.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                return None
            raise
    return TopicInfo(topic, str(found.topic_id), len(found.partitions))


def cluster_id(admin: AdminClient) -> str:
    """Give the id that the cluster got when it was made."""
    with kafka_errors("describe the cluster"):
        return str(admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result().cluster_id)


def reach(admin: AdminClient, timeout_s: float) -> None:
    """Raise BrokerError if the cluster does not answer within that time."""
    with kafka_errors(f"no answer within {timeout_s:g} s"):
        admin.list_topics(topic=_NO_TOPIC, timeout=timeout_s)


def names(admin: AdminClient) -> list[str]:
    """List all topics that are not Kafka's own."""
    with kafka_errors("list topics"):
        return sorted(name for name in admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics if not name.startswith("__"))


def create(admin: AdminClient, topic: str, partitions: int, config: Mapping[str, str], replication: int = -1) -> bool:
    """Create a topic; False if it was there already. Replication -1 is the broker's default."""
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(config))
    with kafka_errors(f"create topic {topic}"):
        future = admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)[topic]
        return _unless(future, KafkaError.TOPIC_ALREADY_EXISTS)


def grow(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Give a topic more partitions; False if another process has done so just now."""
    with kafka_errors(f"grow topic {topic} to {partitions} partitions"):
        future = admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=REQUEST_TIMEOUT_S)[topic]
        return _unless(future, KafkaError.INVALID_PARTITIONS)


def log_starts(admin: AdminClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Give the first offset that each partition still has."""
    return _offsets(admin, topic, partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)


def high_watermarks(admin: AdminClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Give the offset after the last record of each partition, open transactions included."""
    return _offsets(admin, topic, partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)


def last_stable_offsets(admin: AdminClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Give the offset up to which a `read_committed` consumer can read now."""
    return _offsets(admin, topic, partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)


def offsets_at(admin: AdminClient, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int]:
    """Give the first offset of each partition whose record is not older than that; -1 where there is none."""
    spec = OffsetSpec.for_timestamp(timestamp_ms)
    return _offsets(admin, topic, partitions, spec, IsolationLevel.READ_UNCOMMITTED)


def delete_before(admin: AdminClient, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Delete the records before the given offsets; return where each partition begins now."""
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    with kafka_errors(f"delete applied records of {topic}"):
        futures = admin.delete_records(wanted, request_timeout=REQUEST_TIMEOUT_S)
        return {item.partition: future.result().low_watermark for item, future in futures.items()}


def config(admin: AdminClient, topic: str) -> dict[str, str]:
    """Give the settings of a topic."""
    with kafka_errors(f"read the settings of topic {topic}"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()
    return {name: entry.value for name, entry in entries.items()}


def _offsets(
    admin: AdminClient, topic: str, partitions: Iterable[int], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[int, int]:
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    if not wanted:
        return {}
    with kafka_errors(f"list the offsets of {topic}"):
        futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
        return {item.partition: future.result().offset for item, future in futures.items()}


def _unless(future: Future[Any], tolerated: int) -> bool:
    try:
        future.result()
    except KafkaException as exception:
        if exception.args[0].code() == tolerated:
            return False
        raise
    return True
