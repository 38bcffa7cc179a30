"""How far a session is behind: complete transactions in the log that it does not have yet. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lr_source.reader.assembly import CompleteTransaction
from lr_source.reader.positions import is_forwarded
from lr_wire.naming import SessionKey, SiteId
from lr_wire.records import Position


@dataclass(frozen=True, slots=True)
class Lag:
    """What a session has still to forward."""

    transactions: int = 0
    oldest_ms: int | None = None
    """When the oldest of them was written; None if there is none."""

    at_least: bool = False
    """Not all of the log was looked at."""

    def seconds(self, now_ms: int) -> float:
        """Give the age of the oldest; 0 if there is none."""
        return 0.0 if self.oldest_ms is None else max(0.0, (now_ms - self.oldest_ms) / 1000)

    def __add__(self, other: Lag) -> Lag:
        """Sum up over partitions."""
        oldest = [ms for ms in (self.oldest_ms, other.oldest_ms) if ms is not None]
        return Lag(self.transactions + other.transactions, min(oldest, default=None), self.at_least or other.at_least)


class LagCounter:
    """Counts, transaction by transaction, what each session still lacks."""

    def __init__(self, source: SiteId, position: Callable[[SessionKey, int], Position | None]) -> None:
        """Know the positions; a session without one has nothing yet."""
        self._source = source
        self._position = position
        self.lags: dict[tuple[SessionKey, int], Lag] = {}

    def add(self, partition: int, transaction: CompleteTransaction) -> None:
        """Take a transaction of the log in."""
        if transaction.torn:
            return  # goes to a dead letter, is delivered to nobody
        written_ms = transaction.records[-1].timestamp_ms
        for sink in {sink for record in transaction.records for sink in record.destinations}:
            session = SessionKey(self._source, sink, transaction.client)
            position = self._position(session, partition)
            if position is None or not is_forwarded(position, transaction):
                before = self.lags.get((session, partition), Lag())
                self.lags[session, partition] = before + Lag(1, written_ms)
