"""
One transaction of the application, as far as LR takes part in it.

`OwnTransaction` begins and commits the producer's transaction, `JoinedTransaction` works inside one that the
application begins and commits itself. In both, most of what is handed over is written when the with-block ends: only
then is it known which record is the last.
"""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import structlog

from lr_kafka.clients import KafkaError, Message
from lr_kafka.errors import translate
from lr_source.destinations import DestinationSet
from lr_source.entry import Entry, check_payload, checked_headers
from lr_source.outbox import Outbox
from lr_source.packing import ENTRY_BYTES, Packed, Packer, entry_size
from lr_wire import naming
from lr_wire.errors import (
    BrokerError,
    InvalidEntry,
    NotInTransaction,
    PayloadTooLarge,
    ProducerFenced,
    ReplicationError,
    ResultUnknown,
    UsageError,
)
from lr_wire.records import Header, ReplicationId, TxnId

_log = structlog.get_logger("lr.source")


class State(enum.Enum):
    """How far a transaction is."""

    NEW = "has not been entered"
    OPEN = "takes entries"
    FAILED = "has failed"  # something taken could not be given to the producer: only an abort is left
    CLOSED = "has ended"


class Transaction(ABC):
    """What `client.transaction()` and `client.join()` give: a with-block, once, in which entries are handed over."""

    _id: TxnId
    _packer: Packer
    _partition: int

    def __init__(self, outbox: Outbox, ordering_key: str | bytes | None) -> None:
        self._outbox = outbox
        self._max_payload_bytes = outbox.settings.max_payload_bytes
        self._ordering_key = ordering_key
        self._state = State.NEW
        self._cause: BaseException | None = None  # of FAILED
        self._undelivered: KafkaError | None = None

    @property
    def id(self) -> TxnId:
        """The transaction's id, on every site. There is one from the beginning of the with-block."""
        if self._state is State.NEW:
            raise self._refusal()
        return self._id

    def transmit_log_entry(
        self,
        payload: bytes,
        destinations: Iterable[str],
        *,
        key: bytes | None = None,
        headers: Iterable[Header] | None = None,
    ) -> ReplicationId:
        """
        Hand over one entry, to arrive at its destinations if and when the transaction is committed.

        Duplicate destinations count once; without any, the entry is not replicated but has its id and place all the
        same. With a key or headers it travels in a record of its own and both arrive with it. An entry that is refused
        (InvalidName, OwnSite, InvalidEntry, PayloadTooLarge) leaves the transaction as it was.
        """
        if not self._outbox.lock.acquire(blocking=False):
            raise self._outbox.busy()
        try:
            if self._state is not State.OPEN:
                raise self._refusal()
            return self._take(*self._checked(payload, destinations, key, headers))
        finally:
            self._outbox.lock.release()

    def transmit_log_entries(self, entries: Iterable[Entry]) -> list[ReplicationId]:
        """Hand over several entries. If one is refused, none is taken."""
        entries = list(entries)
        if not self._outbox.lock.acquire(blocking=False):
            raise self._outbox.busy()
        try:
            if self._state is not State.OPEN:
                raise self._refusal()
            checked = [self._checked_entry(place, entry) for place, entry in enumerate(entries)]
            return [self._take(*one) for one in checked]
        finally:
            self._outbox.lock.release()

    def __enter__(self) -> Self:
        with self._outbox.exclusive():
            if self._state is not State.NEW:
                raise UsageError(f"transaction {self._id} {self._state.value}", hint="each with-block needs a new one")
            self._outbox.require_idle()
            self._begin()
            self._id = self._outbox.opened()
            self._packer = Packer(self._outbox.client, self._id, self._outbox.settings.max_open_bytes, _now_ms)
            self._state = State.OPEN
            try:
                self._partition = self._outbox.partition(self._ordering_key)
            except BaseException as error:
                self._close(error)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Another thread's call may be under way, by mistake. What it has taken counts; what comes after is refused.
        with self._outbox.exclusive(patience_s=self._outbox.settings.queue_timeout_s):
            self._close(error)

    @abstractmethod
    def _begin(self) -> None:
        """Begin the producer's transaction, or find it open."""

    @abstractmethod
    def _complete(self) -> None:
        """End the with-block that was left normally."""

    @abstractmethod
    def _cancel(self, error: BaseException) -> None:
        """End the with-block that was left by an exception; raise nothing else."""

    def _close(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self._complete()
            else:
                self._cancel(error)
        finally:
            self._state = State.CLOSED
            self._outbox.closed(self._packer.entries)

    def _write_rest(self) -> None:
        """Write what was held back, the last record among it."""
        if self._state is State.FAILED:
            raise self._refusal()
        self._write(self._packer.finish())

    def _checked_entry(
        self, place: int, entry: Entry
    ) -> tuple[DestinationSet, bytes, int, bytes | None, tuple[Header, ...]]:
        if not isinstance(entry, Entry):
            raise InvalidEntry(f"a {type(entry).__name__} at place {place}", hint="give Entry objects")
        try:
            return self._checked(entry.payload, entry.destinations, entry.key, entry.headers)
        except ReplicationError as error:
            error.add_note(f"LR: this is the entry at place {place} of those handed over together")
            raise

    def _checked(
        self, payload: bytes, destinations: Iterable[str], key: bytes | None, headers: Iterable[Header] | None
    ) -> tuple[DestinationSet, bytes, int, bytes | None, tuple[Header, ...]]:
        where = self._outbox.destinations.resolve(destinations)
        check_payload(payload, self._max_payload_bytes)
        own: tuple[Header, ...] = ()
        size = len(payload) + ENTRY_BYTES
        if key is not None or headers:
            own = checked_headers(key, headers)
            size = entry_size(payload, key, own)
        if size > where.room:
            raise PayloadTooLarge(
                f"an entry of {size} bytes (payload, key, headers) for {len(where.names)} destinations: "
                f"beside those a record has room for {max(0, where.room)}",
                hint="send less at once, or raise max_message_bytes and Kafka's own limits",
            )
        return where, payload, size, key, own

    def _take(
        self, where: DestinationSet, payload: bytes, size: int, key: bytes | None, headers: tuple[Header, ...]
    ) -> ReplicationId:
        packer = self._packer
        index = packer.entries
        try:
            ready = packer.add(where, payload, size, key, headers)
            if ready:
                self._write(ready)
        except BaseException as error:
            self._state = State.FAILED
            self._cause = error
            raise
        return ReplicationId(self._id.incarnation, self._id.first_sequence + index)

    def _write(self, records: list[Packed]) -> None:
        outbox = self._outbox
        try:
            for record in records:
                outbox.producer.produce(
                    naming.SEND_LOG_ENTRIES,
                    self._partition,
                    record.value,
                    record.tags,
                    record.timestamp_ms,
                    self._delivered,
                    outbox.settings.queue_timeout_s,
                )
        except BrokerError:
            outbox.forget_partitions()
            raise

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        # Called by whoever polls the producer, in any thread, and after a fatal error with an exception pending in the
        # interpreter: nothing but this may happen here, no call of a C function either.
        if error is not None and self._undelivered is None:
            self._undelivered = error

    def _refusal(self) -> ReplicationError:
        if self._state is State.FAILED:
            fenced = isinstance(self._cause, ProducerFenced)
            kind = ProducerFenced if fenced else BrokerError
            return kind(
                f"transaction {self._id} has failed and can only be aborted: {self._cause}",
                hint="leave the with-block with an exception",
                fenced=fenced,
                abortable=not fenced,
            )
        name = f"transaction {self._id}" if self._state is State.CLOSED else "the transaction"
        return NotInTransaction(
            f"{name} of client {self._outbox.client} {self._state.value}",
            hint="hand entries over inside `with client.transaction() as txn:` or `with client.join() as txn:`",
        )


class OwnTransaction(Transaction):
    """Begins and commits the producer's transaction; an exception aborts it."""

    def _begin(self) -> None:
        self._outbox.producer.begin()

    def _complete(self) -> None:
        outbox = self._outbox
        try:
            self._write_rest()
        except BaseException as error:
            self._abort(error)
            raise
        try:
            outbox.producer.commit(outbox.settings.commit_timeout_s)
        except BrokerError as error:
            outbox.forget_partitions()
            if not error.abortable:
                outbox.broke(error)
                raise
            failure = self._failure(error)
            self._abort(failure)
            raise failure from error
        except BaseException as error:
            # An Exception is not Kafka's: the application ended the transaction, or a delivery callback of it raised.
            if not isinstance(error, Exception):
                outbox.broke(ResultUnknown("the commit was interrupted"))
            raise

    def _cancel(self, error: BaseException) -> None:
        self._abort(error)

    def _abort(self, error: BaseException) -> None:
        """Abort because of `error`, which stays the one that is raised."""
        outbox = self._outbox
        try:
            outbox.producer.abort(outbox.settings.commit_timeout_s)
        except BrokerError as problem:
            outbox.broke(problem)
            if problem.fenced and isinstance(error, ProducerFenced):
                return  # what cannot be written cannot be aborted either, and need not
            error.add_note(f"LR: the abort that followed failed as well: {problem}")
            _log.error("transaction.abort_failed", client=outbox.client, txn=str(self._id), reason=str(problem))
        except Exception as problem:  # noqa: BLE001 - a delivery callback's; the abort itself succeeded
            error.add_note(f"LR: while the transaction was aborted, a delivery callback raised {problem!r}")
        except BaseException:
            outbox.broke(ResultUnknown("the abort was interrupted"))
            raise

    def _failure(self, error: BrokerError) -> BrokerError:
        """Tell why a transaction that Kafka refuses to commit has failed, and that it is aborted."""
        problem = error
        if self._undelivered is not None:
            undelivered = translate(self._undelivered, f"write to {naming.SEND_LOG_ENTRIES}")
            # A record that was merely still queued when another one failed tells nothing.
            problem = error if undelivered.code.startswith("_PURGE") else undelivered
        return BrokerError(
            f"transaction {self._id} of client {self._outbox.client} was aborted: {problem.message}",
            hint=problem.hint,
            code=problem.code,
            retriable=problem.retriable,
            unauthorised=problem.unauthorised,
        )


class JoinedTransaction(Transaction):
    """Takes part in a transaction that the application begins, and commits or aborts after the with-block."""

    def _begin(self) -> None:
        """The application has: `join()` looked."""

    def _complete(self) -> None:
        self._write_rest()

    def _cancel(self, error: BaseException) -> None:
        if self._packer.records:
            _log.warning(
                "transaction.joined_block_failed",
                client=self._outbox.client,
                txn=str(self._id),
                records_written=self._packer.records,
                reason=repr(error),
                hint="abort the producer's transaction: a commit would replicate a part of it",
            )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
