"""
Which position counts when a partition is begun, and whether the queue still has what comes next.

Two places may know how far a partition is applied. The consumer group always does, a little late. A position store (the
application's database) does if there is one, at the very commit that applied the data: it is right, and the group only
follows it. The group's commit says so (`in_store`), because without that mark three cases look alike: a store that was
only now set up, a database that was lost or put back to an older state, and a group that merely lags behind.

    the store has    the group has                   begin at
    nothing          nothing                         the beginning
    nothing          a position, `in_store`          the beginning: the database is a new one
    nothing          a position of its own           the group's: the store is new
    S                at most S                       S: the listener ended between apply and ack
    S                more, after a dead letter at S  the group's, and the store is told: it ended between the two
    S                more, `in_store`                S: the database was put back, what it lost is applied again
    S                more, of its own                the group's: the listener ran without its store meanwhile

A commit without metadata is an operator's, made with Kafka's own tools: that is how a halted partition is told to go on
behind a gap. It counts as a position of the group's own, with a total that begins anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from lr_wire.errors import QueueReplaced, QueueTrimmed
from lr_wire.records import Applied

# In a commit's metadata: a dead letter was written while the store had nothing.
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """What a position store has for one partition of a queue."""

    applied: Applied
    queue_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """What the consumer group has for one partition of a queue."""

    applied: Applied
    in_store: bool = False
    """The position is kept in a store as well, and that one is right."""

    dead_letter_after: int | None = None
    """This commit moved on by a dead letter, from the stored offset given here (-1: from nothing)."""

    def metadata(self) -> str:
        """Write what goes along with the committed offset; other parts of LR read the applied position from it."""
        values = json.loads(self.applied.metadata())
        if self.in_store:
            values["in_store"] = True
        if self.dead_letter_after is not None:
            values["dead_letter_after"] = self.dead_letter_after
        return json.dumps(values)

    @classmethod
    def parse(cls, next_offset: int, metadata: str) -> Self:
        """Read it back; WireError if neither LR nor an operator wrote it."""
        if not metadata:
            return cls(Applied(next_offset))
        applied = Applied.from_commit(next_offset, metadata)
        values = json.loads(metadata)
        after = values.get("dead_letter_after")
        return cls(applied, bool(values.get("in_store")), None if after is None else int(after))

    def follows(self, stored: int | None) -> bool:
        """Tell whether this is the dead letter that came right after what is stored."""
        return self.dead_letter_after == (_NOTHING if stored is None else stored)


def dead_letter_mark(stored: int | None) -> int:
    """Give the mark of a dead letter that comes right after what is stored."""
    return _NOTHING if stored is None else stored


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin."""

    applied: Applied
    stored: int | None = None
    """What the store has, which is what its next position must follow."""

    tell_store: bool = False
    """The store must be moved to `applied` first."""

    known: bool = True
    """False if this is the beginning, for want of any position."""


def choose(stored: Applied | None, committed: GroupPosition | None, *, has_store: bool) -> Start:
    """Choose by the table above."""
    at = stored.next_offset if stored else None
    if committed is None:
        return Start(stored, at) if stored else Start(Applied(0), known=False)
    if has_store:
        if committed.follows(at):
            return Start(committed.applied, at, tell_store=True)
        if stored is None and committed.in_store:
            return Start(Applied(0), known=False)
        if stored and (committed.in_store or stored.next_offset >= committed.applied.next_offset):
            return Start(stored, at)
    return Start(committed.applied, at)


def check(queue: str, partition: int, start: Start, log_start: int, log_end: int, group: str) -> None:
    """Raise QueueTrimmed if records are gone that were not applied, QueueReplaced if the offset was never there."""
    wanted = start.applied.next_offset
    if wanted < log_start:
        applied = f"applied up to offset {wanted}" if start.known else "nothing is applied yet"
        raise QueueTrimmed(
            f"{queue} partition {partition}: {applied}, but the queue begins at offset {log_start}, so "
            f"{log_start - wanted} offsets were deleted before they were applied",
            hint="find out who deletes from the queue and bring the data up to date from the source; then stop the "
            f"listeners, reset the offset of consumer group {group} there to {log_start}, and start them again",
        )
    if wanted > log_end:
        raise QueueReplaced(
            f"{queue} partition {partition}: applied up to offset {wanted}, but the queue ends at offset {log_end}",
            hint="the queue was made anew or lost its end: bring the data up to date from the source; then stop the "
            f"listeners, remove the position (in the store, or of consumer group {group}), and start them again",
        )


def check_identity(queue: str, partition: int, stored: StoredPosition | None, queue_id: str) -> None:
    """Raise QueueReplaced if a stored position belongs to an earlier queue of the same name."""
    if stored and stored.queue_id and stored.queue_id != queue_id:
        raise QueueReplaced(
            f"{queue} partition {partition}: the stored position {stored.applied.next_offset} belongs to a queue with "
            f"topic id {stored.queue_id}, and this one has {queue_id}",
            hint="the queue was deleted and made anew: bring the data up to date from the source, remove the stored "
            "position, and start the listener again",
        )
