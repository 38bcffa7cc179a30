"""Positions in an application's SQLite database. The same on PostgreSQL is in tests/integration."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lr_sink import SqlPositionStore, StoredPosition, TxnPosition
from lr_wire.errors import ConfigError, NotAtomic, PositionConflict
from lr_wire.records import Applied, RunningTotal

QUEUE = "LRQ_Recv_policy_site-a"
Connect = Callable[[], sqlite3.Connection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    made: list[sqlite3.Connection] = []

    def connect_(**settings: object) -> sqlite3.Connection:
        made.append(sqlite3.connect(tmp_path / "app.db", timeout=0.1, **settings))  # type: ignore[call-overload]
        return made[-1]

    yield connect_
    for connection in made:
        connection.close()


def position(offset: int, follows: int | None, partition: int = 0) -> TxnPosition:
    # The largest checksum there is: it does not fit into a database's signed integer.
    applied = Applied(offset, RunningTotal(3, 4, 2**64 - 1), 17)
    return TxnPosition(QUEUE, partition, "topic-id", applied, follows)


def test_a_position_is_read_back_as_stored(connect: Connect) -> None:
    store = SqlPositionStore(connect())
    assert store.load(QUEUE, 0) is None
    store.save(position(5, None))
    store.connection.commit()
    assert StoredPosition(position(5, None).applied, "topic-id") == store.load(QUEUE, 0)
    store.save(position(9, 5))
    store.connection.commit()
    found = SqlPositionStore(connect()).load(QUEUE, 0)
    assert found == StoredPosition(position(9, 5).applied, "topic-id")
    assert store.load(QUEUE, 1) is None


def test_a_position_is_part_of_the_applications_transaction(connect: Connect) -> None:
    """Rolled back with the data, committed with the data."""
    store = SqlPositionStore(connect())
    assert store.load(QUEUE, 0) is None
    store.save(position(5, None))
    store.connection.rollback()
    assert store.load(QUEUE, 0) is None


def test_what_is_not_committed_does_not_count_and_is_given_up(connect: Connect) -> None:
    """`load` tells what would be there after a crash now."""
    store = SqlPositionStore(connect())
    assert store.load(QUEUE, 0) is None
    store.save(position(5, None))
    assert store.load(QUEUE, 0) is None
    store.connection.commit()
    assert store.load(QUEUE, 0) is None


@pytest.mark.parametrize("follows", [None, 4, 6])
def test_a_position_that_does_not_follow_the_stored_one_is_refused(connect: Connect, follows: int | None) -> None:
    """Another process has moved it: nothing of this transaction may be committed."""
    store = SqlPositionStore(connect())
    store.load(QUEUE, 0)
    store.move(position(5, None))
    with pytest.raises(PositionConflict, match=QUEUE):
        store.save(position(9, follows))
    store.connection.rollback()
    found = store.load(QUEUE, 0)
    assert found is not None
    assert found.applied.next_offset == 5


def test_a_position_that_should_be_there_but_is_not_is_a_conflict(connect: Connect) -> None:
    """Somebody emptied the table: beginning it in the middle would hide what is missing."""
    store = SqlPositionStore(connect())
    store.load(QUEUE, 0)
    with pytest.raises(PositionConflict):
        store.save(position(9, 5))


def test_partitions_and_queues_are_kept_apart(connect: Connect) -> None:
    store = SqlPositionStore(connect())
    store.load(QUEUE, 0)
    store.move(position(5, None, partition=0))
    store.move(position(7, None, partition=1))
    offsets = [found.applied.next_offset for p in (0, 1) if (found := store.load(QUEUE, p))]
    assert offsets == [5, 7]
    assert store.load("LRQ_Recv_policy_site-c", 0) is None


def test_a_move_is_a_transaction_of_its_own(connect: Connect) -> None:
    """What the application left uncommitted is not committed along with it."""
    connection = connect()
    store = SqlPositionStore(connection)
    connection.execute("CREATE TABLE data (value)")
    store.load(QUEUE, 0)
    connection.execute("INSERT INTO data VALUES (1)")
    store.move(position(5, None))
    assert connection.execute("SELECT count(*) FROM data").fetchone() == (0,)
    with pytest.raises(PositionConflict):
        store.move(position(9, 4))
    assert not connection.in_transaction


def test_a_position_that_would_commit_on_its_own_is_refused(tmp_path: Path) -> None:
    """In autocommit mode data and position would be two transactions, and a crash could come between."""
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        store = SqlPositionStore(connection)
        store.load(QUEUE, 0)
        with pytest.raises(NotAtomic, match="autocommit"):
            store.save(position(5, None))
        assert store.load(QUEUE, 0) is None
        connection.execute("BEGIN")
        store.save(position(5, None))
        connection.execute("COMMIT")
        assert store.load(QUEUE, 0) is not None
        # A dead letter moves it all the same: a single statement is atomic.
        store.move(position(6, 5))
        assert store.load(QUEUE, 0) == StoredPosition(position(6, 5).applied, "topic-id")


def test_the_table_is_made_once_and_its_name_can_be_chosen(connect: Connect) -> None:
    store = SqlPositionStore(connect(), table="main.positions_of_lr")
    store.create_table()
    store.create_table()
    assert store.load(QUEUE, 0) is None
    assert SqlPositionStore(connect(), table="positions_of_lr").load(QUEUE, 0) is None


@pytest.mark.parametrize("table", ["", "a b", "x; DROP TABLE y", "a.b.c", '"quoted"'])
def test_a_name_that_is_no_identifier_is_refused(connect: Connect, table: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        SqlPositionStore(connect(), table=table)


def test_the_paramstyle_is_that_of_the_driver_or_given(connect: Connect) -> None:
    class Foreign:
        def cursor(self) -> None: ...
        def commit(self) -> None: ...
        def rollback(self) -> None: ...

    with pytest.raises(ConfigError, match="paramstyle"):
        SqlPositionStore(Foreign())
    with pytest.raises(ConfigError, match="numeric"):
        SqlPositionStore(Foreign(), paramstyle="numeric")
    SqlPositionStore(Foreign(), paramstyle="format")
    assert SqlPositionStore(connect(), paramstyle="qmark").load(QUEUE, 0) is None


def test_the_error_of_a_database_that_cannot_be_written_comes_out(tmp_path: Path) -> None:
    """It is the application's to see; the listener tries again."""
    sqlite3.connect(tmp_path / "app.db").close()
    with closing(sqlite3.connect(f"file:{tmp_path / 'app.db'}?mode=ro", uri=True)) as connection:
        store = SqlPositionStore(connection)
        with pytest.raises(sqlite3.OperationalError):
            store.load(QUEUE, 0)
