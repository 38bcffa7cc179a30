"""
An application that applies into a database, data and position in one transaction, and can be hurt on the way.

It can be a process of its own, to be killed or stopped:

    python -m tests.support.application '{"bootstrap_servers": ..., "database": ..., "kill_at": "committed", ...}'
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from lr_kafka.borrowed import BorrowedProducer
from lr_sink import RoutingQueueListener, SqlPositionStore, Transaction, deadletter
from lr_wire.errors import ReplicationError
from tests.support.databases import connect, placeholder
from tests.support.listener import QUICK

Fault = Callable[[str, Transaction], None]
"""Called with where the application is: `called`, `begun` (everything written, nothing committed) and `committed`."""

_TABLE = "CREATE TABLE IF NOT EXISTS data (id {serial}, queue TEXT, part INTEGER, txn TEXT, payload TEXT)"
_SERIAL = {"?": "INTEGER PRIMARY KEY", "%s": "SERIAL PRIMARY KEY"}


class Application(RoutingQueueListener):
    """Inserts every payload as a row."""

    def __init__(
        self,
        bootstrap_servers: str,
        database: str,
        *,
        client: str = "policy",
        fault: Fault = lambda _point, _txn: None,
        refuse: Callable[[Transaction], bool] = lambda _txn: False,
        **settings: Any,
    ) -> None:
        self.database = database
        self.connection = connect(database)
        self.mark = placeholder(database)
        self.connection.cursor().execute(_TABLE.format(serial=_SERIAL[self.mark]))
        self.connection.commit()
        self.store = SqlPositionStore(self.connection)
        self.fault = fault
        self.refuse = refuse
        self.calls: list[Transaction] = []
        self.errors: list[ReplicationError] = []
        super().__init__(
            client,
            site="site-b",
            bootstrap_servers=bootstrap_servers,
            positions=self.store,
            log_level=0,
            **QUICK | settings,
        )

    def on_transaction(self, txn: Transaction) -> bool:
        self.calls.append(txn)
        self.fault("called", txn)
        if self.refuse(txn):
            return False
        self.write(self.connection, txn)
        self.store.save(txn.position)
        self.fault("begun", txn)
        self.connection.commit()
        self.fault("committed", txn)
        return True

    def on_error(self, error: ReplicationError) -> None:
        self.errors.append(error)

    def write(self, connection: Any, txn: Transaction) -> None:
        """Write the data of a transaction, without committing it."""
        cursor = connection.cursor()
        for entry in txn.entries:
            cursor.execute(
                f"INSERT INTO data (queue, part, txn, payload) VALUES ({', '.join([self.mark] * 4)})",
                (txn.queue, txn.partition, str(txn.id), entry.payload.decode()),
            )

    def close(self) -> None:
        super().close()
        self.connection.close()


def rows(database: str, partition: int = 0) -> list[str]:
    """Give the payloads that the database has, in the order in which they were written."""
    with contextlib.closing(connect(database)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT payload FROM data WHERE part = {placeholder(database)} ORDER BY id", (partition,))
        return [row[0] for row in cursor.fetchall()]


def spawn(**config: Any) -> subprocess.Popen[bytes]:
    """Start it as a process. It ends by itself once the database has `rows` rows."""
    return subprocess.Popen([sys.executable, "-m", "tests.support.application", json.dumps(config)])


def main(config: dict[str, Any]) -> None:
    kill_at, kill_payload = config.get("kill_at"), config.get("kill_payload")
    bad = config.get("bad")
    fired: list[str] = []

    def hurt() -> None:
        if not fired:
            fired.append(str(kill_at))
            os.kill(os.getpid(), config.get("signal", signal.SIGKILL))

    wanted = config["rows"]

    def fault(point: str, txn: Transaction) -> None:
        if point == kill_at and txn.entries[0].payload.decode() == kill_payload:
            hurt()

    commit = BorrowedProducer.commit

    def commit_or_die(self: BorrowedProducer, timeout_s: float) -> None:
        if kill_at == "dead letter sent":
            hurt()
        commit(self, timeout_s)
        if kill_at == "dead letter committed":
            hurt()

    BorrowedProducer.commit = commit_or_die  # type: ignore[method-assign]
    deadletter._TRANSACTION_TIMEOUT_MS = config.get("transaction_timeout_ms", deadletter._TRANSACTION_TIMEOUT_MS)
    application = Application(
        config["bootstrap_servers"],
        config["database"],
        fault=fault,
        refuse=lambda txn: txn.entries[0].payload.decode() == bad,
        **config.get("settings", {}),
    )
    try:
        while len(rows(config["database"])) < wanted:
            application.step()
    finally:
        application.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
