"""What a listener says: to its log, and to the application if somebody has to do something."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import structlog

from lr_kafka.clients import Record
from lr_sink.apply import Answer
from lr_sink.assembly import Torn, Whole
from lr_sink.partition import Partition
from lr_sink.settings import ListenerSettings
from lr_wire.errors import ApplyFailed, BrokerError, ReplicationError, UsageError, WireError

# A cluster that is away is reported by every attempt to connect; once in a while is enough.
_TROUBLE_LOG_S = 30.0


class Reporter:
    """The listener's voice."""

    def __init__(
        self,
        on_error: Callable[[ReplicationError], None],
        settings: ListenerSettings,
        clock: Callable[[], float] = time.monotonic,
        **context: str,
    ) -> None:
        """`context` goes along with everything that is logged."""
        self.log = structlog.get_logger().bind(**context)
        self._on_error = on_error
        self._settings = settings
        self._clock = clock
        self._trouble_told = -math.inf
        self._unauthorised: set[str] = set()

    def tell(self, error: ReplicationError) -> None:
        """Tell the application what needs somebody."""
        self.log.error("listener.error", error=str(error), kind=type(error).__name__)
        try:
            self._on_error(error)
        except Exception:
            self.log.exception("listener.on_error_failed")

    def trouble(self, problem: BrokerError) -> None:
        """Log that the cluster cannot be reached; the client goes on trying, with back-off."""
        now = self._clock()
        if now >= self._trouble_told + _TROUBLE_LOG_S:
            self._trouble_told = now
            self.log.warning("listener.cluster_trouble", error=str(problem))

    def event(self, problem: BrokerError) -> None:
        """Take an error that comes in place of a record and ends nothing."""
        if problem.code in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}:
            # There is no queue yet, or a queue was deleted: the group will tell.
            self.log.info("listener.waiting_for_queues")
        elif problem.code == "_MAX_POLL_EXCEEDED":
            self.tell(
                UsageError(
                    "on_transaction took so long that the group gave this listener's partitions away; what it has "
                    "applied since the last commit comes again, unless there is a position store",
                    hint="make it quicker, or set max_poll_interval_ms above the longest call",
                )
            )
        elif problem.unauthorised:
            # Comes with every look for new queues, until somebody grants the right.
            if problem.code not in self._unauthorised:
                self._unauthorised.add(problem.code)
                self.tell(problem)
        else:
            self.log.warning("listener.kafka_error", error=str(problem))

    def attempt_failed(self, p: Partition, item: Whole[Record], answer: Answer, wait_s: float) -> None:
        """Log that a transaction was not taken and comes again."""
        self.log.warning(
            "listener.transaction_failed",
            queue=p.part.topic,
            partition=p.part.partition,
            offset=item.first_offset,
            txn_id=str(item.txn),
            attempt=p.retry.failures,
            reason=answer.reason,
            again_in_s=round(wait_s, 2),
        )

    def apply_failed(self, p: Partition, item: Whole[Record], answer: Answer) -> ApplyFailed:
        """Say that a transaction was not taken, however often it was tried."""
        error = ApplyFailed(
            f"{p.where(item)}: transaction {item.txn} was not applied in {p.retry.failures} attempts; the last time "
            f"{answer.reason}",
            hint=self._next_step("find out why; starting the listener again tries it again"),
        )
        error.__cause__ = answer.cause
        return error

    def misused(self, p: Partition, item: Whole[Record], answer: Answer) -> UsageError:
        """Say that the application does what cannot work."""
        error = UsageError(f"{p.where(item)}: {answer.reason}")
        error.__cause__ = answer.cause
        return error

    def torn(self, p: Partition, item: Torn[Record]) -> WireError:
        """Say that records make no transaction."""
        return WireError(f"{p.where(item)}: {item.reason}", hint=self._next_step("find out who writes to this queue"))

    def _next_step(self, when_halted: str) -> str:
        return when_halted if self._settings.on_failure == "halt" else "it is kept in the dead letters"
