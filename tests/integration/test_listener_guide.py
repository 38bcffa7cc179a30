"""`docs/listener.md` is true: its programs run, and its tables name what there is."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from lr_sink import ListenerSettings
from lr_wire import errors
from tests.support.brokers import Broker, Site
from tests.support.databases import connect, postgres_server
from tests.support.listener import WITHIN_S
from tests.support.receive_queue import ReceiveQueue, sent

GUIDE = Path(__file__).parents[2] / "docs" / "listener.md"
PROGRAMS = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


@contextmanager
def running(name: str, sink: Site | Broker, database: str = "") -> Iterator[IO[str]]:
    """Run a program of the guide; gives its output, ends it as an operator does, and sees that it ended well."""
    environment = {**os.environ, "KAFKA": sink.bootstrap_servers, "DATABASE": database}
    command = [sys.executable, "-c", dict(PROGRAMS)[name]]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield program.stdout
            program.send_signal(signal.SIGTERM)
            assert program.wait(WITHIN_S) == 0
        finally:
            program.kill()


@pytest.fixture
def queue(sites: Callable[..., list[Site]]) -> ReceiveQueue:
    (site,) = sites("site-b")
    return ReceiveQueue(site)


def wait_for(queue: ReceiveQueue, transactions: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while queue.applied().total.transactions < transactions:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_guide_has_the_programs_that_are_run_here() -> None:
    assert [name for name, _ in PROGRAMS] == ["policies", "policies_sqlite", "policies_postgresql"]


def test_the_first_program_prints_what_it_gets(queue: ReceiveQueue) -> None:
    queue.write(sent(b"one", b"two"))
    with running("policies", queue.site) as output:
        lines: list[list[str]] = []
        while len(lines) < 2:
            line = output.readline()
            assert line, "the program has ended"
            if line.startswith("site-a"):
                lines.append(line.split()[-2:])
    assert lines == [["0", "one"], ["1", "two"]]
    assert queue.applied().total.transactions == 1


@pytest.mark.parametrize("name", ["policies_sqlite", "policies_postgresql"])
def test_the_programs_with_a_database_apply_into_it(queue: ReceiveQueue, name: str, tmp_path: Path) -> None:
    """Also after they were ended and started again."""
    with contextlib.ExitStack() as stack:
        sqlite = name == "policies_sqlite"
        database = str(tmp_path / "app.db") if sqlite else stack.enter_context(postgres_server())
        for number in (1, 2):
            queue.write(sent(f"policy {number}".encode()))
            with running(name, queue.site, database):
                wait_for(queue, number)
        connection = stack.enter_context(contextlib.closing(connect(f"sqlite:{database}" if sqlite else database)))
        cursor = connection.cursor()
        cursor.execute("SELECT text FROM policy ORDER BY text")
        assert [row[0] for row in cursor.fetchall()] == ["policy 1", "policy 2"]


def test_the_settings_of_the_guide_are_those_of_the_listener() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \|", GUIDE.read_text(), re.MULTILINE))
    settings = ListenerSettings()
    assert rows == {name: str(getattr(settings, name)) for name in ListenerSettings.__dataclass_fields__}


def test_the_errors_of_the_guide_exist() -> None:
    names = re.findall(r"^\| `([A-Z]\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert len(names) == 6
    assert all(issubclass(getattr(errors, name), errors.ReplicationError) for name in names)
