"""`lr demo`: three sites on this machine, to watch and to play with."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lr_ops import logs
from lr_ops.cli.status import view
from lr_ops.demo.orders import OrdersApplication
from lr_ops.demo.script import play
from lr_ops.demo.stage import SINKS, Stage, staged
from lr_ops.demo.warehouse import count_applied
from lr_ops.sessions import Overview, overview

_LOOK_S = 1.0

# About a hundred orders a second: lively, and within what one small machine does on the side.
_PAUSE_S = 0.005


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running afterwards, until Ctrl-C.")] = False,
    seed: Annotated[int | None, typer.Option(help="Take the same orders as another run.")] = None,
    pace: Annotated[float, typer.Option(min=0.1, max=10, help="How long each act is, relative to the usual.")] = 1.0,
) -> None:
    """Run a source and two sinks on this machine: replicate, abort, kill the reader, and audit the outcome."""
    # The reader logs to a file; what the listeners and librdkafka have to say here would tear the table apart.
    logs.configure("critical")
    # Also where whoever started us ignores Ctrl-C, as shells do for what runs in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    show = _Show()
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    show.say(f"three sites start, real Kafka brokers all of them (orders with --seed {seed})")
    try:
        with staged(_PAUSE_S, seed) as stage:
            clean = play(stage, show, pace)
            if keep:
                _keep(stage, show)
            show.say("everything ends in order")
    except KeyboardInterrupt:
        show.say("interrupted; nothing is left behind")
        raise typer.Exit(130) from None
    raise typer.Exit(0 if clean else 1)


def _keep(stage: Stage, show: _Show) -> None:
    """Start the application again and tell what there is to play with."""
    lr = Path(sys.executable).with_name("lr")
    config = stage.config_path
    show.say("it goes on until Ctrl-C. In another terminal:")
    for text in (
        f"export LR_CONFIG={config}",
        f"{lr} status --watch",
        f"{lr} browse LRQ_Send_LogEntries --follow",
        f"{lr} verify",
        f"kill -9 {stage.reader.pid if stage.reader else ''}    # the reader; its log is {stage.folder / 'reader.log'}",
        *(f"sqlite3 {stage.databases[sink]} '.dump order_lines'" for sink in SINKS),
    ):
        show.console.print(f"    {text}", highlight=False, soft_wrap=True, markup=False)
    stage.restart_application(_PAUSE_S * 20)
    while True:
        # In short waits: a signal that hits another thread is heard only when this one wakes up.
        time.sleep(_LOOK_S)


class _Show:
    """Tells on the console; on a terminal the sessions are a live table, else a line now and then."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Tell the next thing that happens."""
        self.console.print(f"[bold][{time.monotonic() - self._began:4.0f} s][/] {text}", soft_wrap=True)

    def watch(self, stage: Stage, seconds: float) -> None:
        """Show the sessions for a while."""
        deadline = time.monotonic() + seconds
        if not self.console.is_terminal:
            while (left := deadline - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_S * 5))
                self.console.print(_counts(stage), soft_wrap=True)
            return
        with Live(_counts(stage), console=self.console, auto_refresh=False) as live:
            while time.monotonic() < deadline:
                live.update(_picture(stage, overview(stage.settings)), refresh=True)
                time.sleep(max(0.0, min(_LOOK_S, deadline - time.monotonic())))


def _picture(stage: Stage, found: Overview) -> RenderableType:
    return Group(Text(), view(found, partitions=True), Text(), Text(_counts(stage)), Text())


def _counts(stage: Stage) -> str:
    application: OrdersApplication = stage.application
    applied = ", ".join(f"{sink} {count_applied(stage.databases[sink]):,}" for sink in SINKS)
    reader = f"pid {stage.reader.pid}" if stage.reader else "not running"
    return (
        f"orders committed {len(application.book.committed):,}, aborted {application.book.cancelled:,}; "
        f"lines applied: {applied}; reader: {reader}"
    )
