"""What the transactions of one client share: its producer, its names and numbers, and the rule of one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from lr_kafka.borrowed import REPLACE, BorrowedProducer
from lr_source.destinations import Destinations
from lr_source.partitions import PartitionCount, partition_of
from lr_source.settings import ClientSettings
from lr_wire import naming
from lr_wire.errors import BrokerError, InvalidEntry, ProducerFenced, ResultUnknown, TransactionOpen, UsageError
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import TxnId


class Outbox:
    """The state of one `RoutingQueueClient`."""

    def __init__(
        self, client: ClientName, source: SiteId, producer: BorrowedProducer, settings: ClientSettings
    ) -> None:
        self.client = client
        self.settings = settings
        self.producer = producer
        self.destinations = Destinations(source, settings)
        self.lock = Lock()
        """Held during every call. Who finds it held is a second thread, or a callback: both are refused."""
        self._incarnation = os.urandom(16)
        self._next_sequence = 0
        self._open: TxnId | None = None
        self._broken: BrokerError | None = None
        self._partitions = PartitionCount(self._count_partitions, settings.metadata_max_age_s)

    def require_idle(self) -> None:
        """Refuse a transaction inside another one, and any on a producer that is of no use any more."""
        if self._broken is not None:
            kind = ProducerFenced if self._broken.fenced else ResultUnknown
            raise kind(
                f"the producer of client {self.client} cannot be used any more: {self._broken.message}",
                hint=REPLACE,
                code=self._broken.code,
                fenced=self._broken.fenced,
            ) from self._broken
        if self._open is not None:
            raise TransactionOpen(
                f"client {self.client} is in transaction {self._open} already",
                hint="transactions do not nest: hand the open one on, or make a client with a producer of its own",
            )

    def opened(self) -> TxnId:
        """Name the transaction that begins."""
        self._open = TxnId(self._incarnation, self._next_sequence)
        return self._open

    def closed(self, entries: int) -> None:
        """Note that the open transaction has ended; its numbers are used up, whatever became of it."""
        # At least one, so that a transaction without entries has an id of its own, too.
        self._next_sequence += max(1, entries)
        self._open = None

    def broke(self, problem: BrokerError) -> None:
        """Note that the producer must not be used any more."""
        self._broken = problem

    def partition(self, ordering_key: str | bytes | None) -> int:
        """Choose the partition of a transaction."""
        if ordering_key is None:
            ordering_key = self.client
        if not isinstance(ordering_key, str | bytes):
            raise InvalidEntry(f"an ordering key of type {type(ordering_key).__name__}", hint="it is a str or bytes")
        key = ordering_key if isinstance(ordering_key, bytes) else ordering_key.encode(errors="surrogatepass")
        return partition_of(key, self._partitions.get())

    def forget_partitions(self) -> None:
        """Look the partitions up again for the next transaction."""
        self._partitions.forget()

    @contextmanager
    def exclusive(self, patience_s: float = 0.0) -> Iterator[None]:
        """Hold the lock; raise if another call is under way for longer than `patience_s`."""
        if not self.lock.acquire(timeout=patience_s):
            raise self.busy()
        try:
            yield
        finally:
            self.lock.release()

    def busy(self) -> UsageError:
        """Say that two calls came at once."""
        return UsageError(
            f"two calls of client {self.client} at the same time",
            hint="use a client from one thread at a time, as its producer's transactions, and not in callbacks",
        )

    def _count_partitions(self) -> int:
        return self.producer.partitions(naming.SEND_LOG_ENTRIES, self.settings.metadata_timeout_s)
