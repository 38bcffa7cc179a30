"""The position logic against a model of an interleaved log: readers that crash, restart, fall behind and join again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from lr_source.reader.assembly import CompleteTransaction, PartitionAssembler
from lr_source.reader.positions import Frontier, Lost, SourceLog, advanced, beginning, is_forwarded, negotiate
from lr_source.reader.sharing import JoinPoint
from lr_wire.records import Position, RunningTotal, TxnId
from tests.support.log_model import ModelLog, generate

EMPTY = SourceLog("topic", "cluster", {0: 0}, {0: 0})


@dataclass
class ModelSink:
    """A sink: its position and its data change together or not at all."""

    position: Position = field(default_factory=lambda: beginning(EMPTY, 0))
    delivered: list[CompleteTransaction] = field(default_factory=list)


@dataclass
class ModelScan:
    """A scan of the model log with an assembler, as `Scan` is one of Kafka."""

    log: ModelLog
    start: int

    def __post_init__(self) -> None:
        self.assembler = PartitionAssembler(self.start)

    def step(self, rng: random.Random, high_watermark: int) -> tuple[list[CompleteTransaction], Frontier]:
        """Read some of what is visible now, or all of it and then the event that says so."""
        passed = self.assembler.passed
        stable = self.log.last_stable_offset(high_watermark)
        end = rng.randint(passed, max(passed, stable))
        complete: list[CompleteTransaction] = []
        for offset, record in self.log.visible(passed, end):
            complete += self.assembler.add(offset, record, lambda: high_watermark)
        if end == stable:
            complete += self.assembler.advance(end)
        return complete, Frontier(self.assembler.resume_from, self.assembler.passed)


@dataclass
class ModelSession:
    """A session between two failures; what it handed over becomes real with `commit`."""

    sink: ModelSink

    def __post_init__(self) -> None:
        self.position = self.sink.position
        self.pending: list[CompleteTransaction] = []

    def take(self, complete: Iterable[CompleteTransaction], frontier: Frontier) -> None:
        """Forward a chunk."""
        unterminated: dict[TxnId, int] = {}
        for transaction in complete:
            if not is_forwarded(self.position, transaction):
                assert not transaction.torn
                self.pending.append(transaction)
                if not transaction.terminated:
                    unterminated[transaction.txn] = transaction.last_offset
        self.position = advanced(self.position, frontier, RunningTotal(), unterminated, 0)

    def commit(self) -> None:
        """Make position and data real together."""
        self.sink.position = self.position
        self.sink.delivered += self.pending
        self.pending = []


def judge(log: ModelLog, sink: ModelSink) -> None:
    """Everything that was committed is there once, whole, and in the order of completion."""
    ids = [transaction.txn for transaction in sink.delivered]
    assert len(ids) == len(set(ids)), "a transaction is there twice"
    assert set(ids) == log.expected(), "a transaction is missing or should not be there"
    sizes = {transaction.txn: transaction.records for transaction in log.transactions}
    for transaction in sink.delivered:
        assert [record.record for record in transaction.records] == list(range(sizes[transaction.txn]))
    ends = [transaction.last_offset for transaction in sink.delivered if transaction.terminated]
    assert ends == sorted(ends), "transactions are out of order"


@settings(max_examples=2000, deadline=None)
@given(seed=st.integers(0, 2**32), producers=st.integers(1, 5), transactions=st.integers(1, 5))
def test_a_reader_that_crashes_anywhere_delivers_everything_once_and_whole(
    seed: int, producers: int, transactions: int
) -> None:
    """Whenever the reader dies and begins again from the sink's position, nothing is lost, doubled or torn."""
    rng = random.Random(seed)
    log = generate(rng, producers, transactions)
    sink = ModelSink()
    high_watermark = 0
    while sink.position.resume_from < len(log.entries):
        scan = ModelScan(log, sink.position.resume_from)
        session = ModelSession(sink)
        for _ in range(rng.randint(1, 8)):
            high_watermark = rng.randint(high_watermark, len(log.entries))
            session.take(*scan.step(rng, high_watermark))
            if rng.random() < 0.6:
                session.commit()
    judge(log, sink)


@settings(max_examples=2000, deadline=None)
@given(seed=st.integers(0, 2**32), producers=st.integers(1, 5), transactions=st.integers(1, 5))
def test_a_sink_that_joins_a_shared_scan_misses_nothing_and_gets_nothing_twice(
    seed: int, producers: int, transactions: int
) -> None:
    """
    A scan of its own up to the join point and the shared one from there on bring everything once.

    The shared scan began where another sink needed it to, which may be in the middle of a transaction.
    """
    rng = random.Random(seed)
    log = generate(rng, producers, transactions)
    high_watermark = rng.randint(0, len(log.entries))
    other = ModelSession(ModelSink())
    other.take(*ModelScan(log, 0).step(rng, high_watermark))
    shared = ModelScan(log, other.position.resume_from)
    sink = ModelSink()
    while sink.position.resume_from < len(log.entries):
        session = ModelSession(sink)
        own = ModelScan(log, sink.position.resume_from)
        point: JoinPoint | None = None
        feed: list[tuple[list[CompleteTransaction], Frontier]] = []
        following = False
        for _ in range(rng.randint(5, 40)):
            high_watermark = rng.randint(high_watermark, len(log.entries))
            action = rng.choice(["shared", "own", "attach", "commit"])
            if action == "shared":
                step = shared.step(rng, high_watermark)
                if point is not None:
                    feed.append(step)
            elif action == "attach" and point is None:
                point = JoinPoint({0: shared.assembler.passed}, shared.assembler.open_whole)
            elif action == "commit":
                session.commit()
            elif following:
                while feed:
                    session.take(*feed.pop(0))
            else:
                session.take(*own.step(rng, high_watermark))
                following = point is not None and point.reached_by(
                    {0: own.assembler.passed}, own.assembler.open_before(point.passed[0])
                )
    judge(log, sink)


@given(
    resume_from=st.integers(0, 50),
    start=st.integers(0, 50),
    length=st.integers(0, 50),
    same_topic=st.booleans(),
    same_cluster=st.booleans(),
)
def test_negotiation_goes_on_only_where_nothing_can_be_missing(
    resume_from: int, start: int, length: int, same_topic: bool, same_cluster: bool
) -> None:
    """A position is used only if the log is the same one and still has everything from there on."""
    log = SourceLog("topic", "cluster", {0: start}, {0: start + length})
    position = Position(
        resume_from, resume_from - 1, "topic" if same_topic else "old", "cluster" if same_cluster else "old"
    )
    outcome = negotiate({0: position}, log)
    intact = same_topic and same_cluster and start <= resume_from <= start + length
    assert (outcome == {0: position}) == intact
    assert isinstance(outcome, Lost) != intact
    if isinstance(outcome, Lost):
        assert outcome.reason


def test_negotiation_without_a_position_begins_where_the_log_does() -> None:
    """A session that the sink does not know starts at the beginning of what the log still has."""
    log = SourceLog("topic", "cluster", {0: 7, 1: 0}, {0: 9, 1: 3})
    outcome = negotiate({}, log)
    assert outcome == {0: beginning(log, 0), 1: beginning(log, 1)}


def test_negotiation_of_a_new_partition() -> None:
    """A partition that the session has no position in is read from its beginning, unless that is gone."""
    known = beginning(SourceLog("topic", "cluster", {0: 0}, {0: 0}), 0)
    whole = SourceLog("topic", "cluster", {0: 0, 1: 0}, {0: 0, 1: 5})
    assert negotiate({0: known}, whole) == {0: known, 1: beginning(whole, 1)}
    trimmed = SourceLog("topic", "cluster", {0: 0, 1: 2}, {0: 0, 1: 5})
    assert isinstance(negotiate({0: known}, trimmed), Lost)


def test_negotiation_of_a_partition_that_is_gone() -> None:
    """A send queue with fewer partitions is not the one that the position belongs to."""
    log = SourceLog("topic", "cluster", {0: 0}, {0: 0})
    known = beginning(log, 0)
    assert isinstance(negotiate({0: known, 1: known}, log), Lost)
