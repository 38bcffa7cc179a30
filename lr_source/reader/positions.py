"""
How far a session is, and what that means for what it reads. Pure.

A position is two numbers. Everything that was complete in the send queue at `forwarded_through` is on the sink.
Whoever reads again from `resume_from` sees every other transaction from its first record on. A restarted reader
therefore reads from `resume_from` and drops what `is_forwarded`.

Transactions without a last record are the exception: the offset at which a reader finds out that such a one is
complete differs from reader to reader, so no offset can say whether it is on the sink. They are named in the
position, for as long as a reader could meet them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lr_source.reader.assembly import CompleteTransaction
from lr_source.reader.routing import Delivery
from lr_wire.records import Position, RunningTotal, TxnId


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far a partition was read: all that was complete before `passed` was handed on."""

    resume_from: int
    passed: int


@dataclass(frozen=True, slots=True)
class SourceLog:
    """The send queue as a negotiation sees it."""

    topic_id: str
    cluster_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Lost:
    """A session cannot go on with log entries, and why."""

    reason: str


def is_forwarded(position: Position, transaction: Delivery | CompleteTransaction) -> bool:
    """Tell whether a transaction that was met in the log is on the sink already."""
    if transaction.terminated:
        return transaction.last_offset <= position.forwarded_through
    return transaction.first_offset < position.resume_from or transaction.txn in position.unterminated


def advanced(
    position: Position, frontier: Frontier, total: RunningTotal, unterminated: Mapping[TxnId, int], now_ms: int
) -> Position:
    """Give the position of a session that has everything up to `frontier`."""
    # A shared scan can be behind this session, because it began where another session needed it to: never step back.
    resume_from = max(position.resume_from, frontier.resume_from)
    return replace(
        position,
        resume_from=resume_from,
        forwarded_through=max(position.forwarded_through, frontier.passed - 1),
        total=total,
        unterminated={
            txn: last for txn, last in (position.unterminated | dict(unterminated)).items() if last >= resume_from
        },
        updated_ms=now_ms,
    )


def beginning(log: SourceLog, partition: int) -> Position:
    """Give the position of a session that has nothing yet of what the log still holds."""
    start = log.starts[partition]
    return Position(start, start - 1, log.topic_id, log.cluster_id)


def negotiate(stored: Mapping[int, Position], log: SourceLog) -> Mapping[int, Position] | Lost:
    """Compare the positions that the sink has for one session with the source's log: where to go on, or why not."""
    if not stored:
        return {partition: beginning(log, partition) for partition in log.starts}
    positions = {}
    for partition, start in log.starts.items():
        position = stored.get(partition)
        if position is None:
            if start > 0:
                return Lost(f"partition {partition} is new and was trimmed up to offset {start} before it was read")
            positions[partition] = beginning(log, partition)
            continue
        if lost := _lost(partition, position, log):
            return lost
        positions[partition] = position
    if gone := sorted(set(stored) - set(log.starts)):
        return Lost(f"the send queue has no partition {gone[0]} any more")
    return positions


def without_gaps(stored: Mapping[int, Position], log: SourceLog) -> tuple[dict[int, Position], list[Lost]]:
    """
    Give the position of clients that have none of their own, and what of it was lost.

    Such a client misses nothing: it begins where the log does. That holds for each partition by itself, and what was
    dealt with stays dealt with: otherwise a trim would bring the dead letters of what is still in the log once more.
    """
    positions, losses = {}, []
    for partition, start in log.starts.items():
        fresh = beginning(log, partition)
        position = stored.get(partition, fresh)
        if lost := _lost(partition, position, log):
            losses.append(lost)
            same_log = (position.topic_id, position.cluster_id) == (log.topic_id, log.cluster_id)
            if same_log and position.resume_from < start:
                position = replace(
                    position, resume_from=start, forwarded_through=max(position.forwarded_through, start - 1)
                )
            else:
                position = fresh
        positions[partition] = position
    return positions, losses


def _lost(partition: int, position: Position, log: SourceLog) -> Lost | None:
    if position.cluster_id != log.cluster_id:
        return Lost(f"the source's cluster is another one: {position.cluster_id} before, {log.cluster_id} now")
    if position.topic_id != log.topic_id:
        return Lost(f"the send queue was re-created: its id was {position.topic_id} and is {log.topic_id} now")
    start, end = log.starts[partition], log.ends[partition]
    if position.resume_from < start:
        return Lost(
            f"the send queue was trimmed: partition {partition} begins at offset {start}, "
            f"the session must read on from {position.resume_from}"
        )
    if position.resume_from > end:
        return Lost(
            f"the send queue lost records: partition {partition} ends at offset {end}, "
            f"the session had read up to {position.resume_from}"
        )
    return None
