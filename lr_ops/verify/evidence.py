"""From records to evidence. Pure: what reads the clusters hands everything in, record by record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lr_kafka.status import StatusTable
from lr_ops.positions import position_of
from lr_ops.source_log import Undecided
from lr_ops.verify.model import Broken, Evidence, Got, Sent, Totals
from lr_source.reader.assembly import CompleteTransaction
from lr_source.reader.positions import is_forwarded
from lr_wire import codec
from lr_wire.errors import WireError
from lr_wire.naming import SessionKey, SiteId
from lr_wire.records import Applied, Position, RunningTotal, TxnId


def extended(total: RunningTotal, bodies: Iterable[bytes], entries: int, transactions: int) -> RunningTotal:
    """Add what comes next to a running total."""
    checksum = total.checksum
    for body in bodies:
        checksum = codec.extend_checksum(checksum, body)
    return RunningTotal(total.transactions + transactions, total.entries + entries, checksum)


@dataclass(slots=True)
class QueueReading:
    """What one partition of a receive queue holds, with the running total of all that ever was in it."""

    queue_start: int = 0
    applied: Applied | None = None
    cut: int | None = None
    got: list[Got] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    total: RunningTotal | None = None
    """None: what left the queue is not known."""

    def __post_init__(self) -> None:
        """Begin with what was applied."""
        if self.applied is not None and self.queue_start <= self.applied.next_offset:
            self.total = self.applied.total
        elif self.applied is None and self.queue_start == 0:
            self.total = RunningTotal()

    def add(self, offset: int, value: bytes | None, timestamp_ms: int) -> None:
        """Take the next record in."""
        try:
            record = codec.decode_receive(value)
        except WireError as error:
            self.broken.append(Broken(offset, str(error)))
            self.total = None
            return
        self.got.append(
            Got(
                offset,
                record.txn,
                record.record,
                record.records,
                record.completed_at,
                codec.extend_checksum(0, record.body),
                len(record.entries),
                timestamp_ms,
            )
        )
        is_counted = self.applied is not None and offset < self.applied.next_offset
        if self.total is not None and not is_counted and record.completed_at <= (-1 if self.cut is None else self.cut):
            last = record.record == record.records - 1
            self.total = extended(self.total, [record.body], len(record.entries), int(last))


@dataclass(slots=True)
class Flow:
    """What the source's log has for one partition of a session."""

    position: Position | None
    sent: list[Sent] = field(default_factory=list)
    pending: list[Sent] = field(default_factory=list)
    total: RunningTotal = field(default_factory=RunningTotal)


class SourceReading:
    """What the source's log has for every session."""

    def __init__(self, source: SiteId, tables: Mapping[SiteId, StatusTable]) -> None:
        """Know the positions of the sinks, to tell what is forwarded."""
        self._source = source
        self._tables = tables
        self.flows: dict[tuple[SessionKey, int], Flow] = {}
        self.torn: dict[int, set[TxnId]] = {}
        self.headless: dict[int, set[TxnId]] = {}

    def flow(self, session: SessionKey, partition: int) -> Flow:
        """Give the flow of a session in one partition, new if nothing was seen for it."""
        found = self.flows.get((session, partition))
        if found is None:
            table = self._tables.get(session.sink)
            found = Flow(position_of(table, session, partition) if table else None)
            self.flows[session, partition] = found
        return found

    def add(self, partition: int, transaction: CompleteTransaction, log_start: int) -> None:
        """Take a transaction in."""
        if transaction.torn:
            # Behind the beginning of a trimmed log, what looks torn may only have lost its head to the trim.
            lost_head = log_start > 0 and transaction.records[0].record > 0
            (self.headless if lost_head else self.torn).setdefault(partition, set()).add(transaction.txn)
            return
        bodies = [record.body for record in transaction.records]
        digests = [codec.extend_checksum(0, body) for body in bodies]
        chosen: dict[SiteId, list[int]] = {}
        for number, record in enumerate(transaction.records):
            for destination in record.destinations:
                chosen.setdefault(destination, []).append(number)
        for destination, numbers in chosen.items():
            session = SessionKey(self._source, destination, transaction.client)
            flow = self.flow(session, partition)
            sent = Sent(
                transaction.txn,
                transaction.completed_at,
                transaction.last_offset,
                tuple(digests[number] for number in numbers),
                sum(transaction.records[number].entries for number in numbers),
                transaction.terminated,
            )
            if flow.position is not None and is_forwarded(flow.position, transaction):
                flow.sent.append(sent)
                flow.total = extended(flow.total, (bodies[number] for number in numbers), sent.entries, 1)
            else:
                flow.pending.append(sent)


def evidence(
    session: SessionKey,
    partition: int,
    source: SourceReading,
    log_start: int,
    first_ms: int,
    undecided: Undecided,
    queue: QueueReading,
    newest: StatusTable,
) -> Evidence:
    """Put together what is known about one partition of a session."""
    flow = source.flow(session, partition)
    position = flow.position
    later = position_of(newest, session, partition)
    # The place of a transaction without a last record differs from reader to reader, and with it the checksum.
    has_fixed_order = all(sent.terminated for sent in flow.sent) and (
        position is None or position.resume_from <= undecided.first_offset
    )
    return Evidence(
        session=session,
        partition=partition,
        sent=flow.sent,
        pending=flow.pending,
        torn_at_source=source.torn.get(partition, set()),
        headless=source.headless.get(partition, set()) | undecided.txns,
        source_start=log_start,
        source_start_ms=first_ms,
        got=queue.got,
        broken=queue.broken,
        queue_start=queue.queue_start,
        applied=queue.applied,
        cut=position.forwarded_through if position else None,
        newest_cut=later.forwarded_through if later else None,
        totals=Totals(
            reader=position.total if position else None,
            source=flow.total if log_start == 0 and has_fixed_order else None,
            sink=queue.total if position else None,
        ),
    )
