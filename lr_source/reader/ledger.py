"""
The sessions of one flow source->sink and their common transaction on the sink.

A ledger lives from one fencing of the sink to the next failure. It is made from what the sink says, forwards chunks,
and commits them together with the positions behind them. Commits happen between chunks only: a chunk's frontier is
true once the whole chunk is handed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import structlog

from lr_kafka import layout, topics
from lr_kafka.clients import AdminClient, KafkaHeaders
from lr_kafka.status import StatusTable
from lr_source.reader.forwarder import Forwarder
from lr_source.reader.hooks import Hooks
from lr_source.reader.positions import Frontier, Lost, SourceLog, advanced, negotiate, without_gaps
from lr_source.reader.routing import Reject
from lr_source.reader.scan import Chunk
from lr_source.reader.session import Session, State
from lr_wire import codec, naming
from lr_wire.deadletter import dead_letter_headers
from lr_wire.naming import ClientName, PositionKey, SessionKey, SiteId
from lr_wire.records import Position
from lr_wire.v1.control_pb2 import SessionStatus

_log = structlog.get_logger("lr.reader")


def now_ms() -> int:
    """Give the time as Kafka counts it."""
    return time.time_ns() // 1_000_000


class Ledger:
    """Sessions, positions and the open transaction of one flow."""

    def __init__(
        self,
        source: SiteId,
        sink: SiteId,
        owner: str,
        log: SourceLog,
        forwarder: Forwarder,
        admin: AdminClient,
        hooks: Hooks,
    ) -> None:
        """Begin with no sessions; `open` adds those that the sink knows."""
        self.source = source
        self.sink = sink
        self.sessions: dict[ClientName, Session] = {}
        self.frontier: dict[int, Frontier] = {}
        self._owner = owner
        self._log = log
        self._forwarder = forwarder
        self._admin = admin
        self._hooks = hooks
        # The position of every client that has none of its own: nothing for such a client lies before it.
        self._default: dict[int, Position] = {}
        self._rejected = False
        self._dead_letters: set[str] = set()
        self._heartbeat_at = time.monotonic()

    def open(self, table: StatusTable, clients: Iterable[ClientName]) -> None:
        """Take over: negotiate every session that the sink or the configuration knows."""
        stored: dict[str, dict[int, Position]] = {}
        for key, position in table.positions.items():
            if (key.source, key.sink) == (self.source, self.sink):
                stored.setdefault(key.client, {})[key.partition] = position
        default, losses = without_gaps(stored.pop(naming.ANY_CLIENT, {}), self._log)
        for lost in losses:
            _log.warning("flow.default_position_lost", sink=self.sink, reason=lost.reason)
        self._default = default
        known = {key.client for key in table.sessions if (key.source, key.sink) == (self.source, self.sink)}
        for client in sorted({*map(ClientName, stored), *known, *clients}):
            outcome = negotiate(stored[client], self._log) if client in stored else default
            self._add_session(client, outcome, table.sessions.get(SessionKey(self.source, self.sink, client)))
        # Nothing is read yet, and every session has all that was complete where reading begins.
        self.frontier = {partition: Frontier(start, start) for partition, start in self.starts().items()}
        self.heartbeat()

    @property
    def topic_id(self) -> str:
        """The send queue that all offsets here belong to."""
        return self._log.topic_id

    def starts(self) -> dict[int, int]:
        """Give where a scan must begin so that no session misses anything."""
        starts = {partition: position.resume_from for partition, position in self._default.items()}
        for session in self.sessions.values():
            if session.active:
                for partition, position in session.positions.items():
                    starts[partition] = min(position.resume_from, starts.get(partition, position.resume_from))
        return starts

    def prepare(self, clients: Iterable[ClientName]) -> None:
        """Make and register the queues of clients that have none yet. Only between chunks."""
        new = sorted(set(clients) - self.sessions.keys())
        if not new:
            return
        if self._forwarder.open:
            self.commit()
        for client in new:
            self._add_session(client, self._default, None)
        self.heartbeat()

    def forward(self, chunk: Chunk) -> None:
        """Hand a chunk to the producer and move the frontier."""
        self._follow_growth(chunk.frontier)
        self.prepare(
            {delivery.client for delivery in chunk.deliveries} | {r.client for r in chunk.rejects if r.transaction}
        )
        touched: set[tuple[ClientName, int]] = set()
        sessions = self.sessions
        send = self._forwarder.send
        for delivery in chunk.deliveries:
            session = sessions[delivery.client]
            partition = delivery.partition
            if not session.wants(partition, delivery):
                continue
            for record in delivery.records:
                send(session.topic, partition, record.value, session.headers, record.timestamp_ms)
            session.note(delivery)
            touched.add((delivery.client, partition))
        for reject in chunk.rejects:
            self._reject(reject, touched)
        for partition, frontier in chunk.frontier.items():
            # Two scans can bring chunks, one after the other and the second one further back: never step back.
            before = self.frontier[partition]
            self.frontier[partition] = Frontier(
                max(before.resume_from, frontier.resume_from), max(before.passed, frontier.passed)
            )
        now = now_ms()
        for client, partition in touched:
            sessions[client].advance(partition, self.frontier[partition], now)
        if self._rejected:
            self._advance_default(now)

    def commit(self) -> None:
        """Commit the open transaction with the positions behind what is in it."""
        self._forwarder.sent()
        moved = [session for session in self.sessions.values() if session.pending_transactions]
        self._put_positions(moved if not self._rejected else self.sessions.values())
        if self._rejected:
            self._put_default()
        self._finish()

    def heartbeat(self) -> None:
        """Commit with the state of all sessions, and the positions of those that are idle as well."""
        now = now_ms()
        interval_s = max(1e-3, time.monotonic() - self._heartbeat_at)
        self._heartbeat_at = time.monotonic()
        self._forwarder.sent()
        for session in self.sessions.values():
            rate = (session.recent_entries + session.pending_entries) / interval_s
            # What is pending counts now; it is added once more when the commit below has succeeded.
            session.recent_entries = -session.pending_entries
            if session.active:
                for partition, frontier in self.frontier.items():
                    session.advance(partition, frontier, now)
            self._forwarder.put_status(naming.session_key(session.key), session.status(self._owner, now, rate))
        self._advance_default(now)
        self._put_positions(self.sessions.values())
        self._put_default()
        self._finish()

    def set_state(self, session: Session, state: State, reason: str) -> None:
        """Enter a state; it is written with the next heartbeat."""
        old, session.state, session.reason, session.changed_ms = session.state, state, reason, now_ms()
        log = _log.warning if state == State.NEEDS_SNAPSHOT else _log.info
        log(
            "session.state_changed",
            session=str(session.key),
            old=State.Name(old),
            new=State.Name(state),
            reason=reason,
        )
        self._hooks.state_changed(session.key, State.Name(state), reason)

    def stop(self, reason: str) -> None:
        """Write that nobody forwards any more."""
        for session in self.sessions.values():
            if session.active:
                self._advance_all(session)
                self.set_state(session, State.STOPPED, reason)
        self.heartbeat()

    def _advance_all(self, session: Session) -> None:
        for partition, frontier in self.frontier.items():
            session.advance(partition, frontier, now_ms())

    def _add_session(
        self, client: ClientName, outcome: Mapping[int, Position] | Lost, before: SessionStatus | None
    ) -> None:
        key = SessionKey(self.source, self.sink, client)
        if before is not None and before.state == State.NEEDS_SNAPSHOT:
            # Only a snapshot ends this state: a log that has grown past the position again does not bring back what
            # is gone.
            outcome = Lost(before.reason)
        session = Session(key, {} if isinstance(outcome, Lost) else dict(outcome))
        session.partitions = self._ensure_queue(client, len(self._default))
        self.sessions[client] = session
        if isinstance(outcome, Lost):
            self.set_state(session, State.NEEDS_SNAPSHOT, outcome.reason)
        else:
            self.set_state(session, State.LOG_ENTRY_SYNC, "" if before else "new: from the beginning of the log")
        if before is not None and before.state == session.state:
            session.changed_ms = before.changed_ms

    def _ensure_queue(self, client: ClientName, partitions: int) -> int:
        spec = layout.receive_queue(client, self.source, partitions)
        if topics.create(self._admin, spec.name, spec.partitions, spec.config):
            self._forwarder.await_partitions(spec.name, partitions)
            _log.info("queue.created", queue=spec.name, sink=self.sink, partitions=partitions)
            return partitions
        found = topics.describe(self._admin, spec.name)
        if found is not None and found.partitions < partitions:
            topics.grow(self._admin, spec.name, partitions)
            self._forwarder.await_partitions(spec.name, partitions)
            _log.info("queue.grown", queue=spec.name, sink=self.sink, partitions=partitions)
            return partitions
        return found.partitions if found else partitions

    def _follow_growth(self, frontier: Mapping[int, Frontier]) -> None:
        """Give the sessions and their queues the partitions that the send queue has got."""
        new = sorted(frontier.keys() - self.frontier.keys())
        if not new:
            return
        if self._forwarder.open:
            self.commit()
        for partition in new:
            fresh = Position(0, -1, self._log.topic_id, self._log.cluster_id)
            self._default[partition] = fresh
            self.frontier[partition] = Frontier(0, 0)
            for session in self.sessions.values():
                session.positions.setdefault(partition, fresh)
        for session in self.sessions.values():
            session.partitions = self._ensure_queue(session.key.client, len(self.frontier))
        self.heartbeat()

    def _reject(self, reject: Reject, touched: set[tuple[ClientName, int]]) -> None:
        """Write what must not be delivered to the dead letter, once."""
        partition = reject.partition
        if reject.transaction is not None:
            session = self.sessions[reject.client]
            if not session.wants(partition, reject.transaction):
                return
            session.note_dealt_with(partition, reject.transaction)
            touched.add((reject.client, partition))
        elif reject.records[0].offset <= self._default[partition].forwarded_through:
            return
        topic = self._dead_letter_topic(reject.client)
        for record in reject.records:
            headers: KafkaHeaders = [
                *dead_letter_headers(
                    reject.reason, naming.SEND_LOG_ENTRIES, partition, record.offset, now_ms(), record.headers
                )
            ]
            self._forwarder.send(topic, 0, record.value, headers, record.timestamp_ms, record.key)
        self._rejected = True
        key = SessionKey(self.source, self.sink, reject.client)
        _log.warning(
            "record.rejected",
            session=str(key),
            partition=partition,
            offset=reject.records[0].offset,
            reason=reject.reason,
        )
        self._hooks.dead_letter(key, reject.reason)

    def _dead_letter_topic(self, client: ClientName) -> str:
        spec = layout.dead_letters(client, self.source)
        if spec.name not in self._dead_letters:
            topics.create(self._admin, spec.name, spec.partitions, spec.config)
            self._forwarder.await_partitions(spec.name, spec.partitions)
            self._dead_letters.add(spec.name)
        return spec.name

    def _advance_default(self, now: int) -> None:
        for partition, frontier in self.frontier.items():
            position = self._default[partition]
            self._default[partition] = advanced(position, frontier, position.total, {}, now)

    def _put_positions(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            for partition, position in session.unwritten().items():
                self._put_position(session.key.client, partition, position)
                session.written[partition] = position

    def _put_default(self) -> None:
        for partition, position in self._default.items():
            self._put_position(naming.ANY_CLIENT, partition, position)

    def _put_position(self, client: str, partition: int, position: Position) -> None:
        key = PositionKey(self.source, self.sink, client, partition)
        self._forwarder.put_status(naming.position_key(key), codec.encode_position(position))

    def _finish(self) -> None:
        self._forwarder.commit()
        self._rejected = False
        for session in self.sessions.values():
            if session.pending_transactions:
                self._hooks.forwarded(
                    session.key, session.pending_transactions, session.pending_entries, session.pending_bytes
                )
                session.recent_entries += session.pending_entries
                session.pending_transactions = session.pending_entries = session.pending_bytes = 0
