"""
A reader in a thread, what it did, and what is on the sinks: every wait has a deadline, and the reader always stops.

    with running(source, sink) as reader:
        writer.send(b"one")
        reader.forwarded(1)
    assert payloads(sink) == [b"one"]
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from unittest.mock import patch

from structlog.testing import capture_logs

from lr_kafka.clients import Cluster, Record
from lr_kafka.reading import read_to_end
from lr_kafka.status import StatusTable, read_status
from lr_source.reader import sharing
from lr_source.reader.hooks import Hooks, Step
from lr_source.reader.service import ReaderService
from lr_source.reader.settings import Limits, ReaderSettings
from lr_wire import codec, naming
from lr_wire.naming import ClientName, PositionKey, SessionKey, SiteId
from lr_wire.records import Header, Position, ReceiveRecord, RunningTotal, TxnId
from lr_wire.v1.control_pb2 import SessionStatus
from tests.support import send_queue
from tests.support.brokers import Broker, Site

T = TypeVar("T")

POLICY = ClientName("policy")
WITHIN_S = 20.0

QUICK = Limits(
    transaction_s=0.05,
    heartbeat_s=0.2,
    metadata_s=0.2,
    request_timeout_s=5.0,
    backoff_initial_s=0.1,
    backoff_max_s=0.4,
    drain_s=10.0,
)
"""Limits under which everything that happens every so often happens several times in a second."""


def cluster(site: Site | Broker) -> Cluster:
    """The cluster of a site, or of a broker that is named for one."""
    name = site.id if isinstance(site, Site) else site.name
    return Cluster(SiteId(name), {"bootstrap.servers": site.bootstrap_servers})


def clusters(sites: Callable[..., list[Site]], source: str, *sinks: str, partitions: int = 1) -> list[Cluster]:
    """Empty sites as clusters, the first one with a send queue."""
    found = [cluster(site) for site in sites(source, *sinks)]
    send_queue.create(found[0], partitions)
    return found


def wait_for(condition: Callable[[], T | None], what: str, within_s: float = WITHIN_S) -> T:
    """Ask again and again until there is an answer that is neither None nor False."""
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


class Recorder(Hooks):
    """Keeps what a reader tells, and lets tests wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.transactions: Counter[SessionKey] = Counter()
        self.entries: Counter[SessionKey] = Counter()
        self.states: list[tuple[SessionKey, str, str]] = []
        self.dead_letters: list[tuple[SessionKey, str]] = []
        self.fetched_bytes = 0
        self.steps: Counter[tuple[SiteId, Step]] = Counter()

    def step(self, sink: SiteId, step: Step) -> None:
        with self._changed:
            self.steps[sink, step] += 1
            self._changed.notify_all()

    def forwarded(self, session: SessionKey, transactions: int, entries: int, size: int) -> None:
        with self._changed:
            self.transactions[session] += transactions
            self.entries[session] += entries
            self._changed.notify_all()

    def state_changed(self, session: SessionKey, state: str, reason: str) -> None:
        with self._changed:
            self.states.append((session, state, reason))
            self._changed.notify_all()

    def dead_letter(self, session: SessionKey, reason: str) -> None:
        with self._changed:
            self.dead_letters.append((session, reason))
            self._changed.notify_all()

    def fetched(self, size: int) -> None:
        with self._changed:
            self.fetched_bytes += size
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], what: Callable[[], str], within_s: float = WITHIN_S) -> None:
        """Wait until what was told fulfils a condition."""
        with self._changed:
            assert self._changed.wait_for(condition, within_s), f"not within {within_s} s: {what()}"


class Gate(Recorder):
    """Holds one sink's flow up before it hands a transaction over, while it is shut."""

    def __init__(self, sink: str, step: Step = Step.BEFORE_SEND) -> None:
        super().__init__()
        self._sink = sink
        self._step = step
        self._way = threading.Event()
        self._way.set()

    def shut(self) -> None:
        self._way.clear()

    def open(self) -> None:
        self._way.set()

    def step(self, sink: SiteId, step: Step) -> None:
        super().step(sink, step)
        if sink == self._sink and step is self._step:
            assert self._way.wait(2 * WITHIN_S), "the gate was never opened"


class RunningReader:
    """A reader in a thread of this process."""

    def __init__(self, settings: ReaderSettings, hooks: Recorder, events: list[MutableMapping[str, Any]]) -> None:
        self.settings = settings
        self.hooks = hooks
        self.events = events
        """What it has logged."""

        self.service = ReaderService(settings, hooks=hooks)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.service.run, args=(self._stop,), name="reader")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> float:
        """Ask it to stop, wait until it has; give how many seconds that took. A second time changes nothing."""
        began = time.monotonic()
        self._stop.set()
        self._thread.join(self.settings.limits.drain_s + 10)
        assert not self._thread.is_alive(), "the reader does not stop"
        return time.monotonic() - began

    def session(self, sink: str = "site-b", client: str = POLICY) -> SessionKey:
        return SessionKey(self.settings.source, SiteId(sink), ClientName(client))

    def forwarded(self, transactions: int, sink: str = "site-b", client: str = POLICY) -> None:
        """Wait until this reader has committed so many transactions of a session on its sink."""
        key = self.session(sink, client)
        self.hooks.wait(
            lambda: self.hooks.transactions[key] >= transactions,
            lambda: f"{key} has {self.hooks.transactions[key]} of {transactions} transactions; {self.hooks.states}",
        )
        assert self.hooks.transactions[key] == transactions

    def rejected(self, count: int) -> None:
        """Wait until this reader has handed over so many dead letters."""
        self.hooks.wait(
            lambda: len(self.hooks.dead_letters) >= count, lambda: f"{count} dead letters: {self.hooks.dead_letters}"
        )

    def state(self, state: str, sink: str = "site-b", client: str = POLICY) -> str:
        """Wait until a session's newest state is this one; give the reason."""
        key = self.session(sink, client)

        def newest() -> tuple[str, str]:
            told = [(state, reason) for session, state, reason in self.hooks.states if session == key]
            return told[-1] if told else ("", "")

        self.hooks.wait(lambda: newest()[0] == state, lambda: f"{key} is in {newest()}, not {state}")
        return newest()[1]

    def event(self, name: str, count: int = 1, **facts: object) -> MutableMapping[str, Any]:
        """Wait until it has logged an event with these facts so many times; give the newest."""
        return wait_for(
            lambda: found[-1] if len(found := self.found(name, **facts)) >= count else None,
            f"{count} events {name} {facts} in {[event['event'] for event in self.events]}",
        )

    def found(self, name: str, **facts: object) -> list[MutableMapping[str, Any]]:
        """Give the events of a name with these facts, so far."""
        return [e for e in list(self.events) if e["event"] == name and facts.items() <= e.items()]


@contextmanager
def running(
    source: Cluster,
    *sinks: Cluster,
    clients: Iterable[str] = (),
    limits: Limits = QUICK,
    hooks: Recorder | None = None,
) -> Iterator[RunningReader]:
    """Run a reader for the length of a with-block."""
    settings = settings_for(source, *sinks, clients=clients, limits=limits)
    # A scan that waits for records looks up less often than a test wants to stop its reader.
    with capture_logs() as events, patch.object(sharing, "_STEP_S", 0.1):
        reader = RunningReader(settings, hooks or Recorder(), events)
        reader.start()
        try:
            yield reader
        finally:
            reader.stop()


def settings_for(
    source: Cluster, *sinks: Cluster, clients: Iterable[str] = (), limits: Limits = QUICK
) -> ReaderSettings:
    """The settings of a reader."""
    return ReaderSettings(
        source.site, {site.site: site for site in (source, *sinks)}, tuple(map(ClientName, clients)), limits
    )


@dataclass(frozen=True)
class Received:
    """A record of a receive queue."""

    partition: int
    offset: int
    timestamp_ms: int
    headers: Sequence[Header]
    value: bytes
    record: ReceiveRecord


def received(sink: Cluster, client: str = POLICY, source: str = "site-a") -> list[Received]:
    """Give all that is committed in a receive queue, partition by partition."""
    topic = naming.receive_topic(ClientName(client), SiteId(source))
    found = []
    for message in read_to_end(sink, topic):
        record = cast("Record", message)
        value = record.value()
        assert value is not None
        found.append(
            Received(
                record.partition(),
                record.offset(),
                record.timestamp()[1],
                record.headers() or [],
                value,
                codec.decode_receive(value),
            )
        )
    return sorted(found, key=lambda one: (one.partition, one.offset))


def payloads(sink: Cluster, client: str = POLICY) -> list[bytes]:
    """Give the payloads of a receive queue in order, partition by partition, after a check that all is whole."""
    return [payload for _, entries in transactions(sink, client) for payload in entries]


def transactions(sink: Cluster, client: str = POLICY) -> list[tuple[TxnId, list[bytes]]]:
    """Give the transactions of a receive queue in order, each checked to be whole and in its place."""
    found: list[tuple[TxnId, list[bytes]]] = []
    waiting: list[ReceiveRecord] = []
    newest: dict[int, int] = {}
    for one in received(sink, client):
        record = one.record
        assert record.record == len(waiting), f"record {record.record} where {len(waiting)} should be"
        assert not waiting or record.txn == waiting[0].txn, "transactions interleave"
        assert record.completed_at >= newest.get(one.partition, -1), "transactions are out of order"
        newest[one.partition] = record.completed_at
        waiting.append(record)
        if len(waiting) == record.records:
            entries = [entry for part in waiting for entry in part.entries]
            assert len(entries) == record.entries_in_txn
            found.append((record.txn, [entry.payload for entry in sorted(entries, key=lambda entry: entry.index)]))
            waiting = []
    assert not waiting, "a transaction is not whole"
    ids = [txn for txn, _ in found]
    assert len(ids) == len(set(ids)), "a transaction is there twice"
    return found


def recount(sink: Cluster, client: str = POLICY) -> dict[int, RunningTotal]:
    """Count what is in a receive queue, from its first record on, as reader and listener do."""
    totals: dict[int, RunningTotal] = {}
    for one in received(sink, client):
        before = totals.get(one.partition, RunningTotal())
        totals[one.partition] = RunningTotal(
            before.transactions + (one.record.record == 0),
            before.entries + len(one.record.entries),
            codec.extend_checksum(before.checksum, one.record.body),
        )
    return totals


@dataclass(frozen=True)
class DeadLetter:
    """A record of a dead letter queue: what it was, and what it says about itself."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    facts: Mapping[str, str]

    @property
    def reason(self) -> str:
        return self.facts["reason"]


def dead_letters(site: Cluster, client: str = POLICY, source: str = "site-a") -> list[DeadLetter]:
    """Give the dead letters of a client."""
    prefix = "lr_deadletter_"
    found = []
    for message in read_to_end(site, naming.dead_letter_topic(ClientName(client), SiteId(source))):
        record = cast("Record", message)
        headers = record.headers() or []
        facts = {
            name.removeprefix(prefix): (value or b"").decode() for name, value in headers if name.startswith(prefix)
        }
        original = [(name, value) for name, value in headers if not name.startswith(prefix)]
        found.append(DeadLetter(record.key(), record.value(), original, facts))
    return found


def positions(
    sink: Cluster, client: str = POLICY, source: str = "site-a", table: StatusTable | None = None
) -> dict[int, Position]:
    """Give the positions of a session, by partition, from its sink."""
    table = table or read_status(sink)
    return {
        key.partition: position
        for key, position in table.positions.items()
        if (key.source, key.sink, key.client) == (source, sink.site, client)
    }


def position(sink: Cluster, client: str = POLICY, partition: int = 0) -> Position:
    """Give the position of a session in one partition; offsets of -1 while there is none."""
    return positions(sink, client).get(partition, Position(-1, -1, "", ""))


def status(at: Cluster, sink: str, client: str = POLICY, source: str = "site-a") -> SessionStatus | None:
    """Give the state of a session as the cluster `at` tells it."""
    return read_status(at).sessions.get(SessionKey(SiteId(source), SiteId(sink), ClientName(client)))


def put_position(sink: Cluster, position: Position, client: str = POLICY, source: str = "site-a") -> None:
    """Write a position of partition 0, in place of what a reader has written."""
    key = PositionKey(SiteId(source), sink.site, client, 0)
    producer = sink.producer()
    producer.produce(naming.STATUS, codec.encode_position(position), naming.position_key(key).encode())
    assert producer.flush(WITHIN_S) == 0
