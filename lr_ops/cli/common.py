"""What the commands share: options, tables, JSON and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from lr_kafka.reading import Progress as ReadingProgress
from lr_ops import config
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import ConfigError

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar=config.ENVIRONMENT_VARIABLE, help="The reader's configuration (YAML)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]

# What takes less than this needs no bar.
_QUICK_S = 1.0

# Without a terminal there is no width to fit into, and cutting cells would lose what a script looks for.
_WIDTH_WITHOUT_TERMINAL = 200


def load_settings(path: Path | None) -> ReaderSettings:
    """Load the configuration that a command was given."""
    return config.load(required(path))


def required(path: Path | None) -> Path:
    """Refuse a command without a configuration."""
    if path is None:
        raise ConfigError(
            "no configuration was given", hint=f"use --config reader.yaml or set {config.ENVIRONMENT_VARIABLE}"
        )
    return path


def output() -> Console:
    """Give the console that results are printed to."""
    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else _WIDTH_WITHOUT_TERMINAL, highlight=False)


def new_table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Make an empty table; the columns named in `numbers` are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def print_json(value: Any) -> None:
    """Print one JSON object on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


class Bars:
    """Progress on stderr, for people only, and only of what takes longer than a second."""

    def __init__(self, progress: Progress | None) -> None:
        """Draw into `progress`; None draws nothing."""
        self._progress = progress
        self._began = time.monotonic()
        self._started = False

    def reading(self, what: str) -> ReadingProgress:
        """Show one thing that is read."""
        task: TaskID | None = None

        def told(done: int, total: int) -> None:
            nonlocal task
            if not self._is_slow():
                return
            assert self._progress is not None
            if task is None:
                task = self._progress.add_task(what, total=total)
            self._progress.update(task, completed=done, total=total)

        return told

    @contextmanager
    def waiting(self) -> Iterator[Callable[[str], None]]:
        """Show something that has no known end, while the body runs and tells what it waits for."""
        task: TaskID | None = None

        def told(text: str) -> None:
            nonlocal task
            if not self._is_slow():
                return
            assert self._progress is not None
            if task is None:
                task = self._progress.add_task(text, total=None)
            self._progress.update(task, description=text)

        yield told
        if self._progress is not None and task is not None:
            self._progress.remove_task(task)

    def _is_slow(self) -> bool:
        if self._progress is None or time.monotonic() - self._began < _QUICK_S:
            return False
        if not self._started:
            self._started = True
            self._progress.start()
        return True


@contextmanager
def bars() -> Iterator[Bars]:
    """Show progress while the body runs, if somebody is watching."""
    if not sys.stderr.isatty():
        yield Bars(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    try:
        yield Bars(progress)
    finally:
        progress.stop()
