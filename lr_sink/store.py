"""
Positions in the application's own database: data and position commit together, which is what makes "exactly once".

    class Policies(RoutingQueueListener):
        def on_transaction(self, txn):
            with connection:                                  # one transaction of the database
                for entry in txn.entries:
                    connection.execute("INSERT INTO policy VALUES (?)", (entry.payload,))
                store.save(txn.position)
            return True

A position is stored by compare-and-set: it replaces exactly the one that its transaction follows. If another process
has applied the transaction meanwhile (this one was thought dead, say), `save` raises PositionConflict, the
application's transaction rolls back, and the listener reads again where it is.

The connection is the listener's while it runs: whatever `on_transaction` has not committed when it returns is rolled
back.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Protocol

from lr_sink.positions import StoredPosition
from lr_sink.transaction import TxnPosition
from lr_wire.errors import ConfigError, NotAtomic, PositionConflict
from lr_wire.records import Applied, RunningTotal

_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class PositionStore(Protocol):
    """What a listener needs of a place that keeps positions together with the application's data."""

    def load(self, queue: str, partition: int) -> StoredPosition | None:
        """Give the position as committed; whatever is not committed yet is given up."""

    def save(self, position: TxnPosition) -> None:
        """Store a position in the application's transaction; PositionConflict unless it follows the stored one."""

    def move(self, position: TxnPosition) -> None:
        """Store a position in a transaction of its own: the application has nothing to apply."""


class Connection(Protocol):
    """A DB-API connection, as far as it is used here."""

    def cursor(self) -> Any:
        """Give something that executes statements."""

    def commit(self) -> object:
        """End the transaction."""

    def rollback(self) -> object:
        """Give the transaction up."""


class SqlPositionStore:
    """Positions in a table of a database: SQLite (`sqlite3`), PostgreSQL (`psycopg`), and others that work alike."""

    def __init__(self, connection: Connection, *, paramstyle: str | None = None, table: str = "lr_positions") -> None:
        """
        Use the connection that `on_transaction` writes its data with. The table is made when it is first needed.

        `paramstyle` is that of the connection's driver, which is asked by default. `connection` may be set anew, e.g.
        by `on_transaction` when the database was restarted.
        """
        style = paramstyle or _paramstyle_of(connection)
        if style not in _PLACEHOLDERS:
            raise ConfigError(f"paramstyle {style!r} is not supported", hint=f"one of {', '.join(_PLACEHOLDERS)}")
        if not _IDENTIFIER.fullmatch(table):
            raise ConfigError(f"{table!r} is not a name for the table of positions", hint="letters, digits and '_'")
        self.connection = connection
        self._table = table
        self._mark = _PLACEHOLDERS[style]
        self._table_exists = False

    def load(self, queue: str, partition: int) -> StoredPosition | None:
        """Give the position as committed; whatever is not committed yet on the connection is rolled back."""
        self.connection.rollback()
        if not self._table_exists:
            self.create_table()
        try:
            row = self._execute(
                "SELECT next_offset, transactions, entries, checksum, completed_at, queue_id FROM {table} "
                'WHERE queue = {mark} AND "partition" = {mark}',
                (queue, partition),
            ).fetchone()
        finally:
            # Reading begins a transaction with most drivers; left open, it would keep the database from cleaning up.
            self.connection.rollback()
        if row is None:
            return None
        next_offset, transactions, entries, checksum, completed_at, queue_id = row
        total = RunningTotal(int(transactions), int(entries), int(checksum, 16))
        return StoredPosition(Applied(int(next_offset), total, int(completed_at)), str(queue_id))

    def save(self, position: TxnPosition) -> None:
        """
        Store a position as a part of the transaction that the application has open, beside its data.

        Raises PositionConflict if the stored position is not the one that this follows: let it out of `on_transaction`.
        """
        if _commits_by_itself(self.connection):
            raise NotAtomic(
                f"save({position}) would commit on its own: the connection is in autocommit mode and in no transaction",
                hint="begin a transaction, write the data and save the position in it, and commit",
            )
        self._write(position)

    def move(self, position: TxnPosition) -> None:
        """Store a position in a transaction of its own."""
        self.connection.rollback()
        try:
            self._write(position)
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def create_table(self) -> None:
        """Make the table if it is not there; commits."""
        if not self._is_there():
            try:
                self._execute(_TABLE)
                self.connection.commit()
            except Exception:
                self.connection.rollback()
                # Two processes may do this at once, and PostgreSQL then fails one of them in spite of IF NOT EXISTS.
                if not self._is_there():
                    raise
        self._table_exists = True

    def _is_there(self) -> bool:
        try:
            self._execute("SELECT 1 FROM {table} WHERE 1 = 0")
        except Exception:  # noqa: BLE001 - each driver has its own error for a table that is missing
            return False
        finally:
            self.connection.rollback()
        return True

    def _write(self, position: TxnPosition) -> None:
        applied = position.applied
        total = applied.total
        # A checksum has 64 bits without a sign, one more than the integers of most databases: hence text.
        values = (
            applied.next_offset,
            total.transactions,
            total.entries,
            f"{total.checksum:016x}",
            applied.completed_at,
            position.queue_id,
            position.queue,
            position.partition,
        )
        if position.follows is None:
            cursor = self._execute(_INSERT, values)
        else:
            cursor = self._execute(_UPDATE, (*values, position.follows))
        if cursor.rowcount != 1:
            raise PositionConflict(
                f"{position}: the stored position is not {_said(position.follows)}, which this transaction follows",
                hint="another listener has applied it; roll back and let this error out of on_transaction",
            )

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        cursor = self.connection.cursor()
        cursor.execute(statement.format(table=self._table, mark=self._mark), values)
        return cursor


_TABLE = """
CREATE TABLE IF NOT EXISTS {table} (
    queue TEXT NOT NULL,
    "partition" INTEGER NOT NULL,
    next_offset BIGINT NOT NULL,
    transactions BIGINT NOT NULL,
    entries BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    completed_at BIGINT NOT NULL,
    queue_id TEXT NOT NULL,
    PRIMARY KEY (queue, "partition")
)
"""
_INSERT = """
INSERT INTO {table} (next_offset, transactions, entries, checksum, completed_at, queue_id, queue, "partition")
VALUES ({mark}, {mark}, {mark}, {mark}, {mark}, {mark}, {mark}, {mark})
ON CONFLICT (queue, "partition") DO NOTHING
"""
_UPDATE = """
UPDATE {table} SET next_offset = {mark}, transactions = {mark}, entries = {mark}, checksum = {mark},
completed_at = {mark}, queue_id = {mark} WHERE queue = {mark} AND "partition" = {mark} AND next_offset = {mark}
"""


def _said(follows: int | None) -> str:
    return "still missing" if follows is None else f"offset {follows}"


def _paramstyle_of(connection: Connection) -> str:
    driver = sys.modules.get(type(connection).__module__.partition(".")[0])
    style = getattr(driver, "paramstyle", None)
    if not isinstance(style, str):
        raise ConfigError(
            f"the paramstyle of {type(connection).__name__} is not known", hint="give paramstyle='qmark' or 'format'"
        )
    return style


def _commits_by_itself(connection: Any) -> bool:
    """Tell whether a statement executed now would be a transaction of its own, for the drivers that show it."""
    if getattr(connection, "in_transaction", False):  # sqlite3
        return False
    if getattr(getattr(connection, "info", None), "transaction_status", 0):  # psycopg: 0 is idle
        return False
    autocommit = getattr(connection, "autocommit", None)
    if isinstance(autocommit, bool):  # psycopg, and sqlite3 where its legacy mode was left
        return autocommit
    return getattr(connection, "isolation_level", "") is None  # sqlite3's legacy mode
