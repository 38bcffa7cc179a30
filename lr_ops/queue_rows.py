"""From a record of any LR queue to rows that people and scripts can read. Pure: nothing is ever left out."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from lr_wire import codec, deadletter, naming
from lr_wire.errors import WireError
from lr_wire.records import Header, LogEntry
from lr_wire.v1.control_pb2 import Ownership, PartitionPosition, SessionStatus


class QueueKind(Enum):
    """What a topic of LR holds."""

    SEND = auto()
    RECEIVE = auto()
    DEAD_LETTER = auto()
    STATUS = auto()
    OTHER = auto()


@dataclass(slots=True)
class Record:
    """A record as it came from Kafka."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


@dataclass(slots=True)
class Row:
    """One entry of a record; a record that holds none, or cannot be understood, is one row as well."""

    record: Record
    payload: bytes | None = None
    client: str | None = None
    txn: str | None = None
    id: str | None = None
    index: int | None = None
    destinations: tuple[str, ...] = ()
    number: int | None = None
    """Of the record in its transaction, from 0."""

    records: int | None = None
    """How many records the transaction has here; None in a send queue, whose records do not tell."""

    last: bool | None = None
    time_ms: int | None = None
    """When the entry was handed over at the source."""

    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    reason: str = ""
    """Why it cannot be understood, or why it is a dead letter."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What a record of another kind says."""


def kind_of(topic: str) -> QueueKind | None:
    """Tell what a topic holds; None if it is not LR's."""
    if topic == naming.SEND_LOG_ENTRIES:
        return QueueKind.SEND
    if topic == naming.STATUS:
        return QueueKind.STATUS
    if naming.parse_receive_topic(topic):
        return QueueKind.RECEIVE
    if naming.parse_dead_letter_topic(topic):
        return QueueKind.DEAD_LETTER
    return QueueKind.OTHER if topic in (naming.SEND_SNAP_SYNC, naming.METADATA, naming.ACKS) else None


def rows(topic: str, record: Record) -> list[Row]:
    """Read a record."""
    try:
        return _READERS[kind_of(topic) or QueueKind.OTHER](topic, record)
    except WireError as error:
        return [Row(record, record.value, reason=str(error))]


def _send_rows(_topic: str, record: Record) -> list[Row]:
    found = codec.decode_send(record.value)
    return [
        _entry_row(
            record,
            entry,
            client=found.client,
            txn=str(found.txn),
            destinations=tuple(found.destinations),
            number=found.record,
            last=found.last,
        )
        for entry in codec.decode_entries(found.body)
    ]


def _receive_rows(topic: str, record: Record) -> list[Row]:
    found = codec.decode_receive(record.value)
    queue = naming.parse_receive_topic(topic)
    return [
        _entry_row(
            record,
            entry,
            client=queue.client if queue else None,
            txn=str(found.txn),
            number=found.record,
            records=found.records,
            last=found.record == found.records - 1,
            facts={"completed_at": found.completed_at},
        )
        for entry in found.entries
    ]


def _dead_letter_rows(topic: str, record: Record) -> list[Row]:
    # The newest of each name stands last.
    told = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    origin = told.get(deadletter.TOPIC, "")
    try:
        found = _receive_rows(origin, record) if naming.parse_receive_topic(origin) else _send_rows(origin, record)
    except WireError:
        # That it cannot be understood is often why it is here; the reason it carries is the better one.
        found = [Row(record, record.value)]
    name = naming.parse_dead_letter_topic(topic)
    for row in found:
        row.client = row.client or (name.client if name else None)
        row.reason = told.get(deadletter.REASON, "the record does not tell why it is a dead letter")
        row.facts |= {
            "origin_topic": origin or None,
            "origin_partition": _number(told.get(deadletter.PARTITION)),
            "origin_offset": _number(told.get(deadletter.OFFSET)),
            "given_up_at": told.get(deadletter.TIME),
        }
    return found


def _status_rows(_topic: str, record: Record) -> list[Row]:
    key = (record.key or b"").decode(errors="replace")
    row = Row(record, record.value, key=record.key, facts={"status_key": key})
    if record.value is None:
        row.facts["removed"] = True
        return [row]
    for parse, message in _STATUS_RECORDS:
        if parse(key):
            try:
                found = message.FromString(record.value)
            except DecodeError as error:
                raise WireError(f"{key} cannot be read: {error}") from error
            row.facts |= _plain(found)
            row.client = getattr(parse(key), "client", None)
            row.payload = None
            return [row]
    row.reason = "this version does not know such a key"
    return [row]


def _other_rows(_topic: str, record: Record) -> list[Row]:
    return [Row(record, record.value, key=record.key)]


_READERS: dict[QueueKind, Callable[[str, Record], list[Row]]] = {
    QueueKind.SEND: _send_rows,
    QueueKind.RECEIVE: _receive_rows,
    QueueKind.DEAD_LETTER: _dead_letter_rows,
    QueueKind.STATUS: _status_rows,
    QueueKind.OTHER: _other_rows,
}
_STATUS_RECORDS: tuple[tuple[Callable[[str], Any], Any], ...] = (
    (naming.parse_session_key, SessionStatus),
    (naming.parse_position_key, PartitionPosition),
    (naming.parse_owner_key, Ownership),
)


def _entry_row(record: Record, entry: LogEntry, **values: Any) -> Row:
    return Row(
        record,
        entry.payload,
        id=str(entry.id),
        index=entry.index,
        time_ms=entry.source_time_ms,
        key=entry.key,
        headers=entry.headers,
        **values,
    )


def _plain(message: Any) -> dict[str, Any]:
    """Give a protobuf message as a dictionary; 64-bit numbers as numbers, where protobuf's JSON has strings."""
    found = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    wide = {field.name for field in message.DESCRIPTOR.fields if field.cpp_type in _WIDE}
    return {name: int(value) if name in wide and isinstance(value, str) else value for name, value in found.items()}


# CPPTYPE_INT64 and CPPTYPE_UINT64.
_WIDE = (2, 4)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Filter:
    """What to show; what is not asked for does not matter."""

    destination: str | None = None
    client: str | None = None
    txn: str | None = None

    def passes(self, row: Row) -> bool:
        """Tell whether a row is wanted. One that cannot be understood is always wanted: it could be anybody's."""
        if row.reason and row.txn is None:
            return True
        return (
            (self.destination is None or self.destination in row.destinations)
            and (self.client is None or self.client == row.client)
            and (self.txn is None or self.txn == row.txn)
        )


def preview(payload: bytes, limit: int | None) -> tuple[str, str, bool]:
    """Give a payload as text if it is printable, else as hex; which of both; and whether it was cut."""
    is_cut = limit is not None and len(payload) > limit
    shown = payload[:limit] if is_cut else payload
    try:
        # The cut may have gone through a character: an incremental decoder only waits for the rest of it.
        text = codecs.getincrementaldecoder("utf-8")().decode(shown, final=not is_cut)
    except UnicodeDecodeError:
        text = "\0"
    if all(char.isprintable() or char in "\t\n\r" for char in text):
        return text, "utf-8", is_cut
    return shown.hex(), "hex", is_cut
