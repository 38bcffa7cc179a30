"""A session whose place in the send queue is gone says so and stays where it is: nothing is ever skipped silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lr_kafka.clients import Cluster
from lr_wire.v1.control_pb2 import SessionStatus
from tests.support import send_queue
from tests.support.brokers import Site
from tests.support.reader import (
    QUICK,
    Gate,
    RunningReader,
    clusters,
    dead_letters,
    payloads,
    position,
    put_position,
    running,
    status,
    wait_for,
)
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]


def assert_lost(sink: Cluster, reason: str, client: str = "policy") -> None:
    """The sink's own table tells the state and why."""
    found = status(sink, sink.site, client)
    assert found is not None
    assert found.state == SessionStatus.NEEDS_SNAPSHOT
    assert reason in found.reason


def test_a_position_that_was_trimmed_while_no_reader_ran_needs_a_snapshot(sites: Sites) -> None:
    """The session says why and stays there over restarts; another client and another sink go on."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c", partitions=2)
    policy, inventory = Writer(source), Writer(source, "inventory")
    with running(source, b, c) as reader:
        policy.send(b"1", to=["site-b", "site-c"])
        inventory.send(b"1", to=["site-b"], partition=1)
        reader.forwarded(1, "site-b")
        reader.forwarded(1, "site-c")
        reader.forwarded(1, "site-b", "inventory")
    behind = position(b)
    put_position(b, replace(behind, resume_from=0, forwarded_through=-1))
    send_queue.trim(source, {0: 1})
    reason = "the send queue was trimmed: partition 0 begins at offset 1, the session must read on from 0"
    for life in range(2):
        with running(source, b, c) as reader:
            assert reader.state("NEEDS_SNAPSHOT", "site-b") == reason
            policy.send(b"more %d" % life, to=["site-b", "site-c"])
            inventory.send(b"more %d" % life, to=["site-b"], partition=1)
            reader.forwarded(1, "site-c")
            reader.forwarded(1, "site-b", "inventory")
        assert_lost(b, reason)

    assert payloads(b) == [b"1"]
    assert payloads(c) == [b"1", b"more 0", b"more 1"]
    assert payloads(b, "inventory") == [b"1", b"more 0", b"more 1"]
    assert position(b).resume_from == 0


def test_records_that_left_the_log_while_no_reader_ran_are_missed_by_nobody_silently(sites: Sites) -> None:
    """Reader stopped, more written, all of it deleted: the position is before the beginning of the log."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        writer.send(b"kept")
        reader.forwarded(1)
    writer.send(b"gone")
    send_queue.trim(source, send_queue.ends(source))
    writer.send(b"later")
    with running(source, sink) as reader:
        assert "trimmed" in reader.state("NEEDS_SNAPSHOT")
    assert_lost(sink, "trimmed")

    assert payloads(sink) == [b"kept"]


def test_records_that_are_deleted_under_a_blocked_flow_are_noticed(sites: Sites) -> None:
    """A sink that has fallen off the shared scan finds its place gone while the reader runs; the other sink goes on."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    gate = Gate("site-b")
    with running(source, b, c, hooks=gate, limits=replace(QUICK, buffer_bytes=1)) as reader:
        writer.send(b"1", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        gate.shut()
        for number in range(2, 6):
            writer.send(b"%d" % number, to=["site-b", "site-c"])
            reader.forwarded(number, "site-c")
        reader.event("sink.fell_behind", sink="site-b")
        send_queue.trim(source, send_queue.ends(source))
        writer.send(b"later", to=["site-b", "site-c"])
        reader.forwarded(6, "site-c")
        gate.open()
        assert "trimmed" in reader.state("NEEDS_SNAPSHOT", "site-b")
    assert_lost(b, "trimmed")

    # What was handed over before the gap is there, and nothing from behind it.
    there = payloads(b)
    assert there == [b"1", b"2", b"3", b"4", b"5"][: len(there)]
    assert payloads(c) == [b"1", b"2", b"3", b"4", b"5", b"later"]


@pytest.mark.parametrize("records", [0, 1, 20], ids=["empty", "fewer", "more"])
def test_a_send_queue_that_was_made_anew_while_no_reader_ran_is_noticed(sites: Sites, records: int) -> None:
    """However many records the new one has: offsets of the old one mean nothing in it."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        for number in range(3):
            writer.send(b"old %d" % number)
        reader.forwarded(3)
    send_queue.recreate(source)
    fill(source, records)
    with running(source, sink) as reader:
        assert "the send queue was re-created" in reader.state("NEEDS_SNAPSHOT")
        goes_on_with_a_new_client(reader, source, sink)
    assert_lost(sink, "the send queue was re-created")

    assert payloads(sink) == [b"old 0", b"old 1", b"old 2"]


@pytest.mark.parametrize("records", [0, 1, 20], ids=["empty", "fewer", "more"])
def test_a_send_queue_that_is_made_anew_under_a_running_reader_is_noticed(sites: Sites, records: int) -> None:
    """All sessions need a snapshot, for that reason; clients that are new go on with the new queue."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    with running(source, b, c) as reader:
        for number in range(3):
            writer.send(b"old %d" % number, to=["site-b", "site-c"])
        for sink in ("site-b", "site-c"):
            reader.forwarded(3, sink)
        send_queue.recreate(source)
        fill(source, records)
        for sink in ("site-b", "site-c"):
            assert "the send queue was re-created" in reader.state("NEEDS_SNAPSHOT", sink)
        goes_on_with_a_new_client(reader, source, b)
    assert_lost(b, "the send queue was re-created")
    assert_lost(c, "the send queue was re-created")

    assert payloads(b)[:3] == payloads(c)[:3] == [b"old 0", b"old 1", b"old 2"]


def fill(source: Cluster, records: int) -> None:
    writer = Writer(source)
    for number in range(records):
        writer.send(b"new %d" % number)


def goes_on_with_a_new_client(reader: RunningReader, source: Cluster, sink: Cluster) -> None:
    Writer(source, "fresh").send(b"fresh", to=[sink.site])
    reader.forwarded(1, sink.site, "fresh")
    assert payloads(sink, "fresh") == [b"fresh"]


def test_a_position_of_another_cluster_needs_a_snapshot(sites: Sites) -> None:
    """A source that was restored elsewhere may have the same offsets with other records."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        writer.send(b"1")
        reader.forwarded(1)
    put_position(sink, replace(position(sink), cluster_id="another"))
    writer.send(b"2")
    with running(source, sink) as reader:
        assert "the source's cluster is another one: another before" in reader.state("NEEDS_SNAPSHOT")
    assert_lost(sink, "the source's cluster is another one")

    assert payloads(sink) == [b"1"]


def test_a_position_behind_the_end_of_the_log_needs_a_snapshot(sites: Sites) -> None:
    """A source that has lost its newest records is not the one that the sink has read."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        writer.send(b"1")
        reader.forwarded(1)
    put_position(sink, replace(position(sink), resume_from=1000, forwarded_through=999))
    with running(source, sink) as reader:
        assert "lost records" in reader.state("NEEDS_SNAPSHOT")
    assert_lost(sink, "lost records")


def test_a_trimmed_partition_brings_no_dead_letter_of_another_one_back(sites: Sites) -> None:
    """What was given up stays given up once, also when the flow has to begin anew in a partition."""
    source, sink = clusters(sites, "site-a", "site-b", partitions=2)
    writer = Writer(source)
    with running(source, sink) as reader:
        writer.raw(b"garbage")
        reader.rejected(1)
        wait_for(lambda: position(source, "*").forwarded_through >= 0, "the position behind it")
    writer.send(b"gone", partition=1)
    send_queue.trim(source, {1: send_queue.ends(source, 2)[1]})
    with running(source, sink) as reader:
        reader.event("flow.default_position_lost", 2)
        writer.raw(b"more garbage")
        reader.rejected(1)

    assert [letter.value for letter in dead_letters(source, "unknown")] == [b"garbage", b"more garbage"]
