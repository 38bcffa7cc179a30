"""
Entries of one transaction into records. Pure: what is to be written comes back to the caller.

Entries with the same destinations share a record, which stays open until it is full, so that interleaved destinations
share as well. At any time after the first entry at least one record is held back: a record that is given out before
`finish()` is never the last one, and so the last one can say that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lr_kafka.borrowed import KafkaHeaders
from lr_source.destinations import DestinationSet
from lr_wire import codec
from lr_wire.naming import ClientName
from lr_wire.records import Header, TxnId

# What an entry costs besides its payload: a tag and a length (at most 6 bytes), and its index (at most 5).
ENTRY_BYTES = 11
_HEADER_BYTES = 18


class Packed(NamedTuple):
    """A record ready to be written."""

    value: bytes
    tags: KafkaHeaders
    timestamp_ms: int


class _OpenRecord:
    __slots__ = ("destinations", "headers", "indexes", "key", "payloads", "size", "timestamp_ms")

    def __init__(
        self,
        destinations: DestinationSet,
        timestamp_ms: int,
        key: bytes | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self.destinations = destinations
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.headers = headers
        self.payloads: list[bytes] = []
        self.indexes: list[int] = []
        self.size = 0


def entry_size(payload: bytes, key: bytes | None, headers: tuple[Header, ...]) -> int:
    """Tell how many bytes of a record an entry takes, at most."""
    size = len(payload) + ENTRY_BYTES
    if key is not None:
        size += len(key) + ENTRY_BYTES
    for name, value in headers:
        size += len(name.encode()) + len(value or b"") + _HEADER_BYTES
    return size


class Packer:
    """The records of one transaction."""

    def __init__(self, client: ClientName, txn: TxnId, max_open_bytes: int, clock_ms: Callable[[], int]) -> None:
        self.entries = 0
        """Entries taken so far; also the index of the next one."""
        self.records = 0
        """Records given out so far; also the number of the next one."""
        self._client = client
        self._txn = txn
        self._max_open_bytes = max_open_bytes
        self._clock_ms = clock_ms
        self._open: dict[DestinationSet, _OpenRecord] = {}
        self._open_bytes = 0
        # An entry with a key or headers of its own. It is closed from the beginning, but may be the last.
        self._single: _OpenRecord | None = None

    def add(
        self,
        destinations: DestinationSet,
        payload: bytes,
        size: int,
        key: bytes | None = None,
        headers: tuple[Header, ...] = (),
    ) -> list[Packed]:
        """Take an entry of the given `entry_size`, which goes nowhere without destinations; give what to write now."""
        index = self.entries
        self.entries = index + 1
        if not destinations.names:
            return []
        ready = []
        if self._single is not None:
            ready.append(self._pack(self._single))
            self._single = None
        if key is not None or headers:
            self._single = single = _OpenRecord(destinations, self._clock_ms(), key, headers)
            single.payloads.append(payload)
            single.indexes.append(index)
            return ready
        record = self._open.get(destinations)
        if record is not None and record.size + size > destinations.capacity:
            ready.append(self._close(record))
            record = None
        if record is None:
            record = self._open[destinations] = _OpenRecord(destinations, self._clock_ms())
        record.payloads.append(payload)
        record.indexes.append(index)
        record.size += size
        self._open_bytes += size
        if self._open_bytes > self._max_open_bytes:
            ready.extend(self._close_largest())
        return ready

    def finish(self) -> list[Packed]:
        """Give what is left, in the order of the first entries; the last one says that it is."""
        left = [*self._open.values(), *([self._single] if self._single else [])]
        left.sort(key=lambda record: record.indexes[0])
        self._open.clear()
        self._single = None
        return [self._pack(record, last=record is left[-1]) for record in left]

    def _close_largest(self) -> list[Packed]:
        # Down to half: with many small records, one at a time would mean to look for the largest at every entry.
        ready = []
        for record in sorted(self._open.values(), key=lambda record: record.size, reverse=True):
            if len(self._open) == 1 or self._open_bytes <= self._max_open_bytes // 2:
                break
            ready.append(self._close(record))
        return ready

    def _close(self, record: _OpenRecord) -> Packed:
        del self._open[record.destinations]
        self._open_bytes -= record.size
        return self._pack(record)

    def _pack(self, record: _OpenRecord, *, last: bool = False) -> Packed:
        number = self.records
        self.records = number + 1
        destinations = record.destinations
        body = codec.encode_body(
            record.payloads, record.indexes, self._txn, record.timestamp_ms, record.key, record.headers
        )
        value = codec.encode_send(destinations.fragment, self._client, number, last, body)
        return Packed(value, destinations.tags, record.timestamp_ms)
