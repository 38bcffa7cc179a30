"""`lr topics`: make LR's topics, and list them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from lr_kafka import layout
from lr_kafka import topics as kafka_topics
from lr_kafka.clients import Cluster
from lr_ops.cli.common import AsJson, ConfigFile, load_settings, new_table, output, print_json
from lr_ops.queue_rows import kind_of
from lr_ops.topic_setup import SendQueueOptions, create_all
from lr_wire.errors import ConfigError, ReplicationError

app = typer.Typer(help="Make LR's topics, and list them.", no_args_is_help=True)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(m|h|d)")
_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


@app.command("create")
def create(
    config_file: ConfigFile = None,
    partitions: Annotated[int, typer.Option(min=1, help="Of the send queue; the receive queues follow it.")] = 3,
    retention: Annotated[str, typer.Option(help="Of the send queue: 90m, 36h, 7d, or `forever`.")] = "7d",
    replication: Annotated[int, typer.Option(help="Copies of every record; -1 is each cluster's default.")] = -1,
    as_json: AsJson = False,
) -> None:
    """
    Make the send queue, LR_Status on every site, and the receive queues of the configured clients.

    What is there already is left as it is; where it differs from what LR would make, that is told. Exit code 2 if
    something could not be made.
    """
    settings = load_settings(config_file)
    options = SendQueueOptions(partitions, parse_retention(retention), replication)
    console = output()
    failed = False
    for outcome in create_all(settings, options):
        failed |= outcome.what == "failed"
        if as_json:
            print_json(
                {
                    "site": outcome.site,
                    "topic": outcome.topic,
                    "result": outcome.what.replace(" ", "_"),
                    "partitions": outcome.partitions,
                    "differences": list(outcome.differences),
                }
            )
            continue
        count = f", {outcome.partitions} partitions" if outcome.partitions else ""
        console.print(f"{outcome.site}: {outcome.topic}: {outcome.what}{count}", markup=False)
        for difference in outcome.differences:
            style = "red" if outcome.what == "failed" else "yellow"
            console.print(
                f"  {'error' if outcome.what == 'failed' else 'warning'}: {difference}", style=style, markup=False
            )
    if failed:
        raise typer.Exit(2)


def parse_retention(text: str) -> int:
    """Read how long to keep; give milliseconds, -1 for ever."""
    if text == "forever":
        return -1
    match = _DURATION.fullmatch(text)
    milliseconds = int(float(match[1]) * _UNITS_MS[match[2]]) if match else 0
    if milliseconds <= 0:
        raise ConfigError(f"--retention {text} is no duration", hint="e.g. 90m, 36h, 7d, or forever")
    return milliseconds


@app.command("list")
def list_topics(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show LR's topics on every site: partitions, what they hold, and for how long they keep it."""
    settings = load_settings(config_file)
    columns = ("site", "topic", "partitions", "offsets held", "cleanup", "retention")
    table = new_table(*columns, numbers=("partitions", "offsets held"))
    problems = []
    for site, cluster in sorted(settings.sites.items()):
        try:
            found = _topics_of(cluster)
        except ReplicationError as error:
            problems.append(f"{site}: {error}")
            continue
        for topic in found:
            if as_json:
                print_json({"site": site, **topic})
            else:
                kept = topic["retention_ms"]
                table.add_row(
                    site,
                    topic["topic"],
                    str(topic["partitions"]),
                    f"{topic['offsets_held']:,}",
                    topic["cleanup_policy"],
                    "for ever" if kept == -1 or topic["cleanup_policy"] == "compact" else f"{kept / 3_600_000:g} h",
                )
    if not as_json:
        output().print(table)
    for problem in problems:
        typer.echo(f"lr: {problem}", err=True)
    if problems:
        raise typer.Exit(2)


def _topics_of(cluster: Cluster) -> list[dict[str, Any]]:
    admin = cluster.admin()
    found = []
    for name in kafka_topics.names(admin):
        info = kafka_topics.describe(admin, name) if kind_of(name) is not None else None
        if info is None:
            continue
        partitions = range(info.partitions)
        starts = kafka_topics.log_starts(admin, name, partitions)
        ends = kafka_topics.high_watermarks(admin, name, partitions)
        config = kafka_topics.config(admin, name)
        found.append(
            {
                "topic": name,
                "partitions": info.partitions,
                "offsets_held": sum(ends[p] - starts[p] for p in partitions),
                "cleanup_policy": config.get("cleanup.policy", ""),
                "retention_ms": int(config.get("retention.ms", layout.DEFAULT_SEND_RETENTION_MS)),
            }
        )
    return found
