"""What happens in the demo, and when."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Protocol

from lr_ops.demo.orders import CUSTOMERS
from lr_ops.demo.stage import SINKS, Stage
from lr_ops.demo.warehouse import applied_lines, count_applied

# Seconds: with the reader, without it, with it again; then until all is applied at the latest.
WARM_UP_S = 10.0
WITHOUT_READER_S = 4.0
AFTERWARDS_S = 12.0
CATCH_UP_S = 30.0


class Show(Protocol):
    """Where the demo shows what happens."""

    def say(self, text: str) -> None:
        """Tell the next thing that happens."""

    def watch(self, stage: Stage, seconds: float) -> None:
        """Show the sessions for a while."""


@dataclass(frozen=True)
class Comparison:
    """A warehouse's database beside what the application knows it committed for it."""

    sink: str
    committed: int
    applied: int
    equal: bool


def play(stage: Stage, show: Show, pace: float) -> bool:
    """Run the demo, its acts `pace` times as long as usual; True if every site has exactly what it must have."""
    show.say("two listeners wait, the reader starts, the application takes orders")
    stage.start_listeners()
    stage.start_reader()
    stage.start_application()
    show.watch(stage, WARM_UP_S * pace)

    pid = stage.kill_reader()
    show.say(f"the reader (pid {pid}) was killed with SIGKILL; the application goes on")
    show.watch(stage, WITHOUT_READER_S * pace)

    stage.start_reader()
    show.say("the reader was started again: it fences the old one, reads its position at each sink, and goes on")
    show.watch(stage, AFTERWARDS_S * pace)

    stage.application.stop()
    show.say("the application has stopped; what is on its way arrives")
    deadline = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline and not _all_applied(stage):
        show.watch(stage, 1.0)

    book = stage.application.book
    show.say(
        f"{len(book.committed):,} orders were committed, {book.cancelled:,} aborted; `lr verify` audits all sites:"
    )
    # As an operator would run it, with its own exit code.
    command = [sys.executable, "-m", "lr_ops", "verify", "--config", str(stage.config_path), "--wait", "30"]
    clean = subprocess.run(command, check=False).returncode == 0
    for found in compare(stage):
        clean = clean and found.equal
        verdict = "the same lines, once each, in order" if found.equal else "NOT the same"
        show.say(
            f"{found.sink}: {found.committed:,} lines committed for it, {found.applied:,} in its database: {verdict}"
        )
    for failure in stage.failures:
        clean = False
        show.say(f"failed: {failure}")
    return clean


def compare(stage: Stage) -> list[Comparison]:
    """Compare each database with the application's own book, which LR had no part in."""
    found = []
    for sink in SINKS:
        lines = applied_lines(stage.databases[sink])
        expected = {customer: stage.application.book.lines_for(sink, customer) for customer in CUSTOMERS}
        actual: dict[str, list[str]] = {customer: [] for customer in CUSTOMERS}
        for line in lines:
            actual[line.partition(",")[0]].append(line)
        found.append(Comparison(str(sink), sum(map(len, expected.values())), len(lines), expected == actual))
    return found


def _all_applied(stage: Stage) -> bool:
    committed = stage.application.book.committed
    wanted = {sink: sum(len(order.lines.get(str(sink), [])) for order in committed) for sink in SINKS}
    return all(count_applied(stage.databases[sink]) >= wanted[sink] for sink in SINKS)
