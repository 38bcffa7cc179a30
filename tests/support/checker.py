"""
A `read_committed` reader of every sink that watches all along and believes nobody.

While it watches, it judges each record by what the payloads say of themselves, and each moment by one strict rule: in
a partition, the records of a source transaction follow each other without a gap, and the end of what can be read
never lies in the middle of one. At the end, all that was seen must be exactly what the send queue says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lr_kafka.clients import Cluster
from lr_kafka.status import read_status
from lr_wire.naming import PositionKey, SiteId, parse_receive_topic, receive_tag
from lr_wire.records import Header
from lr_wire.v1.entry_pb2 import RoutingTableEntryMsg
from tests.support.payloads import Told
from tests.support.send_log import Expected, SendLog, TxnKey, content, high_watermarks
from tests.support.workload import Outcome, Workload

_log = logging.getLogger("lr.librdkafka")

_DISCOVERY_S = 0.3


@dataclass
class _Partition:
    """What was seen of one partition of a receive queue."""

    client: str
    number: int
    seen: list[Expected] = field(default_factory=list)
    missing: int = 0  # records of the transaction that was seen last
    completed_at: int = -1
    reached: int = 0


class SinkChecker:
    """Watches everything that one sink gets from one source."""

    def __init__(self, sink: str, bootstrap_servers: str, source: str) -> None:
        self.sink = sink
        self.problems: list[str] = []
        self._bootstrap_servers = bootstrap_servers
        self._source = source
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._transactions: set[TxnKey] = set()
        self._told: set[tuple[object, ...]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"checker-{sink}")

    @property
    def transactions(self) -> int:
        """Transactions that have arrived so far."""
        return len(self._transactions)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def await_arrival(self, log: SendLog, within_s: float) -> None:
        """Wait until there is as much as there must be; whether it is the right thing is for `verdict` to say."""
        expected = {record.txn for records in log.expected(self.sink).values() for record in records}
        deadline = time.monotonic() + within_s
        while not expected <= self._transactions and not self.problems:
            if time.monotonic() > deadline:
                missing = len(expected - self._transactions)
                self.problems.append(f"{self.sink}: {missing} of {len(expected)} transactions lost")
                return
            time.sleep(0.02)

    def verdict(self, log: SendLog, within_s: float) -> list[str]:
        """Read all that is there, stop watching, and tell all that is wrong."""
        self._await_ends(within_s)
        self.stop()
        problems = list(self.problems)
        expected = log.expected(self.sink)
        for key in sorted(expected.keys() | self._partitions.keys()):
            seen = self._partitions[key].seen if key in self._partitions else []
            problems += [
                f"{self.sink}: {key[0]}, partition {key[1]}: {problem}"
                for problem in _differences(expected.get(key, []), seen, log.unterminated)
            ]
        return problems + self._judge_positions()

    def _judge_positions(self) -> list[str]:
        """Hold the positions against what is there: data and position are written together or not at all."""
        cluster = Cluster(SiteId(self.sink), {"bootstrap.servers": self._bootstrap_servers})
        positions = read_status(cluster).positions
        problems = []
        for (client, number), state in sorted(self._partitions.items()):
            position = positions.get(PositionKey(SiteId(self._source), SiteId(self.sink), client, number))
            said = (position.total.transactions, position.total.entries) if position else (0, 0)
            firsts = [record for record in state.seen if record.record == 0]
            found = (len(firsts), sum(record.entries for record in firsts))
            if said != found:
                problems.append(
                    f"{self.sink}: {client}, partition {number}: the position tells of {said} transactions and "
                    f"entries, there are {found}"
                )
        return problems

    def _await_ends(self, within_s: float) -> None:
        """Let the watching go on until it has come to the end of every queue; nobody writes any more."""
        deadline = time.monotonic() + within_s
        topics = Counter(topic for topic, _ in list(self._positions()))
        while not self.problems:
            behind = []
            for topic, partitions in topics.items():
                ends = high_watermarks(self._bootstrap_servers, topic, partitions)
                reached = {number: offset for (name, number), offset in self._positions().items() if name == topic}
                behind += [(topic, number, end) for number, end in ends.items() if reached[number] < end]
            if not behind:
                return
            if time.monotonic() > deadline:
                self.problems.append(f"{self.sink}: cannot be read to its end: {behind}")
                return
            time.sleep(0.05)

    def _positions(self) -> dict[tuple[str, int], int]:
        return {
            (f"LRQ_Recv_{state.client}_{self._source}", state.number): state.reached
            for state in list(self._partitions.values())
        }

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "checker",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 300,
                "error_cb": lambda _error: None,
            },
            logger=_log,
        )
        discover_at = 0.0
        try:
            while not self._stop.is_set():
                if time.monotonic() >= discover_at:
                    self._discover(consumer)
                    discover_at = time.monotonic() + _DISCOVERY_S
                for message in consumer.consume(500, 0.05):
                    self._look_at(message)
        except BaseException as error:  # noqa: BLE001 - whatever ends the watching must fail the test
            self.problems.append(f"{self.sink}: the checker failed: {error!r}")
        finally:
            consumer.close()

    def _discover(self, consumer: Consumer) -> None:
        try:
            topics = consumer.list_topics(timeout=1.0).topics
        except KafkaException:
            return  # the broker is away; some tests take it away
        for topic, metadata in topics.items():
            queue = parse_receive_topic(topic)
            if queue is None:
                continue
            if queue.source != self._source:
                self.problems.append(f"{self.sink}: misrouted: there is a queue {topic}")
                continue
            new = [number for number in metadata.partitions if (queue.client, number) not in self._partitions]
            for number in new:
                self._partitions[queue.client, number] = _Partition(queue.client, number)
            if new:
                consumer.incremental_assign([TopicPartition(topic, number, 0) for number in new])

    def _look_at(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                self.problems.append(f"{self.sink}: lost: {error.str()}")
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        queue = parse_receive_topic(topic)
        assert queue is not None
        state = self._partitions[queue.client, partition]
        if error is not None:
            state.reached = max(state.reached, offset)
            if state.missing:
                self._complain(state, offset, f"torn: {state.missing} records of {state.seen[-1].txn} are not there")
            return
        state.reached = offset + 1
        headers = cast("list[Header] | None", message.headers())
        if [name for name, _ in headers or []] != [receive_tag(queue.client)]:
            self._complain(state, offset, f"the tags are {headers}")
        self._take(state, offset, RoutingTableEntryMsg.FromString(message.value() or b""))

    def _take(self, state: _Partition, offset: int, message: RoutingTableEntryMsg) -> None:
        head = message.receive
        txn = (message.incarnation, message.first_sequence)
        before = state.seen[-1] if state.missing else None
        if before is not None and (before.txn, before.record + 1) != (txn, head.record):
            self._complain(state, offset, f"torn: after record {before.record} of {before.records} of {before.txn}")
        if before is None:
            if head.record != 0:
                self._complain(state, offset, f"torn: {txn} begins with record {head.record} of {head.records}")
            if txn in self._transactions:
                self._complain(state, offset, f"doubled: {txn}")
            if head.completed_at < state.completed_at:
                self._complain(state, offset, f"misordered: {head.completed_at} after {state.completed_at}")
        state.completed_at = head.completed_at
        state.missing = head.records - head.record - 1
        state.seen.append(Expected(txn, head.record, head.records, head.entries, content(message)))
        for number, payload in enumerate(message.opaque_payload):
            index = message.indexes[number] if message.indexes else message.first_index + number
            self._judge(state, offset, index, payload, message)
        if not state.missing:
            self._transactions.add(txn)

    def _judge(self, state: _Partition, offset: int, index: int, payload: bytes, message: RoutingTableEntryMsg) -> None:
        """Judge one entry by what it says of itself."""
        try:
            told = Told.read(payload)
        except (ValueError, KeyError, TypeError) as error:
            self._complain(state, offset, f"changed: {error}")
            return
        if (told.source, told.client) != (self._source, state.client) or self.sink not in told.destinations:
            self._complain(state, offset, f"misrouted: {told}")
        headers = tuple((h.name, h.value if h.HasField("value") else None) for h in message.headers)
        key = message.key if message.HasField("key") else None
        if (told.index, told.key, told.headers) != (index, key, headers):
            self._complain(state, offset, f"changed: {told} has index {index}, key {key!r}, headers {headers}")
        if (*told.transaction, told.index) in self._told:
            self._complain(state, offset, f"doubled: {told}")
        self._told.add((*told.transaction, told.index))

    def _complain(self, state: _Partition, offset: int, problem: str) -> None:
        self.problems.append(f"{self.sink}: {state.client}, partition {state.number}, offset {offset}: {problem}")


class Watch:
    """Checkers at all sinks of a source, running until the block ends."""

    def __init__(self, source: str, sinks: Mapping[str, str]) -> None:
        """`sinks` are the bootstrap servers of each."""
        self.checkers = {sink: SinkChecker(sink, servers, source) for sink, servers in sinks.items()}

    def __getitem__(self, sink: str) -> SinkChecker:
        return self.checkers[sink]

    def __enter__(self) -> Self:
        for checker in self.checkers.values():
            checker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for checker in self.checkers.values():
            checker.stop()

    def await_arrival(self, log: SendLog, within_s: float = 40.0) -> None:
        """Wait until every sink has as much as it must have."""
        for checker in self.checkers.values():
            checker.await_arrival(log, within_s)

    def verdict(self, log: SendLog, within_s: float = 20.0) -> list[str]:
        """Tell all that is wrong at any sink, once nobody writes any more."""
        return [problem for checker in self.checkers.values() for problem in checker.verdict(log, within_s)]


def judge_log(log: SendLog, load: Workload) -> list[str]:
    """Hold the send queue against what the applications know: all that was committed, nothing that was aborted."""
    logged: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for transaction in log.transactions:
        for record in transaction.records:
            for payload in record.opaque_payload:
                told = Told.read(payload)
                logged[told.transaction].append(told.index)
    problems = []
    for key, written in load.written.items():
        indexes = [told.index for told in written.entries if told.destinations]
        found = sorted(logged.pop(key, []))
        allowed: dict[Outcome, list[list[int]]] = {
            Outcome.COMMITTED: [indexes],
            Outcome.ABORTED: [[]],
            Outcome.UNKNOWN: [indexes, []],
        }
        if found not in allowed[written.outcome]:
            problems.append(f"the send queue has {found} of {key}, {written.outcome.value}, entries {indexes}")
    return problems + [f"the send queue has {key}, which nobody wrote" for key in logged]


def _differences(expected: list[Expected], seen: list[Expected], unordered: set[TxnKey]) -> list[str]:
    """Tell how what was seen differs from what was expected; the order of some transactions does not matter."""
    problems = [
        f"{name}: {len(records)} records, e.g. {records[0].record} of {records[0].records} of {records[0].txn}"
        for name, records in (
            ("lost or changed", list((Counter(expected) - Counter(seen)).elements())),
            ("doubled or changed", list((Counter(seen) - Counter(expected)).elements())),
        )
        if records
    ]
    ordered = [[one for one in records if one.txn not in unordered] for records in (expected, seen)]
    if not problems and ordered[0] != ordered[1]:
        place = next(n for n, (left, right) in enumerate(zip(*ordered, strict=True)) if left != right)
        problems.append(f"misordered from record {place} on: {ordered[1][place].txn} before {ordered[0][place].txn}")
    return problems


def until(condition: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
    """Wait for something that must come; fail with its name if it does not."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.02)
