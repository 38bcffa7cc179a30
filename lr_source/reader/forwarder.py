"""
Records and positions to a sink's cluster, in one transaction.

A forwarder is one life of a transactional producer: fenced in, used, and thrown away after the first failure.
Whatever had become of its last transaction, the next one fences it and reads the position back, so a result that is
not known is never guessed.

That covers results which librdkafka keeps to itself. When the connection to the transaction coordinator breaks, it
sends a commit again on another one, and the first request may still be under way: it would end the next transaction
of this producer in its middle, and a part of it would be visible. So a producer that has lost that connection begins
no further transaction; the next one has another epoch, and what is under way from this one is refused.
"""

from __future__ import annotations

import time

from lr_kafka.clients import Cluster, KafkaHeaders, Producer
from lr_kafka.coordinator import CoordinatorWatch
from lr_kafka.errors import KafkaException, kafka_errors, translate
from lr_source.reader.hooks import Hooks, Step
from lr_source.reader.settings import Limits
from lr_wire import naming
from lr_wire.errors import BrokerError
from lr_wire.naming import SiteId

# Records are cut from what the source's brokers have accepted; whether they fit is for the sink's brokers to say.
_MESSAGE_MAX_BYTES = 512 * 1024 * 1024
_FULL_QUEUE_POLL_S = 0.05
_METADATA_POLL_S = 0.05
_FLUSH_STEP_S = 0.5


class Forwarder:
    """The one transactional producer of source->sink."""

    def __init__(
        self, source: SiteId, cluster: Cluster, limits: Limits, hooks: Hooks, transaction_bytes: int | None = None
    ) -> None:
        """
        Fence: when this returns, no earlier producer of source->sink can write any more.

        `transaction_bytes` is the limit to begin with, if it is to be lower than that of `limits`: after a transaction
        that could not be committed in time, a smaller one may be. It grows with each success.
        """
        self.transaction_bytes = transaction_bytes or limits.transaction_bytes
        self._sink = cluster.site
        self._limits = limits
        self._hooks = hooks
        self.open = False
        self._carries_entries = False
        self._records = 0
        self._bytes = 0
        self._began = 0.0
        self._coordinator = CoordinatorWatch()
        with kafka_errors(f"open a producer for {self._sink}"):
            self._producer: Producer = cluster.producer(
                watch=self._coordinator,
                transactional_id=naming.forwarder_transactional_id(source, self._sink),
                transaction_timeout_ms=int(limits.transaction_timeout_s * 1000),
                socket_timeout_ms=int(min(limits.request_timeout_s, limits.transaction_timeout_s) * 1000),
                message_max_bytes=_MESSAGE_MAX_BYTES,
                # Room for a whole transaction: the limit on it is ours, not the local queue's.
                queue_buffering_max_messages=max(100_000, 2 * limits.transaction_records),
                queue_buffering_max_kbytes=min(2 * 1024 * 1024 - 1, max(65_536, 2 * limits.transaction_bytes // 1024)),
                linger_ms=5,
                batch_size=1024 * 1024,
                batch_num_messages=10_000,
                # A failed delivery fails the commit; nobody asks for the successful ones.
                delivery_report_only_error=True,
            )
        with kafka_errors(f"fence earlier producers of {source}->{self._sink}"):
            self._producer.init_transactions(limits.request_timeout_s)

    @property
    def full(self) -> bool:
        """The open transaction has reached a limit."""
        limits = self._limits
        return self.open and (
            self._records >= limits.transaction_records
            or self._bytes >= self.transaction_bytes
            or time.monotonic() - self._began >= limits.transaction_s
        )

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        headers: KafkaHeaders,
        timestamp_ms: int,
        key: bytes | None = None,
    ) -> None:
        """Add a record to the open transaction, opening one if there is none."""
        if not self.open:
            self._begin()
        if not self._carries_entries:
            self._carries_entries = True
            self._hooks.step(self._sink, Step.BEFORE_SEND)
        self._produce(topic, partition, value, key, headers, timestamp_ms)
        self._records += 1
        self._bytes += len(value) if value else 0

    def put_status(self, key: str, value: bytes) -> None:
        """Add a record of `LR_Status` to the open transaction, opening one if there is none."""
        if not self.open:
            self._begin()
        self._produce(naming.STATUS, 0, value, key.encode())

    def await_partitions(self, topic: str, partitions: int) -> None:
        """Wait until the producer knows this many partitions of a topic that was made or has grown just now."""
        deadline = time.monotonic() + self._limits.request_timeout_s
        while True:
            with kafka_errors(f"look up {topic} on {self._sink}"):
                found = self._producer.list_topics(topic, self._limits.request_timeout_s).topics[topic]
            if len(found.partitions) >= partitions and all(part.leader >= 0 for part in found.partitions.values()):
                return
            if time.monotonic() >= deadline:
                raise BrokerError(
                    f"{topic} on {self._sink} has {len(found.partitions)} partitions with a leader, not {partitions}",
                    retriable=True,
                )
            time.sleep(_METADATA_POLL_S)

    def sent(self) -> None:
        """Say that all of a transaction's entries were handed over; what is left is its positions and its commit."""
        if self._carries_entries:
            self._hooks.step(self._sink, Step.AFTER_SEND)

    def commit(self) -> None:
        """Commit. After any error the result is not known, and this producer must neither commit again nor abort."""
        if self._carries_entries:
            self._hooks.step(self._sink, Step.BEFORE_COMMIT)
        self._flush()
        with kafka_errors(f"commit on {self._sink}"):
            self._producer.commit_transaction(self._limits.request_timeout_s)
        if self._carries_entries:
            self._hooks.step(self._sink, Step.AFTER_COMMIT)
        self.open = False
        if self._carries_entries:
            self.transaction_bytes = min(
                self._limits.transaction_bytes, self.transaction_bytes + self.transaction_bytes // 8 + 1
            )

    def _flush(self) -> None:
        """
        Wait until all records have arrived, for as long as they keep arriving: a slow sink is not a dead one.

        The time-out of a commit is for the commit alone then, and not for what a slow connection has still to carry.
        """
        waiting, deadline = len(self._producer), time.monotonic() + self._limits.request_timeout_s
        while waiting:
            with kafka_errors(f"write to {self._sink}"):
                left = self._producer.flush(_FLUSH_STEP_S)
            if left < waiting:
                waiting, deadline = left, time.monotonic() + self._limits.request_timeout_s
            elif time.monotonic() >= deadline:
                raise BrokerError(
                    f"{self._sink} has taken no record for {self._limits.request_timeout_s} s, {left} are waiting",
                    hint="is it slow or away? The transaction is given up and begun again, smaller",
                    retriable=True,
                )

    def discard(self) -> None:
        """Throw the producer away without waiting for anything; an open transaction is ended by whoever comes next."""
        self._producer.purge()
        del self._producer

    def _begin(self) -> None:
        # librdkafka logs a lost connection before it sends again what was under way on it: after a commit this tells.
        self._producer.poll(0)
        if self._coordinator.lost:
            raise BrokerError(
                f"the connection to {self._sink} was lost: {self._coordinator.lost}",
                hint="a new producer takes over, so that nothing that is still under way from this one can do harm",
                retriable=True,
            )
        with kafka_errors(f"begin a transaction on {self._sink}"):
            self._producer.begin_transaction()
        self.open = True
        self._carries_entries = False
        self._records = self._bytes = 0
        self._began = time.monotonic()

    def _produce(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: KafkaHeaders | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        deadline = 0.0
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=timestamp_ms, headers=headers)
                return
            except KafkaException as exception:
                # What made the transaction fail is only logged, and the log is only heard when the producer is polled.
                self._producer.poll(0)
                doing = f"write to {topic} on {self._sink}"
                cause = f" ({self._coordinator.failed})" if self._coordinator.failed else ""
                raise translate(exception.args[0], f"{doing}{cause}") from exception
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + self._limits.request_timeout_s
                if now >= deadline:
                    raise BrokerError(
                        f"{self._sink} takes no records: the local queue has been full for "
                        f"{self._limits.request_timeout_s} s",
                        retriable=True,
                    ) from None
                self._producer.poll(_FULL_QUEUE_POLL_S)
