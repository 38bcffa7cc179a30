"""Listeners killed at the worst moments, and brokers killed under them: everything is applied exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lr_sink import QueueState
from lr_wire.records import Applied
from tests.support.application import rows, spawn
from tests.support.brokers import BrokerFactory, Site
from tests.support.databases import postgres_server, sqlite_database
from tests.support.listener import WITHIN_S, Recorder, drive
from tests.support.receive_queue import ReceiveQueue, Sent, sent, total_of

pytestmark = pytest.mark.chaos

# A static member: the one that is started again takes the place of the one that was killed, without waiting for the
# group to give that one up.
SETTINGS = {"group_instance_id": "listener-1", "session_timeout_ms": 6000}


@pytest.fixture(params=[sqlite_database, postgres_server], ids=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new database of each kind."""
    with request.param() as url:
        yield url


@pytest.fixture
def sink(sites: Callable[..., list[Site]]) -> Site:
    (site,) = sites("site-b")
    return site


def numbers(count: int) -> list[Sent]:
    """Transactions of two entries in two records."""
    return [sent(f"{number}a".encode(), f"{number}b".encode(), split=[[0], [1]]) for number in range(count)]


def expected(*wanted: int) -> list[str]:
    return [f"{number}{half}" for number in wanted for half in "ab"]


def wait_for(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stopped(child: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process is stopped by a signal."""
    pid, status = os.waitpid(child.pid, os.WUNTRACED | os.WNOHANG)
    return pid != 0 and os.WIFSTOPPED(status)


@contextmanager
def process(**config: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The application as a process, which never outlives the block."""
    child = spawn(**config)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def run_until_killed(**config: Any) -> None:
    """Run the application, which kills itself; that it did is what the rest of the test rests on."""
    with process(**config) as child:
        assert child.wait(60) == -signal.SIGKILL


def run_to_the_end(**config: Any) -> None:
    with process(**config) as child:
        assert child.wait(60) == 0


@pytest.mark.parametrize(
    "kill_at, left",
    [
        pytest.param("begun", expected(0, 1, 2), id="before the database's commit"),
        pytest.param("committed", expected(0, 1, 2, 3), id="between apply and ack"),
    ],
)
def test_a_listener_killed_around_its_commit_applies_exactly_once(
    sink: Site, database: str, kill_at: str, left: list[str]
) -> None:
    """The database decides: what it has does not come again, what it has not comes again."""
    queue = ReceiveQueue(sink)
    batch = numbers(8)
    queue.write(*batch)
    # Nothing is committed to the group before the kill: only the database knows how far it is.
    config = {
        "bootstrap_servers": sink.bootstrap_servers,
        "database": database,
        "rows": 16,
        "settings": {**SETTINGS, "ack_s": 1000.0},
    }
    run_until_killed(**config, kill_at=kill_at, kill_payload="3a")
    assert rows(database) == left
    assert queue.committed() is None
    run_to_the_end(**config)
    assert rows(database) == expected(*range(8))
    assert queue.applied() == Applied(16, total_of(batch), batch[-1].completed_at)


@pytest.mark.parametrize("database", [sqlite_database], ids=["sqlite"], indirect=True)
def test_a_killed_listener_is_replaced_by_another_member(sink: Site, database: str) -> None:
    """Without a place of its own in the group: as soon as the group has given the killed one up."""
    queue = ReceiveQueue(sink)
    queue.write(*numbers(6))
    config = {
        "bootstrap_servers": sink.bootstrap_servers,
        "database": database,
        "rows": 12,
        "settings": {"session_timeout_ms": 6000, "ack_s": 1000.0},
    }
    run_until_killed(**config, kill_at="committed", kill_payload="3a")
    run_to_the_end(**config)
    assert rows(database) == expected(*range(6))


@pytest.mark.parametrize("kill_at", ["dead letter sent", "dead letter committed"])
def test_a_listener_killed_while_it_writes_a_dead_letter_writes_it_once(
    fresh_broker: BrokerFactory, database: str, kill_at: str
) -> None:
    """Before its commit: the whole is done again. After it: the store is told, and nothing is done again."""
    # The broker ends the transaction of the one that was killed soon after its time-out, not up to 10 s later.
    quick = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    broker = fresh_broker("site-b", properties=quick)
    queue = ReceiveQueue(broker)
    batch = numbers(5)
    queue.write(*batch)
    config = {
        "bootstrap_servers": broker.bootstrap_servers,
        "database": database,
        "rows": 8,
        "bad": "2a",
        "transaction_timeout_ms": 4000,
        "settings": {**SETTINGS, "max_attempts": 2, "on_failure": "dead_letter"},
    }
    run_until_killed(**config, kill_at=kill_at)
    assert rows(database) == expected(0, 1)
    run_to_the_end(**config)
    assert rows(database) == expected(0, 1, 3, 4)
    assert [letter.value() for letter in queue.dead_letters()] == batch[2].values()
    assert queue.applied() == Applied(10, total_of(batch), batch[-1].completed_at)


@pytest.mark.parametrize("database", [postgres_server], ids=["postgresql"], indirect=True)
def test_a_frozen_listener_that_wakes_up_applies_nothing_that_another_has(sink: Site, database: str) -> None:
    """It had a transaction in hand when it froze. Its position has moved meanwhile, so that one rolls back."""
    queue = ReceiveQueue(sink)
    batch = numbers(6)
    queue.write(*batch)
    config = {
        "bootstrap_servers": sink.bootstrap_servers,
        "database": database,
        "settings": {"session_timeout_ms": 6000, "ack_s": 1000.0},
    }
    freezing = {"kill_at": "called", "kill_payload": "3a", "signal": signal.SIGSTOP}
    with process(**config, **freezing, rows=14) as frozen:
        wait_for(lambda: stopped(frozen))
        assert rows(database) == expected(0, 1, 2)
        run_to_the_end(**config, rows=12)
        assert rows(database) == expected(*range(6))
        frozen.send_signal(signal.SIGCONT)
        # It must find its way back into the group to see this one.
        queue.write(sent(b"6a", b"6b"))
        assert frozen.wait(60) == 0
    assert rows(database) == expected(*range(7))
    assert queue.applied().total.transactions == 7


def test_a_listener_survives_its_broker(fresh_broker: BrokerFactory) -> None:
    """Killed and started again under load: nothing is missing, nothing comes twice, and no restart is needed."""
    broker = fresh_broker("site-b")
    queue = ReceiveQueue(broker, partitions=2)
    batches = {partition: [sent(f"{partition}/{n}".encode()) for n in range(300)] for partition in range(2)}
    for partition, batch in batches.items():
        queue.write(*batch[:100], partition=partition)
    with Recorder(broker, session_timeout_ms=30_000) as listener:
        drive(listener, lambda: len(listener.applied) >= 120)
        broker.kill()
        # What was fetched already still comes; then there is nothing, and no step fails.
        until = time.monotonic() + 3
        while time.monotonic() < until:
            listener.step()
        broker.start()
        late = ReceiveQueue(broker, partitions=2)
        for partition, batch in batches.items():
            late.write(*batch[100:], partition=partition)
        drive(listener, lambda: len(listener.applied) >= 600, within_s=90)
        for _ in range(20):
            listener.step()
        assert {found.state for found in listener.status()} == {QueueState.RUNNING}
    for partition, batch in batches.items():
        assert listener.payloads(partition) == [list(item.payloads) for item in batch]
        assert queue.applied(partition).total == total_of(batch)
    assert not listener.errors


def test_stopping_without_a_broker_takes_its_time_and_no_more(fresh_broker: BrokerFactory) -> None:
    """What was applied last is not committed then, and comes again: at least once, for want of a store."""
    broker = fresh_broker("site-b")
    queue = ReceiveQueue(broker)
    queue.write(*numbers(3))
    listener = Recorder(broker, ack_s=1000.0, stop_s=1.0, session_timeout_ms=6000)
    with listener:
        drive(listener, lambda: len(listener.applied) == 3)
        broker.kill()
        started = time.monotonic()
    assert time.monotonic() - started < 15
    broker.start()
    with Recorder(broker, session_timeout_ms=6000) as again:
        drive(again, lambda: len(again.applied) == 3, within_s=60)
    assert queue.applied().total.transactions == 3
