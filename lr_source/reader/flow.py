"""
The life of one flow source->sink: fence, read the position, catch up, follow the shared scan; and all again after a
failure.

A flow has a thread of its own, so a sink that is down, slow or far away holds back nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import structlog

from lr_kafka import layout, topics
from lr_kafka.backoff import Backoff
from lr_kafka.clients import AdminClient, Cluster
from lr_kafka.status import StatusTable, glance_at_status, read_status
from lr_source.reader.forwarder import Forwarder
from lr_source.reader.hooks import Hooks
from lr_source.reader.ledger import Ledger, now_ms
from lr_source.reader.scan import UNKNOWN_RECORD_BYTES, Scan
from lr_source.reader.session import Session, State
from lr_source.reader.settings import Limits
from lr_source.reader.sharing import Feed, OpenScan, SharedScan
from lr_source.reader.source import SendQueue, Timer
from lr_wire import naming
from lr_wire.errors import ReplicationError
from lr_wire.naming import ClientName, SessionKey, SiteId
from lr_wire.v1.control_pb2 import Ownership

_log = structlog.get_logger("lr.reader")

_OWN_STEP_S = 0.2


class _TakenOver(ReplicationError):
    """Another reader owns the flow."""


class Flow:
    """All sessions source->sink, and the thread that serves them."""

    def __init__(
        self,
        queue: SendQueue,
        cluster: Cluster,
        clients: Iterable[ClientName],
        limits: Limits,
        shared: SharedScan,
        open_scan: OpenScan,
        report: Callable[[str, bytes], None],
        hooks: Hooks,
        owner: str,
    ) -> None:
        """Prepare; `start` begins. `report` takes the state of sessions that the sink itself cannot be told."""
        self.cluster = cluster
        self.sink = cluster.site
        self.source = queue.cluster.site
        self._queue = queue
        self._limits = limits
        self._shared = shared
        self._open_scan = open_scan
        self._report = report
        self._hooks = hooks
        self._owner = owner
        self._clients = set(clients)
        self._backoff = Backoff(limits.backoff_initial_s, limits.backoff_max_s)
        # 0 while it works.
        self._blocked_since_ms = 0
        # Smaller after each failure: a slow sink may take a part of what it could not take at once before its time-out.
        self._transaction_bytes = limits.transaction_bytes
        self._log = _log.bind(flow=f"{self.source}->{self.sink}")
        self._stop = threading.Event()
        self._posted: dict[str, bytes] = {}
        self._posted_lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._ledger: Ledger | None = None
        self._forwarder: Forwarder | None = None
        # Of our ownership; 0 until we have taken the flow over, which a reader does once without asking.
        self._term = 0
        self._thread = threading.Thread(target=self._run, name=f"flow-{self.sink}", daemon=True)
        # Set once the flow waits for the shared scan, or the first attempt to reach the sink has failed.
        self.tried = threading.Event()

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for a clean end: what is in the feed is forwarded and committed first."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def add_clients(self, clients: Iterable[ClientName]) -> None:
        """Prepare the queues of these clients too; of a sink that cannot be reached, at least show the sessions."""
        with self._posted_lock:
            self._clients |= set(clients)

    def post(self, key: str, value: bytes) -> None:
        """Write a record to this cluster's `LR_Status` with the next heartbeat."""
        with self._posted_lock:
            self._posted[key] = value

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._term:
                    # Before we fence in turn: whatever failed, another reader may have taken over meanwhile. A glance,
                    # because the transaction that we have left open keeps the end of the table from being read, and
                    # only fencing ends it. Whoever took over has fenced us, so what it wrote can be read.
                    self._require_ours(glance_at_status(self.cluster))
                self._serve(self._connect())
            except _TakenOver as error:
                self._log.warning("flow.taken_over", reason=str(error))
                break
            except ReplicationError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 - a defect must stop neither the other sinks nor, for good, this one
                self._log.exception("flow.defect")
                self._fail(error)
            finally:
                self.tried.set()
                self._disconnect()

    def _connect(self) -> Ledger:
        """Fence first, then read the position, then look at the log."""
        self._admin = self._admin or self.cluster.admin()
        spec = layout.status()
        topics.create(self._admin, spec.name, spec.partitions, spec.config)
        # 1. From here on nobody else can write, so the position cannot move behind our back.
        self._forwarder = Forwarder(self.source, self.cluster, self._limits, self._hooks, self._transaction_bytes)
        # 2. What is on the sink.
        table = read_status(self.cluster)
        # The glance may have missed it. We have disturbed the other one then; it goes on when we leave.
        self._require_ours(table)
        self._claim(self._forwarder, table)
        # 3. What is in the log.
        log = self._queue.log()
        self._ledger = Ledger(self.source, self.sink, self._owner, log, self._forwarder, self._admin, self._hooks)
        self._ledger.open(table, self._wanted_clients())
        self._log.info("flow.connected", sessions=len(self._ledger.sessions))
        return self._ledger

    def _claim(self, forwarder: Forwarder, table: StatusTable) -> None:
        """Write our name, at once and by itself: a reader that we have fenced looks for it before it goes on."""
        before = table.owners.get((self.source, self.sink))
        self._term = before.term + 1 if before else 1
        forwarder.put_status(
            naming.owner_key(self.source, self.sink),
            Ownership(owner=self._owner, since_ms=now_ms(), term=self._term).SerializeToString(),
        )
        forwarder.commit()

    def _require_ours(self, table: StatusTable) -> None:
        """
        Raise _TakenOver if another reader came after us.

        A name with a lower term does not count: we were fenced, by a time-out perhaps, before we could write ours.
        """
        found = table.owners.get((self.source, self.sink))
        if self._term and found is not None and found.owner != self._owner and found.term >= self._term:
            raise _TakenOver(f"{found.owner} owns {self.source}->{self.sink} now")

    def _disconnect(self) -> None:
        if self._forwarder is not None:
            self._forwarder.discard()
        self._forwarder = self._ledger = None

    def _serve(self, ledger: Ledger) -> None:
        while True:
            feed = Feed(self.sink, self._limits.buffer_bytes)
            try:
                if self._join(ledger, feed):
                    self._follow(ledger, feed)
            finally:
                self._shared.detach(feed)
            if self._stop.is_set():
                ledger.stop("the reader was stopped")
                return
            if not feed.overflowed:
                # The scan failed. What it stumbled over may concern our position, so that must be looked at again.
                raise ReplicationError(f"the shared scan of {self.source} ended: {feed.closed}")
            self._log.info("flow.behind", reason=feed.closed)

    def _join(self, ledger: Ledger, feed: Feed) -> bool:
        """Attach the feed to the shared scan, reading the log with a scan of our own up to there; False if stopped."""
        heartbeat = Timer(self._limits.heartbeat_s)
        starts = ledger.starts()
        own: Scan | None = None
        point = None
        try:
            while not self._stop.is_set():
                passed = own.passed if own else starts
                if point is None and self._is_near(passed, own):
                    point = self._shared.attach(feed, ledger.topic_id, ledger.starts())
                    self.tried.set()
                if point is not None and point.reached_by(
                    passed, own.open_before(point.passed) if own else frozenset()
                ):
                    self._commit_if_open(ledger)
                    self._log.info("flow.joined", with_own_scan=own is not None)
                    return True
                if own is None:
                    own = self._open_scan(ledger.topic_id, starts, self.sink)
                ledger.forward(own.step(_OWN_STEP_S).chunk(self.sink))
                self._commit_if_due(ledger, heartbeat, idle=False)
            self._commit_if_open(ledger)
            return False
        finally:
            # No commit here: after an exception a part of a chunk may be in the open transaction, without its position.
            if own is not None:
                own.close()

    def _is_near(self, passed: Mapping[int, int], own: Scan | None) -> bool:
        """Tell whether what lies between us and the shared scan fits well into a feed."""
        record_bytes = own.record_bytes if own else UNKNOWN_RECORD_BYTES
        return self._shared.behind(passed) * record_bytes <= self._limits.buffer_bytes / 2

    def _follow(self, ledger: Ledger, feed: Feed) -> None:
        """Forward what the shared scan brings, until the feed ends or a stop is asked for and the feed is empty."""
        heartbeat = Timer(self._limits.heartbeat_s)
        while True:
            if self._stop.is_set():
                feed.close("the reader was stopped")
            chunk = feed.take(min(heartbeat.left_s(), _OWN_STEP_S))
            if chunk is not None:
                ledger.forward(chunk)
            self._commit_if_due(ledger, heartbeat, idle=feed.empty)
            if feed.closed is not None:
                return

    def _commit_if_due(self, ledger: Ledger, heartbeat: Timer, *, idle: bool) -> None:
        assert self._forwarder is not None
        if heartbeat.due():
            posted = self._put_posted()
            ledger.prepare(self._wanted_clients())
            ledger.heartbeat()
            self._forget_posted(posted)
        elif self._forwarder.full or (idle and self._forwarder.open):
            ledger.commit()
        else:
            return
        # Not before this: a sink that can be connected to but takes no entries must not be tried ever so quickly.
        self._backoff.reset()
        self._blocked_since_ms = 0

    def _commit_if_open(self, ledger: Ledger) -> None:
        if self._forwarder is not None and self._forwarder.open:
            ledger.commit()

    def _wanted_clients(self) -> set[ClientName]:
        with self._posted_lock:
            return set() if self.sink == self.source else set(self._clients)

    def _put_posted(self) -> dict[str, bytes]:
        """Add what was posted to the open transaction; it is kept until that is committed."""
        assert self._forwarder is not None
        with self._posted_lock:
            posted = dict(self._posted)
        for key, value in posted.items():
            self._forwarder.put_status(key, value)
        return posted

    def _forget_posted(self, posted: Mapping[str, bytes]) -> None:
        with self._posted_lock:
            for key, value in posted.items():
                if self._posted.get(key) is value:
                    del self._posted[key]

    def _fail(self, error: Exception) -> None:
        """Report the reason, drop everything that was remembered, and wait."""
        delay_s = self._backoff.next_s()
        if self._forwarder is not None:
            self._transaction_bytes = max(1, self._forwarder.transaction_bytes // 2)
        self._log.warning(
            "flow.blocked", reason=str(error), retry_in_s=round(delay_s, 1), failures=self._backoff.failures
        )
        if self._ledger is not None:
            # Sessions that only the log has told of are to be shown at each further failure as well.
            self.add_clients(self._ledger.sessions)
        now = now_ms()
        self._blocked_since_ms = self._blocked_since_ms or now
        for client in self._wanted_clients():
            key = SessionKey(self.source, self.sink, client)
            session = Session(key, {}, State.BLOCKED, str(error), self._blocked_since_ms)
            self._report(naming.session_key(session.key), session.status(self._owner, now, 0.0))
            self._hooks.state_changed(session.key, State.Name(State.BLOCKED), str(error))
        self._disconnect()
        self.tried.set()
        self._stop.wait(delay_s)


def unknown_site(source: SiteId, sink: SiteId, client: ClientName, owner: str) -> tuple[str, bytes]:
    """Give the record that shows a session whose destination is not configured."""
    session = Session(
        SessionKey(source, sink, client),
        {},
        State.BLOCKED,
        f"entries for {sink} are in the log, but the configuration has no such site; they wait there until it is added",
        now_ms(),
    )
    return naming.session_key(session.key), session.status(owner, now_ms(), 0.0)
