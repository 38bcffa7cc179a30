"""`lr status`: the sessions of a source."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from lr_ops.cli.common import AsJson, ConfigFile, load_settings, new_table, output, print_json
from lr_ops.lag import Lag
from lr_ops.sessions import Overview, PartitionView, SessionView, overview
from lr_wire.records import RunningTotal

_STYLES = {"LOG_ENTRY_SYNC": "green", "BLOCKED": "red", "UNREACHABLE": "red", "NEEDS_SNAPSHOT": "red", "UNKNOWN": "dim"}


def status(
    config_file: ConfigFile = None,
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="Show every partition.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks with --watch.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show every session: state and reason, lag in transactions and seconds, rate, what is applied, and the reader."""
    settings = load_settings(config_file)
    if not watch:
        found = overview(settings)
        print_json(overview_json(found)) if as_json else output().print(view(found, partitions=partitions))
        return
    if as_json or not sys.stdout.isatty():
        while True:
            found = overview(settings)
            print_json(overview_json(found)) if as_json else output().print(view(found, partitions=partitions))
            sys.stdout.flush()
            time.sleep(interval)
    with Live(view(overview(settings), partitions=partitions), console=output(), auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(view(overview(settings), partitions=partitions), refresh=True)


def view(found: Overview, *, partitions: bool) -> RenderableType:
    """Draw the sessions for people."""
    parts: list[RenderableType] = [_sessions(found)]
    if partitions:
        parts += [Text(), _partitions(found)]
    parts += [
        Text(f"{site} does not answer: {reason}", style="red") for site, reason in sorted(found.unreachable.items())
    ]
    if found.lag_unknown and found.source not in found.unreachable:
        parts.append(Text(f"lag is not known: {found.lag_unknown}", style="yellow"))
    if not found.sessions:
        parts.append(Text("No sessions yet: no client is configured, and the log shows none."))
    return Group(*parts)


def _sessions(found: Overview) -> RenderableType:
    columns = ("session", "state", "lag", "behind", "entries/s", "forwarded", "applied", "heartbeat", "owner", "reason")
    table = new_table(*columns, numbers=("lag", "behind", "entries/s", "forwarded", "applied", "heartbeat"))
    for one in found.sessions:
        heartbeat = _age(found.now_ms - one.heartbeat_ms) if one.heartbeat_ms else "-"
        reason = "; ".join(filter(None, [one.reason, "no heartbeat: is a reader running?" if one.stale else ""]))
        table.add_row(
            str(one.key),
            Text(one.state, style=_STYLES.get(one.state, "yellow")),
            *_lag(one.lag, found.now_ms),
            f"{one.entries_per_second:,.0f}",
            _count(one.forwarded),
            _count(one.applied),
            Text(heartbeat, style="red" if one.stale else ""),
            one.owner or "-",
            Text(reason),
        )
    return table


def _partitions(found: Overview) -> RenderableType:
    columns = ("session", "partition", "resume from", "forwarded through", "lag", "behind", "forwarded", "applied")
    table = new_table(*columns, numbers=columns[1:])
    for session in found.sessions:
        for one in session.partitions:
            position = one.position
            table.add_row(
                str(session.key),
                str(one.partition),
                str(position.resume_from) if position else "-",
                str(position.forwarded_through) if position else "-",
                *_lag(one.lag, found.now_ms),
                _count(position.total if position else None),
                _count(one.applied.total if one.applied else None),
            )
    return table


def _lag(lag: Lag | None, now_ms: int) -> tuple[str, str]:
    if lag is None:
        return "?", "?"
    mark = ">= " if lag.at_least else ""
    return f"{mark}{lag.transactions:,}", f"{mark}{lag.seconds(now_ms):.1f} s"


def _count(total: RunningTotal | None) -> str:
    return "-" if total is None else f"{total.transactions:,}"


def _age(milliseconds: int) -> str:
    seconds = max(0.0, milliseconds / 1000)
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def overview_json(found: Overview) -> dict[str, Any]:
    """Give the sessions as documented in docs/commands.md."""
    return {
        "source": found.source,
        "time_ms": found.now_ms,
        "unreachable": dict(sorted(found.unreachable.items())),
        "lag_unknown": found.lag_unknown or None,
        "sessions": [_session_json(one, found.now_ms) for one in found.sessions],
    }


def _session_json(one: SessionView, now_ms: int) -> dict[str, Any]:
    return {
        "source": one.key.source,
        "sink": one.key.sink,
        "client": one.key.client,
        "state": one.state,
        "reason": one.reason,
        "changed_ms": one.changed_ms or None,
        "heartbeat_ms": one.heartbeat_ms or None,
        "heartbeat_age_s": round((now_ms - one.heartbeat_ms) / 1000, 3) if one.heartbeat_ms else None,
        "stale": one.stale,
        "owner": one.owner or None,
        "receive_queue": one.receive_queue or None,
        "entries_per_second": round(one.entries_per_second, 1),
        "lag": _lag_json(one.lag, now_ms),
        "forwarded": _total_json(one.forwarded),
        "applied": _total_json(one.applied),
        "partitions": [_partition_json(partition, now_ms) for partition in one.partitions],
    }


def _partition_json(one: PartitionView, now_ms: int) -> dict[str, Any]:
    position = one.position
    return {
        "partition": one.partition,
        "resume_from": position.resume_from if position else None,
        "forwarded_through": position.forwarded_through if position else None,
        "lag": _lag_json(one.lag, now_ms),
        "forwarded": _total_json(position.total if position else None),
        "applied": _total_json(one.applied.total if one.applied else None),
        "applied_offset": one.applied.next_offset if one.applied else None,
    }


def _lag_json(lag: Lag | None, now_ms: int) -> dict[str, Any] | None:
    if lag is None:
        return None
    return {
        "transactions": lag.transactions,
        "seconds": round(lag.seconds(now_ms), 3),
        "at_least": lag.at_least,
    }


def _total_json(total: RunningTotal | None) -> dict[str, int] | None:
    return None if total is None else {"transactions": total.transactions, "entries": total.entries}
