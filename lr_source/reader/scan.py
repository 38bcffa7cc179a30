"""
Reading the send queue once, for any number of sessions.

A `Scan` turns the records of all partitions into what each sink gets, one step at a time. The shared scan
(`sharing.py`) repeats steps for all sinks together; a sink that has fallen behind runs a scan of its own until it has
caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import structlog

from lr_kafka.clients import KafkaError, Record, TopicPartition
from lr_kafka.errors import OFFSET_GONE, PARTITION_EOF, translate
from lr_kafka.reading import headers_of
from lr_source.reader.assembly import CompleteTransaction, PartitionAssembler
from lr_source.reader.hooks import Hooks
from lr_source.reader.positions import Frontier
from lr_source.reader.routing import Delivery, Reject, RejectedRecord, reject_torn, route
from lr_source.reader.source import SendQueue, Timer
from lr_wire import codec, naming
from lr_wire.errors import BrokerError, PositionLost, ReplicationError, WireError
from lr_wire.naming import SiteId
from lr_wire.records import TxnId

_log = structlog.get_logger("lr.reader")

# What one step takes in: enough to pay for the step, little enough that memory and latency stay small.
_STEP_RECORDS = 4000
_STEP_BYTES = 4 * 1024 * 1024

# The size of a record until some were seen: the largest that clients pack by default.
UNKNOWN_RECORD_BYTES = 64 * 1024.0

# What Python needs for a record that waits, besides its bytes (measured).
_DELIVERY_BYTES = 500

# librdkafka's own read-ahead for the whole scan.
_PREFETCH_KBYTES = 64 * 1024


@dataclass(slots=True)
class Chunk:
    """What one sink gets from a step or from several in a row, and how far everything was read with it."""

    deliveries: list[Delivery] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    frontier: dict[int, Frontier] = field(default_factory=dict)
    size: int = 0

    @property
    def empty(self) -> bool:
        """Nothing but a frontier."""
        return not self.deliveries and not self.rejects

    def add_reject(self, reject: Reject) -> None:
        """Add what must go to the dead letter; it takes memory as everything else."""
        self.rejects.append(reject)
        self.size += reject.size


@dataclass(slots=True)
class ScanStep:
    """What one step of a scan brought, by sink."""

    chunks: dict[SiteId, Chunk] = field(default_factory=dict)
    frontier: dict[int, Frontier] = field(default_factory=dict)

    def chunk(self, sink: SiteId) -> Chunk:
        """Give what `sink` gets, also if that is only the frontier."""
        found = self.chunks.get(sink) or Chunk()
        found.frontier = dict(self.frontier)
        return found


class Scan:
    """A `read_committed` consumer of all partitions, with the transactions that are not complete yet."""

    def __init__(
        self,
        queue: SendQueue,
        topic_id: str,
        starts: Mapping[int, int],
        sinks: Callable[[], frozenset[SiteId]],
        metadata_s: float,
        hooks: Hooks,
        only: SiteId | None = None,
    ) -> None:
        """
        Begin at the given offsets; partitions that are not named are found and read from their beginning.

        `only` is the one sink that wants something of this scan; without it, all destinations get theirs.
        """
        self._queue = queue
        self._topic_id = topic_id
        self._sinks = sinks
        self._hooks = hooks
        self._metadata = Timer(metadata_s)
        self._only = only
        self.record_bytes = UNKNOWN_RECORD_BYTES
        self.assemblers: dict[int, PartitionAssembler] = {}
        self._high_watermarks: dict[int, Callable[[], int]] = {}
        self._consumer = queue.cluster.consumer(queued_max_messages_kbytes=_PREFETCH_KBYTES, fetch_wait_max_ms=500)
        self._add(starts)
        try:
            self._add_partitions(queue.check(topic_id))
        except ReplicationError:
            self.close()
            raise

    def close(self) -> None:
        """Leave the source's cluster."""
        self._consumer.close()

    @property
    def passed(self) -> dict[int, int]:
        """How far each partition was read."""
        return {partition: assembler.passed for partition, assembler in self.assemblers.items()}

    @property
    def open_whole(self) -> frozenset[TxnId]:
        """The transactions that are not complete yet and were seen from their first record on, of all partitions."""
        return frozenset().union(*(assembler.open_whole for assembler in self.assemblers.values()))

    def open_before(self, offsets: Mapping[int, int]) -> frozenset[TxnId]:
        """The transactions that are not complete yet and began before the given offsets of their partitions."""
        return frozenset().union(
            *(self.assemblers[p].open_before(o) for p, o in offsets.items() if p in self.assemblers)
        )

    def step(self, timeout_s: float) -> ScanStep:
        """Read what is there, waiting for at most `timeout_s`; give what is complete with it."""
        if self._metadata.due():
            self._follow_metadata()
        step = ScanStep()
        first = self._consumer.poll(timeout_s)
        if first is None:
            return step
        # `consume` waits for all it was asked for, so it is only asked for what is there already.
        wanted = max(1, min(_STEP_RECORDS, int(_STEP_BYTES / self.record_bytes)))
        messages = cast("list[Record]", [first, *self._consumer.consume(wanted, 0)])
        for look in self._high_watermarks.values():
            look()
        read = 0
        home = self._queue.cluster.site
        for message in messages:
            error = message.error()
            if error is not None:
                self._event(message, error, step)
                continue
            partition = message.partition()
            value = message.value()
            read += len(value) if value else 0
            assembler = self.assemblers[partition]
            try:
                record = codec.decode_send(value, home)
            except WireError as problem:
                self._reject(message, str(problem), step)
                complete = assembler.unreadable(message.offset())
            else:
                record.timestamp_ms = message.timestamp()[1]
                complete = assembler.add(message.offset(), record, self._high_watermarks[partition])
            for transaction in complete:
                self._route(partition, transaction, step)
            step.frontier[partition] = _NOT_YET
        for partition in step.frontier:
            assembler = self.assemblers[partition]
            step.frontier[partition] = Frontier(assembler.resume_from, assembler.passed)
        if read:
            # Steps that bring nothing but events tell nothing about records.
            self.record_bytes += (read / len(messages) - self.record_bytes) / 8
        self._hooks.fetched(read)
        return step

    def _route(self, partition: int, transaction: CompleteTransaction, step: ScanStep) -> None:
        if not transaction.terminated:
            _log.warning(
                "transaction.unterminated",
                client=transaction.client,
                txn=str(transaction.txn),
                partition=partition,
                first_offset=transaction.first_offset,
                hint="the application committed around LR; it is forwarded as it is",
            )
        chunks = step.chunks
        if transaction.torn:
            for sink, reject in reject_torn(partition, transaction).items():
                chunks.setdefault(sink, Chunk()).add_reject(reject)
            return
        for sink, delivery in route(partition, transaction, self._only).items():
            chunk = chunks.get(sink)
            if chunk is None:
                chunk = chunks[sink] = Chunk()
            chunk.deliveries.append(delivery)
            chunk.size += delivery.size + _DELIVERY_BYTES * len(delivery.records)

    def _reject(self, message: Record, reason: str, step: ScanStep) -> None:
        """Send what cannot be understood to the sinks that it is tagged for; to the source itself if it tells none."""
        headers = headers_of(message)
        if headers is None:
            headers, reason = [], f"{reason}; its headers cannot be read either, and are left out"
        tagged = {naming.parse_log_entry_tag(name) for name, _ in headers} & self._sinks()
        value = message.value()
        record = RejectedRecord(message.offset(), message.timestamp()[1], message.key(), value, headers)
        client = codec.client_of(value) or naming.UNKNOWN_CLIENT
        reject = Reject(reason, client, message.partition(), None, [record])
        for sink in tagged or {self._queue.cluster.site}:
            if sink is not None:
                step.chunks.setdefault(sink, Chunk()).add_reject(reject)

    def _event(self, message: Record, error: KafkaError, step: ScanStep) -> None:
        code = error.code()
        partition = message.partition()
        if code == PARTITION_EOF:
            # The offset of this event lies behind the commit markers, which no record shows.
            for transaction in self.assemblers[partition].advance(message.offset()):
                self._route(partition, transaction, step)
            step.frontier[partition] = _NOT_YET
            return
        if code in OFFSET_GONE:
            raise PositionLost(
                f"{self._queue.topic} on {self._queue.cluster.site}: partition {partition} cannot be read from offset "
                f"{self.assemblers[partition].passed}: {error.str()}"
            )
        problem = translate(error, f"read {self._queue.topic} on {self._queue.cluster.site}")
        if not problem.retriable:
            raise problem
        _log.warning("source.unreachable", site=self._queue.cluster.site, reason=str(problem))
        # Whatever happened to the source, the topic may be another one now.
        self._metadata.hasten()

    def _follow_metadata(self) -> None:
        """Notice new partitions, and a topic that is another one than before."""
        try:
            partitions = self._queue.check(self._topic_id)
        except BrokerError as error:
            if not error.retriable:
                raise
            _log.warning("source.unreachable", site=self._queue.cluster.site, reason=str(error))
        else:
            self._add_partitions(partitions)

    def _add_partitions(self, partitions: int) -> None:
        new = sorted(set(range(partitions)) - set(self.assemblers))
        if new:
            _log.info("source.partitions_added", partitions=new)
            self._add(dict.fromkeys(new, 0))

    def _add(self, starts: Mapping[int, int]) -> None:
        for partition, offset in starts.items():
            self.assemblers[partition] = PartitionAssembler(offset)
            self._high_watermarks[partition] = self._high_watermark(partition)
        self._consumer.incremental_assign([TopicPartition(self._queue.topic, p, o) for p, o in starts.items()])

    def _high_watermark(self, partition: int) -> Callable[[], int]:
        where = TopicPartition(self._queue.topic, partition)
        highest = 0

        def cached() -> int:
            # Of the newest fetch, so at least that of the fetch which brought the record in hand. A new leader's may
            # lag behind the old one's for a moment: hence the highest that was ever seen, and a look at every step.
            nonlocal highest
            highest = max(highest, self._consumer.get_watermark_offsets(where, cached=True)[1])
            return highest

        return cached


# Stands in a step's frontier until the step is over.
_NOT_YET = Frontier(-1, -1)
