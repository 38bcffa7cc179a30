"""The source's log as a list of complete transactions, up to a point at which nothing is undecided."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_kafka.reading import Progress, place, read_range
from lr_source.reader.assembly import CompleteTransaction, PartitionAssembler
from lr_wire import codec
from lr_wire.errors import BrokerError, WireError
from lr_wire.naming import SEND_LOG_ENTRIES
from lr_wire.records import TxnId


@dataclass(frozen=True, slots=True)
class LogCut:
    """The send queue at one moment."""

    topic_id: str
    cluster_id: str
    starts: Mapping[int, int]
    stable: Mapping[int, int]
    """Up to here every transaction is decided: what a `read_committed` reader can see."""

    ends: Mapping[int, int]
    """Taken after `stable`, so the commit marker of everything before `stable` lies below it."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Transactions that have records before a cut, but may have more behind it."""

    txns: frozenset[TxnId] = frozenset()
    first_offset: int = 0
    """Where the oldest of them begins; the cut itself if there is none."""


def cut_log(cluster: Cluster) -> LogCut:
    """Look at the send queue as it is now."""
    admin = cluster.admin()
    info = topics.describe(admin, SEND_LOG_ENTRIES)
    if info is None:
        raise BrokerError(f"{SEND_LOG_ENTRIES} does not exist on {cluster.site}", hint="`lr topics create` makes it")
    partitions = range(info.partitions)
    return LogCut(
        info.id,
        topics.cluster_id(admin),
        topics.log_starts(admin, SEND_LOG_ENTRIES, partitions),
        topics.last_stable_offsets(admin, SEND_LOG_ENTRIES, partitions),
        topics.high_watermarks(admin, SEND_LOG_ENTRIES, partitions),
    )


class LogReading:
    """One pass over the log from `starts` up to a cut, or as far as the time allows."""

    def __init__(self, cluster: Cluster, cut: LogCut, starts: Mapping[int, int] | None = None) -> None:
        """Begin at `starts`, or at the beginning of the log where it says nothing or what has left the log."""
        self._cluster = cluster
        self._cut = cut
        self.starts = {p: max(first, (starts or {}).get(p, first)) for p, first in cut.starts.items()}
        self.first_ms: dict[int, int] = {}
        """When the first record of each partition was written."""

        self.undecided: dict[int, Undecided] = {}

        self._unread = {p for p, start in self.starts.items() if start < cut.stable[p]}

    def is_whole(self, partition: int) -> bool:
        """Tell whether a partition was read up to the cut."""
        return partition not in self._unread

    def transactions(
        self, *, max_s: float | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[int, CompleteTransaction]]:
        """Yield partition and transaction in the order of completion; stop early when the time is over."""
        assemblers = {p: PartitionAssembler(start) for p, start in self.starts.items()}
        ranges = {p: (start, self._cut.stable[p]) for p, start in self.starts.items()}
        until = None if max_s is None else time.monotonic() + max_s
        messages = read_range(self._cluster, SEND_LOG_ENTRIES, ranges, progress=progress)
        for message in messages:
            partition, offset = place(message)
            self.first_ms.setdefault(partition, message.timestamp()[1])
            assembler = assemblers[partition]
            try:
                record = codec.decode_send(message.value(), self._cluster.site)
            except WireError:
                # It is nobody's: the reader puts it into a dead letter.
                complete = assembler.unreadable(offset)
            else:
                record.timestamp_ms = message.timestamp()[1]
                # All that can be read before the cut was decided when the cut was made.
                end = self._cut.ends[partition]
                complete = assembler.add(offset, record, lambda end=end: end)  # type: ignore[misc]
            for transaction in complete:
                yield partition, transaction
            if until is not None and time.monotonic() > until:
                return
        self._unread.clear()
        for partition, assembler in assemblers.items():
            for transaction in assembler.advance(self._cut.stable[partition]):
                yield partition, transaction
            self.undecided[partition] = Undecided(assembler.open_transactions, assembler.resume_from)
