"""
A replicated world in memory: a source's log, and what a correct reader and correct listeners made of it.

Tests of the audit begin with such a world, spoil one thing, and see exactly that reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from lr_kafka.status import StatusTable
from lr_ops.source_log import Undecided
from lr_ops.verify.audit import Index, audit
from lr_ops.verify.evidence import QueueReading, SourceReading, evidence, extended
from lr_ops.verify.model import Evidence, Finding, PartitionReport
from lr_source.reader.assembly import CompleteTransaction, PartitionAssembler
from lr_source.reader.positions import Frontier, advanced
from lr_source.reader.routing import route
from lr_wire import codec
from lr_wire.naming import ANY_CLIENT, ClientName, PositionKey, SessionKey, SiteId
from lr_wire.records import Applied, Position, RunningTotal, TxnId

SOURCE = SiteId("site-a")
SINKS = (SiteId("site-b"), SiteId("site-c"))
CLIENTS = (ClientName("policy"), ClientName("inventory"))


@dataclass(frozen=True)
class Transaction:
    """A transaction to be written: which destinations each of its records has."""

    client: ClientName
    records: tuple[tuple[SiteId, ...], ...]
    aborted: bool = False
    terminated: bool = True


@dataclass
class QueueRecord:
    """A record in a receive queue."""

    offset: int
    value: bytes
    timestamp_ms: int = 0

    @property
    def txn(self) -> TxnId:
        return codec.decode_receive(self.value).txn

    @property
    def completed_at(self) -> int:
        return codec.decode_receive(self.value).completed_at


@dataclass
class Queue:
    """One partition of a receive queue."""

    records: list[QueueRecord] = field(default_factory=list)
    start: int = 0
    applied: Applied | None = None

    def append(self, values: Sequence[bytes], timestamp_ms: int = 0) -> None:
        """Add a transaction; a commit marker follows, as in Kafka."""
        offset = self.records[-1].offset + 2 if self.records else self.start
        for value in values:
            self.records.append(QueueRecord(offset, value, timestamp_ms))
            offset += 1

    def transactions(self) -> list[list[QueueRecord]]:
        """Give the records by transaction, in their order."""
        found: dict[TxnId, list[QueueRecord]] = {}
        for record in self.records:
            found.setdefault(record.txn, []).append(record)
        return list(found.values())

    def arrange(self, transactions: Sequence[Sequence[QueueRecord]]) -> None:
        """Put the records in another order; the offsets stay, in order."""
        values = [(record.value, record.timestamp_ms) for records in transactions for record in records]
        offsets = [record.offset for record in self.records]
        while len(offsets) < len(values):
            offsets.append(offsets[-1] + 2 if offsets else self.start)
        self.records = [QueueRecord(o, v, t) for o, (v, t) in zip(offsets, values, strict=False)]

    def apply(self, count: int, trim: int) -> None:
        """Let a listener apply the first transactions, and trim the first ones of those."""
        transactions = self.transactions()
        total = RunningTotal()
        for records in transactions[:count]:
            total = _counted(total, [record.value for record in records])
        if count:
            newest = transactions[count - 1][-1]
            self.applied = Applied(newest.offset + 2, total, newest.completed_at)
        if trim:
            self.start = transactions[trim - 1][-1].offset + 2
            self.records = [record for record in self.records if record.offset >= self.start]


def _counted(total: RunningTotal, values: Sequence[bytes]) -> RunningTotal:
    decoded = [codec.decode_receive(value) for value in values]
    entries = sum(len(record.entries) for record in decoded)
    return extended(total, [record.body for record in decoded], entries, 1)


class World:
    """The log of one source, partition by partition, and two sinks that are as far as they were told to be."""

    def __init__(self) -> None:
        self.logs: dict[int, list[tuple[int, bytes, bool]]] = {}
        """Offset, value and whether it was aborted."""

        self.source_starts: dict[int, int] = {}
        self.queues: dict[tuple[SessionKey, int], Queue] = {}
        self.tables: dict[SiteId, StatusTable] = {sink: StatusTable() for sink in SINKS}
        self.newest: dict[SiteId, StatusTable] = {sink: StatusTable() for sink in SINKS}
        self._sequence = 0

    def write(self, partition: int, transactions: Sequence[Transaction], random: Random) -> None:
        """Write transactions into a partition, their records interleaved."""
        log = self.logs.setdefault(partition, [])
        self.source_starts.setdefault(partition, 0)
        waiting = [list(self.encode(transaction)) for transaction in transactions]
        aborted = {id(values): transaction.aborted for values, transaction in zip(waiting, transactions, strict=True)}
        offset = log[-1][0] + 2 if log else 0
        while waiting:
            values = random.choice(waiting[:3])
            log.append((offset, values.pop(0), aborted[id(values)]))
            offset += 1
            if not values:
                waiting.remove(values)
                offset += 1  # the marker

    def encode(self, transaction: Transaction) -> list[bytes]:
        """Encode a transaction as the source's client does, a new one at each call."""
        txn = TxnId(b"incarnation", self._sequence)
        self._sequence += len(transaction.records)
        values = []
        for number, destinations in enumerate(transaction.records):
            payload = f"{txn.first_sequence}/{number}".encode()
            body = codec.encode_body([payload, payload], [2 * number, 2 * number + 1], txn, 1000 + txn.first_sequence)
            last = transaction.terminated and number == len(transaction.records) - 1
            head = codec.encode_destinations(destinations)
            values.append(codec.encode_send(head, transaction.client, number, last, body))
        return values

    def forward(self, partition: int, upto: int, newest: int | None = None) -> None:
        """Forward the first `upto` records of the log; the records up to `newest` arrive while the audit reads."""
        assembler = PartitionAssembler(0)
        positions: dict[SessionKey, Position] = {}
        start = Position(0, -1, "topic", "cluster")
        log = self.logs[partition]
        end = log[-1][0] + 2 if log else 0
        steps = [upto, max(upto, newest if newest is not None else upto)]
        done = 0
        for table_of, step in zip((self.tables, self.newest), steps, strict=True):
            for offset, value, aborted in log[done:step]:
                complete = (
                    assembler.advance(offset + 1)
                    if aborted
                    else assembler.add(offset, codec.decode_send(value), lambda: end)
                )
                self._deliver(partition, complete, positions, start)
            done = step
            if done == len(log):
                self._deliver(partition, assembler.advance(end), positions, start)
            frontier = Frontier(assembler.resume_from, assembler.passed)
            for sink in SINKS:
                for client in CLIENTS:
                    key = SessionKey(SOURCE, sink, client)
                    if key in positions:
                        position = positions[key]
                        positions[key] = advanced(position, frontier, position.total, {}, 0)
                        table_of[sink].positions[PositionKey(SOURCE, sink, client, partition)] = positions[key]
                idle = advanced(start, frontier, RunningTotal(), {}, 0)
                table_of[sink].positions[PositionKey(SOURCE, sink, ANY_CLIENT, partition)] = idle

    def _deliver(
        self,
        partition: int,
        complete: Sequence[CompleteTransaction],
        positions: dict[SessionKey, Position],
        start: Position,
    ) -> None:
        for transaction in complete:
            if transaction.torn:
                continue
            for sink, delivery in route(partition, transaction).items():
                key = SessionKey(SOURCE, sink, delivery.client)
                self.queue(key, partition).append([record.value for record in delivery.records])
                position = positions.get(key, start)
                total = extended(
                    position.total, [bytes(record.body) for record in delivery.records], delivery.entries, 1
                )
                named = {} if delivery.terminated else {delivery.txn: delivery.last_offset}
                positions[key] = replace(position, total=total, unterminated=position.unterminated | named)

    def queue(self, key: SessionKey, partition: int) -> Queue:
        """Give the receive queue of a session."""
        return self.queues.setdefault((key, partition), Queue())

    def position(self, key: SessionKey, partition: int) -> Position:
        """Give a session's own position."""
        return self.tables[key.sink].positions[PositionKey(*key, partition)]

    def evidence(self) -> list[Evidence]:
        """Collect the evidence as the audit of real clusters does."""
        source = SourceReading(SOURCE, self.tables)
        undecided: dict[int, Undecided] = {}
        for partition, log in self.logs.items():
            start = self.source_starts[partition]
            assembler = PartitionAssembler(start)
            end = log[-1][0] + 2 if log else 0
            for offset, value, aborted in log:
                if offset < start or aborted:
                    continue
                for transaction in assembler.add(offset, codec.decode_send(value), lambda end=end: end):  # type: ignore[misc]
                    source.add(partition, transaction, start)
            for transaction in assembler.advance(end):
                source.add(partition, transaction, start)
            undecided[partition] = Undecided(assembler.open_transactions, assembler.resume_from)
        found = []
        for sink in SINKS:
            for client in CLIENTS:
                for partition in self.logs:
                    key = SessionKey(SOURCE, sink, client)
                    flow = source.flow(key, partition)
                    queue = self.queue(key, partition)
                    cut = flow.position.forwarded_through if flow.position else None
                    reading = QueueReading(queue.start, queue.applied, cut)
                    for record in queue.records:
                        reading.add(record.offset, record.value, record.timestamp_ms)
                    start = self.source_starts[partition]
                    first_ms = 500 if start else 0
                    found.append(
                        evidence(
                            key, partition, source, start, first_ms, undecided[partition], reading, self.newest[sink]
                        )
                    )
        return found

    def reports(self) -> list[PartitionReport]:
        """Audit everything."""
        found = self.evidence()
        index = Index(found)
        return [audit(one, index) for one in found]

    def findings(self) -> list[Finding]:
        """Audit everything and give what is wrong."""
        return [finding for report in self.reports() for finding in report.findings]
