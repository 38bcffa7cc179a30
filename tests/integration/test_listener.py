"""A listener on a real broker: discovery, order, whole transactions, positions, deletion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lr_sink import QueueState, Step, Transaction
from lr_wire.records import Applied
from tests.support.brokers import Site
from tests.support.listener import WITHIN_S, Recorder, drive
from tests.support.receive_queue import ReceiveQueue, Sent, sent, total_of


@pytest.fixture
def sink(sites: Callable[..., list[Site]]) -> Site:
    (site,) = sites("site-b")
    return site


def some(count: int, seed: int) -> list[Sent]:
    """Transactions of 1 to 12 entries in 1 to 4 records, with the indexes spread over them."""
    random = Random(seed)
    found = []
    for number in range(count):
        entries = random.randint(1, 12)
        places = [random.randrange(4) for _ in range(entries)]
        split = [[i for i, place in enumerate(places) if place == wanted] for wanted in set(places)]
        found.append(sent(*(f"{seed}/{number}/{i}".encode() for i in range(entries)), split=split))
    return found


def payloads(transactions: list[Sent]) -> list[list[bytes]]:
    return [list(item.payloads) for item in transactions]


def test_a_listener_may_start_before_there_is_any_queue(sink: Site) -> None:
    """Queues are found as they appear."""
    with Recorder(sink) as listener:
        for _ in range(5):
            assert listener.step() in {Step.IDLE, Step.READ}
        assert listener.status() == ()
        queue = ReceiveQueue(sink)
        queue.write(sent(b"one", b"two"))
        drive(listener, lambda: listener.payloads() == [[b"one", b"two"]])


def test_new_sources_and_new_partitions_are_found_by_themselves(sink: Site) -> None:
    first = ReceiveQueue(sink, source="site-a")
    first.write(sent(b"a"))
    with Recorder(sink) as listener:
        drive(listener, lambda: listener.payloads() == [[b"a"]])
        second = ReceiveQueue(sink, source="site-c", partitions=2)
        second.write(sent(b"c"), partition=1)
        first.grow(3)
        drive(listener, lambda: len(listener.status()) == 5)
        first.write(sent(b"grown"), partition=2)
        drive(listener, lambda: len(listener.applied) == 3)
        assert listener.payloads(source="site-c") == [[b"c"]]
        assert listener.payloads(source="site-a", partition=2) == [[b"grown"]]
        drive(listener, lambda: set(listener.states().values()) == {QueueState.RUNNING})


def test_transactions_come_whole_once_and_in_order(sink: Site) -> None:
    """Three partitions of two sources, records of several transactions per commit, aborted ones in between."""
    queues = [ReceiveQueue(sink, source=source, partitions=3) for source in ("site-a", "site-c")]
    expected = {}
    for seed, queue in enumerate(queues):
        for partition in range(3):
            batch = some(60, seed * 10 + partition)
            expected[queue.source, partition] = batch
            for at in range(0, 60, 15):
                queue.write_values(some(1, 99)[0].values(), partition=partition, abort=True)
                queue.write(*batch[at : at + 15], partition=partition)
    with Recorder(sink) as listener:
        drive(listener, lambda: len(listener.applied) == 360)
        for _ in range(10):
            listener.step()
        for (source, partition), batch in expected.items():
            assert payloads(batch) == listener.payloads(partition, source)
    for queue in queues:
        for partition in range(3):
            assert total_of(expected[queue.source, partition]) == queue.applied(partition).total


def test_a_transaction_tells_where_it_is_from(sink: Site) -> None:
    queue = ReceiveQueue(sink, partitions=2)
    written = sent(b"x", b"y", b"z", split=[[0, 2], [1]], completed_at=4711)
    queue.write(written, partition=1)
    with Recorder(sink) as listener:
        drive(listener, lambda: bool(listener.applied))
    (txn,) = listener.applied
    assert txn.id == written.txn
    assert (txn.source, txn.client, txn.queue, txn.partition) == ("site-a", "policy", queue.topic, 1)
    assert (txn.completed_at, txn.attempt) == (4711, 1)
    assert [(entry.index, entry.payload) for entry in txn.entries] == [(0, b"x"), (1, b"y"), (2, b"z")]
    assert [entry.id.sequence - written.txn.first_sequence for entry in txn.entries] == [0, 1, 2]
    position = txn.position
    assert (position.queue, position.partition, position.follows) == (queue.topic, 1, None)
    assert position.applied == Applied(2, total_of([written]), 4711)


def test_a_listener_gets_only_its_own_clients_queues(sink: Site) -> None:
    """Client `a` is neither `a-b` nor `aa` nor `A`."""
    for client in ("a", "a-b", "aa", "A", "b-a"):
        ReceiveQueue(sink, client=client).write(sent(client.encode()))
    with Recorder(sink, "a") as listener, Recorder(sink, "a-b") as other:
        drive(other, lambda: other.payloads() == [[b"a-b"]])
        drive(listener, lambda: listener.payloads() == [[b"a"]])
        assert [found.queue for found in listener.status()] == ["LRQ_Recv_a_site-a"]


def test_a_restarted_listener_goes_on_where_the_last_one_was(sink: Site) -> None:
    """Nothing twice, nothing missing, however often it is stopped; the total goes on as well."""
    queue = ReceiveQueue(sink)
    batch = some(40, 1)
    applied: list[list[bytes]] = []
    for end in (10, 20, 30, 40):
        queue.write(*batch[end - 10 : end])
        # Stopping commits: none of these would be due within the test.
        with Recorder(sink, ack_s=1000.0, ack_transactions=10**6) as listener:
            while len(applied) + len(listener.applied) < end - 3:
                listener.step()
        applied += listener.payloads()
        assert queue.applied().total == total_of(batch[: len(applied)])
    with Recorder(sink) as last:
        drive(last, lambda: len(applied) + len(last.applied) == 40)
    assert payloads(batch) == applied + last.payloads()


def test_positions_are_committed_while_running(sink: Site) -> None:
    """Soon after a transaction, with what was counted; every so many transactions also without a pause."""
    queue = ReceiveQueue(sink)
    batch = some(5, 2)
    queue.write(*batch)
    with Recorder(sink) as listener:
        drive(listener, lambda: len(listener.applied) == 5)
        last = listener.applied[-1].position
        drive(listener, lambda: queue.applied() == last.applied)
    queue.write(*some(25, 3))
    with Recorder(sink, ack_s=1000.0, ack_transactions=10) as listener:
        drive(listener, lambda: queue.applied().total.transactions == 25)


def test_applied_records_are_deleted_and_only_those(sink: Site) -> None:
    queue = ReceiveQueue(sink, partitions=2)
    queue.write(*some(10, 4), partition=0)
    queue.write(*some(3, 5), partition=1)

    def refuse_the_other(txn: Transaction) -> bool:
        return txn.partition == 0

    with Recorder(sink, answer=refuse_the_other) as listener:
        drive(listener, lambda: len(listener.applied) == 10)
        drive(listener, lambda: queue.log_start(0) == listener.applied[-1].position.next_offset)
    assert queue.log_start(1) == 0
    with Recorder(sink) as listener:
        drive(listener, lambda: len(listener.applied) == 3)
    assert queue.log_start(1) == listener.applied[-1].position.next_offset, "stopping deletes as well"


def test_deleting_can_be_left_to_others(sink: Site) -> None:
    queue = ReceiveQueue(sink)
    queue.write(*some(10, 6))
    with Recorder(sink, delete_applied=False) as listener:
        drive(listener, lambda: queue.applied().total.transactions == 10)
    assert queue.log_start() == 0


def test_run_ends_when_it_is_stopped(sink: Site) -> None:
    """From another thread; what was applied is committed."""
    queue = ReceiveQueue(sink)
    batch = some(3, 7)
    queue.write(*batch)
    listener = Recorder(sink, ack_s=1000.0)
    thread = threading.Thread(target=listener.run)
    thread.start()
    deadline = time.monotonic() + WITHIN_S
    while len(listener.applied) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {found.state for found in listener.status()} == {QueueState.RUNNING}
    listener.stop()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert queue.applied().total == total_of(batch)


def test_a_callback_may_stop_its_listener(sink: Site) -> None:
    """The transaction that it was called for counts."""
    queue = ReceiveQueue(sink)
    queue.write(*some(3, 8))
    listener = Recorder(sink)

    def stop(txn: Transaction) -> bool:
        listener.stop()
        return True

    listener.answer = stop
    listener.run()
    assert len(listener.applied) == 1
    assert queue.applied().total.transactions == 1


def test_listeners_of_a_client_share_its_partitions(sink: Site) -> None:
    """When one joins or leaves, the others take over from the committed position: nothing twice, nothing missing."""
    queue = ReceiveQueue(sink, partitions=4)
    batches = {partition: some(30, 20 + partition) for partition in range(4)}

    def write(start: int, end: int) -> None:
        for partition, batch in batches.items():
            queue.write(*batch[start:end], partition=partition)

    # Positions are committed when partitions are given up, not before.
    quiet: dict[str, Any] = {"ack_s": 1000.0, "ack_transactions": 10**6}
    write(0, 10)
    with Recorder(sink, **quiet) as first:
        drive(first, lambda: len(first.applied) == 40)
        with Recorder(sink, **quiet) as second:

            def shared() -> bool:
                second.step()
                return len(first.status()) == len(second.status()) == 2

            drive(first, shared)
            write(10, 20)
            drive(first, lambda: bool(second.step()) and len(first.applied) + len(second.applied) == 80)
        drive(first, lambda: len(first.status()) == 4)
        write(20, 30)
        drive(first, lambda: len(first.applied) + len(second.applied) == 120)
    for partition, batch in batches.items():
        mine = [*first.payloads(partition), *second.payloads(partition)]
        assert sorted(payloads(batch)) == sorted(mine)
        assert queue.applied(partition).total == total_of(batch)


def test_many_small_transactions_pass(sink: Site) -> None:
    """Twenty thousand of them, each once and in order."""
    queue = ReceiveQueue(sink)
    batch = [sent(str(number).encode()) for number in range(20_000)]
    queue.write(*batch)
    with Recorder(sink, ack_s=1.0) as listener:
        drive(listener, lambda: len(listener.applied) == 20_000, within_s=60)
    assert payloads(batch) == listener.payloads()
    assert queue.applied().total == total_of(batch)
    assert queue.log_start() == queue.applied().next_offset


def test_an_idle_listener_costs_next_to_nothing(sink: Site) -> None:
    """With the default settings: a few wake-ups a second."""
    queue = ReceiveQueue(sink, partitions=3)
    queue.write(sent(b"one"))
    with Recorder(sink, discovery_s=1.0, poll_s=0.5, fetch_wait_max_ms=500, ack_s=1.0, delete_s=10.0) as listener:
        drive(listener, lambda: len(listener.applied) == 1 and len(listener.status()) == 3)
        drive(listener, lambda: QueueState.STARTING not in listener.states().values())
        busy, steps = time.process_time(), 0
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            listener.step()
            steps += 1
        busy = time.process_time() - busy
    assert busy < 0.3, f"{busy} s of CPU in 3 s"
    assert steps < 60
