"""LR's topics: which there are, and the settings each must have for the guarantees to hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from lr_wire import naming

# No time or size limit: nothing leaves the topic by itself.
_KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}

# The source's clock may be ahead of the sink's; a broker that refuses such records would stop the flow.
_ANY_TIME = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}

DEFAULT_SEND_RETENTION_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as LR creates it."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)


def send_queue(partitions: int, retention_ms: int = DEFAULT_SEND_RETENTION_MS) -> TopicSpec:
    """Specify the shared queue of log entries on a source."""
    config = {"cleanup.policy": "delete", "retention.ms": str(retention_ms), "retention.bytes": "-1", **_ANY_TIME}
    return TopicSpec(naming.SEND_LOG_ENTRIES, partitions, config)


def receive_queue(client: naming.ClientName, source: naming.SiteId, partitions: int) -> TopicSpec:
    """Specify the queue of a client on a sink: only what is applied leaves it."""
    return TopicSpec(
        naming.receive_topic(client, source), partitions, {"cleanup.policy": "delete", **_KEEP, **_ANY_TIME}
    )


def dead_letters(client: naming.ClientName, source: naming.SiteId) -> TopicSpec:
    """Specify the queue of what was given up; one partition keeps it in order, and it is kept until somebody looks."""
    # Whatever some broker has taken must fit, with the reason beside it: a dead letter that is refused stops the flow.
    config = {"cleanup.policy": "delete", "max.message.bytes": str(2**31 - 1), **_KEEP, **_ANY_TIME}
    return TopicSpec(naming.dead_letter_topic(client, source), 1, config)


def status() -> TopicSpec:
    """Specify the table of sessions and positions; one partition, since it is read to its end as a whole."""
    config = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024), "min.cleanable.dirty.ratio": "0.1"}
    return TopicSpec(naming.STATUS, 1, config)
