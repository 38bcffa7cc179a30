"""
Reading one sink for an audit, at one cut although everything keeps moving.

The order is what makes the evidence consistent. First what is applied, then the positions, then the queues: whatever is
applied was forwarded before, so it is covered by the position; and what the position covers is in the queues when they
are read, since both were written in one transaction. Last the positions again, which must cover all that was read.

A listener that applies and deletes meanwhile can take away what the older applied position still refers to; then the
reading begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lr_kafka import topics
from lr_kafka.clients import AdminClient, Cluster
from lr_kafka.groups import committed
from lr_kafka.reading import Progress, place, read_range
from lr_kafka.status import StatusTable, read_status
from lr_ops.positions import parse_applied, position_of
from lr_ops.verify.evidence import QueueReading
from lr_wire import naming
from lr_wire.errors import BrokerError
from lr_wire.naming import ClientName, SessionKey, SiteId
from lr_wire.records import Applied

_REACH_S = 5.0

# librdkafka's word for an offset that is not in the log any more.
_TRIMMED = "_AUTO_OFFSET_RESET"


@dataclass(slots=True)
class SinkReading:
    """What one sink has from the source."""

    table: StatusTable
    """The positions before the queues were read."""

    newest: StatusTable = field(default_factory=StatusTable)
    """The positions after that."""

    queues: dict[tuple[ClientName, int], QueueReading] = field(default_factory=dict)


class _Overtaken(Exception):
    """Records were deleted that the applied position read before still refers to."""

    def __init__(self, client: ClientName) -> None:
        """Name the client whose queue it is."""
        super().__init__(client)
        self.client = client


def read_sink(
    cluster: Cluster, source: SiteId, patience_s: float, progress: Callable[[str], Progress] = lambda _: _quiet
) -> SinkReading:
    """Read everything that `source` has sent to a sink and that is still there."""
    admin = cluster.admin()
    topics.reach(admin, _REACH_S)
    until = time.monotonic() + patience_s
    while True:
        try:
            return _read(cluster, source, patience_s, progress, strict=True)
        except _Overtaken as overtaken:
            if not _is_in_motion(admin, source, overtaken.client):
                break
            if time.monotonic() > until:
                raise BrokerError(
                    f"the listener of {overtaken.client} on {cluster.site} applies and deletes faster than its queue "
                    f"can be read",
                    hint="try again when there is less to do",
                    retriable=True,
                ) from overtaken
    # It was not a listener in motion: what is gone is gone, and the audit will say so.
    return _read(cluster, source, patience_s, progress, strict=False)


def _read(
    cluster: Cluster, source: SiteId, patience_s: float, progress: Callable[[str], Progress], *, strict: bool
) -> SinkReading:
    admin = cluster.admin()
    applied = {client: _applied(admin, client, source, count) for client, count in _queues(admin, source).items()}
    reading = SinkReading(read_status(cluster, patience_s))
    for client, positions in applied.items():
        topic = naming.receive_topic(client, source)
        starts = topics.log_starts(admin, topic, positions)
        ends = topics.high_watermarks(admin, topic, positions)
        for partition, position in positions.items():
            if strict and starts[partition] > (position.next_offset if position else 0):
                raise _Overtaken(client)
            forwarded = position_of(reading.table, SessionKey(source, cluster.site, client), partition)
            cut = forwarded.forwarded_through if forwarded else None
            reading.queues[client, partition] = QueueReading(starts[partition], position, cut)
        ranges = {p: (starts[p], ends[p]) for p in positions}
        told = progress(f"{topic} on {cluster.site}")
        try:
            for message in read_range(cluster, topic, ranges, patience_s=patience_s, progress=told):
                partition, offset = place(message)
                reading.queues[client, partition].add(offset, message.value(), message.timestamp()[1])
        except BrokerError as error:
            if strict and error.code == _TRIMMED:
                raise _Overtaken(client) from error
            raise
    reading.newest = read_status(cluster, patience_s)
    return reading


def _is_in_motion(admin: AdminClient, source: SiteId, client: ClientName) -> bool:
    """Tell whether all that has left a queue is applied by now: then a listener deleted it, and nothing is wrong."""
    topic = naming.receive_topic(client, source)
    info = topics.describe(admin, topic)
    if info is None:
        return False
    # In this order: what is deleted was applied before.
    starts = topics.log_starts(admin, topic, range(info.partitions))
    applied = _applied(admin, client, source, info.partitions)
    return all(start <= (found.next_offset if (found := applied[p]) else 0) for p, start in starts.items())


def _quiet(_done: int, _total: int) -> None:
    """Show no progress."""


def _queues(admin: AdminClient, source: SiteId) -> dict[ClientName, int]:
    """Find the receive queues of a source: the client of each, and its partitions."""
    found: dict[ClientName, int] = {}
    for topic in topics.names(admin):
        name = naming.parse_receive_topic(topic)
        if name and name.source == source and (info := topics.describe(admin, topic)):
            found[name.client] = info.partitions
    return found


def _applied(admin: AdminClient, client: ClientName, source: SiteId, partitions: int) -> dict[int, Applied | None]:
    topic = naming.receive_topic(client, source)
    found = committed(admin, naming.listener_group(client), topic, range(partitions))
    return {p: parse_applied(found[p]) if p in found else None for p in range(partitions)}
