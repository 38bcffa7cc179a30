"""
The command line, run in this process, with what it printed.

    config = write_config(tmp_path, source, sink, clients=["policy"])
    shown = lr("status", "--json", config=config)
    assert shown.code == 0
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml

from lr_kafka.clients import Cluster
from lr_ops.cli.main import main
from lr_source.reader.settings import Limits
from tests.support.reader import QUICK


@dataclass(frozen=True)
class Shown:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object that it printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The objects that it printed, one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]


def lr(*arguments: str, config: Path | None = None) -> Shown:
    """Run a command."""
    out, err = io.StringIO(), io.StringIO()
    chosen = [*arguments, "--config", str(config)] if config else [*arguments]
    before = structlog.get_config()
    library = logging.getLogger("lr.librdkafka")
    handlers, level, propagate = library.handlers, library.level, library.propagate
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(chosen)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        # A command sets up the logs of its process; this process is not its own.
        structlog.configure(**before)
        library.handlers, library.propagate = handlers, propagate
        library.setLevel(level)
    return Shown(code, out.getvalue(), err.getvalue())


def write_config(
    folder: Path, source: Cluster, *sinks: Cluster, clients: Iterable[str] = (), limits: Limits = QUICK
) -> Path:
    """Write a configuration file for these sites."""
    path = folder / "reader.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "source": str(source.site),
                "sites": {str(one.site): dict(one.settings) for one in (source, *sinks)},
                "clients": list(clients),
                "limits": asdict(limits),
            }
        )
    )
    return path
