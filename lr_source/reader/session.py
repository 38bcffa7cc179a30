"""One session: its state, its positions, and what of the log it still wants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lr_kafka.clients import KafkaHeaders
from lr_source.reader.assembly import CompleteTransaction
from lr_source.reader.positions import Frontier, advanced, is_forwarded
from lr_source.reader.routing import Delivery
from lr_wire import naming
from lr_wire.codec import extend_checksum
from lr_wire.naming import SessionKey
from lr_wire.records import Position, RunningTotal, TxnId
from lr_wire.v1.control_pb2 import SessionStatus

State = SessionStatus.State

# Looking a state up by its name is slow, and this one is looked at for every transaction.
_ACTIVE = State.LOG_ENTRY_SYNC


@dataclass
class Session:
    """
    What a reader knows of one session between two failures.

    The positions here run ahead of the sink's by at most the open transaction. They are never the truth: after a
    failure the session is made anew from what the sink says.
    """

    key: SessionKey
    positions: dict[int, Position]
    state: State = State.DISCOVERED
    reason: str = ""
    changed_ms: int = 0
    partitions: int = 0
    # What the newest committed transaction on the sink says.
    written: dict[int, Position] = field(default_factory=dict)
    # Forwarded in the open transaction.
    pending_transactions: int = 0
    pending_entries: int = 0
    pending_bytes: int = 0
    # Forwarded since the newest heartbeat, for the rate.
    recent_entries: int = 0
    # Transactions, entries and checksum of the partitions that moved since the last `advance`.
    _totals: dict[int, list[int]] = field(default_factory=dict)
    _unterminated: dict[int, dict[TxnId, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare what every record of the session needs."""
        self.topic = naming.receive_topic(self.key.client, self.key.source)
        self.headers: KafkaHeaders = [(naming.receive_tag(self.key.client), None)]

    @property
    def active(self) -> bool:
        """Log entries are forwarded."""
        return self.state == _ACTIVE

    def wants(self, partition: int, transaction: Delivery | CompleteTransaction) -> bool:
        """Tell whether this must be forwarded: the session is active, and it is not on the sink already."""
        return self.state == _ACTIVE and not is_forwarded(self.positions[partition], transaction)

    def note(self, delivery: Delivery) -> None:
        """Count a transaction that was handed to the producer."""
        partition = delivery.partition
        total = self._totals.get(partition)
        if total is None:
            known = self.positions[partition].total
            total = self._totals[partition] = [known.transactions, known.entries, known.checksum]
        total[0] += 1
        total[1] += delivery.entries
        for record in delivery.records:
            total[2] = extend_checksum(total[2], record.body)
        self.note_dealt_with(partition, delivery)
        self.pending_transactions += 1
        self.pending_entries += delivery.entries
        self.pending_bytes += delivery.size

    def note_dealt_with(self, partition: int, transaction: Delivery | CompleteTransaction) -> None:
        """Remember a transaction whose offsets alone cannot tell that it was dealt with."""
        if not transaction.terminated:
            self._unterminated.setdefault(partition, {})[transaction.txn] = transaction.last_offset

    def advance(self, partition: int, frontier: Frontier, now_ms: int) -> None:
        """Move to `frontier`: everything before it that the session wanted was handed to the producer."""
        position = self.positions[partition]
        moved = self._totals.pop(partition, None)
        total = RunningTotal(*moved) if moved else position.total
        self.positions[partition] = advanced(position, frontier, total, self._unterminated.pop(partition, {}), now_ms)

    def unwritten(self) -> dict[int, Position]:
        """Give the positions that are further than what the sink has; the time alone does not count."""
        return {
            partition: position
            for partition, position in self.positions.items()
            if partition not in self.written
            or replace(self.written[partition], updated_ms=position.updated_ms) != position
        }

    def status(self, owner: str, now_ms: int, entries_per_second: float) -> bytes:
        """Encode the state for `LR_Status`."""
        return SessionStatus(
            state=self.state,
            reason=self.reason,
            changed_ms=self.changed_ms,
            heartbeat_ms=now_ms,
            owner=owner,
            receive_queue=self.topic if self.partitions else "",
            partitions=self.partitions,
            entries_per_second=entries_per_second,
        ).SerializeToString()
