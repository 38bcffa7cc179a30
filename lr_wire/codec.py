"""
Records to bytes and back.

A record of a send queue is `destinations | head | body`, one of a receive queue `head | body` (see `entry.proto`).
The functions here cut and join at those seams, so that a body is built once, by the source's client, and never
encoded again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

import xxhash
from google.protobuf.message import DecodeError

from lr_wire.errors import InvalidName, WireError
from lr_wire.naming import ClientName, SiteId, client_name, site_id
from lr_wire.records import Header, LogEntry, Position, ReceiveRecord, ReplicationId, RunningTotal, SendRecord, TxnId
from lr_wire.v1 import control_pb2, entry_pb2

_Message = entry_pb2.RoutingTableEntryMsg
_LOG_ENTRY_SYNC = entry_pb2.LOG_ENTRY_SYNC
_COMPLETED_AT = struct.Struct("<q")
_SEND_FIELD = bytes([entry_pb2.RoutingTableEntryMsg.SEND_FIELD_NUMBER << 3 | 2])
_RECEIVE_FIELD = bytes([entry_pb2.RoutingTableEntryMsg.RECEIVE_FIELD_NUMBER << 3 | 2])

# How many bytes the head of a send record takes at most.
SEND_HEAD_BOUND = 128


def encode_destinations(destinations: Iterable[SiteId]) -> bytes:
    """Encode the fragment that a send record begins with."""
    return _Message(destinations=destinations).SerializeToString()


def encode_body(
    payloads: Sequence[bytes],
    indexes: Sequence[int],
    txn: TxnId,
    source_time_ms: int,
    key: bytes | None = None,
    headers: Iterable[Header] = (),
) -> bytes:
    """Encode the fragment that both queues share: the payloads and what names them."""
    message = _Message(
        type=_LOG_ENTRY_SYNC,
        opaque_payload=payloads,
        incarnation=txn.incarnation,
        first_sequence=txn.first_sequence,
        first_index=indexes[0],
        source_time_ms=source_time_ms,
        key=key,
        headers=[entry_pb2.EntryHeader(name=name, value=value) for name, value in headers],
        whole=True,
    )
    if indexes[-1] - indexes[0] != len(indexes) - 1:
        message.indexes.extend(indexes)
    return message.SerializeToString()


def encode_send(destinations: bytes, client: ClientName, record: int, last: bool, body: bytes) -> bytes:
    """Join an encoded list of destinations, a head and an encoded body to the value of a send record."""
    head = entry_pb2.SendHead(
        client=client, record=record, last=last, destinations_size=len(destinations), body_offset=1
    )
    message = _Message(send=head)
    head_size = message.ByteSize()
    message.send.body_offset = len(destinations) + head_size
    return destinations + message.SerializeToString() + body


def decode_send(value: bytes | None, source: SiteId | None = None) -> SendRecord:
    """
    Decode a send record as far as routing needs it; raise WireError with the reason if it cannot be understood.

    `source` is the site whose queue it stands in, if that is known: no record is for the site that it comes from.
    """
    if value is None:
        raise WireError("the record has no value")
    message = _parse(value)
    if message.type != _LOG_ENTRY_SYNC:
        raise WireError(f"the record's type is {message.type}, not LOG_ENTRY_SYNC ({_LOG_ENTRY_SYNC})")
    payloads = len(message.opaque_payload)
    if not payloads:
        raise WireError("the record holds no payload")
    if len(message.indexes) not in (0, payloads):
        raise WireError(f"the record holds {payloads} payloads but {len(message.indexes)} indexes")
    incarnation = message.incarnation
    if not incarnation:
        raise WireError("the record names no transaction")
    offset = message.send.body_offset
    client, destinations, record, last = _decode_before_body(value[:offset])
    if len(destinations) != len(message.destinations):
        raise WireError("the destinations do not stand at the beginning of the record")
    if message.HasField("receive"):
        raise WireError("the record has a place in a receive queue already")
    if not message.whole:
        raise WireError("the record is cut off: its end is missing")
    if source in destinations:
        raise WireError(f"the record is addressed to {source}, the site it comes from")
    return SendRecord(
        client, TxnId(incarnation, message.first_sequence), destinations, record, last, payloads, value, offset
    )


def client_of(value: bytes | None) -> ClientName | None:
    """Tell the client of a send record that cannot be understood as a whole, if at least that can be read."""
    try:
        return _decode_client(_parse(value or b"").send.client)
    except WireError:
        return None


def encode_receive_head(record: int, records: int, entries: int, completed_at: int) -> bytes:
    """Encode what the reader puts before a body; head + body is the value of a receive record."""
    return _receive_head(record, records, entries) + _COMPLETED_AT.pack(completed_at)


@lru_cache(maxsize=4096)
def _receive_head(record: int, records: int, entries: int) -> bytes:
    """Encode a receive head without the offset that it ends with."""
    head = entry_pb2.ReceiveHead(record=record, records=records, entries=entries, completed_at=-1)
    return _Message(receive=head).SerializeToString()[: -_COMPLETED_AT.size]


def decode_receive(value: bytes | None) -> ReceiveRecord:
    """Decode a receive record; raise WireError with the reason if it cannot be understood."""
    if value is None:
        raise WireError("the record has no value")
    message = _parse(value)
    if message.type != _LOG_ENTRY_SYNC:
        raise WireError(f"the record's type is {message.type}, not LOG_ENTRY_SYNC ({_LOG_ENTRY_SYNC})")
    if not message.HasField("receive") or not value.startswith(_RECEIVE_FIELD):
        raise WireError("the record does not begin with its place in the transaction")
    head = message.receive
    entries = _entries(message)
    if not message.whole:
        raise WireError("the record is cut off: its end is missing")
    if head.record >= head.records:
        raise WireError(f"the record says it is number {head.record} of {head.records}")
    txn = TxnId(message.incarnation, message.first_sequence)
    body = value[len(_RECEIVE_FIELD) + _delimited_size(value, len(_RECEIVE_FIELD)) :]
    return ReceiveRecord(txn, head.record, head.records, head.entries, head.completed_at, entries, body)


def decode_entries(body: bytes) -> tuple[LogEntry, ...]:
    """Decode the entries of a body, e.g. that of a send record."""
    return _entries(_parse(body))


def extend_checksum(checksum: int, body: bytes | memoryview) -> int:
    """Chain a body onto a running checksum: other bodies, or the same ones in another order, give another value."""
    return xxhash.xxh3_64_intdigest(body, checksum)


def encode_position(position: Position) -> bytes:
    """Encode a position for `LR_Status`."""
    total = position.total
    return control_pb2.PartitionPosition(
        resume_from=position.resume_from,
        forwarded_through=position.forwarded_through,
        topic_id=position.topic_id,
        cluster_id=position.cluster_id,
        unterminated=[
            control_pb2.UnterminatedTransaction(
                incarnation=txn.incarnation, first_sequence=txn.first_sequence, last_offset=offset
            )
            for txn, offset in position.unterminated.items()
        ],
        transactions=total.transactions,
        entries=total.entries,
        checksum=total.checksum,
        updated_ms=position.updated_ms,
    ).SerializeToString()


def decode_position(value: bytes) -> Position:
    """Decode a position of `LR_Status`."""
    try:
        message = control_pb2.PartitionPosition.FromString(value)
    except DecodeError as error:
        raise WireError(f"not a position: {error}") from error
    return Position(
        resume_from=message.resume_from,
        forwarded_through=message.forwarded_through,
        topic_id=message.topic_id,
        cluster_id=message.cluster_id,
        total=RunningTotal(message.transactions, message.entries, message.checksum),
        unterminated={TxnId(item.incarnation, item.first_sequence): item.last_offset for item in message.unterminated},
        updated_ms=message.updated_ms,
    )


def _parse(value: bytes) -> entry_pb2.RoutingTableEntryMsg:
    try:
        return _Message.FromString(value)
    except DecodeError as error:
        raise WireError(f"the record is not a RoutingTableEntryMsg: {error}") from error


# Most transactions are one record, and then all that stands before the body repeats: the same few lists of destinations
# and clients. Remembering what was checked keeps the work per record flat.
@lru_cache(maxsize=4096)
def _decode_before_body(fragment: bytes) -> tuple[ClientName, tuple[SiteId, ...], int, bool]:
    """Decode what stands before a body: client, destinations, number of the record, whether it is the last one."""
    try:
        head = _parse(fragment).send
    except WireError as error:
        raise WireError(f"the body does not begin at byte {len(fragment)}: {error}") from error
    # With these seams in place, and only then, a receive head before the body gives a record that the sink can read.
    seam = head.destinations_size
    if fragment[seam : seam + 1] != _SEND_FIELD or seam + 1 + _delimited_size(fragment, seam + 1) != len(fragment):
        raise WireError(f"the body does not begin at byte {len(fragment)}, right after the head")
    return _decode_client(head.client), _decode_destinations(fragment[:seam]), head.record, head.last


@lru_cache(maxsize=4096)
def _decode_destinations(fragment: bytes) -> tuple[SiteId, ...]:
    message = _parse(fragment)
    destinations = tuple(message.destinations)
    if not destinations:
        raise WireError("the record has no destinations at its beginning")
    if message.SerializeToString() != encode_destinations(map(SiteId, destinations)):
        raise WireError("the record begins with more than its destinations")
    if len(set(destinations)) != len(destinations):
        raise WireError(f"a destination stands twice in {destinations}")
    try:
        return tuple(site_id(name) for name in destinations)
    except InvalidName as error:
        raise WireError(f"a destination has no valid name: {error}") from error


@lru_cache(maxsize=4096)
def _decode_client(name: str) -> ClientName:
    try:
        return client_name(name)
    except InvalidName as error:
        raise WireError(f"the client has no valid name: {error}") from error


def _entries(message: entry_pb2.RoutingTableEntryMsg) -> tuple[LogEntry, ...]:
    payloads = message.opaque_payload
    if not payloads or not message.incarnation:
        raise WireError("the record holds no payload or names no transaction")
    indexes: Sequence[int] = message.indexes or range(message.first_index, message.first_index + len(payloads))
    if len(indexes) != len(payloads):
        raise WireError(f"the record holds {len(payloads)} payloads but {len(indexes)} indexes")
    key = message.key if message.HasField("key") else None
    headers = tuple((header.name, header.value if header.HasField("value") else None) for header in message.headers)
    return tuple(
        LogEntry(
            payload,
            index,
            ReplicationId(message.incarnation, message.first_sequence + index),
            message.source_time_ms,
            key,
            headers,
        )
        for payload, index in zip(payloads, indexes, strict=True)
    )


def _delimited_size(value: bytes, start: int) -> int:
    """Size of a length-delimited field after its tag: the varint length and the content."""
    size = shift = 0
    # To the end at most: a head that lies about where it begins can point at a last byte that only looks like a tag.
    for at in range(start, len(value)):
        byte = value[at]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + 1 - start + size
        shift += 7
    raise WireError(f"the field that begins at byte {start - 1} has no length")
