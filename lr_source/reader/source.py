"""What the reader asks the source's cluster about the send queue."""

from __future__ import annotations

import time

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_source.reader.positions import SourceLog
from lr_wire.errors import BrokerError, PositionLost
from lr_wire.naming import SEND_LOG_ENTRIES


class SendQueue:
    """The shared queue of log entries on the source."""

    topic = SEND_LOG_ENTRIES

    def __init__(self, cluster: Cluster) -> None:
        """Connect on first use, so that making one never blocks."""
        self.cluster = cluster
        self._admin = cluster.admin()

    def log(self) -> SourceLog:
        """Describe the queue as it is now: what a negotiation compares positions with."""
        info = self._describe()
        partitions = range(info.partitions)
        return SourceLog(
            info.id,
            topics.cluster_id(self._admin),
            topics.log_starts(self._admin, self.topic, partitions),
            topics.high_watermarks(self._admin, self.topic, partitions),
        )

    def check(self, topic_id: str) -> int:
        """Give the number of partitions; raise PositionLost if this is no longer the topic with that id."""
        info = self._describe()
        if info.id != topic_id:
            raise PositionLost(
                f"{self.topic} on {self.cluster.site} was re-created: its id was {topic_id}, now {info.id}"
            )
        return info.partitions

    def _describe(self) -> topics.TopicInfo:
        info = topics.describe(self._admin, self.topic)
        if info is None:
            raise BrokerError(
                f"{self.topic} does not exist on {self.cluster.site}",
                hint="`lr topics create` makes it",
                retriable=True,
            )
        return info


class Timer:
    """Something that is due every so often."""

    def __init__(self, interval_s: float) -> None:
        """Be due one interval from now."""
        self._interval_s = interval_s
        self._next = time.monotonic() + interval_s

    def due(self) -> bool:
        """Tell whether it is time, and if so begin the next interval."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True

    def hasten(self) -> None:
        """Be due now."""
        self._next = 0.0

    def left_s(self) -> float:
        """Seconds until it is due."""
        return max(0.0, self._next - time.monotonic())
