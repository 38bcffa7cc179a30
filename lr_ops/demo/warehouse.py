"""The demo's sink application: it writes what arrives into a SQLite database, exactly once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from lr_kafka.clients import Cluster
from lr_ops.demo.orders import CLIENT
from lr_sink import RoutingQueueListener, SqlPositionStore, Transaction

_TABLE = """
CREATE TABLE IF NOT EXISTS order_lines (
    id INTEGER PRIMARY KEY AUTOINCREMENT, transaction_id TEXT, transaction_lines INTEGER, line TEXT
)
"""


class Warehouse(RoutingQueueListener):
    """Applies each transaction and its position in one transaction of the database."""

    def __init__(self, cluster: Cluster, database: Path) -> None:
        """Open the database; the listener's thread is the only one to use the connection."""
        self._connection = sqlite3.connect(database, check_same_thread=False)
        # Readers (the demo's table) and the writer do not wait for each other.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(_TABLE)
        self._connection.commit()
        self._positions = SqlPositionStore(self._connection)
        super().__init__(CLIENT, cluster=cluster, positions=self._positions)

    def on_transaction(self, txn: Transaction) -> bool:
        """Write all lines and the position, or nothing."""
        with self._connection:
            self._connection.executemany(
                "INSERT INTO order_lines (transaction_id, transaction_lines, line) VALUES (?, ?, ?)",
                [(str(txn.id), len(txn.entries), entry.payload.decode()) for entry in txn.entries],
            )
            self._positions.save(txn.position)
        return True


def applied_lines(database: Path) -> list[str]:
    """Give all lines of a warehouse in the order in which they were applied."""
    connection = sqlite3.connect(database)
    try:
        return [line for (line,) in connection.execute("SELECT line FROM order_lines ORDER BY id")]
    finally:
        connection.close()


def count_applied(database: Path) -> int:
    """Count the lines of a warehouse."""
    connection = sqlite3.connect(database)
    try:
        (count,) = connection.execute("SELECT count(*) FROM order_lines").fetchone()
        return int(count)
    finally:
        connection.close()
