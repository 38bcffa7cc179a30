"""One scan for many sinks: feeds are bounded, and whoever attaches misses nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lr_source.reader.positions import Frontier
from lr_source.reader.routing import Delivery
from lr_source.reader.scan import Chunk, Scan, ScanStep
from lr_source.reader.sharing import Feed, JoinPoint, SharedScan
from lr_wire.errors import PositionLost
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import TxnId

B, C = SiteId("site-b"), SiteId("site-c")
TOPIC = "topic-id"


def delivery(number: int) -> Delivery:
    """The delivery of a transaction that is complete at offset `number`."""
    txn = TxnId(b"i", number)
    return Delivery(ClientName("policy"), 0, txn, number, number, number, True, 1, 0, [])


def chunk(*numbers: int, size: int = 0, passed: int = 0) -> Chunk:
    return Chunk([delivery(number) for number in numbers], [], {0: Frontier(passed, passed)}, size)


def numbers(feed: Feed) -> list[int]:
    """Take everything that waits in a feed."""
    found: list[int] = []
    while (taken := feed.take(0)) is not None:
        found += [one.completed_at for one in taken.deliveries]
    return found


# --- Feed


def test_a_feed_gives_back_in_order_what_was_put() -> None:
    feed = Feed(B, 1000)
    for number in range(3):
        assert feed.put(chunk(number))
    assert numbers(feed) == [0, 1, 2]
    assert feed.empty


def test_a_full_feed_takes_no_more_and_gives_what_it_has() -> None:
    """The one that does not fit is refused, and so is everything after it, however small: there must be no gap."""
    feed = Feed(B, 100)
    assert feed.put(chunk(0, size=60))
    assert feed.put(chunk(1, size=40))
    assert not feed.put(chunk(2, size=1))
    assert feed.overflowed
    assert str(feed.closed) == "None", "what is in it comes first"
    assert not feed.put(chunk(3))
    assert numbers(feed) == [0, 1]
    assert "100 bytes" in str(feed.closed)


def test_a_chunk_that_is_larger_than_a_feed_is_taken_when_nothing_waits() -> None:
    """Otherwise it could never be delivered."""
    feed = Feed(B, 100)
    assert feed.put(chunk(0, size=500))
    assert not feed.put(chunk(1, size=1))


def test_what_is_taken_makes_room() -> None:
    feed = Feed(B, 100)
    for number in range(10):
        assert feed.put(chunk(number, size=100))
        assert feed.take(0) is not None
    assert not feed.overflowed


def test_an_empty_chunk_moves_the_frontier_of_what_waits_and_takes_no_place() -> None:
    """However long a sink has nothing to get, its feed does not grow."""
    feed = Feed(B, 100)
    feed.put(chunk(0, passed=1))
    for passed in range(2, 1000):
        assert feed.put(chunk(passed=passed))
    taken = feed.take(0)
    assert taken is not None
    assert [one.completed_at for one in taken.deliveries] == [0]
    assert taken.frontier == {0: Frontier(999, 999)}
    assert feed.empty
    feed.put(chunk(passed=1000))
    taken = feed.take(0)
    assert taken is not None
    assert taken.frontier == {0: Frontier(1000, 1000)}


def test_a_closed_feed_keeps_its_first_reason() -> None:
    feed = Feed(B, 100)
    feed.put(chunk(0))
    feed.close("first")
    feed.close("second")
    assert not feed.put(chunk(1))
    assert numbers(feed) == [0]
    assert feed.closed == "first"
    assert not feed.overflowed


@pytest.mark.parametrize(
    "wake", [lambda feed: feed.put(chunk(0)), lambda feed: feed.close("over")], ids=["put", "close"]
)
def test_whoever_waits_for_a_feed_is_woken(wake: Callable[[Feed], object]) -> None:
    """Long before the time-out of the wait."""
    feed = Feed(B, 100)
    taken: list[Chunk | None] = []
    waiter = threading.Thread(target=lambda: taken.append(feed.take(60)))
    waiter.start()
    wake(feed)
    waiter.join(10)
    assert not waiter.is_alive()
    assert len(taken) == 1


# --- JoinPoint


def test_a_join_point_is_reached_in_all_partitions_or_not_at_all() -> None:
    point = JoinPoint({0: 10, 1: 0, 2: 5}, frozenset())
    assert point.reached_by({0: 10, 2: 5}, frozenset()), "nothing was read of partition 1, there is nothing to read"
    assert point.reached_by({0: 11, 1: 3, 2: 6, 3: 9}, frozenset())
    assert not point.reached_by({0: 9, 1: 0, 2: 5}, frozenset())
    assert not point.reached_by({0: 10}, frozenset())


def test_a_join_point_is_not_reached_while_a_transaction_would_fall_between() -> None:
    """One that is open here, began before the point, and was not open there any more: nobody would bring it."""
    open_there, done_there = TxnId(b"i", 1), TxnId(b"i", 2)
    point = JoinPoint({0: 10}, frozenset({open_there}))
    assert point.reached_by({0: 10}, frozenset({open_there}))
    assert not point.reached_by({0: 10}, frozenset({open_there, done_there}))


# --- SharedScan


@dataclass
class FakeScan:
    """A scan of one partition in which transaction n completes at offset n; a step reads a few of them."""

    start: int
    log: list[int]
    to: SiteId = B
    passed_to: int = 0
    closed: bool = False
    failure: Exception | None = None
    # Called between reading and handing out, which is where another thread's calls are the most interesting.
    meanwhile: list[Callable[[], None]] = field(default_factory=list)
    per_step: int = 2
    open_whole: frozenset[TxnId] = frozenset()
    sinks: tuple[SiteId, ...] = (B, C)

    def __post_init__(self) -> None:
        self.passed_to = self.start

    @property
    def passed(self) -> dict[int, int]:
        return {0: self.passed_to}

    def step(self, _timeout_s: float) -> ScanStep:
        if self.failure:
            raise self.failure
        read = self.log[self.passed_to : self.passed_to + self.per_step]
        self.passed_to += len(read)
        for call in self.meanwhile:
            call()
        self.meanwhile.clear()
        if not read:
            return ScanStep()
        return ScanStep(
            {sink: Chunk([delivery(number) for number in read], [], {}, len(read)) for sink in self.sinks},
            {0: Frontier(self.passed_to, self.passed_to)},
        )

    def close(self) -> None:
        self.closed = True


class World:
    """A shared scan over fake ones."""

    def __init__(self, length: int = 10) -> None:
        self.log = list(range(length))
        self.scans: list[FakeScan] = []
        self.opened: list[tuple[str, Mapping[int, int]]] = []
        self.while_opening: list[Callable[[], object]] = []
        self.undelivered: list[tuple[SiteId, frozenset[ClientName]]] = []
        self.shared = SharedScan(self._open, lambda sink, clients: self.undelivered.append((sink, clients)))

    def _open(self, topic_id: str, starts: Mapping[int, int], only: SiteId | None) -> Scan:
        assert only is None
        self.opened.append((topic_id, dict(starts)))
        for call in self.while_opening:
            call()
        self.while_opening.clear()
        self.scans.append(FakeScan(starts.get(0, 0), self.log))
        return cast("Scan", self.scans[-1])

    def run(self) -> None:
        """Step until there is nothing new."""
        for _ in range(len(self.log)):
            self.shared.step()


def test_a_scan_begins_where_the_one_who_is_furthest_behind_needs_it() -> None:
    world = World()
    b, c = Feed(B, 1000), Feed(C, 1000)
    assert world.shared.attach(b, TOPIC, {0: 6}).reached_by({0: 6}, frozenset())
    assert world.shared.attach(c, TOPIC, {0: 4}).reached_by({0: 4}, frozenset())
    world.run()
    assert world.opened == [(TOPIC, {0: 4})]
    assert numbers(b) == numbers(c) == [4, 5, 6, 7, 8, 9]


def test_nobody_wants_anything_and_nothing_is_read() -> None:
    world = World()
    assert not world.shared.step()
    assert not world.opened


def test_the_scan_ends_with_its_last_feed_and_begins_anew_with_the_next() -> None:
    """The next one begins where the next feed needs it, not where the last one was."""
    world = World()
    feed = Feed(B, 1000)
    world.shared.attach(feed, TOPIC, {0: 0})
    world.shared.step()
    world.shared.detach(feed)
    assert not world.shared.step()
    assert world.scans[0].closed
    again = Feed(B, 1000)
    world.shared.attach(again, TOPIC, {0: 1})
    world.run()
    assert [starts for _, starts in world.opened] == [{0: 0}, {0: 1}]
    assert numbers(again) == list(range(1, 10))


def test_what_a_feed_wanted_that_is_gone_counts_no_more() -> None:
    """It could lie before the beginning of the log by now."""
    world = World()
    gone, feed = Feed(B, 1000), Feed(C, 1000)
    world.shared.attach(gone, TOPIC, {0: 0})
    world.shared.detach(gone)
    assert not world.shared.step()
    world.shared.attach(feed, TOPIC, {0: 7})
    world.shared.step()
    assert world.opened == [(TOPIC, {0: 7})]


def test_a_feed_that_attaches_to_a_running_scan_gets_what_comes_from_its_join_point_on() -> None:
    world = World()
    first, second = Feed(B, 1000), Feed(C, 1000)
    world.shared.attach(first, TOPIC, {0: 0})
    world.shared.step()
    point = world.shared.attach(second, TOPIC, {0: 0})
    assert point.passed == {0: 2}
    assert not point.reached_by({0: 0}, frozenset())
    world.run()
    assert numbers(first) == list(range(10))
    assert numbers(second) == list(range(2, 10))


def test_a_feed_that_attaches_during_a_step_misses_nothing() -> None:
    """The step was read before, and is handed out after: the join point lies before it, and the feed gets it."""
    world = World()
    first, second = Feed(B, 1000), Feed(C, 1000)
    points: list[JoinPoint] = []
    world.shared.attach(first, TOPIC, {0: 0})
    world.shared.step()
    world.scans[0].meanwhile.append(lambda: points.append(world.shared.attach(second, TOPIC, {0: 0})))
    world.run()
    assert points[0].passed == {0: 2}
    assert numbers(second) == list(range(2, 10))


@pytest.mark.parametrize("wants", [0, 7], ids=["earlier", "later"])
def test_a_feed_that_attaches_while_the_scan_is_opened_misses_nothing(wants: int) -> None:
    """It was promised a scan that begins where it needs it: one that begins later is thrown away."""
    world = World()
    first, second = Feed(B, 1000), Feed(C, 1000)
    world.shared.attach(first, TOPIC, {0: 4})
    world.while_opening.append(lambda: world.shared.attach(second, TOPIC, {0: wants}))
    world.run()
    assert [scan.closed for scan in world.scans] == ([True, False] if wants < 4 else [False])
    start = min(4, wants)
    assert numbers(first) == numbers(second) == list(range(start, 10))


def test_offsets_of_another_topic_are_not_mixed_in() -> None:
    """Whoever negotiated with a re-created queue is sent back, also in the moment when no feed is there any more."""
    world = World()
    old, new = Feed(B, 1000), Feed(C, 1000)
    world.shared.attach(old, TOPIC, {0: 0})
    world.shared.attach(new, "another", {0: 0})
    assert new.closed is not None
    assert "another" in new.closed
    world.shared.step()
    world.shared.detach(old)
    late = Feed(C, 1000)
    world.shared.attach(late, "another", {0: 0})
    assert late.closed is not None
    assert not late.overflowed
    assert not world.shared.step()
    fresh = Feed(C, 1000)
    world.shared.attach(fresh, "another", {0: 0})
    world.run()
    assert [topic for topic, _ in world.opened] == [TOPIC, "another"]
    assert numbers(fresh) == list(range(10))


def test_a_feed_that_overflows_is_left_behind_alone() -> None:
    """The others get everything; its own clients are told, so that it can be shown."""
    world = World()
    slow, quick = Feed(B, 5), Feed(C, 1000)
    world.shared.attach(slow, TOPIC, {0: 0})
    world.shared.attach(quick, TOPIC, {0: 0})
    world.run()
    assert slow.overflowed
    assert numbers(slow) == [0, 1, 2, 3]
    assert numbers(quick) == list(range(10))
    assert set(world.undelivered) == {(B, frozenset({ClientName("policy")}))}


def test_a_scan_that_fails_closes_every_feed_with_the_reason() -> None:
    """What was handed out before can still be taken; the next scan begins where the next feeds need it."""
    world = World()
    b, c = Feed(B, 1000), Feed(C, 1000)
    for feed in (b, c):
        world.shared.attach(feed, TOPIC, {0: 0})
    world.shared.step()
    world.scans[0].failure = PositionLost("it is gone")
    with pytest.raises(PositionLost):
        world.shared.step()
    assert world.scans[0].closed
    for feed in (b, c):
        assert numbers(feed) == [0, 1]
        assert feed.closed == "it is gone"
        assert not feed.overflowed
    again = Feed(B, 1000)
    world.shared.attach(again, TOPIC, {0: 5})
    world.run()
    assert numbers(again) == list(range(5, 10))


def test_a_scan_that_cannot_be_opened_closes_every_feed_with_the_reason() -> None:
    world = World()
    feed = Feed(B, 1000)
    world.shared.attach(feed, TOPIC, {0: 0})

    def fail() -> None:
        raise PositionLost("it is gone")

    world.while_opening.append(fail)
    with pytest.raises(PositionLost):
        world.shared.step()
    assert feed.closed == "it is gone"
    assert not world.shared.step()


def test_sinks_without_a_feed_are_told_of() -> None:
    """Who is in the log but has no feed: not configured, not connected, or not caught up."""
    world = World(length=1)
    world.shared.attach(Feed(B, 1000), TOPIC, {0: 0})
    world.run()
    assert world.undelivered == [(C, frozenset({ClientName("policy")}))]


def test_the_distance_to_a_running_scan_is_counted_in_records() -> None:
    world = World()
    assert world.shared.behind({0: 0}) == 0, "no scan runs: it can begin anywhere"
    world.shared.attach(Feed(B, 1000), TOPIC, {0: 0})
    world.shared.step()
    world.shared.step()
    assert world.shared.behind({0: 1}) == 3
    assert world.shared.behind({}) == 4
    assert world.shared.behind({0: 9}) == 0


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_feeds_that_come_and_go_get_everything_from_their_join_point_on(seed: int) -> None:
    """Without a gap, up to where they end, whenever they attach: before, between, or inside of a step."""
    rng = random.Random(seed)
    world = World(length=rng.randint(1, 40))
    joined: list[tuple[Feed, int]] = []

    def attach() -> None:
        sink = rng.choice([B, C])
        for feed, _ in joined:
            if feed.sink == sink:
                world.shared.detach(feed)
        feed = Feed(sink, rng.choice([3, 1000]))
        wanted = rng.randrange(len(world.log))
        point = world.shared.attach(feed, TOPIC, {0: wanted})
        joined.append((feed, point.passed[0]))

    for _ in range(60):
        action = rng.choice(["attach", "step", "step", "inside", "opening"])
        if action == "attach":
            attach()
        elif action == "inside" and world.scans:
            world.scans[-1].meanwhile.append(attach)
        elif action == "opening":
            world.while_opening.append(attach)
        else:
            world.shared.step()
    world.while_opening.clear()
    for scan in world.scans:
        scan.meanwhile.clear()
    world.run()
    for feed, begin in joined:
        alive = feed.closed is None and not feed.overflowed
        got = numbers(feed)
        # A scan that another feed needed earlier brings what lies before the join point as well.
        start = got[0] if got else begin
        assert got == list(range(start, start + len(got)))
        if got:
            assert start <= begin
        if alive and feed.closed is None:
            assert start + len(got) == len(world.log)
