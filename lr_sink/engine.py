"""
The listener's machine: one step at a time, one thread.

    assigned -> STARTING -> RUNNING <-> RETRYING
                   ^           |           |
                   +-----------+-----------+----> HALTED

Whatever goes wrong with a partition ends in one of two ways. Either it is begun again (STARTING), which drops what was
in work and reads the position anew: nothing is remembered that the group or the store could contradict. Or it halts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from functools import partial
from typing import Protocol

from lr_kafka import topics
from lr_kafka.backoff import Backoff
from lr_kafka.clients import Cluster, Record
from lr_kafka.errors import OFFSET_GONE, PARTITION_EOF, translate
from lr_kafka.groups import Committed
from lr_kafka.member import GroupMember, TopicPart
from lr_sink.acks import Acks
from lr_sink.apply import Answer, Verdict, apply
from lr_sink.assembly import Torn, Whole
from lr_sink.deadletter import DeadLetters
from lr_sink.opening import Opener
from lr_sink.partition import Partition, QueueState, QueueStatus
from lr_sink.reporting import Reporter
from lr_sink.settings import ListenerSettings
from lr_sink.store import PositionStore
from lr_sink.transaction import Transaction
from lr_sink.trim import Trimmer
from lr_wire import naming
from lr_wire.errors import BrokerError, QueueReplaced, QueueTrimmed, ReplicationError, WireError

_TICK_S = 0.001

# Kafka's own refusals that no later attempt will lift.
_FOR_GOOD = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_CONFIG", "POLICY_VIOLATION"})


class Step(Enum):
    """What one step did."""

    IDLE = auto()
    """Nothing: no record came, no attempt was due."""

    READ = auto()
    """Took a record of a transaction that is not complete yet, or an event."""

    STARTED = auto()
    """Read the position of a partition and began it."""

    APPLIED = auto()
    """The application applied a transaction."""

    FAILED = auto()
    """Something did not work and is tried again after a wait."""

    DEAD_LETTERED = auto()
    """Moved what was given up to the dead letters."""

    HALTED = auto()
    """Halted a partition."""


class Application(Protocol):
    """The application's callbacks."""

    def on_transaction(self, txn: Transaction) -> bool:
        """Apply a transaction."""

    def on_error(self, error: ReplicationError) -> None:
        """Hear of what needs somebody."""


class Engine:
    """Reads all receive queues of one client on one cluster, and calls the application."""

    def __init__(
        self,
        client: naming.ClientName,
        cluster: Cluster,
        application: Application,
        settings: ListenerSettings,
        store: PositionStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join the client's consumer group in the background."""
        group = naming.listener_group(client)
        self._client = client
        self._application = application
        self._settings = settings
        self._store = store
        self._clock = clock
        self._reporter = Reporter(application.on_error, settings, clock, client=client, site=cluster.site)
        self._log = self._reporter.log
        self._lock = threading.Lock()
        self._partitions: dict[TopicPart, Partition] = {}
        # Those that are STARTING or RETRYING, few as a rule: looked through at every step.
        self._waiting: dict[TopicPart, Partition] = {}
        self._queues: set[str] = set()
        self._poll_next = False
        self._surrenders = True
        self._member = GroupMember(
            cluster, group, naming.receive_topic_pattern(client), self, refresh_s=settings.discovery_s
        )
        admin = cluster.admin()
        self._opener = Opener(self._member, admin, store, group, settings.request_timeout_s)
        self._trimmer = Trimmer(partial(topics.delete_before, admin), settings.delete_s, clock)
        self._acks = Acks(self._member, settings, self._durable, clock)
        self._dead_letters = DeadLetters(cluster, admin, client, settings.request_timeout_s)
        self._log.info("listener.started", group=group, store=type(store).__name__ if store else None)

    # --- the steps

    def step(self) -> Step:
        """Do one unit of work: one attempt that is due, or one record; wait for either if there is none."""
        now = self._clock()
        if now >= self._acks.due:
            self._acks.send()
        if now >= self._trimmer.due:
            self._trimmer.delete()
        waiting = self._next_waiting()
        # Attempts and records take turns, so that neither keeps the other waiting.
        if waiting and now >= waiting.due and not self._poll_next:
            self._poll_next = True
            return self._go_on(waiting)
        self._poll_next = False
        wake = min(self._acks.due, self._trimmer.due, waiting.due if waiting else math.inf)
        record = self._member.poll(self._wait_s(wake - now))
        # Not `if record`: a record without a value is false.
        return Step.IDLE if record is None else self._take(record)

    def _wait_s(self, left_s: float) -> float:
        # Kafka's client counts in milliseconds: less than one would not wait at all, and so again and again.
        return min(self._settings.poll_s, max(left_s, _TICK_S)) if left_s > 0 else 0.0

    def close(self) -> None:
        """Commit and delete what is applied, within `stop_s`, and leave the group."""
        try:
            self._flush()
        finally:
            self._member.close()
            self._dead_letters.close()
            self._log.info("listener.stopped")

    def _flush(self) -> None:
        # Leaving the group would commit as well, but wait for as long as a session lasts if the cluster is away.
        self._surrenders = False
        deadline = self._clock() + self._settings.stop_s
        reason = f"the cluster did not answer within {self._settings.stop_s:g} s"
        try:
            while not self._acks.empty and (left := deadline - self._clock()) > 0:
                self._acks.send()
                # Records that come meanwhile are dropped: they were not applied, and come again.
                self._member.poll(min(left, 0.1))
        except BrokerError as problem:
            reason = str(problem)
        if self._acks.empty:
            self._trimmer.delete()
        else:
            self._log.warning(
                "listener.stopped_without_commit", reason=reason, hint="what was applied last may come again"
            )

    def status(self) -> tuple[QueueStatus, ...]:
        """Tell how each partition stands; from any thread."""
        with self._lock:
            partitions = list(self._partitions.values())
        return tuple(sorted((p.status() for p in partitions), key=lambda found: (found.queue, found.partition)))

    def _next_waiting(self) -> Partition | None:
        """Give the partition whose turn is next among those that wait for one."""
        waiting = (p for p in self._waiting.values() if not self._must_commit_first(p))
        return min(waiting, key=lambda p: p.due, default=None) if self._waiting else None

    def _must_commit_first(self, p: Partition) -> bool:
        # The position that is read anew must be the newest one, and a dead letter commits an offset in its own way: an
        # earlier commit must not come in after it.
        return (p.state is QueueState.STARTING or p.given_up is not None) and self._acks.holds(p.part)

    def _go_on(self, p: Partition) -> Step:
        if p.state is QueueState.STARTING:
            return self._start(p)
        if p.given_up:
            return self._dead_letter(p, p.given_up)
        return self._deliver(p)

    # --- records

    def _take(self, record: Record) -> Step:
        error = record.error()
        # Some events name no topic.
        p = self._partitions.get(TopicPart(record.topic(), record.partition()))
        if error is None:
            # Whatever still comes of a partition that is not being read will come again.
            if p and p.reading:
                p.pending.extend(p.assembler.feed(record.offset(), record.value(), record))
                return self._deliver(p) if p.pending and p.state is QueueState.RUNNING else Step.READ
        elif error.code() == PARTITION_EOF:
            if p and p.state is QueueState.RUNNING and (torn := p.assembler.at_end()):
                p.pending.extend(torn)
                return self._deliver(p)
        elif error.code() in OFFSET_GONE and p:
            if p.reading:
                return self._begin_again(p, f"offset {record.offset()} is not in the queue")
        else:
            self._reporter.event(translate(error, f"read the queues of {self._client}"))
        return Step.READ

    # --- one transaction

    def _deliver(self, p: Partition) -> Step:
        """Give the application what is at the head, once."""
        item = p.pending[0]
        if isinstance(item, Torn):
            return self._give_up(p, self._reporter.torn(p, item))
        answer = apply(p.transaction(item), self._application.on_transaction, self._store)
        match answer.verdict:
            case Verdict.APPLIED:
                return self._applied(p, item)
            case Verdict.MOVED:
                return self._begin_again(p, answer.reason)
            case Verdict.MISUSED:
                return self._halt(p, self._reporter.misused(p, item, answer))
            case Verdict.AGAIN:
                return self._again(p, item, answer)

    def _applied(self, p: Partition, item: Whole[Record]) -> Step:
        p.pending.popleft()
        p.moved(item.after(p.applied))
        self._acks.applied(p.part, p.commit())
        if p.retry.failures:
            self._log.info("listener.recovered", queue=p.part.topic, partition=p.part.partition)
        p.retry.reset()
        p.restart.reset()
        if p.pending:
            self._set(p, QueueState.RETRYING, "more was read before it was held up", due=0.0)
        elif p.state is QueueState.RETRYING:
            self._set(p, QueueState.RUNNING)
            self._member.resume(p.part)
        return Step.APPLIED

    def _again(self, p: Partition, item: Whole[Record], answer: Answer) -> Step:
        wait_s = p.retry.next_s()
        if p.retry.failures >= self._settings.max_attempts:
            return self._give_up(p, self._reporter.apply_failed(p, item, answer))
        self._reporter.attempt_failed(p, item, answer, wait_s)
        self._hold(p, answer.reason, self._clock() + wait_s)
        return Step.FAILED

    def _give_up(self, p: Partition, error: ReplicationError) -> Step:
        if self._settings.on_failure == "halt":
            return self._halt(p, error)
        p.given_up = error
        self._hold(p, str(error), 0.0)
        self._acks.hurry()
        return Step.FAILED

    def _dead_letter(self, p: Partition, error: ReplicationError) -> Step:
        """Move what is at the head to the dead letters; begin again behind it, or, if that failed, at it."""
        item = p.pending[0]
        committed = p.dead_letter_commit(item)
        offsets = {p.part: Committed(committed.applied.next_offset, committed.metadata())}
        try:
            self._dead_letters.write(p.name.source, item.raw, error.message, self._member, offsets)
        except ReplicationError as problem:
            if isinstance(problem, BrokerError) and (problem.unauthorised or problem.code in _FOR_GOOD):
                return self._halt(p, problem)
            return self._begin_again(p, f"the dead letter failed: {problem}")
        self._durable(p.part, committed.applied.next_offset)
        self._reporter.tell(error)
        p.restart.reset()
        self._begin_again(p, "behind a dead letter", failed=False)
        return Step.DEAD_LETTERED

    # --- beginning, holding, halting

    def _start(self, p: Partition) -> Step:
        try:
            opening = self._opener.open(p.part)
            self._member.begin(p.part, opening.start.applied.next_offset)
        except (QueueTrimmed, QueueReplaced, WireError) as error:
            return self._halt(p, error)
        except Exception as error:  # noqa: BLE001 - Kafka's errors, or whatever the store's database raises
            return self._begin_again(p, f"its position cannot be read: {type(error).__name__}: {error}")
        start = opening.start
        p.queue_id = opening.queue_id
        p.applied = start.applied
        previous = start.applied.next_offset if start.known else None
        p.stored = start.stored if p.has_store else previous
        self._set(p, QueueState.RUNNING)
        self._log.info(
            "listener.partition_started",
            queue=p.part.topic,
            partition=p.part.partition,
            offset=p.applied.next_offset,
            transactions=p.applied.total.transactions,
        )
        return Step.STARTED

    def _begin_again(self, p: Partition, reason: str, *, failed: bool = True) -> Step:
        """Drop what is in work, and read the position anew; after a failure, a wait before that."""
        wait_s = p.restart.next_s() if failed else 0.0
        if failed:
            self._log.warning(
                "listener.partition_restarts",
                queue=p.part.topic,
                partition=p.part.partition,
                reason=reason,
                again_in_s=round(wait_s, 2),
            )
        self._member.end(p.part)
        p.drop_work()
        self._set(p, QueueState.STARTING, reason, due=self._clock() + wait_s)
        self._acks.hurry()
        return Step.FAILED

    def _hold(self, p: Partition, reason: str, due: float) -> None:
        if p.state is QueueState.RUNNING:
            self._member.pause(p.part)
        self._set(p, QueueState.RETRYING, reason, due)

    def _halt(self, p: Partition, error: ReplicationError) -> Step:
        self._member.end(p.part)
        p.drop_work()
        self._set(p, QueueState.HALTED, str(error))
        self._reporter.tell(error)
        return Step.HALTED

    def _set(self, p: Partition, state: QueueState, reason: str = "", due: float = math.inf) -> None:
        p.health = (state, reason)
        p.due = due
        if p.waiting:
            self._waiting[p.part] = p
        else:
            self._waiting.pop(p.part, None)

    # --- what the group tells, from within poll

    def assigned(self, parts: Collection[TopicPart]) -> None:
        """Begin with these partitions."""
        settings = self._settings
        for part in parts:
            name = naming.parse_receive_topic(part.topic)
            if name is None or name.client != self._client:
                # The pattern cannot say how long a site's id may be.
                self._log.warning("listener.not_a_queue", topic=part.topic)
                continue
            if part.topic not in self._queues:
                self._queues.add(part.topic)
                self._log.info("listener.queue_found", queue=part.topic, source=name.source)
            found = Partition(
                part,
                name,
                retry=Backoff(settings.retry_initial_s, settings.retry_max_s),
                restart=Backoff(settings.retry_initial_s, settings.retry_max_s),
                has_store=self._store is not None,
            )
            with self._lock:
                self._partitions[part] = found
            self._set(found, QueueState.STARTING, "it was just assigned", due=0.0)

    def revoked(self, parts: Collection[TopicPart]) -> None:
        """Commit these partitions and let them go."""
        if self._surrenders:
            self._acks.surrender(parts)
        self.lost(parts)

    def lost(self, parts: Collection[TopicPart]) -> None:
        """Let these partitions go: what was in work is dropped."""
        self._acks.forget(parts)
        self._trimmer.forget(parts)
        with self._lock:
            gone = [part for part in parts if self._partitions.pop(part, None)]
        for part in gone:
            self._waiting.pop(part, None)
        self._queues = {part.topic for part in self._partitions}
        if gone:
            self._log.info(
                "listener.partitions_given_up", partitions=[f"{part.topic}/{part.partition}" for part in gone]
            )

    def committed(self, results: Mapping[TopicPart, BrokerError | None]) -> None:
        """Take note of what became of a commit."""
        self._acks.answered(results)

    def trouble(self, problem: BrokerError) -> None:
        """Say that the cluster cannot be reached."""
        self._reporter.trouble(problem)

    def _durable(self, part: TopicPart, next_offset: int) -> None:
        if self._settings.delete_applied:
            self._trimmer.durable(part, next_offset)
