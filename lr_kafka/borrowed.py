"""
A transactional producer that belongs to the application: LR writes through it and says clearly what it cannot do.

librdkafka keeps the state of a producer's transaction to itself. What tells it nevertheless is `begin_transaction()`,
which is local (no broker hears of it): it fails with _NOT_CONFIGURED without a `transactional.id`, with _STATE and the
name of the state where it does not fit, with the cause after a fatal error; and where it succeeds there was no
transaction. The integration tests of the source client hold librdkafka to this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer, SerializingProducer

from lr_kafka.errors import kafka_errors, translate
from lr_wire.errors import (
    BrokerError,
    NotInTransaction,
    NotTransactional,
    PayloadTooLarge,
    ReplicationError,
    ResultUnknown,
    TransactionOpen,
    UsageError,
)

DeliveryCallback = Callable[[KafkaError | None, Message], None]
KafkaHeaders = list[tuple[str, str | bytes | None]]

REPLACE = "make a new producer with the same transactional.id, call its init_transactions(), and a new client with it"

# How long to leave the producer to itself before a commit or abort is tried again; also one wait for room in its queue.
_PAUSE_S = 0.1

# What an attempt gets when the deadline passes just before it: 0 would not even look at the result.
_LAST_ATTEMPT_S = 0.001

_STATE_NAME = re.compile(r"in state (\w+)")
_STATES_BEFORE_INIT = frozenset({"Init", "WaitPID", "ReadyNotAcked"})
_STATE_OPEN = "InTransaction"


class BorrowedProducer:
    """One `confluent_kafka.Producer` of the application."""

    def __init__(
        self,
        producer: Producer,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Refuse what can never write in a transaction. `init_transactions()` may still be to come."""
        if not isinstance(producer, Producer):
            raise UsageError(
                f"a {type(producer).__name__} is not a confluent_kafka.Producer",
                hint="give LR the producer that the application's own records go through",
            )
        self._producer = producer
        # A SerializingProducer would serialise LR's bytes once more; the class it derives from takes them as they are.
        raw = isinstance(producer, SerializingProducer)
        self._produce = partial(Producer.produce, producer) if raw else producer.produce
        self._clock = clock
        self._sleep = sleep
        refusal = self._probe()
        if refusal is not None and refusal.code() == KafkaError._NOT_CONFIGURED:
            raise _explain(refusal)

    def begin(self) -> None:
        """Begin a transaction."""
        refusal = self._try_begin()
        if refusal is not None:
            raise _explain(refusal)

    def require_open(self) -> None:
        """Raise NotInTransaction unless the application has begun a transaction."""
        refusal = self._probe()
        if refusal is None:
            raise NotInTransaction(
                "join() was called while the producer is in no transaction",
                hint="call begin_transaction() first, or use transaction(), which begins one itself",
            )
        if _state(refusal) != _STATE_OPEN:
            raise _explain(refusal)

    def partitions(self, topic: str, timeout_s: float) -> int:
        """Count the partitions of a topic, without making it."""
        # Asked for one topic by name, a broker with auto.create.topics.enable would make it, with settings that are not
        # LR's; asked for all, it does not.
        with kafka_errors(f"look up the partitions of {topic}"):
            found = self._producer.list_topics(timeout=timeout_s).topics.get(topic)
        if found is None or found.error is not None:
            raise BrokerError(
                f"the topic {topic} does not exist, or the producer's user may not see it",
                hint="`lr topics create` makes LR's topics",
                code="UNKNOWN_TOPIC_OR_PART",
            )
        return len(found.partitions)

    def produce(
        self,
        topic: str,
        partition: int,
        value: bytes,
        headers: KafkaHeaders,
        timestamp_ms: int,
        on_delivery: DeliveryCallback,
        patience_s: float,
    ) -> None:
        """
        Hand one record over, in the open transaction.

        When the producer's local queue is full this waits for room, for as long as `patience_s`, and serves the
        application's delivery callbacks meanwhile. If one of those raises, that exception comes out here and the record
        was not taken.
        """
        deadline = None
        while True:
            try:
                self._produce(
                    topic,
                    value=value,
                    partition=partition,
                    on_delivery=on_delivery,
                    timestamp=timestamp_ms,
                    headers=headers,
                )
            except BufferError as error:
                now = self._clock()
                deadline = deadline or now + patience_s
                if now >= deadline:
                    raise BrokerError(
                        f"the producer's local queue was full for {patience_s:g} s",
                        hint="abort; is the cluster up? if it is, raise queue.buffering.max.messages and .kbytes",
                        code="_QUEUE_FULL",
                        retriable=True,
                    ) from error
                self._serve(min(_PAUSE_S, deadline - now))
            except KafkaException as exception:
                raise self._explain_produce(exception.args[0], topic, len(value)) from exception
            else:
                return

    def commit(self, timeout_s: float) -> None:
        """
        Commit, again and again while the result is not known, until the deadline.

        Raises a BrokerError that is `abortable` if the transaction must be aborted now, ResultUnknown at the deadline,
        and any other BrokerError if the producer is of no use any more. After a time-out only committing again is safe:
        the request may be under way, and an abort could hit the next transaction.
        """
        self._end(self._producer.commit_transaction, "commit", timeout_s)

    def abort(self, timeout_s: float) -> None:
        """Abort, again and again while the result is not known, until the deadline; nothing to do is fine."""
        try:
            self._end(self._producer.abort_transaction, "abort", timeout_s)
        except NotInTransaction:
            return

    def _serve(self, timeout_s: float) -> None:
        # confluent-kafka raises fatal errors from any call that serves callbacks; and if a delivery callback is served
        # after it, as a SystemError that is caused by it.
        try:
            self._producer.poll(timeout_s)
        except KafkaException as exception:
            raise _explain(exception.args[0]) from exception
        except SystemError as exception:
            if not isinstance(exception.__cause__, KafkaException):
                raise
            raise _explain(exception.__cause__.args[0]) from exception

    def _end(self, end: Callable[[float], None], what: str, timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        raised: Exception | None = None
        while True:
            try:
                end(max(_LAST_ATTEMPT_S, deadline - self._clock()))
                break
            except KafkaException as exception:
                error = exception.args[0]
                if error.code() == KafkaError._STATE:
                    # After a callback's exception this tells that the call which it came out of had reached its end.
                    if raised is not None:
                        break
                    raise _explain(error) from exception
                if not error.retriable():
                    raise _explain_end(error, what) from (raised or exception)
                if self._clock() >= deadline:
                    raise _result_unknown(what, timeout_s, error.str()) from exception
                self._sleep(_PAUSE_S)
            except Exception as exception:
                # An application's delivery callback raised: confluent-kafka lets that replace the call's own result, so
                # ask again. There may be one such exception per record.
                raised = raised or exception
                if self._clock() >= deadline:
                    raise _result_unknown(what, timeout_s, "delivery callbacks raised exceptions") from exception
        if raised is not None:
            raised.add_note(f"LR: a delivery callback raised this; the {what} of the transaction itself succeeded")
            raise raised

    def _explain_produce(self, error: KafkaError, topic: str, size: int) -> ReplicationError:
        code = error.code()
        if code == KafkaError._STATE:
            return NotInTransaction(
                "the producer's transaction ended while LR still held entries of it; those were not written",
                hint="commit or abort after the with-block, never inside it",
            )
        if code == KafkaError._FATAL:
            # produce() says no more than that; begin_transaction() names the cause.
            return _explain(self._try_begin() or error)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return PayloadTooLarge(
                f"a record of {size} bytes is more than the producer takes",
                hint="abort the transaction; set max_message_bytes to the producer's message.max.bytes, "
                "and max_record_bytes below it",
            )
        return translate(error, f"write to {topic}")

    def _probe(self) -> KafkaError | None:
        """Tell why no transaction can be begun now; None if one could."""
        refusal = self._try_begin()
        if refusal is None:
            with kafka_errors("look at the producer's state"):
                # Nothing was produced, so this is local, too.
                self._producer.abort_transaction()
        return refusal

    def _try_begin(self) -> KafkaError | None:
        try:
            self._producer.begin_transaction()
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            return error
        return None


def _state(error: KafkaError) -> str:
    """Name librdkafka's state in an error that says an operation does not fit it."""
    match = _STATE_NAME.search(error.str()) if error.code() == KafkaError._STATE else None
    return match[1] if match else ""


def _explain(error: KafkaError) -> ReplicationError:
    """Say what stands in the way of a transaction, and what to do."""
    code = error.code()
    state = _state(error)
    if code == KafkaError._NOT_CONFIGURED:
        return NotTransactional(
            "the producer has no transactional.id",
            hint="set one, stable and unique per running instance, and call init_transactions()",
        )
    if state in _STATES_BEFORE_INIT:
        return NotTransactional(
            "the producer's init_transactions() was not called, or has not succeeded",
            hint="call it once, before the first transaction",
        )
    if state == _STATE_OPEN:
        return TransactionOpen(
            "the producer is in a transaction already",
            hint="use join() inside a transaction that the application begins and commits itself",
        )
    if state:
        return NotInTransaction(
            f"the producer is in no transaction that could go on (its state is {state})",
            hint="inside transaction() the application neither commits nor aborts; an exception aborts",
        )
    if code == KafkaError._CONFLICT:
        return BrokerError(
            f"an earlier commit or abort of the producer has not come to its end: {error.str()}",
            hint=f"call it again until it has; if the producer was fenced: {REPLACE}",
            code=error.name(),
        )
    problem = translate(error, "begin or go on with a transaction")
    if problem.abortable:
        problem = BrokerError(
            f"the producer's transaction has failed: {error.str()}",
            hint="call abort_transaction(), then begin again",
            code=error.name(),
            abortable=True,
        )
    return problem


def _explain_end(error: KafkaError, what: str) -> BrokerError:
    problem = translate(error, f"{what} the transaction")
    if problem.fenced:
        # It may have been committed: the request can have worked although its answer was lost.
        problem.add_note(f"LR: what became of this transaction only its topics tell; then {REPLACE}")
    return problem


def _result_unknown(what: str, timeout_s: float, last: str) -> ResultUnknown:
    return ResultUnknown(
        f"the {what} of the transaction was not answered within {timeout_s:g} s: whether it was committed is not known "
        f"(last seen: {last})",
        hint=REPLACE,
        code="_TIMED_OUT",
    )
