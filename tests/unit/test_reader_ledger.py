"""
Sessions, positions and dead letters of a flow over a sink that keeps only what was committed.

The log is that of the position model, on two partitions and with two clients. The reader is the real one from the
assembler to the ledger; a sink's transaction is all or nothing, and crashes come anywhere between two calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lr_kafka import topics
from lr_kafka.clients import AdminClient, KafkaHeaders
from lr_kafka.status import StatusTable
from lr_kafka.topics import TopicInfo
from lr_source.reader.assembly import CompleteTransaction, PartitionAssembler
from lr_source.reader.forwarder import Forwarder
from lr_source.reader.hooks import Hooks
from lr_source.reader.ledger import Ledger
from lr_source.reader.positions import Frontier, SourceLog
from lr_source.reader.routing import Reject, RejectedRecord, reject_torn, route
from lr_source.reader.scan import Chunk
from lr_wire import codec, naming
from lr_wire.naming import ClientName, PositionKey, SessionKey, SiteId
from lr_wire.records import Position, RunningTotal, SendRecord, TxnId
from lr_wire.v1.control_pb2 import SessionStatus
from tests.support.log_model import ModelLog, ModelTransaction, generate

A, B = SiteId("site-a"), SiteId("site-b")
POLICY, INVENTORY = ClientName("policy"), ClientName("inventory")


@dataclass
class Sink:
    """What is committed on the sink's cluster, and its topics."""

    records: list[tuple[str, int, bytes | None]] = field(default_factory=list)
    table: StatusTable = field(default_factory=StatusTable)
    topics: dict[str, int] = field(default_factory=dict)

    def create(self, _admin: AdminClient, topic: str, partitions: int, _config: object) -> bool:
        fresh = topic not in self.topics
        self.topics.setdefault(topic, partitions)
        return fresh

    def describe(self, _admin: AdminClient, topic: str) -> TopicInfo | None:
        return TopicInfo(topic, topic, self.topics[topic]) if topic in self.topics else None

    def grow(self, _admin: AdminClient, topic: str, partitions: int) -> bool:
        self.topics[topic] = partitions
        return True

    def received(self, client: ClientName, partition: int) -> list[bytes]:
        topic = naming.receive_topic(client, A)
        return [value or b"" for name, at, value in self.records if (name, at) == (topic, partition)]

    def position(self, client: str, partition: int = 0) -> Position:
        return self.table.positions[PositionKey(A, B, client, partition)]


class FakeForwarder:
    """A transactional producer: nothing is there before the commit, all of it after."""

    def __init__(self, sink: Sink) -> None:
        self.open = False
        self._sink = sink
        self._records: list[tuple[str, int, bytes | None]] = []
        self._status: list[tuple[str, bytes]] = []

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        _headers: KafkaHeaders,
        _timestamp_ms: int,
        _key: bytes | None = None,
    ) -> None:
        self.open = True
        assert partition < self._sink.topics[topic]
        queue = naming.parse_receive_topic(topic)
        if queue is not None:
            registered = self._sink.table.sessions[SessionKey(A, B, queue.client)]
            assert registered.receive_queue == topic, "a record before its queue is registered"
        self._records.append((topic, partition, value))

    def put_status(self, key: str, value: bytes) -> None:
        self.open = True
        self._status.append((key, value))

    def await_partitions(self, topic: str, partitions: int) -> None:
        assert self._sink.topics[topic] >= partitions

    def sent(self) -> None:
        pass

    def commit(self) -> None:
        self._sink.records += self._records
        for key, value in self._status:
            self._sink.table.put(key.encode(), value)
        self._records, self._status, self.open = [], [], False


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    return connect(monkeypatch)


def connect(monkeypatch: pytest.MonkeyPatch) -> Sink:
    """A new sink, to which the ledger's questions about topics go from now on."""
    sink = Sink()
    for name in ("create", "describe", "grow"):
        monkeypatch.setattr(topics, name, getattr(sink, name))
    return sink


def open_ledger(sink: Sink, log: SourceLog, clients: tuple[ClientName, ...] = ()) -> Ledger:
    """Take over, knowing only what the sink has."""
    opened = Ledger(A, B, "owner", log, cast("Forwarder", FakeForwarder(sink)), cast("AdminClient", None), Hooks())
    opened.open(sink.table, clients)
    return opened


def log_of(partitions: int = 1, start: int = 0, end: int = 1000, topic_id: str = "topic") -> SourceLog:
    at = range(partitions)
    return SourceLog(topic_id, "cluster", dict.fromkeys(at, start), dict.fromkeys(at, end))


def record(number: int, *, client: ClientName = POLICY, part: int = 0, last: bool = True) -> SendRecord:
    body = codec.encode_body([b"%d" % number], [0], TxnId(b"i", number), 1)
    return codec.decode_send(codec.encode_send(codec.encode_destinations([B]), client, part, last, body))


def chunk_of(offset: int, one: SendRecord, partition: int = 0) -> Chunk:
    """What a scan brings that finds one whole transaction at `offset`."""
    assembler = PartitionAssembler(offset)
    [transaction] = assembler.add(offset, one, lambda: 10_000)
    chunk = Chunk(frontier={partition: Frontier(offset + 1, offset + 1)})
    if transaction.torn:
        chunk.rejects.append(reject_torn(partition, transaction)[B])
    else:
        chunk.deliveries.append(route(partition, transaction)[B])
    return chunk


def garbage_at(offset: int, partition: int = 0) -> Chunk:
    reject = Reject("garbage", naming.UNKNOWN_CLIENT, partition, None, [RejectedRecord(offset, 0, None, b"?", [])])
    return Chunk(rejects=[reject], frontier={partition: Frontier(offset + 1, offset + 1)})


def test_position_and_entries_become_real_together(sink: Sink) -> None:
    """Before the commit the sink has neither, after it both."""
    ledger = open_ledger(sink, log_of())
    ledger.forward(chunk_of(5, record(1)))
    assert not sink.records
    assert sink.position(POLICY).forwarded_through == -1
    ledger.commit()
    assert len(sink.received(POLICY, 0)) == 1
    position = sink.position(POLICY)
    assert (position.resume_from, position.forwarded_through) == (6, 5)
    assert position.total.transactions == 1


def test_a_queue_is_registered_before_its_first_record_is_handed_over(sink: Sink) -> None:
    """The fake producer checks it for every record; here the client is met inside of a chunk."""
    ledger = open_ledger(sink, log_of(), (POLICY,))
    ledger.forward(chunk_of(0, record(1)))
    ledger.forward(chunk_of(1, record(2, client=INVENTORY)))
    ledger.commit()
    assert len(sink.received(INVENTORY, 0)) == 1


def test_a_second_scan_that_is_further_back_brings_nothing_twice_and_no_step_back(sink: Sink) -> None:
    ledger = open_ledger(sink, log_of())
    ledger.forward(chunk_of(5, record(1)))
    ledger.forward(chunk_of(9, record(2)))
    ledger.forward(chunk_of(5, record(1)))
    ledger.heartbeat()
    assert len(sink.received(POLICY, 0)) == 2
    assert sink.position(POLICY).resume_from == 10
    assert sink.position(naming.ANY_CLIENT).resume_from == 10


def test_an_idle_session_moves_with_the_heartbeat_only(sink: Sink) -> None:
    """Not with other sessions' commits: that would be a record for each session in each transaction."""
    ledger = open_ledger(sink, log_of(), (POLICY, INVENTORY))
    ledger.forward(chunk_of(5, record(1)))
    ledger.commit()
    assert sink.position(INVENTORY).resume_from == 0
    ledger.heartbeat()
    assert sink.position(INVENTORY).resume_from == 6


@pytest.mark.parametrize(
    "bring", [lambda: garbage_at(3), lambda: chunk_of(3, record(1, part=2))], ids=["garbage", "torn"]
)
def test_a_dead_letter_is_written_once_whoever_reads_it_again(sink: Sink, bring: object) -> None:
    """By a second scan of the same reader, and by the next reader."""
    make = cast("type[Chunk]", bring)
    for _ in range(2):
        ledger = open_ledger(sink, log_of())
        ledger.forward(make())
        ledger.forward(make())
        ledger.commit()
        ledger.forward(make())
        ledger.heartbeat()
    assert len(sink.records) == 1


def test_the_rest_of_a_torn_transaction_is_no_second_dead_letter(sink: Sink) -> None:
    """One without a last record, met again in its middle because an older transaction is still incomplete."""
    log = {
        3: record(1, part=1, last=False),
        4: record(2, last=False),
        5: record(1, part=2, last=False),
        8: record(2, part=1),
    }

    def read(start: int, end: int) -> Chunk:
        """Read a part of the log, at a time when it ends there."""
        assembler = PartitionAssembler(start)
        complete = [one for at in log if start <= at < end for one in assembler.add(at, log[at], lambda: end)]
        complete += assembler.advance(end)
        return Chunk(
            [route(0, one)[B] for one in complete if not one.torn],
            [reject_torn(0, one)[B] for one in complete if one.torn],
            {0: Frontier(assembler.resume_from, assembler.passed)},
        )

    # The older one was met by a reader that knew of more to come.
    first = read(3, 7)
    first.frontier[0] = Frontier(4, 7)
    del first.deliveries[:]
    ledger = open_ledger(sink, log_of())
    ledger.forward(first)
    ledger.commit()
    assert len(sink.records) == 2
    assert ledger.starts() == {0: 4}
    ledger = open_ledger(sink, log_of())
    ledger.forward(read(4, 10))
    ledger.heartbeat()
    assert [topic for topic, _, _ in sink.records].count("LRQ_DeadLetter_policy_site-a") == 2
    assert len(sink.received(POLICY, 0)) == 2


def test_what_is_not_committed_is_dead_lettered_by_the_next_reader(sink: Sink) -> None:
    open_ledger(sink, log_of()).forward(garbage_at(3))
    assert not sink.records
    ledger = open_ledger(sink, log_of())
    ledger.forward(garbage_at(3))
    ledger.commit()
    assert len(sink.records) == 1


def test_a_lost_session_stays_lost_and_takes_nothing(sink: Sink) -> None:
    """Over restarts, also when the log has grown past its position again; its position stays for whoever looks."""
    ledger = open_ledger(sink, log_of())
    ledger.forward(chunk_of(5, record(1)))
    ledger.stop("over")
    for log in (log_of(start=50), log_of(start=0), log_of(topic_id="another")):
        ledger = open_ledger(sink, log)
        ledger.forward(chunk_of(60, record(2)))
        ledger.forward(chunk_of(61, record(3, client=INVENTORY)))
        ledger.heartbeat()
        status = sink.table.sessions[SessionKey(A, B, POLICY)]
        assert status.state == SessionStatus.NEEDS_SNAPSHOT
        assert "begins at offset 50" in status.reason
        ledger.stop("over")
        assert sink.table.sessions[SessionKey(A, B, POLICY)].state == SessionStatus.NEEDS_SNAPSHOT
    assert len(sink.received(POLICY, 0)) == 1
    assert sink.position(POLICY).resume_from == 6


def test_a_scan_begins_where_the_session_that_is_furthest_behind_needs_it(sink: Sink) -> None:
    """A lost session needs nothing."""
    ledger = open_ledger(sink, log_of(partitions=2), (POLICY, INVENTORY))
    ledger.forward(chunk_of(5, record(1)))
    ledger.commit()
    assert ledger.starts() == {0: 0, 1: 0}
    ledger.heartbeat()
    assert ledger.starts() == {0: 6, 1: 0}
    assert open_ledger(sink, log_of(partitions=2)).starts() == {0: 6, 1: 0}


def test_new_partitions_are_given_to_every_session_and_queue(sink: Sink) -> None:
    ledger = open_ledger(sink, log_of(), (INVENTORY,))
    ledger.forward(chunk_of(0, record(1)))
    ledger.forward(chunk_of(0, record(2), partition=1))
    ledger.heartbeat()
    for client in (POLICY, INVENTORY):
        assert sink.topics[naming.receive_topic(client, A)] == 2
        assert sink.table.sessions[SessionKey(A, B, client)].partitions == 2
        assert sink.position(client, 1).resume_from == 1
    assert len(sink.received(POLICY, 1)) == 1


# --- everything together, against the model


class ModelScan:
    """What a scan of two model logs brings, in chunks."""

    def __init__(self, logs: dict[int, ModelLog], garbage: set[tuple[int, TxnId]], starts: dict[int, int]) -> None:
        self._logs = logs
        self._garbage = garbage
        self._assemblers = {partition: PartitionAssembler(offset) for partition, offset in starts.items()}

    def step(self, rng: random.Random, high_watermarks: dict[int, int]) -> Chunk:
        chunk = Chunk()
        for partition, assembler in self._assemblers.items():
            log, high_watermark = self._logs[partition], high_watermarks[partition]
            stable = log.last_stable_offset(high_watermark)
            end = rng.randint(assembler.passed, max(assembler.passed, stable))
            complete: list[CompleteTransaction] = []
            for offset, seen in log.visible(assembler.passed, end):
                if (partition, seen.txn) in self._garbage:
                    rejected = RejectedRecord(offset, 0, None, b"?%d" % offset, [])
                    chunk.rejects.append(Reject("garbage", naming.UNKNOWN_CLIENT, partition, None, [rejected]))
                    complete += assembler.advance(offset + 1)
                else:
                    seen.client = client_of(seen.txn)
                    seen.value = value_of(seen.txn, seen.record)
                    complete += assembler.add(offset, seen, lambda known=high_watermark: known)  # type: ignore[misc]
            if end == stable:
                complete += assembler.advance(end)
            for transaction in complete:
                if transaction.torn:
                    chunk.rejects.append(reject_torn(partition, transaction)[B])
                else:
                    chunk.deliveries.append(route(partition, transaction)[B])
            chunk.frontier[partition] = Frontier(assembler.resume_from, assembler.passed)
        return chunk


def client_of(txn: TxnId) -> ClientName:
    return POLICY if txn.incarnation[0] % 2 else INVENTORY


def value_of(txn: TxnId, part: int) -> bytes:
    return codec.encode_body([b"%s/%d" % (str(txn).encode(), part)], [part], txn, 1)


def transactions_of(logs: dict[int, ModelLog]) -> Iterator[tuple[int, ModelTransaction]]:
    for partition, log in logs.items():
        for transaction in log.transactions:
            yield partition, transaction


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_doubled_or_torn_whatever_fails_in_between(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Entries, positions, totals and dead letters agree after crashes, restarts and changes of scan."""
    rng = random.Random(seed)
    sink = connect(monkeypatch)
    logs = {partition: generate(rng, rng.randint(1, 5), rng.randint(1, 4)) for partition in range(2)}
    # A transaction of one record can be unreadable as a whole; garbage in a larger one would tear it.
    garbage = {(p, t.txn) for p, t in transactions_of(logs) if t.records == 1 and rng.random() < 0.3}
    whole = {partition: len(log.entries) for partition, log in logs.items()}
    high_watermarks = dict.fromkeys(logs, 0)

    def restarted() -> Ledger:
        return open_ledger(sink, SourceLog("topic", "cluster", dict.fromkeys(logs, 0), high_watermarks))

    def at_the_end() -> bool:
        return {partition: sink.position(naming.ANY_CLIENT, partition).resume_from for partition in logs} == whole

    while not sink.table.positions or not at_the_end():
        ledger = restarted()
        scan = ModelScan(logs, garbage, ledger.starts())
        for _ in range(rng.randint(1, 12)):
            for partition, end in whole.items():
                # In small steps: a log that grows while it is read is where transactions straddle what is seen of it.
                high_watermarks[partition] = min(end, high_watermarks[partition] + rng.randint(0, 4))
            ledger.forward(scan.step(rng, dict(high_watermarks)))
            action = rng.choice(["commit", "heartbeat", "another scan", "nothing"])
            if action == "commit" and ledger._forwarder.open:
                ledger.commit()
            elif action == "heartbeat":
                ledger.heartbeat()
            elif action == "another scan":
                scan = ModelScan(logs, garbage, ledger.starts())

    dead = [value or b"" for topic, _, value in sink.records if naming.parse_dead_letter_topic(topic)]
    hopeless = [b"?%d" % t.offsets[0] for p, t in transactions_of(logs) if (p, t.txn) in garbage and t.committed]
    assert sorted(dead) == sorted(hopeless)
    for client in (POLICY, INVENTORY):
        for partition, log in logs.items():
            judge(sink, client, partition, [t for t in log.transactions if (partition, t.txn) not in garbage])


def judge(sink: Sink, client: ClientName, partition: int, transactions: list[ModelTransaction]) -> None:
    """A client's queue has its committed transactions once and whole, and the total of the position counts them."""
    expected = {t.txn: t.records for t in transactions if t.committed and client_of(t.txn) == client}
    total = RunningTotal()
    found: list[TxnId] = []
    parts = 0
    for value in sink.received(client, partition):
        one = codec.decode_receive(value)
        assert one.record == parts
        parts += 1
        if one.record == 0:
            found.append(one.txn)
            total = RunningTotal(total.transactions + 1, total.entries, total.checksum)
        assert one.txn == found[-1]
        total = RunningTotal(
            total.transactions, total.entries + len(one.entries), codec.extend_checksum(total.checksum, one.body)
        )
        if parts == one.records:
            assert parts == expected[one.txn]
            parts = 0
    assert parts == 0
    assert len(found) == len(set(found))
    assert set(found) == set(expected)
    if expected:
        assert sink.position(client, partition).total == total
