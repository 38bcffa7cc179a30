"""A scan over a consumer that gives what the test says: records, ends of partitions, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from lr_kafka.clients import TopicPartition
from lr_source.reader.hooks import Hooks
from lr_source.reader.positions import Frontier
from lr_source.reader.scan import Scan, ScanStep
from lr_source.reader.source import SendQueue
from lr_wire import codec
from lr_wire.errors import BrokerError, PositionLost
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Header, TxnId

A, B, C = SiteId("site-a"), SiteId("site-b"), SiteId("site-c")


@dataclass
class FakeMessage:
    """A record or an event, as a consumer gives it."""

    at: int
    content: bytes | None = None
    problem: KafkaError | None = None
    tags: Sequence[Header] | None = ()
    where: int = 0

    def error(self) -> KafkaError | None:
        return self.problem

    def partition(self) -> int:
        return self.where

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return b"key"

    def value(self) -> bytes | None:
        return self.content

    def timestamp(self) -> tuple[int, int]:
        return 1, 5000

    def headers(self) -> list[Header]:
        if self.tags is None:
            raise SystemError("returned a result with an exception set")
        return list(self.tags)


@dataclass
class FakeConsumer:
    """A consumer whose next messages are known."""

    messages: list[FakeMessage] = field(default_factory=list)
    assigned: dict[int, int] = field(default_factory=dict)
    high_watermark: int = 100
    closed: bool = False

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned |= {part.partition: part.offset for part in partitions}

    def poll(self, _timeout_s: float) -> FakeMessage | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, _timeout_s: float) -> list[FakeMessage]:
        taken, self.messages = self.messages[:count], self.messages[count:]
        return taken

    def get_watermark_offsets(self, _where: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "a request for each transaction would be slow"
        return 0, self.high_watermark

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeQueue:
    """The send queue as the source's cluster describes it."""

    consumer_: FakeConsumer
    partitions: int = 1
    topic: str = "LRQ_Send_LogEntries"
    site: SiteId = A
    problem: Exception | None = None

    @property
    def cluster(self) -> FakeQueue:
        return self

    def consumer(self, **_settings: object) -> FakeConsumer:
        return self.consumer_

    def check(self, _topic_id: str) -> int:
        if self.problem:
            raise self.problem
        return self.partitions


class Counter(Hooks):
    size = 0

    def fetched(self, size: int) -> None:
        self.size += size


class World:
    """A scan, and the hands on both of its sides."""

    def __init__(self, starts: dict[int, int] | None = None, problem: Exception | None = None) -> None:
        self.consumer = FakeConsumer()
        self.queue = FakeQueue(self.consumer, problem=problem)
        self.hooks = Counter()
        self.scan = Scan(
            cast("SendQueue", self.queue), "topic-id", starts or {0: 0}, lambda: frozenset({B, C}), 1e-9, self.hooks
        )

    def step(self, *messages: FakeMessage) -> ScanStep:
        self.consumer.messages = list(messages)
        step = self.scan.step(0)
        assert not self.consumer.messages
        return step


def value(number: int, *, part: int = 0, last: bool = True, to: Sequence[SiteId] = (B,)) -> bytes:
    body = codec.encode_body([b"%d" % number], [0], TxnId(b"i", number), 1)
    return codec.encode_send(codec.encode_destinations(to), ClientName("policy"), part, last, body)


def end(offset: int, partition: int = 0) -> FakeMessage:
    return FakeMessage(offset, problem=KafkaError(KafkaError._PARTITION_EOF), where=partition)


def test_a_step_gives_each_sink_what_is_complete_and_how_far_it_has_read() -> None:
    world = World()
    step = world.step(
        FakeMessage(0, value(1, to=[B, C])), FakeMessage(1, value(2, last=False)), FakeMessage(3, value(3, to=[C]))
    )
    assert [one.txn.first_sequence for one in step.chunk(B).deliveries] == [1]
    assert [one.txn.first_sequence for one in step.chunk(C).deliveries] == [1, 3]
    assert step.chunk(B).frontier == step.chunk(C).frontier == {0: Frontier(1, 4)}
    assert step.chunk(B).size > sum(one.size for one in step.chunk(B).deliveries) > 0
    assert step.chunk(SiteId("nobody")).empty


def test_a_step_without_news_says_nothing() -> None:
    step = World().step()
    assert not step.frontier
    assert not step.chunks


def test_the_end_of_a_partition_moves_past_markers_and_completes_what_has_no_last_record() -> None:
    world = World()
    world.consumer.high_watermark = 2
    with capture_logs() as events:
        assert not world.step(FakeMessage(0, value(1, last=False))).chunk(B).deliveries
        step = world.step(end(2))
    [delivery] = step.chunk(B).deliveries
    assert not delivery.terminated
    assert step.frontier == {0: Frontier(2, 2)}
    assert [event["event"] for event in events] == ["transaction.unterminated"]


def test_all_bytes_that_are_read_are_told() -> None:
    world = World()
    world.step(FakeMessage(0, value(1)), FakeMessage(1, b"\xff"), FakeMessage(2, None), end(3))
    assert world.hooks.size == len(value(1)) + 1


@pytest.mark.parametrize(
    "tags, sinks",
    [
        pytest.param([("lrq_logentry_site-b", b""), ("lrq_logentry_site-c", b"")], {B, C}, id="two sinks"),
        pytest.param([("lrq_logentry_site-b", b""), ("lrq_logentry_nowhere", b"")], {B}, id="one is not known"),
        pytest.param([("lrq_logentry_nowhere", b"")], {A}, id="none is known"),
        pytest.param([("lrq_logentry_site-a", b"")], {A}, id="the source itself"),
        pytest.param([], {A}, id="no tags"),
        pytest.param(None, {A}, id="headers that cannot be read"),
    ],
)
def test_garbage_goes_where_it_is_tagged_for_or_stays_at_home(
    tags: Sequence[Header] | None, sinks: set[SiteId]
) -> None:
    """It is passed in the reading, and its bytes count as what waits."""
    step = World().step(FakeMessage(7, b"\xff\xff", tags=tags))
    assert set(step.chunks) == sinks
    for chunk in step.chunks.values():
        [reject] = chunk.rejects
        [record] = reject.records
        assert (record.offset, record.timestamp_ms, record.key, record.value) == (7, 5000, b"key", b"\xff\xff")
        assert record.headers == list(tags or [])
        assert ("headers cannot be read" in reject.reason) == (tags is None)
        assert reject.transaction is None
        assert chunk.size == 2
    assert step.frontier == {0: Frontier(8, 8)}


def test_a_torn_transaction_counts_in_what_waits() -> None:
    step = World().step(FakeMessage(0, value(1, part=3)))
    assert step.chunk(B).size == len(value(1, part=3))
    assert len(step.chunk(B).rejects) == 1


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_an_offset_that_is_gone_is_never_skipped_over(code: int) -> None:
    with pytest.raises(PositionLost, match="partition 0 cannot be read from offset 5"):
        World({0: 5}).step(FakeMessage(5, problem=KafkaError(code)))


def test_a_source_that_does_not_answer_is_waited_for() -> None:
    """Told as a warning; the reading goes on where it was when it is back."""
    world = World()
    with capture_logs() as events:
        step = world.step(FakeMessage(-1, problem=KafkaError(KafkaError._ALL_BROKERS_DOWN), where=-1))
        world.queue.problem = BrokerError("describe: timed out", retriable=True)
        world.step()
    assert not step.chunks
    assert [event["event"] for event in events] == ["source.unreachable"] * 2
    world.queue.problem = None
    assert world.step(FakeMessage(0, value(1))).chunk(B).deliveries


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_what_waiting_does_not_mend_ends_the_scan(code: int) -> None:
    with pytest.raises(BrokerError):
        World().step(FakeMessage(-1, problem=KafkaError(code)))


def test_a_topic_of_another_id_ends_the_scan() -> None:
    world = World()
    world.queue.problem = PositionLost("it was re-created")
    with pytest.raises(PositionLost):
        world.step()


def test_a_scan_of_a_topic_that_is_another_one_is_not_opened() -> None:
    """Before the first record is read; and its consumer does not stay behind."""
    consumer = FakeConsumer()
    queue = cast("SendQueue", FakeQueue(consumer, problem=PositionLost("it was re-created")))
    with pytest.raises(PositionLost):
        Scan(queue, "topic-id", {0: 0}, frozenset, 1e-9, Hooks())
    assert consumer.closed


def test_partitions_that_appear_are_read_from_their_beginning() -> None:
    world = World({0: 7})
    assert world.consumer.assigned == {0: 7}
    world.queue.partitions = 3
    world.step()
    assert world.consumer.assigned == {0: 7, 1: 0, 2: 0}
    step = world.step(FakeMessage(0, value(1), where=2), end(0, partition=1))
    assert step.frontier == {1: Frontier(0, 0), 2: Frontier(1, 1)}
    assert step.chunk(B).deliveries[0].partition == 2
