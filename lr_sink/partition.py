"""One partition of a receive queue, as one listener has it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from lr_kafka.backoff import Backoff
from lr_kafka.clients import Record
from lr_kafka.member import TopicPart
from lr_sink.assembly import Assembler, Torn, Whole
from lr_sink.positions import GroupPosition, dead_letter_mark
from lr_sink.transaction import Transaction, TxnPosition
from lr_wire.errors import ReplicationError
from lr_wire.naming import QueueName
from lr_wire.records import Applied


class QueueState(Enum):
    """What a listener is doing with a partition of a queue."""

    STARTING = "starting"
    """Its position is being read, for the first time or again after something went wrong."""

    RUNNING = "running"
    """Transactions are delivered as they come."""

    RETRYING = "retrying"
    """A transaction was not taken; it is delivered again after a wait, and those behind it wait as well."""

    HALTED = "halted"
    """Nothing is delivered until the listener is started again; the reason says what to do first."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What a listener tells about one partition of a queue."""

    queue: str
    source: str
    partition: int
    state: QueueState
    reason: str
    """Why it is not running; empty if it is."""

    next_offset: int
    """Everything before this offset is applied."""

    transactions: int
    """Applied since the beginning of the queue, by this listener and those before it."""

    entries: int
    attempt: int
    """How often the transaction at `next_offset` was tried."""


@dataclass(slots=True)
class Partition:
    """The state of one assigned partition; the engine acts on it."""

    part: TopicPart
    name: QueueName
    retry: Backoff
    """Counts the attempts for the transaction at the head."""

    restart: Backoff
    """Counts how often it had to be begun again since a transaction was last applied."""

    has_store: bool
    health: tuple[QueueState, str] = (QueueState.STARTING, "just assigned")
    """State and reason; one value, so that another thread never sees a mixture."""

    queue_id: str = ""
    applied: Applied = field(default_factory=lambda: Applied(0))
    stored: int | None = None
    """What the position store has, or, without one, the position before."""

    due: float = 0.0
    """When to go on, while STARTING or RETRYING."""

    given_up: ReplicationError | None = None
    """Why the head goes to the dead letters as soon as possible."""

    assembler: Assembler[Record] = field(default_factory=Assembler)
    pending: deque[Whole[Record] | Torn[Record]] = field(default_factory=deque)

    @property
    def state(self) -> QueueState:
        """What is being done with it."""
        return self.health[0]

    @property
    def waiting(self) -> bool:
        """Whether it goes on at `due`."""
        return self.state in {QueueState.STARTING, QueueState.RETRYING}

    @property
    def reading(self) -> bool:
        """Whether its records are being read."""
        return self.state in {QueueState.RUNNING, QueueState.RETRYING}

    def where(self, item: Whole[Record] | Torn[Record]) -> str:
        """Name a place in it, for people."""
        return f"{self.part.topic} partition {self.part.partition} offset {item.first_offset}"

    def drop_work(self) -> None:
        """Forget everything that was read but not applied."""
        self.assembler = Assembler()
        self.pending.clear()
        self.retry.reset()
        self.given_up = None

    def position_after(self, item: Whole[Record] | Torn[Record]) -> TxnPosition:
        """Give the position once `item` is applied or given up."""
        return TxnPosition(*self.part, self.queue_id, item.after(self.applied), self.stored)

    def transaction(self, whole: Whole[Record]) -> Transaction:
        """Give what the application is called with."""
        return Transaction(
            whole.txn,
            self.name.source,
            self.name.client,
            self.part.topic,
            self.part.partition,
            whole.entries,
            self.position_after(whole),
            whole.completed_at,
            self.retry.failures + 1,
        )

    def moved(self, applied: Applied) -> None:
        """Take note that the application has applied everything up to there."""
        self.applied = applied
        self.stored = applied.next_offset

    def commit(self) -> GroupPosition:
        """Give what the group commits for the applied position."""
        return GroupPosition(self.applied, in_store=self.has_store)

    def dead_letter_commit(self, item: Whole[Record] | Torn[Record]) -> GroupPosition:
        """Give what the group commits when `item` is given up."""
        mark = dead_letter_mark(self.stored) if self.has_store else None
        return GroupPosition(item.after(self.applied), self.has_store, mark)

    def status(self) -> QueueStatus:
        """Tell how it stands; from any thread."""
        state, reason = self.health
        applied = self.applied
        return QueueStatus(
            self.part.topic,
            self.name.source,
            self.part.partition,
            state,
            reason,
            applied.next_offset,
            applied.total.transactions,
            applied.total.entries,
            self.retry.failures,
        )
