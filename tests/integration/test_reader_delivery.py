"""What an application commits arrives at its destinations: as it was, once, whole, and where it belongs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from lr_kafka import topics
from lr_kafka.reading import read_to_end
from lr_kafka.status import glance_at_status
from lr_source.reader.hooks import Step
from lr_source.reader.settings import Limits
from lr_wire.naming import SessionKey, SiteId
from lr_wire.v1.control_pb2 import SessionStatus
from lr_wire.v1.entry_pb2 import RoutingTableEntryMsg
from tests.support import send_queue
from tests.support.brokers import Site
from tests.support.reader import (
    POLICY,
    Recorder,
    clusters,
    dead_letters,
    payloads,
    position,
    positions,
    received,
    recount,
    running,
    status,
    transactions,
    wait_for,
)
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]

RECEIVE_QUEUE = "LRQ_Recv_policy_site-a"


def test_committed_entries_arrive_where_they_are_addressed_and_aborted_ones_leave_no_trace(sites: Sites) -> None:
    """Each destination has its entries in order; not even a reader of uncommitted records finds an aborted one."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    with running(source, b, c) as reader:
        writer.send(b"to both", to=["site-b", "site-c"])
        aborted = writer.begin()
        aborted.add([b"aborted"], ["site-b", "site-c"], last=True)
        aborted.abort()
        mixed = writer.begin()
        mixed.add([b"1", b"2"], ["site-b"])
        mixed.add([b"3"], ["site-b", "site-c"])
        mixed.add([b"4"], ["site-c"], last=True)
        mixed.commit()
        reader.forwarded(2, "site-b")
        reader.forwarded(2, "site-c")

    assert payloads(b) == [b"to both", b"1", b"2", b"3"]
    assert payloads(c) == [b"to both", b"3", b"4"]
    for sink in (b, c):
        everything = [
            message.value() or b"" for message in read_to_end(sink, RECEIVE_QUEUE, isolation="read_uncommitted")
        ]
        assert not any(b"aborted" in value for value in everything)


def test_an_entry_arrives_with_all_that_it_has_and_without_its_destinations(sites: Sites) -> None:
    """Key, headers, the source's time and fields of a later version survive; only the receive tag is put on it."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    later = RoutingTableEntryMsg()
    later.MergeFromString(b"\xea\x07\x05later")  # field 125, of a version to come
    headers = [("trace", b"\x00\xff"), ("trace", None), ("empty", b"")]
    with running(source, sink) as reader:
        txn = writer.begin()
        body = txn.add(
            [b"payload"],
            ["site-b", "site-zz"],
            last=True,
            key=b"key",
            headers=headers,
            extra=later.SerializeToString(),
            timestamp_ms=1_234_567_890_123,
        )
        txn.commit()
        reader.forwarded(1)

    [one] = received(sink)
    [entry] = one.record.entries
    assert (entry.payload, entry.key, entry.headers) == (b"payload", b"key", tuple(headers))
    assert entry.source_time_ms == 1_700_000_000_000
    assert entry.id == (txn.id.incarnation, txn.id.first_sequence)
    assert one.timestamp_ms == 1_234_567_890_123
    assert [name for name, _ in one.headers] == ["lrq_recv_policy"]
    assert one.record.body == body
    assert body.endswith(b"later")
    message = RoutingTableEntryMsg.FromString(one.value)
    assert not message.destinations
    assert not message.HasField("send")
    assert b"site-" not in one.value


class AtFirstSend(Recorder):
    """Does something right before the first record of a transaction is handed to the sink's producer."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then
        self.seen: list[object] = []

    def step(self, sink: SiteId, step: Step) -> None:
        if step is Step.BEFORE_SEND:
            self.seen.append(self._then())
        super().step(sink, step)


def test_the_receive_queue_is_made_and_registered_before_its_first_record(sites: Sites) -> None:
    """It has the send queue's partitions and no retention, and the sink's table tells of it before it has a record."""
    source, sink = clusters(sites, "site-a", "site-b", partitions=3)
    writer = Writer(source)
    key = SessionKey(SiteId("site-a"), SiteId("site-b"), POLICY)

    def registered() -> SessionStatus | None:
        return glance_at_status(sink).sessions.get(key)

    hooks = AtFirstSend(registered)
    with running(source, sink, hooks=hooks) as reader:
        writer.send(b"first", partition=2)
        reader.forwarded(1)

    before = hooks.seen[0]
    assert isinstance(before, SessionStatus)
    assert (before.receive_queue, before.partitions) == (RECEIVE_QUEUE, 3)
    assert before.state == SessionStatus.LOG_ENTRY_SYNC
    admin = sink.admin()
    info = topics.describe(admin, RECEIVE_QUEUE)
    assert info is not None
    assert info.partitions == 3
    config = topics.config(admin, RECEIVE_QUEUE)
    assert (config["retention.ms"], config["retention.bytes"], config["cleanup.policy"]) == ("-1", "-1", "delete")
    assert [(one.partition, one.record.entries[0].payload) for one in received(sink)] == [(2, b"first")]


def test_configured_clients_have_their_queue_before_the_log_shows_them(sites: Sites) -> None:
    """A client in the settings is registered at once, with nothing sent."""
    source, sink = clusters(sites, "site-a", "site-b", partitions=2)
    with running(source, sink, clients=["inventory"]) as reader:
        reader.state("LOG_ENTRY_SYNC", client="inventory")
        found = wait_for(lambda: status(sink, "site-b", "inventory"), "inventory is registered")

    assert (found.receive_queue, found.partitions) == ("LRQ_Recv_inventory_site-a", 2)


def partitions_of(found: SessionStatus | None) -> int:
    return found.partitions if found else 0


def test_added_partitions_are_followed_by_running_sessions(sites: Sites) -> None:
    """Every session's queue grows on every sink, idle ones too, and what is written there arrives."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    with running(source, b, c, clients=["inventory"]) as reader:
        writer.send(b"one", to=["site-b", "site-c"])
        for sink in (b, c):
            reader.forwarded(1, sink.site)
        send_queue.grow(source, 3)
        Writer(source).send(b"two", to=["site-b", "site-c"], partition=2)
        for sink in (b, c):
            reader.forwarded(2, sink.site)
            for client in ("policy", "inventory"):
                wait_for(
                    lambda sink=sink, client=client: partitions_of(status(sink, sink.site, client)) == 3,  # type: ignore[misc]
                    f"{client} on {sink.site} has 3 partitions",
                )

    for sink in (b, c):
        assert payloads(sink) == [b"one", b"two"]
        assert {one.partition for one in received(sink)} == {0, 2}
        for client in ("policy", "inventory"):
            info = topics.describe(sink.admin(), f"LRQ_Recv_{client}_site-a")
            assert info is not None
            assert info.partitions == 3
            assert set(positions(sink, client)) == {0, 1, 2}


def test_partitions_that_were_added_while_no_reader_ran_are_read_from_their_beginning(sites: Sites) -> None:
    """The next reader grows the queues first and misses nothing of the new partitions."""
    source, sink = clusters(sites, "site-a", "site-b")
    with running(source, sink) as reader:
        Writer(source).send(b"one")
        reader.forwarded(1)
    send_queue.grow(source, 2)
    Writer(source).send(b"two", partition=1)
    with running(source, sink) as reader:
        reader.forwarded(1)
        assert partitions_of(status(sink, "site-b")) == 2

    assert payloads(sink) == [b"one", b"two"]


def test_a_restarted_reader_goes_on_exactly_where_the_last_one_was(sites: Sites) -> None:
    """Over three lives nothing is missing or doubled, and the totals of the positions are those of a recount."""
    source, sink = clusters(sites, "site-a", "site-b", partitions=2)
    policy, inventory = Writer(source), Writer(source, "inventory")
    sent: list[bytes] = []
    for life in range(3):
        with running(source, sink) as reader:
            for number in range(3):
                entries = [b"%d-%d-%d" % (life, number, index) for index in range(number + 1)]
                policy.send(*entries, partition=number % 2)
                sent += entries
            inventory.send(b"%d" % life)
            reader.forwarded(3)
            reader.forwarded(1, client="inventory")
        for client in ("policy", "inventory"):
            totals = {partition: position.total for partition, position in positions(sink, client).items()}
            assert {partition: total for partition, total in totals.items() if total.entries} == recount(sink, client)

    assert sorted(payloads(sink)) == sorted(sent)
    assert payloads(sink, "inventory") == [b"0", b"1", b"2"]
    assert sum(position.total.transactions for position in positions(sink).values()) == 9


@pytest.mark.parametrize("step", list(Step))
def test_a_flow_that_fails_at_any_step_reads_its_position_back(sites: Sites, step: Step) -> None:
    """Whether the sink has the transaction or not, it is there once afterwards, dead letters too, and what follows."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    hooks = FailsOnce(step)
    garbage = b"\xff garbage"
    with running(source, sink, hooks=hooks) as reader:
        writer.send(b"one", b"two")
        writer.raw(garbage, headers=[("lrq_logentry_site-b", b"")])
        writer.send(b"three")
        reader.event("flow.connected", 2, flow="site-a->site-b")
        writer.send(b"four")
        wait_for(lambda: len(payloads(sink)) >= 4, "all payloads")
        wait_for(lambda: position(sink, "*").resume_from == send_queue.ends(source)[0], "the end")

    assert hooks.failed
    assert payloads(sink) == [b"one", b"two", b"three", b"four"]
    assert [letter.value for letter in dead_letters(sink, "unknown")] == [garbage]
    assert {0: position(sink).total} == recount(sink)


class FailsOnce(Recorder):
    """Fails at one step, the first time that a flow comes to it."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step
        self.failed = False

    def step(self, sink: SiteId, step: Step) -> None:
        super().step(sink, step)
        if step is self._step and not self.failed:
            self.failed = True
            raise RuntimeError(f"failed on purpose at {step}")


def test_an_idle_session_moves_past_what_is_for_others(sites: Sites) -> None:
    """Its lag is 0, and when that is trimmed it goes on as if nothing had happened."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    with running(source, b, c) as reader:
        writer.send(b"for b", to=["site-b"])
        reader.forwarded(1, "site-b")
        for number in range(20):
            writer.send(b"%d" % number, to=["site-c"])
        reader.forwarded(20, "site-c")
        end = send_queue.ends(source)[0]
        wait_for(lambda: position(b).resume_from == end, "the lag of site-b is 0")
        wait_for(lambda: position(c).resume_from == end, "the lag of site-c is 0")
    send_queue.trim(source, {0: end})
    with running(source, b, c) as reader:
        writer.send(b"after", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        reader.forwarded(1, "site-c")
        assert reader.state("LOG_ENTRY_SYNC", "site-b") == ""

    assert payloads(b) == [b"for b", b"after"]
    assert payloads(c) == [*(b"%d" % number for number in range(20)), b"after"]


def test_a_transaction_that_is_not_complete_holds_back_only_itself(sites: Sites) -> None:
    """
    `resume_from` stays at its first record while others are forwarded, over a restart as well.

    Of a committed transaction the reader sees the first record only, as long as another producer's open transaction
    holds Kafka's last stable offset back. Other partitions go on.
    """
    source, sink = clusters(sites, "site-a", "site-b", partitions=2)
    long, slow, other = Writer(source), Writer(source), Writer(source)
    straddling = long.begin()
    straddling.add([b"long 1"])
    open_one = slow.begin()
    open_one.add([b"slow 1"], last=True)
    straddling.add([b"long 2"], last=True)
    straddling.commit()
    for life in range(2):
        with running(source, sink) as reader:
            other.send(b"quick %d" % life, partition=1)
            reader.forwarded(1)
            wait_for(lambda: position(sink).forwarded_through == 0, "the first record was read")
            assert position(sink).resume_from == straddling.offsets[0] == 0
        assert payloads(sink) == [b"quick %d" % number for number in range(life + 1)]
    with running(source, sink) as reader:
        open_one.add([b"late"], number=7)
        open_one.abort()
        reader.forwarded(1)
        end = send_queue.ends(source, 2)[0]
        wait_for(lambda: position(sink).resume_from == end, "nothing is open any more")

    assert payloads(sink) == [b"long 1", b"long 2", b"quick 0", b"quick 1"]


def test_the_send_queue_is_fetched_once_for_all_sinks(sites: Sites) -> None:
    """What is read does not grow with the number of destinations, whether it was there before or comes later."""
    source, *sinks = clusters(sites, "site-a", "site-b", "site-c", "site-d")
    everywhere = [sink.site for sink in sinks]
    writer = Writer(source)
    size = sum(len(value) for _ in range(20) for value in writer.send(b"x" * 10_000, to=everywhere).values)
    with running(source, *sinks) as reader:
        for sink in sinks:
            reader.forwarded(20, sink.site)
        size += sum(len(value) for _ in range(20) for value in writer.send(b"x" * 10_000, to=everywhere).values)
        for sink in sinks:
            reader.forwarded(40, sink.site)

    assert reader.hooks.fetched_bytes == size
    for sink in sinks:
        assert len(transactions(sink)) == 40


def test_an_idle_reader_costs_next_to_no_cpu(sites: Sites) -> None:
    """Three flows with nothing to do, at the default limits: a small part of a core."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    with running(source, b, c, clients=["policy"], limits=Limits()) as reader:
        for sink in ("site-b", "site-c"):
            reader.state("LOG_ENTRY_SYNC", sink)
            reader.event("flow.joined", flow=f"site-a->{sink}")
        wall, cpu = time.monotonic(), time.process_time()
        time.sleep(3)  # the very thing that is measured
        share = (time.process_time() - cpu) / (time.monotonic() - wall)
    print(f"idle reader: {share:.1%} of a core")
    assert share < 0.1
