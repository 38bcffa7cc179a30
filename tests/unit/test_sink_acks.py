"""Applied positions are committed in batches, one commit at a time; what is committed is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from lr_kafka.groups import Committed
from lr_kafka.member import TopicPart
from lr_sink import ListenerSettings
from lr_sink.acks import Acks
from lr_sink.positions import GroupPosition
from lr_sink.trim import Trimmer
from lr_wire.errors import BrokerError
from lr_wire.records import Applied

A, B = TopicPart("q", 0), TopicPart("q", 1)
SETTINGS = ListenerSettings(ack_s=1.0, ack_transactions=3, retry_initial_s=0.2, retry_max_s=30)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeMember:
    """Keeps the commits it is sent."""

    commits: list[dict[TopicPart, int]] = field(default_factory=list)
    broken: bool = False

    def commit(self, offsets: Mapping[TopicPart, Committed]) -> None:
        if self.broken:
            raise BrokerError("no coordinator", retriable=True)
        self.commits.append({part: at.offset for part, at in offsets.items()})

    def commit_now(self, offsets: Mapping[TopicPart, Committed]) -> None:
        self.commit(offsets)


@dataclass
class World:
    member: FakeMember = field(default_factory=FakeMember)
    clock: Clock = field(default_factory=Clock)
    durable: dict[TopicPart, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.acks = Acks(self.member, SETTINGS, self.durable.__setitem__, self.clock)

    def applied(self, part: TopicPart, offset: int) -> None:
        self.acks.applied(part, GroupPosition(Applied(offset)))

    def due(self) -> bool:
        return self.clock() >= self.acks.due


@pytest.fixture
def world() -> World:
    return World()


def test_a_position_is_due_after_ack_s(world: World) -> None:
    assert not world.due()
    world.applied(A, 1)
    assert not world.due()
    world.clock.now += 1.0
    assert world.due()


def test_many_transactions_are_due_at_once(world: World) -> None:
    for offset in (1, 2):
        world.applied(A, offset)
    assert not world.due()
    world.applied(B, 7)
    assert world.due()
    world.acks.send()
    assert world.member.commits == [{A: 2, B: 7}]


def test_only_an_answered_commit_is_durable(world: World) -> None:
    world.applied(A, 1)
    world.acks.send()
    assert not world.durable
    assert not world.acks.empty
    world.acks.answered({A: None})
    assert world.durable == {A: 1}
    assert world.acks.empty


def test_one_commit_is_under_way_at_a_time(world: World) -> None:
    """A later one could be overtaken by a repetition of the earlier."""
    world.applied(A, 1)
    world.acks.send()
    world.applied(A, 2)
    world.clock.now += 10
    assert not world.due()
    world.acks.send()
    assert world.member.commits == [{A: 1}]
    world.acks.answered({A: None})
    assert world.due()
    world.acks.send()
    assert world.member.commits == [{A: 1}, {A: 2}]


def test_a_failed_commit_is_repeated_with_growing_waits(world: World) -> None:
    world.applied(A, 1)
    waits = []
    for _ in range(5):
        world.acks.send()
        world.acks.answered({A: BrokerError("away", retriable=True)})
        waits.append(world.acks.due - world.clock.now)
        world.clock.now = world.acks.due
    assert world.member.commits == [{A: 1}] * 5
    assert not world.durable
    assert 0.1 <= waits[0] <= 0.2
    assert 1.6 <= waits[4] <= 3.2


def test_waits_are_kept_under_load(world: World) -> None:
    """New transactions do not turn the waits of a failing commit into a storm."""
    world.applied(A, 1)
    world.acks.send()
    world.acks.answered({A: BrokerError("away", retriable=True)})
    for offset in range(2, 10):
        world.applied(A, offset)
    assert not world.due()


def test_a_newer_position_replaces_one_that_failed(world: World) -> None:
    world.applied(A, 1)
    world.applied(B, 1)
    world.acks.send()
    world.applied(A, 2)
    world.acks.answered({A: BrokerError("away"), B: None})
    assert world.durable == {B: 1}
    world.acks.send()
    assert world.member.commits[-1] == {A: 2}


def test_a_commit_that_cannot_even_be_sent_is_repeated(world: World) -> None:
    world.member.broken = True
    world.applied(A, 1)
    world.acks.send()
    world.member.broken = False
    world.acks.send()
    assert world.member.commits == [{A: 1}]


def test_a_position_that_somebody_waits_for_is_due_at_once(world: World) -> None:
    """Behind the one that is under way, and after a failure not before its time."""
    world.applied(A, 1)
    assert world.acks.holds(A)
    assert not world.acks.holds(B)
    world.acks.hurry()
    assert world.due()
    world.acks.send()
    world.applied(A, 2)
    world.acks.hurry()
    assert not world.due()
    world.acks.answered({A: None})
    assert world.due()
    world.acks.send()
    assert world.acks.holds(A)
    world.acks.answered({A: BrokerError("away")})
    world.acks.hurry()
    assert not world.due()
    world.clock.now = world.acks.due
    world.acks.send()
    world.acks.answered({A: None})
    assert not world.acks.holds(A)


def test_nothing_is_due_once_everything_is_forgotten(world: World) -> None:
    """A listener must not wake up for it again and again."""
    world.applied(A, 1)
    world.acks.forget([A])
    world.clock.now += 10
    world.acks.send()
    assert not world.due()
    assert not world.member.commits


def test_what_goes_to_another_member_is_committed_at_once(world: World) -> None:
    """Also what is under way: its answer would come too late."""
    world.applied(A, 1)
    world.applied(B, 1)
    world.acks.send()
    world.applied(B, 2)
    world.acks.surrender([B])
    assert world.member.commits[-1] == {B: 2}
    world.acks.answered({A: None, B: None})
    assert world.durable == {A: 1}, "what is deleted from B is up to its new owner"
    assert world.acks.empty


def test_giving_up_without_a_cluster_does_not_raise(world: World) -> None:
    world.applied(A, 1)
    world.member.broken = True
    world.acks.surrender([A])
    assert world.acks.empty


@dataclass
class Broken:
    """Deletes, or fails to."""

    deleted: list[tuple[str, dict[int, int]]] = field(default_factory=list)
    broken: bool = False

    def __call__(self, queue: str, offsets: Mapping[int, int]) -> None:
        if self.broken:
            raise BrokerError("not allowed", unauthorised=True)
        self.deleted.append((queue, dict(offsets)))


def test_deletion_is_batched_per_queue() -> None:
    clock, broker = Clock(), Broken()
    trimmer = Trimmer(broker, 10.0, clock)
    for part, offset in ((A, 1), (B, 5), (A, 3), (TopicPart("other", 0), 2)):
        trimmer.durable(part, offset)
    assert trimmer.due == clock.now + 10
    trimmer.delete()
    assert broker.deleted == [("q", {0: 3, 1: 5}), ("other", {0: 2})]
    trimmer.delete()
    assert len(broker.deleted) == 2, "what is deleted is not deleted again"


def test_a_failed_deletion_is_not_fatal_and_comes_again_ever_later() -> None:
    clock, broker = Clock(), Broken(broken=True)
    trimmer = Trimmer(broker, 10.0, clock)
    trimmer.durable(A, 1)
    waits = []
    for _ in range(9):
        clock.now = trimmer.due
        trimmer.delete()
        waits.append(trimmer.due - clock.now)
    assert 5 <= waits[0] <= 10
    assert 300 <= waits[-1] <= 600
    broker.broken = False
    trimmer.durable(A, 4)
    trimmer.delete()
    assert broker.deleted == [("q", {0: 4})]


def test_partitions_of_another_member_are_left_alone() -> None:
    broker = Broken()
    trimmer = Trimmer(broker, 10.0, Clock())
    trimmer.durable(A, 1)
    trimmer.forget([A])
    trimmer.delete()
    assert not broker.deleted
