"""`lr demo`, the first thing that a newcomer runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.broker


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a place for the demo's own folder, short enough for what is made in it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as made:
        yield Path(made)


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lr_ops", "demo", "--seed", "1", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"TMPDIR": str(folder)}
    )


def processes_of(folder: Path) -> list[str]:
    """Give the command lines of all processes that have to do with a demo in this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_the_demo_loses_nothing_and_leaves_nothing_behind(folder: Path) -> None:
    """The reader is killed and comes back, the audit is clean, and the databases have what was committed."""
    demo = start(folder, "--pace", "0.4")
    said, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, said
    assert "was killed with SIGKILL" in said
    assert "Every committed entry is at exactly its destinations, once, whole and in order" in said
    compared = re.findall(r"(site-[bc]): ([\d,]+) lines committed for it, ([\d,]+) in its database: (.*)", said)
    assert [(site, verdict) for site, _, _, verdict in compared] == [
        ("site-b", "the same lines, once each, in order"),
        ("site-c", "the same lines, once each, in order"),
    ]
    assert all(committed == applied != "0" for _, committed, applied, _ in compared)
    aborted = re.search(r"orders were committed, ([\d,]+) aborted", said)
    assert aborted is not None
    assert aborted[1] != "0"
    assert processes_of(folder) == []
    assert list(folder.iterdir()) == []


def test_an_interrupted_demo_leaves_nothing_behind(folder: Path) -> None:
    """Ctrl-C in the middle: everything ends in order, and its files are gone."""
    demo = start(folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "the application takes orders" in line:
            break
    deadline = time.monotonic() + 60
    while not any(" reader " in line for line in processes_of(folder)):
        assert time.monotonic() < deadline, "the reader was not started"
        time.sleep(0.1)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=90)
    assert demo.returncode == 130, said
    assert "interrupted" in said
    assert processes_of(folder) == []
    assert list(folder.iterdir()) == []
