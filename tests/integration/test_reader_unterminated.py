"""A transaction that was committed around LR has no last record: it arrives whole, once, and pins nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lr_source.reader import scan
from lr_source.reader.hooks import Step
from lr_wire.naming import SiteId
from lr_wire.records import Position
from tests.support import send_queue
from tests.support.brokers import Site
from tests.support.reader import (
    QUICK,
    Recorder,
    clusters,
    dead_letters,
    payloads,
    position,
    recount,
    running,
    transactions,
    wait_for,
)
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]


def test_it_is_forwarded_whole_with_a_warning_and_pins_nothing(sites: Sites) -> None:
    """At the end of a quiet log, too; the position passes it, and no later reader brings it again."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        around = writer.send(b"1", b"2", last=False)
        reader.forwarded(1)
        warning = reader.event("transaction.unterminated", txn=str(around.id))
        assert (warning["log_level"], warning["client"], warning["first_offset"]) == ("warning", "policy", 0)
        wait_for(lambda: position(sink).resume_from == send_queue.ends(source)[0], "the position passes it")
        assert not position(sink).unterminated
    with running(source, sink) as reader:
        writer.send(b"3")
        reader.forwarded(1)

    assert transactions(sink)[0] == (around.id, [b"1", b"2"])
    assert payloads(sink) == [b"1", b"2", b"3"]
    assert {0: position(sink).total} == recount(sink)


def test_it_arrives_once_among_normal_ones(sites: Sites) -> None:
    """Interleaved with whole transactions and an aborted one that has no last record either."""
    source, sink = clusters(sites, "site-a", "site-b")
    one, two, three = Writer(source), Writer(source), Writer(source)
    around, normal, aborted = one.begin(), two.begin(), three.begin()
    around.add([b"a1"])
    aborted.add([b"x1"])
    normal.add([b"n1"])
    around.add([b"a2"])
    normal.add([b"n2"], last=True)
    around.add([b"a3"])
    aborted.abort()
    around.commit()
    normal.commit()
    for life in range(2):
        with running(source, sink) as reader:
            two.send(b"life %d" % life)
            reader.forwarded(3 if life == 0 else 1)

    found = dict(transactions(sink))
    assert len(found) == 4
    assert found[around.id] == [b"a1", b"a2", b"a3"]
    assert found[normal.id] == [b"n1", b"n2"]
    assert payloads(sink)[-1] == b"life 1"


@pytest.mark.parametrize("restarts", [0, 1], ids=["one reader", "a reader that starts anew"])
def test_it_waits_for_a_transaction_that_is_still_open_before_it(sites: Sites, restarts: int) -> None:
    """Kafka shows only a part of it until then; a reader that starts meanwhile sees it from its first record on."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer, slow = Writer(source), Writer(source)
    around = writer.begin()
    around.add([b"1"])
    held = slow.begin()
    held.add([b"slow 1"])
    around.add([b"2"])
    around.commit()
    for _ in range(restarts):
        with running(source, sink):
            wait_for(lambda: position(sink, "*").forwarded_through == 0, "the visible part was read")
        assert position(sink, "*").resume_from == 0
    with running(source, sink) as reader:
        wait_for(lambda: position(sink, "*").forwarded_through == 0, "the visible part was read")
        assert not payloads(sink)
        held.add([b"slow 2"], last=True)
        held.commit()
        reader.forwarded(2)
    with running(source, sink) as reader:
        writer.send(b"end")
        reader.forwarded(1)

    assert sorted(transactions(sink)[:2]) == sorted([(around.id, [b"1", b"2"]), (held.id, [b"slow 1", b"slow 2"])])
    assert payloads(sink)[-1] == b"end"


class FailsAtSecondTransaction(Recorder):
    """Looks at the position and fails, when a flow begins to hand its second transaction over."""

    def __init__(self, look: Callable[[], Position]) -> None:
        super().__init__()
        self._look = look
        self.seen: list[Position] = []

    def step(self, sink: SiteId, step: Step) -> None:
        super().step(sink, step)
        if step is Step.BEFORE_SEND and self.steps[sink, step] == 2:
            self.seen.append(self._look())
            raise RuntimeError("failed on purpose before the second transaction")


def test_a_reader_that_meets_the_rest_of_a_forwarded_one_drops_it(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While an older transaction is incomplete, reading again begins in the middle of one that is on the sink already.

    Offsets cannot tell that it is: the position names it. The log, with records read two at a time:

        0 around | 1 long | 2 around, committed | 4 long | 5 long | 6 long, last
    """
    monkeypatch.setattr(scan, "_STEP_RECORDS", 1)
    source, sink = clusters(sites, "site-a", "site-b")
    one, two = Writer(source), Writer(source)
    around, long = one.begin(), two.begin()
    around.add([b"a1"])
    long.add([b"l1"])
    around.add([b"a2"])
    around.commit()
    hooks = FailsAtSecondTransaction(lambda: position(sink))
    with running(source, sink, hooks=hooks, limits=replace(QUICK, transaction_records=1)) as reader:
        wait_for(lambda: position(sink, "*").forwarded_through == 0, "the visible part was read")
        long.add([b"l2"])
        long.add([b"l3"])
        long.add([b"l4"], last=True)
        long.commit()
        reader.forwarded(2)

    [seen] = hooks.seen
    assert seen.resume_from == long.offsets[0]
    assert seen.unterminated == {around.id: around.offsets[1]}
    assert transactions(sink) == [(around.id, [b"a1", b"a2"]), (long.id, [b"l1", b"l2", b"l3", b"l4"])]
    assert not dead_letters(sink)
    assert {0: position(sink).total} == recount(sink)
