"""The entry of `lr`: the commands, and what happens when one fails."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from lr_ops import logs
from lr_ops.cli import browse, demo, doctor, reader, status, topics, verify
from lr_wire.errors import ReplicationError

app = typer.Typer(
    name="lr",
    help="Log replication through routing queues on Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("reader")(reader.reader)
app.command("status")(status.status)
app.command("browse")(browse.browse)
app.add_typer(topics.app, name="topics")
app.command("doctor")(doctor.doctor)
app.command("verify")(verify.verify)

_DEBUG = "--debug"


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option(_DEBUG, help="Log everything, and show a traceback when a command fails.")
    ] = False,
) -> None:
    """Log replication through routing queues on Kafka."""
    logs.configure("debug" if debug else "warning")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; failures are one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = _DEBUG in arguments
    # People add it at the end of what failed; it belongs before the command.
    arguments = [_DEBUG] * debug + [argument for argument in arguments if argument != _DEBUG]
    try:
        app(args=arguments, prog_name="lr")
    except ReplicationError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"lr: {error}", err=True)
        sys.exit(2)
