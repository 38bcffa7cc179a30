"""What a cluster tells about itself, for whoever wants to know whether it is fit for LR."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource

from lr_kafka.errors import kafka_errors
from lr_kafka.topics import REQUEST_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster that answered."""

    cluster_id: str
    brokers: tuple[int, ...]
    rights: frozenset[str]
    """What we may do on the cluster as a whole: CREATE, DESCRIBE, ..."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that exists."""

    name: str
    partitions: int
    copies: int
    """Of each record: the fewest that a partition has."""

    in_sync: int
    """The fewest copies of a partition that are up to date now."""

    leaderless: tuple[int, ...]
    """Partitions that nobody can read or write now."""

    rights: frozenset[str]
    """What we may do with the topic: READ, WRITE, ..."""


def inspect_cluster(admin: AdminClient) -> ClusterFacts:
    """Describe a cluster."""
    with kafka_errors("describe the cluster"):
        request = admin.describe_cluster(include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S)
        found = request.result()
    brokers = tuple(sorted(node.id for node in found.nodes))
    return ClusterFacts(str(found.cluster_id), brokers, _names(found.authorized_operations))


def inspect_topic(admin: AdminClient, topic: str) -> TopicFacts | None:
    """Describe a topic; None if there is none."""
    with kafka_errors(f"describe topic {topic}"):
        request = admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            found = request[topic].result()
        except KafkaException as exception:
            if exception.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                return None
            raise
    return TopicFacts(
        topic,
        len(found.partitions),
        min(len(partition.replicas) for partition in found.partitions),
        min(len(partition.isr) for partition in found.partitions),
        tuple(partition.id for partition in found.partitions if partition.leader is None),
        _names(found.authorized_operations),
    )


def broker_config(admin: AdminClient, broker: int) -> dict[str, str]:
    """Give the settings of a broker."""
    with kafka_errors(f"read the settings of broker {broker}"):
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        entries = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()
    # The value of a setting that is a secret is not told.
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _names(operations: list[object] | None) -> frozenset[str]:
    return frozenset(getattr(operation, "name", str(operation)) for operation in operations or ())
