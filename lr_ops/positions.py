"""Positions as the commands look them up."""

from __future__ import annotations

from collections.abc import Mapping

from lr_kafka.groups import Committed
from lr_kafka.status import StatusTable
from lr_wire.naming import ANY_CLIENT, PositionKey, SessionKey, SiteId
from lr_wire.records import Applied, Position


def position_of(table: StatusTable, session: SessionKey, partition: int) -> Position | None:
    """Give the position that holds for a session: its own, or that of all clients without one."""
    own = table.positions.get(PositionKey(*session, partition))
    if own is not None:
        return own
    return table.positions.get(PositionKey(session.source, session.sink, ANY_CLIENT, partition))


def lowest_resume_from(source: SiteId, tables: Mapping[SiteId, StatusTable]) -> dict[int, int]:
    """Give where the log must be read from to see all that any sink lacks; without what a sink knows nothing of."""
    lowest: dict[int, int] = {}
    covered: dict[int, set[SiteId]] = {}
    for sink, table in tables.items():
        for key, position in table.positions.items():
            if (key.source, key.sink) == (source, sink):
                lowest[key.partition] = min(position.resume_from, lowest.get(key.partition, position.resume_from))
                covered.setdefault(key.partition, set()).add(sink)
    return {partition: offset for partition, offset in lowest.items() if covered[partition] == tables.keys()}


def parse_applied(commit: Committed) -> Applied:
    """Read what a listener has committed."""
    # A commit without metadata is an operator's, made with Kafka's own tools: the listener's total begins anew there.
    return Applied.from_commit(commit.offset, commit.metadata) if commit.metadata else Applied(commit.offset)
