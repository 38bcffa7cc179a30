"""`lr browse`: the entries of any LR queue, readable."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from lr_kafka import topics
from lr_kafka.clients import AdminClient, Cluster, Message
from lr_kafka.clients import Record as KafkaRecord
from lr_kafka.reading import follow as follow_topic
from lr_kafka.reading import headers_of, place, read_range
from lr_ops.cli.common import AsJson, ConfigFile, load_settings, output, print_json
from lr_ops.queue_rows import Filter, Record, Row, kind_of, preview, rows
from lr_source.reader.settings import ReaderSettings
from lr_wire import naming
from lr_wire.errors import BrokerError, ConfigError

_SHORT = {"send": naming.SEND_LOG_ENTRIES, "status": naming.STATUS}
_ON_SOURCE = (naming.SEND_LOG_ENTRIES, naming.SEND_SNAP_SYNC, naming.METADATA)
_AGE = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PREVIEW_BYTES = 60
_HEADER = (
    f"{'part':>4} {'offset':>10}  {'time (UTC)':<23}  {'client':<12} {'transaction':<36} {'index':>5} {'size':>8}  "
    "destinations and payload"
)


def browse(
    queue: Annotated[str, typer.Argument(help="A topic, e.g. LRQ_Recv_policy_site-a; `send` and `status` for short.")],
    config_file: ConfigFile = None,
    site: Annotated[str | None, typer.Option(help="Where the queue is, if several sites could have it.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="`start`, `end`, an offset, an age (90s, 15m, 2h, 1d), or a time (ISO 8601)."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Entries; 100 without --follow.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what arrives; from `end` by default.")
    ] = False,
    destination: Annotated[str | None, typer.Option(help="Only entries for this site.")] = None,
    client: Annotated[str | None, typer.Option(help="Only entries of this client.")] = None,
    txn: Annotated[str | None, typer.Option(help="Only this transaction.")] = None,
    uncommitted: Annotated[bool, typer.Option("--uncommitted", help="Also what is open or was aborted.")] = False,
    preview_bytes: Annotated[
        int | None, typer.Option("--preview", min=0, help="Bytes of payload; 60, or all of it with --json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the entries of a queue. What cannot be understood is shown too, with the reason."""
    settings = load_settings(config_file)
    topic = _SHORT.get(queue, queue)
    cluster = settings.sites[naming.site_id(_site(settings, topic, site))]
    admin = cluster.admin()
    info = topics.describe(admin, topic)
    if info is None:
        raise BrokerError(f"{topic} does not exist on {cluster.site}", hint="`lr topics list` shows what does")
    if partition is not None and partition >= info.partitions:
        raise ConfigError(f"{topic} on {cluster.site} has no partition {partition}, only 0 to {info.partitions - 1}")
    chosen = [partition] if partition is not None else list(range(info.partitions))
    starts = _starts(admin, topic, chosen, start or ("end" if follow else "start"))
    messages = _messages(cluster, admin, topic, starts, follow=follow, uncommitted=uncommitted)
    wanted = Filter(destination, client, txn)
    left = limit if limit is not None or follow else 100
    print_row = _printer(topic, preview_bytes, as_json=as_json)
    for message in messages:
        for row in rows(topic, _record(message)):
            if not wanted.passes(row):
                continue
            print_row(row)
            if left is not None and (left := left - 1) == 0:
                return


def _site(settings: ReaderSettings, topic: str, asked: str | None) -> str:
    """Decide where a queue is."""
    if kind_of(topic) is None:
        raise ConfigError(f"{topic} is not a queue of LR", hint="`lr topics list` shows them")
    if asked is not None:
        if asked not in settings.sites:
            raise ConfigError(f"--site {asked} is none of {', '.join(sorted(settings.sites))}")
        return asked
    if topic in _ON_SOURCE:
        return settings.source
    if len(settings.sinks) == 1:
        return next(iter(settings.sinks))
    raise ConfigError(f"{topic} can be on any of {', '.join(sorted(settings.sites))}", hint="say which with --site")


def _starts(admin: AdminClient, topic: str, partitions: list[int], text: str) -> dict[int, int]:
    """Find where to begin in each partition."""
    first = topics.log_starts(admin, topic, partitions)
    if text == "start":
        return first
    ends = topics.high_watermarks(admin, topic, partitions)
    if text == "end":
        return ends
    if text.isdecimal():
        return {p: min(max(int(text), first[p]), ends[p]) for p in partitions}
    found = topics.offsets_at(admin, topic, partitions, parse_time(text, time.time()))
    return {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}


def parse_time(text: str, now_s: float) -> int:
    """Read an age or a time of day; give milliseconds since 1970."""
    if match := _AGE.fullmatch(text):
        return int((now_s - float(match[1]) * _UNITS_S[match[2]]) * 1000)
    try:
        time_of_day = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"--from {text} is no place to begin", hint="start, end, an offset, an age such as 15m, or 2026-01-31T12:00"
        ) from error
    return int(time_of_day.timestamp() * 1000)


def _messages(
    cluster: Cluster, admin: AdminClient, topic: str, starts: Mapping[int, int], *, follow: bool, uncommitted: bool
) -> Iterator[Message]:
    isolation = "read_uncommitted" if uncommitted else "read_committed"
    if follow:
        for message in follow_topic(cluster, topic, starts, isolation=isolation):
            if message is not None:
                yield message
        return
    find_ends = topics.high_watermarks if uncommitted else topics.last_stable_offsets
    ends = find_ends(admin, topic, starts)
    yield from read_range(cluster, topic, {p: (start, ends[p]) for p, start in starts.items()}, isolation=isolation)


def _record(message: Message) -> Record:
    partition, offset = place(message)
    headers = headers_of(cast("KafkaRecord", message)) or []
    return Record(partition, offset, message.timestamp()[1], _bytes(message.key()), _bytes(message.value()), headers)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class _printer:  # noqa: N801 - called like the function it stands for
    """Prints rows, after a header if they are for people."""

    def __init__(self, topic: str, preview_bytes: int | None, *, as_json: bool) -> None:
        self._topic = topic
        self._preview_bytes = preview_bytes
        self._as_json = as_json
        self._console = output()
        self._is_first = True

    def __call__(self, row: Row) -> None:
        if self._as_json:
            print_json(row_json(self._topic, row, self._preview_bytes))
            return
        if self._is_first and kind_of(self._topic):
            self._console.print(_HEADER, style="bold", markup=False, soft_wrap=True)
            self._is_first = False
        self._console.print(row_text(row, self._preview_bytes), soft_wrap=True)


def row_text(row: Row, preview_bytes: int | None) -> Text:
    """Give a row as a line for people."""
    record = row.record
    moment = datetime.fromtimestamp((row.time_ms or record.time_ms) / 1000, UTC).isoformat(timespec="milliseconds")
    size = len(row.payload) if row.payload is not None else 0
    index = "-" if row.index is None else str(row.index)
    line = Text(
        f"{record.partition:>4} {record.offset:>10}  {moment.removesuffix('+00:00'):<23}  {row.client or '-':<12} "
        f"{row.txn or '-':<36} {index:>5} {size:>8}  "
    )
    if row.destinations:
        line.append(",".join(row.destinations) + "  ", style="cyan")
    if row.reason:
        line.append(f"[{row.reason}]  ", style="red")
    if row.facts:
        line.append(" ".join(f"{name}={value}" for name, value in row.facts.items() if value not in (None, "")) + "  ")
    if row.payload is not None:
        text, _, is_cut = preview(row.payload, _PREVIEW_BYTES if preview_bytes is None else preview_bytes)
        line.append(repr(text)[1:-1] + ("..." if is_cut else ""))
    return line


def row_json(topic: str, row: Row, preview_bytes: int | None) -> dict[str, Any]:
    """Give a row as documented in docs/commands.md."""
    record = row.record
    text, encoding, is_cut = (None, None, False) if row.payload is None else preview(row.payload, preview_bytes)
    return {
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "time_ms": record.time_ms,
        "client": row.client,
        "txn": row.txn,
        "id": row.id,
        "index": row.index,
        "destinations": list(row.destinations),
        "record": row.number,
        "records": row.records,
        "last": row.last,
        "source_time_ms": row.time_ms,
        "size": None if row.payload is None else len(row.payload),
        "key": None if row.key is None else preview(row.key, None)[0],
        "headers": {name: None if value is None else preview(value, None)[0] for name, value in row.headers},
        "payload": text,
        "payload_encoding": encoding,
        "payload_cut": is_cut,
        "reason": row.reason or None,
        **row.facts,
    }
