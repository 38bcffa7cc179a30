"""One place that turns what Kafka says into LR's errors, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from lr_wire.errors import BrokerError, ProducerFenced

__all__ = ["OFFSET_GONE", "PARTITION_EOF", "KafkaException", "kafka_errors", "translate"]

# Not an error: a consumer has come to the end of a partition.
PARTITION_EOF = KafkaError._PARTITION_EOF

# The offset to read next is not in the log any more, or not yet.
OFFSET_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})

# Another producer with our transactional.id has taken over, in the words of every API involved.
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
UNAUTHORISED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
# Passing conditions that librdkafka does not flag as retriable by itself, e.g. on admin requests.
RETRIABLE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.NOT_CONTROLLER,
    }
)
_HINTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the topic rights; `lr doctor` lists what is missing",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant Write and Describe on the transactional.id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the cluster rights; `lr doctor` lists what is missing",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check the user name and password of this site",
    KafkaError._AUTHENTICATION: "check the user name and password of this site",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "`lr topics create` makes LR's topics",
    KafkaError._UNKNOWN_TOPIC: "`lr topics create` makes LR's topics",
    KafkaError._ALL_BROKERS_DOWN: "is the cluster up and are its bootstrap servers right?",
    KafkaError._TRANSPORT: "is the cluster up and are its bootstrap servers right?",
}


def translate(error: KafkaError, doing: str) -> BrokerError:
    """Turn a Kafka error into a BrokerError that says what was being done."""
    code = error.code()
    kind = ProducerFenced if code in FENCED else BrokerError
    hint = "another instance has taken over" if code in FENCED else _HINTS.get(code, "")
    return kind(
        f"{doing}: {error.str()} [{error.name()}]",
        hint=hint,
        code=error.name(),
        retriable=error.retriable() or code in RETRIABLE,
        fenced=code in FENCED,
        unauthorised=code in UNAUTHORISED,
        abortable=error.txn_requires_abort(),
    )


@contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Raise what goes wrong inside as a BrokerError that begins with `doing`."""
    try:
        yield
    except KafkaException as exception:
        raise translate(exception.args[0], doing) from exception
