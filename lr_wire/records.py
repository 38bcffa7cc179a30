"""The values that travel, as Python sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from lr_wire.errors import WireError
from lr_wire.naming import ClientName, SiteId

Header = tuple[str, bytes | None]


class TxnId(NamedTuple):
    """A transaction: the client incarnation that wrote it, and the sequence number of its first entry."""

    incarnation: bytes
    first_sequence: int

    def __str__(self) -> str:
        """Write it as people and tools pass it around."""
        return f"{self.incarnation.hex()}-{self.first_sequence}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read back what `str()` wrote."""
        incarnation, _, sequence = text.rpartition("-")
        try:
            return cls(bytes.fromhex(incarnation), int(sequence))
        except ValueError as error:
            raise WireError(f"{text!r} is not a transaction id", hint="it looks like 5f1c0a...-42") from error


class ReplicationId(NamedTuple):
    """An entry: the same on every site, whatever its offset there."""

    incarnation: bytes
    sequence: int

    def __str__(self) -> str:
        """Write it as people and tools pass it around."""
        return f"{self.incarnation.hex()}:{self.sequence}"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One payload as it arrives, with its place in the transaction and what names it."""

    payload: bytes
    index: int
    id: ReplicationId
    source_time_ms: int
    key: bytes | None = None
    headers: tuple[Header, ...] = ()


@dataclass(slots=True)
class SendRecord:
    """A record of a send queue, decoded as far as routing needs it."""

    client: ClientName
    txn: TxnId
    destinations: tuple[SiteId, ...]
    record: int
    last: bool
    entries: int
    value: bytes
    body_offset: int
    offset: int = -1
    timestamp_ms: int = 0

    @property
    def body(self) -> bytes:
        """What both queues carry: the payloads and what names them."""
        return self.value[self.body_offset :]


@dataclass(frozen=True, slots=True)
class ReceiveRecord:
    """A record of a receive queue, decoded."""

    txn: TxnId
    record: int
    records: int
    entries_in_txn: int
    completed_at: int
    entries: tuple[LogEntry, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class RunningTotal:
    """
    What went by in one partition of a session since its beginning.

    The reader keeps one with each position, the listener one with each applied position, both over the same records
    in the same order: equal totals mean equal entries, also for those that have long been trimmed.
    """

    transactions: int = 0
    entries: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """How far a session is in one source partition."""

    resume_from: int
    forwarded_through: int
    topic_id: str
    cluster_id: str
    total: RunningTotal = RunningTotal()
    # Forwarded transactions without a last record that the reader could meet again, with the offset of their newest
    # record.
    unterminated: dict[TxnId, int] = field(default_factory=dict)
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """How far a listener is in one partition of a receive queue: the next offset to read, and all that came before."""

    next_offset: int
    total: RunningTotal = RunningTotal()
    completed_at: int = -1

    def metadata(self) -> str:
        """Write what does not fit into a committed offset itself as the commit's metadata."""
        total = self.total
        return json.dumps(
            {
                "v": 1,
                "transactions": total.transactions,
                "entries": total.entries,
                "checksum": f"{total.checksum:016x}",
                "completed_at": self.completed_at,
            }
        )

    @classmethod
    def from_commit(cls, next_offset: int, metadata: str) -> Self:
        """Read a committed offset with its metadata back."""
        try:
            values = json.loads(metadata)
            total = RunningTotal(int(values["transactions"]), int(values["entries"]), int(values["checksum"], 16))
            return cls(next_offset, total, int(values["completed_at"]))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise WireError(
                f"the committed offset {next_offset} has metadata {metadata!r} that LR did not write",
                hint="something else committed in the listener's group; reset the group's offset or restore the commit",
            ) from error
