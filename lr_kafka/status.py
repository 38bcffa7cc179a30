"""Reading `LR_Status`: the sessions and positions that a cluster knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_kafka.reading import read_range, read_to_end
from lr_wire import codec, naming
from lr_wire.errors import WireError
from lr_wire.naming import PositionKey, SessionKey, SiteId
from lr_wire.records import Position
from lr_wire.v1.control_pb2 import Ownership, SessionStatus


@dataclass
class StatusTable:
    """The newest state of every session and position; keys that this version does not know are left alone."""

    sessions: dict[SessionKey, SessionStatus] = field(default_factory=dict)
    positions: dict[PositionKey, Position] = field(default_factory=dict)
    owners: dict[tuple[SiteId, SiteId], Ownership] = field(default_factory=dict)

    def put(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record in; a null value removes."""
        text = (key or b"").decode(errors="replace")
        if session := naming.parse_session_key(text):
            if value is None:
                self.sessions.pop(session, None)
                return
            try:
                self.sessions[session] = SessionStatus.FromString(value)
            except DecodeError as error:
                raise WireError(f"the state of {session} cannot be read: {error}") from error
        elif position := naming.parse_position_key(text):
            if value is None:
                self.positions.pop(position, None)
            else:
                self.positions[position] = codec.decode_position(value)
        elif (flow := naming.parse_owner_key(text)) and value is not None:
            self.owners[flow] = Ownership.FromString(value)


def read_status(cluster: Cluster, patience_s: float = 30.0) -> StatusTable:
    """Read the whole table as of now; empty if the cluster has none yet."""
    table = StatusTable()
    for message in read_to_end(cluster, naming.STATUS, patience_s=patience_s):
        table.put(message.key(), message.value())
    return table


def glance_at_status(cluster: Cluster) -> StatusTable:
    """Read the table as far as it can be read at once, not waiting for a transaction that is still open."""
    table = StatusTable()
    admin = cluster.admin()
    info = topics.describe(admin, naming.STATUS)
    if info is not None:
        starts = topics.log_starts(admin, naming.STATUS, range(info.partitions))
        ends = topics.last_stable_offsets(admin, naming.STATUS, range(info.partitions))
        for message in read_range(cluster, naming.STATUS, {p: (starts[p], ends[p]) for p in starts}):
            table.put(message.key(), message.value())
    return table
