"""
One member of a consumer group that reads all topics whose names match a pattern, as they appear.

The group hands partitions out, and the member's owner decides when to read one, and from where: `begin` and `end`, at
any time between `assigned` and `revoked`. So finding the right offset may take its time, fail and be tried again, for
one partition without the others. (librdkafka allows that with incremental rebalancing: a rebalance callback that
assigns nothing settles the rebalance, and partitions can be added later.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol, cast

from lr_kafka.clients import Cluster, Consumer, KafkaError, Record, Setting, TopicPartition
from lr_kafka.errors import KafkaException, kafka_errors, translate
from lr_kafka.groups import Committed
from lr_wire.errors import BrokerError, ConfigError

# After this long without a heartbeat the group gives a member's partitions to others. The client's default of 45 s
# would also be how long a listener that was killed waits for its own former self.
_SESSION_TIMEOUT_MS = 10_000

# Set by this module; another value would break it.
_OURS = ("partition.assignment.strategy", "group.protocol")


class TopicPart(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class GroupEvents(Protocol):
    """What a member tells its owner, always from within `poll` or `close`."""

    def assigned(self, parts: Collection[TopicPart]) -> None:
        """These partitions are the member's now."""

    def revoked(self, parts: Collection[TopicPart]) -> None:
        """These partitions go to another member when this returns: the last moment to commit."""

    def lost(self, parts: Collection[TopicPart]) -> None:
        """These partitions are another member's already: nothing can be committed."""

    def committed(self, results: Mapping[TopicPart, BrokerError | None]) -> None:
        """What became of the commit that was sent last."""

    def trouble(self, problem: BrokerError) -> None:
        """Something is wrong with the connection to the cluster; the client goes on trying."""


class GroupMember:
    """One consumer of the group. Only one thread may use it."""

    def __init__(
        self, cluster: Cluster, group: str, pattern: str, events: GroupEvents, *, refresh_s: float, **overrides: Setting
    ) -> None:
        """Join the group in the background; `refresh_s` is how often to look for new topics and partitions."""
        for name in _OURS:
            if name in cluster.settings:
                raise ConfigError(f"{name} cannot be set for a listener", hint="leave it out")
        self._site = cluster.site
        self._events = events
        self._reading: set[TopicPart] = set()
        self._paused: set[TopicPart] = set()
        self._fatal: BrokerError | None = None
        settings: dict[str, Setting] = {
            "partition_assignment_strategy": "cooperative-sticky",
            "topic_metadata_refresh_interval_ms": max(10, int(refresh_s * 1000)),
            "session_timeout_ms": _SESSION_TIMEOUT_MS,
            "allow_auto_create_topics": False,
        }
        try:
            self._consumer: Consumer = cluster.consumer(
                group=group, on_commit=self._on_commit, on_error=self._on_error, **settings | overrides
            )
        except KafkaException as exception:
            raise ConfigError(
                f"site {cluster.site}: {exception.args[0].str()}",
                hint="what is not a setting of the listener must be one of librdkafka's, with '_' for '.'",
            ) from exception
        self._consumer.subscribe([pattern], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def poll(self, timeout_s: float) -> Record | None:
        """
        Give the next record or event of a partition that is being read; serve the group meanwhile.

        Raises what has ended this member for good, e.g. another one with the same `group.instance.id`.
        """
        with kafka_errors(f"read from site {self._site}"):
            record = cast("Record | None", self._consumer.poll(timeout_s))
        error = record.error() if record is not None else None
        # Told only once, and not by `fatal()`; after it the client gives nothing any more.
        if error is not None and error.code() == KafkaError._FATAL:
            self._fatal = translate(error, f"read from site {self._site}")
        if self._fatal:
            raise self._fatal
        return record

    def begin(self, part: TopicPart, offset: int) -> None:
        """Read an assigned partition from `offset` on."""
        with kafka_errors(f"begin to read {part.topic} partition {part.partition}"):
            self._consumer.incremental_assign([TopicPartition(*part, offset)])
        self._reading.add(part)

    def end(self, part: TopicPart) -> None:
        """Read a partition no more; it stays the member's."""
        if part in self._reading:
            self.resume(part)
            self._reading.discard(part)
            with kafka_errors(f"stop reading {part.topic} partition {part.partition}"):
                self._consumer.incremental_unassign([TopicPartition(*part)])

    def pause(self, part: TopicPart) -> None:
        """Give nothing of a partition until it is resumed; its place is kept."""
        with kafka_errors(f"pause {part.topic} partition {part.partition}"):
            self._consumer.pause([TopicPartition(*part)])
        self._paused.add(part)

    def resume(self, part: TopicPart) -> None:
        """Go on with a paused partition."""
        if part in self._paused:
            self._paused.discard(part)
            with kafka_errors(f"resume {part.topic} partition {part.partition}"):
                self._consumer.resume([TopicPartition(*part)])

    def committed_offset(self, part: TopicPart, timeout_s: float) -> Committed | None:
        """Give what the group has committed for a partition; while a transaction about to change it is open, fail."""
        with kafka_errors(f"read the committed offset of {part.topic} partition {part.partition}"):
            found = self._consumer.committed([TopicPartition(*part)], timeout_s)[0]
            if found.error is not None:
                raise KafkaException(found.error)
        return Committed(found.offset, found.metadata or "") if found.offset >= 0 else None

    def commit(self, offsets: Mapping[TopicPart, Committed]) -> None:
        """Send a commit; `events.committed` tells what became of it."""
        with kafka_errors("commit"):
            self._consumer.commit(offsets=_positions(offsets), asynchronous=True)

    def commit_now(self, offsets: Mapping[TopicPart, Committed]) -> None:
        """Commit and wait for the answer, also where events cannot be served: in `revoked`."""
        with kafka_errors("commit"):
            for found in self._consumer.commit(offsets=_positions(offsets), asynchronous=False):
                if found.error is not None:
                    raise KafkaException(found.error)

    def positions(self, offsets: Mapping[TopicPart, Committed]) -> list[TopicPartition]:
        """Give offsets in the form in which a producer takes them into its transaction."""
        return _positions(offsets)

    def group_metadata(self) -> Any:
        """Identify this member to a producer that commits for it; once another has replaced it, that is refused."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group; tells `revoked` or `lost` for what was assigned."""
        self._consumer.close()

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        consumer.incremental_assign([])
        self._events.assigned(_parts(assigned))

    def _on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        try:
            self._events.revoked(_parts(revoked))
        finally:
            self._give_up(consumer, _parts(revoked))

    def _on_lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        try:
            self._events.lost(_parts(lost))
        finally:
            self._give_up(consumer, _parts(lost))

    def _give_up(self, consumer: Consumer, parts: Collection[TopicPart]) -> None:
        reading = self._reading.intersection(parts)
        for part in reading:
            # Otherwise it would be paused still when the group gives it back.
            with contextlib.suppress(BrokerError):
                self.resume(part)
        self._reading -= reading
        consumer.incremental_unassign([TopicPartition(*part) for part in reading])

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        results: dict[TopicPart, BrokerError | None] = {}
        for item in offsets:
            found = error or item.error
            results[TopicPart(item.topic, item.partition)] = translate(found, "commit") if found else None
        self._events.committed(results)

    def _on_error(self, error: KafkaError) -> None:
        self._events.trouble(translate(error, f"reach site {self._site}"))


def _positions(offsets: Mapping[TopicPart, Committed]) -> list[TopicPartition]:
    return [TopicPartition(*part, at.offset, metadata=at.metadata) for part, at in offsets.items()]


def _parts(partitions: list[TopicPartition]) -> list[TopicPart]:
    return [TopicPart(item.topic, item.partition) for item in partitions]
