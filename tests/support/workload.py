"""
Applications that write transactions to a source all at once, for as long as a test lets them.

Every producer is a thread with a client and a transactional producer of its own. Their transactions overlap in the
partitions of the send queue, because records are small and go out while a transaction is still open. What each
transaction was and what became of it is kept, to be held against the send queue afterwards.
"""

from __future__ import annotations

import enum
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, Producer

from lr_source import Entry, RoutingQueueClient
from lr_wire import codec, naming
from lr_wire.errors import ReplicationError
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import TxnId
from tests.support.payloads import Told

_log = logging.getLogger("lr.librdkafka")

# So small that a transaction of a few entries is several records, most of them written before it ends.
_MAX_RECORD_BYTES = 1200
_MAX_OPEN_BYTES = 2400

_LARGE_FILLER = 20_000


@dataclass(frozen=True)
class Profile:
    """What the applications of one source do."""

    source: str
    sinks: tuple[str, ...]
    clients: tuple[str, ...] = ("policy", "inventory")
    ordering_keys: tuple[str | None, ...] = (None, "red", "green", "blue", "north", "south")
    partitions: int = 3
    """Of the send queue."""

    producers: int = 8
    first_producer: int = 0
    """Its number; the applications of two workloads must differ."""

    max_entries: int = 50
    aborted: float = 0.15
    """The share of transactions that are aborted."""

    large: float = 0.05
    """The share of transactions whose entries are large."""

    unterminated: float = 0.0
    """The share of transactions that are committed around LR: no record of them says that it is the last one."""

    pause_s: float = 0.05
    """The longest pause between two transactions of a producer."""


class Outcome(enum.Enum):
    """What became of a transaction, as its application saw it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the cluster went away meanwhile


@dataclass
class Written:
    """One transaction of an application."""

    client: str
    entries: list[Told] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    terminated: bool = True


class _Undo(Exception):
    """Leaves a with-block so that its transaction is aborted."""


class Workload:
    """The applications of one source: `with Workload(...) as load:` writes until the block or `stop()` ends it."""

    def __init__(self, bootstrap_servers: str, profile: Profile, seed: int) -> None:
        self.profile = profile
        self.written: dict[tuple[str, int, int], Written] = {}
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(bootstrap_servers, number, random.Random(f"{seed}/{number}")))
            for number in range(profile.first_producer, profile.first_producer + profile.producers)
        ]

    @property
    def committed(self) -> int:
        """Transactions that were committed so far."""
        return sum(one.outcome is Outcome.COMMITTED for one in list(self.written.values()))

    def start(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Let every producer end its transaction; raise what went wrong in any of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise ExceptionGroup("producers failed", [e for e in self.failures if isinstance(e, Exception)])

    def write_until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        """Return when the condition holds; raise if it does not within that time."""
        deadline = time.monotonic() + within_s
        while not condition():
            if self.failures:
                self.stop()
            assert time.monotonic() < deadline, f"not within {within_s} s under load"
            time.sleep(0.02)

    def write_more(self, transactions: int) -> None:
        """Return when this many more transactions were committed."""
        target = self.committed + transactions
        self.write_until(lambda: self.committed >= target)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, bootstrap_servers: str, producer: int, rng: random.Random) -> None:
        application = _Application(bootstrap_servers, self.profile, producer, rng, self._stop)
        try:
            for number in range(1_000_000):
                if self._stop.is_set():
                    return
                written = application.plan(number)
                self.written[self.profile.source, producer, number] = written
                application.write(written)
                self._stop.wait(rng.uniform(0.0, self.profile.pause_s))
        except BaseException as error:  # noqa: BLE001 - raised again by stop()
            self.failures.append(error)


class _Application:
    """One producer."""

    def __init__(
        self, bootstrap_servers: str, profile: Profile, producer: int, rng: random.Random, stop: threading.Event
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._profile = profile
        self._number = producer
        self._rng = rng
        self._stop = stop
        self._producer: Producer | None = None
        self._clients: Mapping[str, RoutingQueueClient] = {}

    def plan(self, number: int) -> Written:
        """Decide on the entries of the next transaction."""
        rng, profile = self._rng, self._profile
        client = rng.choice(profile.clients)
        # Mostly few entries, now and then many. Few different lists of destinations: entries that agree share records.
        count = rng.randint(1, profile.max_entries) if rng.random() < 0.25 else rng.randint(1, 6)
        lists = [
            tuple(sorted(rng.sample(profile.sinks, rng.randint(0 if n else 1, len(profile.sinks)))))
            for n in range(rng.randint(1, 3))
        ]
        longest = _LARGE_FILLER if rng.random() < profile.large else 400
        plan = [
            Told(
                source=profile.source,
                client=client,
                producer=self._number,
                number=number,
                index=index,
                entries=count,
                destinations=rng.choice(lists),
                keyed=rng.random() < 0.1,
                filler=rng.randint(0, longest),
            )
            for index in range(count)
        ]
        return Written(client, plan)

    def write(self, written: Written) -> None:
        """Write the transaction, by one of the ways that an application has, and note what became of it."""
        if not self._connect():
            return
        assert self._producer is not None
        rng, profile = self._rng, self._profile
        commit = rng.random() >= profile.aborted
        try:
            if rng.random() < profile.unterminated:
                self._write_around(self._producer, written, commit)
            elif rng.random() < 0.3:
                self._write_joined(self._producer, written, commit)
            else:
                self._write_own(self._producer, written, commit)
            written.outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
        except (ReplicationError, KafkaException):
            # What became of it only the log tells. Fence it in with a new producer, as the hints of these errors say.
            written.outcome = Outcome.UNKNOWN
            self._producer = None

    def _connect(self) -> bool:
        """Make a producer if there is none; False if the test ends before there is one."""
        while self._producer is None and not self._stop.is_set():
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap_servers,
                    "transactional.id": f"app-{self._profile.source}-{self._number}",
                    "transaction.timeout.ms": 10_000,
                    "linger.ms": 0,
                    "reconnect.backoff.max.ms": 300,
                    "error_cb": lambda _error: None,
                },
                logger=_log,
            )
            try:
                producer.init_transactions(5.0)
            except KafkaException:
                continue
            self._producer = producer
            self._clients = {
                name: RoutingQueueClient(
                    name,
                    source=self._profile.source,
                    producer=producer,
                    max_record_bytes=_MAX_RECORD_BYTES,
                    max_open_bytes=_MAX_OPEN_BYTES,
                    commit_timeout_s=8.0,
                )
                for name in self._profile.clients
            }
        return self._producer is not None

    def _write_own(self, producer: Producer, written: Written, commit: bool) -> None:
        try:
            with self._clients[written.client].transaction(self._ordering_key()) as txn:
                for told in written.entries:
                    txn.transmit_log_entry(told.payload(), told.destinations, key=told.key, headers=told.headers)
                    self._dawdle(producer)
                if not commit:
                    raise _Undo
        except _Undo:
            return

    def _write_joined(self, producer: Producer, written: Written, commit: bool) -> None:
        producer.begin_transaction()
        with self._clients[written.client].join(self._ordering_key()) as txn:
            txn.transmit_log_entries(
                Entry(told.payload(), told.destinations, told.key, told.headers) for told in written.entries
            )
        self._dawdle(producer)
        if commit:
            producer.commit_transaction(8.0)
        else:
            producer.abort_transaction(8.0)

    def _write_around(self, producer: Producer, written: Written, commit: bool) -> None:
        """Write a record per entry, none of which says that it is the last one."""
        written.terminated = False
        # Through no client, so it has no numbers for these: any id that no other transaction has will do.
        txn = TxnId(self._rng.randbytes(16), 0)
        partition = self._rng.randrange(self._profile.partitions)
        told = [replace(one, keyed=False) for one in written.entries if one.destinations]
        written.entries = told
        producer.begin_transaction()
        for number, one in enumerate(told):
            body = codec.encode_body([one.payload()], [one.index], txn, time.time_ns() // 1_000_000)
            destinations = codec.encode_destinations(map(SiteId, one.destinations))
            value = codec.encode_send(destinations, ClientName(written.client), number, False, body)
            tags = [(naming.log_entry_tag(SiteId(name)), b"") for name in one.destinations]
            producer.produce(naming.SEND_LOG_ENTRIES, value, partition=partition, headers=list(tags))
            self._dawdle(producer)
        if commit:
            producer.commit_transaction(8.0)
        else:
            producer.abort_transaction(8.0)

    def _ordering_key(self) -> str | None:
        return self._rng.choice(self._profile.ordering_keys)

    def _dawdle(self, producer: Producer) -> None:
        """Now and then wait until all that was handed over is in the log, so that others come in between."""
        if self._rng.random() < 0.15:
            producer.flush(8.0)
            time.sleep(self._rng.uniform(0.0, 0.02))
