"""
A model of one partition of the send queue, as a `read_committed` consumer sees it while it grows.

Producers' transactions interleave; each ends with a marker, commit or abort. The model knows nothing of how LR keeps
positions: it says which records are visible at a moment, and what a sink must have in the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lr_wire.naming import ClientName, SiteId
from lr_wire.records import SendRecord, TxnId

CLIENT, SITE = ClientName("policy"), SiteId("site-b")


@dataclass
class ModelTransaction:
    """One transaction of one producer."""

    txn: TxnId
    records: int
    committed: bool
    terminated: bool
    offsets: list[int] = field(default_factory=list)
    marker: int = -1


@dataclass
class ModelLog:
    """All that will ever be in the partition; a moment is a high watermark, the length of a prefix."""

    transactions: list[ModelTransaction]
    # offset -> (transaction, number of the record), or None for a marker
    entries: list[tuple[ModelTransaction, int] | None]

    def last_stable_offset(self, high_watermark: int) -> int:
        """Give the first offset of a transaction that is open at this moment."""
        open_ = [t.offsets[0] for t in self.transactions if t.offsets[0] < high_watermark <= t.marker]
        return min(open_, default=high_watermark)

    def visible(self, start: int, end: int) -> list[tuple[int, SendRecord]]:
        """Give the records in [start, end) that a consumer is shown; `end` is at most the last stable offset."""
        shown = []
        for offset in range(start, end):
            entry = self.entries[offset]
            if entry is not None and entry[0].committed:
                transaction, number = entry
                last = transaction.terminated and number == transaction.records - 1
                shown.append((offset, SendRecord(CLIENT, transaction.txn, (SITE,), number, last, 1, b"v", 0)))
        return shown

    def expected(self) -> set[TxnId]:
        """Give the transactions that a sink must have."""
        return {t.txn for t in self.transactions if t.committed}


def generate(rng: random.Random, producers: int, transactions: int) -> ModelLog:
    """Make a log in which the transactions of several producers interleave at random."""
    log = ModelLog([], [])
    todo = {producer: rng.randint(1, transactions) for producer in range(producers)}
    active: dict[int, ModelTransaction] = {}
    while todo or active:
        producer = rng.choice(sorted(todo.keys() | active.keys()))
        current = active.get(producer)
        if current is None:
            number = todo[producer] = todo[producer] - 1
            if number == 0:
                del todo[producer]
            current = active[producer] = ModelTransaction(
                TxnId(bytes([producer]), number),
                rng.randint(1, 4),
                committed=rng.random() < 0.8,
                terminated=rng.random() < 0.75,
            )
        if len(current.offsets) < current.records:
            current.offsets.append(len(log.entries))
            log.entries.append((current, len(current.offsets) - 1))
        else:
            current.marker = len(log.entries)
            log.entries.append(None)
            log.transactions.append(current)
            del active[producer]
    log.transactions.sort(key=lambda t: t.offsets[0])
    return log
