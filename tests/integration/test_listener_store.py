"""Exactly once into the application's database, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from lr_sink import QueueState, SqlPositionStore, StoredPosition, Transaction, TxnPosition
from lr_wire.errors import NotAtomic, PositionConflict, QueueTrimmed
from lr_wire.records import Applied, RunningTotal
from tests.support.application import Application, rows
from tests.support.brokers import Site
from tests.support.databases import connect, postgres_server, sqlite_database
from tests.support.listener import Recorder, drive
from tests.support.receive_queue import ReceiveQueue, sent, total_of


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        with sqlite_database() as url:
            yield url
        return
    url = request.getfixturevalue("postgres")
    with contextlib.closing(psycopg.connect(url)) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        connection.commit()
    yield url


@pytest.fixture
def sink(sites: Callable[..., list[Site]]) -> Site:
    (site,) = sites("site-b")
    return site


@pytest.fixture
def queue(sink: Site) -> ReceiveQueue:
    return ReceiveQueue(sink)


def numbers(start: int, end: int) -> list[Any]:
    return [sent(f"{number}a".encode(), f"{number}b".encode()) for number in range(start, end)]


def expected(start: int, end: int) -> list[str]:
    return [f"{number}{half}" for number in range(start, end) for half in "ab"]


def stored(database: str, queue: ReceiveQueue) -> Applied | None:
    with contextlib.closing(connect(database)) as connection:
        found = SqlPositionStore(connection).load(queue.topic, 0)
        return found.applied if found else None


def test_data_and_position_are_committed_together(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """At every moment the database holds exactly what its position says."""
    batch = numbers(0, 20)
    queue.write(*batch)

    def compare(point: str, txn: Transaction) -> None:
        # From another connection: what is committed.
        done = stored(database, queue) or Applied(0)
        assert rows(database) == expected(0, done.total.transactions)
        if point == "committed":
            assert done == txn.position.applied

    with Application(sink.bootstrap_servers, database, fault=compare) as application:
        drive(application, lambda: len(application.calls) == 20)
    assert not application.errors
    assert stored(database, queue) == queue.applied() == Applied(20, total_of(batch), batch[-1].completed_at)


def test_a_transaction_of_another_process_is_not_applied_again(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """The position has moved meanwhile: this transaction rolls back, and the listener goes on behind it."""
    queue.write(*numbers(0, 10))

    def overtake(point: str, txn: Transaction) -> None:
        if point == "called" and txn.entries[0].payload == b"4a":
            with contextlib.closing(connect(database)) as other:
                application.write(other, txn)
                SqlPositionStore(other).save(txn.position)
                other.commit()

    with Application(sink.bootstrap_servers, database, fault=overtake) as application:
        drive(application, lambda: len(rows(database)) == 20)
    assert rows(database) == expected(0, 10)
    assert [txn.entries[0].payload for txn in application.calls].count(b"4a") == 1
    assert not application.errors


def test_an_application_that_swallows_the_conflict_does_no_harm(sink: Site, queue: ReceiveQueue, database: str) -> None:
    queue.write(*numbers(0, 10))

    class Swallowing(Application):
        def on_transaction(self, txn: Transaction) -> bool:
            try:
                return super().on_transaction(txn)
            except PositionConflict:
                return False

    def overtake(point: str, txn: Transaction) -> None:
        if point == "called" and txn.entries[0].payload == b"4a":
            with contextlib.closing(connect(database)) as other:
                application.write(other, txn)
                SqlPositionStore(other).save(txn.position)
                other.commit()

    with Swallowing(sink.bootstrap_servers, database, fault=overtake) as application:
        drive(application, lambda: len(rows(database)) == 20)
    assert rows(database) == expected(0, 10)


def test_two_first_positions_at_once_are_a_conflict(database: str) -> None:
    """Two processes that both found nothing stored: one wins."""
    position = TxnPosition("q", 0, "id", Applied(5, RunningTotal(1, 2, 2**64 - 1), 3), None)
    with contextlib.closing(connect(database)) as one, contextlib.closing(connect(database)) as two:
        first, second = SqlPositionStore(one), SqlPositionStore(two)
        assert first.load("q", 0) is second.load("q", 0) is None
        first.save(position)
        one.commit()
        with pytest.raises(PositionConflict):
            second.save(position)
        two.rollback()
        assert second.load("q", 0) == StoredPosition(position.applied, "id")


def test_a_success_that_was_not_committed_is_told_and_leaves_nothing(
    sink: Site, queue: ReceiveQueue, database: str
) -> None:
    queue.write(*numbers(0, 2))

    class Forgetful(Application):
        def on_transaction(self, txn: Transaction) -> bool:
            self.calls.append(txn)
            self.write(self.connection, txn)
            self.store.save(txn.position)
            return True

    with Forgetful(sink.bootstrap_servers, database) as application:
        drive(application, lambda: bool(application.errors))
        assert isinstance(application.errors[0].__cause__, NotAtomic)
        assert len(application.calls) == 1
    assert rows(database) == []
    assert stored(database, queue) is None
    assert queue.committed() is None


def test_a_refusal_takes_its_half_done_work_back(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """What an application wrote before it refused does not get into the next attempt."""
    queue.write(*numbers(0, 3))

    class Hesitant(Application):
        def on_transaction(self, txn: Transaction) -> bool:
            if txn.attempt < 3:
                self.write(self.connection, txn)
                self.store.save(txn.position)
                if txn.attempt == 1:
                    return False
                raise ValueError("not yet")
            return super().on_transaction(txn)

    with Hesitant(sink.bootstrap_servers, database) as application:
        drive(application, lambda: len(rows(database)) == 6)
    assert rows(database) == expected(0, 3)


def test_a_dead_letter_moves_the_stored_position_as_well(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """Also when it is the first transaction of all, and several in a row."""
    batch = numbers(0, 6)
    queue.write(*batch)

    def bad(txn: Transaction) -> bool:
        return txn.entries[0].payload in {b"0a", b"3a", b"4a"}

    settings: dict[str, Any] = {"refuse": bad, "max_attempts": 2, "on_failure": "dead_letter"}
    with Application(sink.bootstrap_servers, database, **settings) as application:
        drive(application, lambda: len(rows(database)) == 6)
    assert rows(database) == [*expected(1, 3), *expected(5, 6)]
    assert [letter.value() for letter in queue.dead_letters()] == [batch[number].values()[0] for number in (0, 3, 4)]
    assert stored(database, queue) == queue.applied() == Applied(6, total_of(batch), batch[-1].completed_at)


def test_a_dead_letter_that_the_store_was_not_told_of_is_made_good(
    sink: Site, queue: ReceiveQueue, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letter stays the only one, and nothing is applied twice."""
    queue.write(*numbers(0, 3))
    moves = []
    move = SqlPositionStore.move

    def fail_first(self: SqlPositionStore, position: TxnPosition) -> None:
        moves.append(position)
        if len(moves) == 1:
            raise OSError("the database is away just now")
        move(self, position)

    monkeypatch.setattr(SqlPositionStore, "move", fail_first)
    settings: dict[str, Any] = {"max_attempts": 1, "on_failure": "dead_letter"}
    with Application(
        sink.bootstrap_servers, database, refuse=lambda txn: txn.entries[0].payload == b"1a", **settings
    ) as application:
        drive(application, lambda: len(rows(database)) == 4)
    assert len(moves) == 2
    assert rows(database) == [*expected(0, 1), *expected(2, 3)]
    assert len(queue.dead_letters()) == 1
    assert [txn.entries[0].payload for txn in application.calls].count(b"1a") == 1


def test_a_database_that_was_put_back_gets_again_what_it_lost(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """The database is right about what it has, whatever the group has committed."""
    queue.write(*numbers(0, 10))
    at_four: list[TxnPosition] = []

    def remember(point: str, txn: Transaction) -> None:
        if point == "committed" and txn.entries[0].payload == b"3a":
            at_four.append(txn.position)

    with Application(sink.bootstrap_servers, database, fault=remember, delete_applied=False) as application:
        drive(application, lambda: queue.applied().total.transactions == 10)
    with contextlib.closing(connect(database)) as connection:
        connection.cursor().execute("DELETE FROM data WHERE id > 8")
        connection.cursor().execute("DELETE FROM lr_positions")
        connection.commit()
        SqlPositionStore(connection).move(
            TxnPosition(queue.topic, 0, at_four[0].queue_id, at_four[0].applied, follows=None)
        )
    with Application(sink.bootstrap_servers, database, delete_applied=False) as application:
        drive(application, lambda: len(rows(database)) == 20)
    assert rows(database) == expected(0, 10)
    assert stored(database, queue) == queue.applied()


@pytest.mark.parametrize("delete_applied", [False, True])
def test_a_new_database_is_filled_from_the_beginning_or_told_that_it_cannot_be(
    sink: Site, queue: ReceiveQueue, database: str, delete_applied: bool
) -> None:
    """Never from the middle: the group's position belongs to a database that is gone."""
    queue.write(*numbers(0, 5))
    with Application(sink.bootstrap_servers, database, delete_applied=delete_applied) as application:
        drive(application, lambda: len(rows(database)) == 10)
    with contextlib.closing(connect(database)) as connection:
        connection.cursor().execute("DROP TABLE data")
        connection.cursor().execute("DROP TABLE lr_positions")
        connection.commit()
    queue.write(*numbers(5, 6))
    with Application(sink.bootstrap_servers, database, delete_applied=False) as application:
        if delete_applied:
            drive(application, lambda: bool(application.errors))
            assert isinstance(application.errors[0], QueueTrimmed)
            assert rows(database) == []
        else:
            drive(application, lambda: len(rows(database)) == 12)
            assert rows(database) == expected(0, 6)


def test_a_store_can_be_added_later(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """It begins where the listener without one was."""
    queue.write(*numbers(0, 5))
    with Recorder(sink) as listener:
        drive(listener, lambda: len(listener.applied) == 5)
    queue.write(*numbers(5, 8))
    with Application(sink.bootstrap_servers, database) as application:
        drive(application, lambda: len(rows(database)) == 6)
    assert rows(database) == expected(5, 8)
    found = stored(database, queue)
    assert found == queue.applied()
    assert found is not None
    assert found.total.transactions == 8


def test_a_connection_that_breaks_is_replaced_by_the_application(
    sink: Site, queue: ReceiveQueue, database: str
) -> None:
    """Before and after its commit: whether the transaction was committed, the position tells."""
    queue.write(*numbers(0, 10))
    broken: list[str] = []

    class Reconnecting(Application):
        def on_transaction(self, txn: Transaction) -> bool:
            if self.connection is not self.store.connection:
                self.store.connection = self.connection
            return super().on_transaction(txn)

    def cut(point: str, txn: Transaction) -> None:
        payload = txn.entries[0].payload.decode()
        if (point, payload) in {("begun", "3a"), ("committed", "6a")} and payload not in broken:
            broken.append(payload)
            application.connection.close()
            application.connection = connect(database)
            application.store.connection = application.connection
            raise ConnectionError("the server closed the connection")

    with Reconnecting(sink.bootstrap_servers, database, fault=cut) as application:
        drive(application, lambda: len(rows(database)) == 20)
    assert broken == ["3a", "6a"]
    assert rows(database) == expected(0, 10)


def test_autocommit_is_refused_before_anything_is_stored(postgres: str) -> None:
    """On PostgreSQL, too: data and position must be one transaction."""
    position = TxnPosition("autocommit", 0, "id", Applied(5), None)
    with contextlib.closing(psycopg.connect(postgres, autocommit=True)) as connection:
        store = SqlPositionStore(connection)
        assert store.load("autocommit", 0) is None
        with pytest.raises(NotAtomic):
            store.save(position)
        assert store.load("autocommit", 0) is None
        with connection.transaction():
            store.save(position)
        assert store.load("autocommit", 0) == StoredPosition(Applied(5), "id")


def test_a_position_that_waited_for_a_lock_is_a_conflict_too(postgres: str) -> None:
    """Two processes in the same transaction: the second waits for the first to commit, and finds the position moved."""
    begun = TxnPosition("lock", 0, "id", Applied(5), None)
    following = TxnPosition("lock", 0, "id", Applied(9), 5)
    with (
        contextlib.closing(psycopg.connect(postgres)) as one,
        contextlib.closing(psycopg.connect(postgres)) as two,
    ):
        first, second = SqlPositionStore(one), SqlPositionStore(two)
        first.load("lock", 0)
        first.move(begun)
        first.save(following)
        outcome: list[BaseException | None] = []

        def wait_for_the_lock() -> None:
            try:
                second.save(following)
                outcome.append(None)
            except PositionConflict as error:
                outcome.append(error)

        thread = threading.Thread(target=wait_for_the_lock)
        thread.start()
        with contextlib.closing(psycopg.connect(postgres, autocommit=True)) as watcher:
            blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while watcher.execute(blocked).fetchone() != (1,):
                assert thread.is_alive()
        one.commit()
        thread.join(30)
        assert [type(found) for found in outcome] == [PositionConflict]
        two.rollback()


def test_the_state_is_running_again_after_all_this(sink: Site, queue: ReceiveQueue, database: str) -> None:
    """A database that cannot be read at the start is waited for."""
    queue.write(*numbers(0, 1))
    with Application(sink.bootstrap_servers, database) as application:
        good, closed = application.store.connection, connect(database)
        closed.close()
        application.store.connection = closed
        drive(application, lambda: any("cannot be read" in found.reason for found in application.status()))
        assert {found.state for found in application.status()} == {QueueState.STARTING}
        application.store.connection = good
        drive(application, lambda: len(rows(database)) == 2)
        assert {found.state for found in application.status()} == {QueueState.RUNNING}
