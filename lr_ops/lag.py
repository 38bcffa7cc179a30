"""How far a session is behind: complete transactions in the log that it does not have yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def __init__(
        self, source: SiteId, position: Callable[[SessionKey, int], Position | None], starts: Mapping[int, int]
    ) -> None:
        """Know the positions (a session without one has nothing yet), and where the counting begins."""
        self._source = source
        self._position = position
        self._starts = starts
        self._lags: dict[tuple[SessionKey, int], Lag] = {}

    @property
    def behind(self) -> frozenset[SessionKey]:
        """The sessions that lack something."""
        return frozenset(session for session, _ in self._lags)

    def add(self, partition: int, transaction: CompleteTransaction) -> None:
        """Take a transaction of the log in."""
        if transaction.torn:
            return  # goes to a dead letter, is delivered to nobody
        written_ms = transaction.records[-1].timestamp_ms
        for sink in {sink for record in transaction.records for sink in record.destinations}:
            session = SessionKey(self._source, sink, transaction.client)
            position = self._position(session, partition)
            if position is None or not is_forwarded(position, transaction):
                before = self._lags.get((session, partition), Lag())
                self._lags[session, partition] = before + Lag(1, written_ms)

    def lag(self, session: SessionKey, partition: int) -> Lag:
        """Give what a session lacks; at least that, if the counting began behind its position."""
        position = self._position(session, partition)
        needed_from = position.resume_from if position else 0
        counted = self._lags.get((session, partition), Lag())
        return counted + Lag(at_least=needed_from < self._starts.get(partition, 0))
