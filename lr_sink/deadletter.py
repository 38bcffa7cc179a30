"""
What is given up goes to `LRQ_DeadLetter_<client>_<source>`, exactly once: records and applied position are one Kafka
transaction. After a failure at any point the committed offset tells whether it happened.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from lr_kafka import layout, topics
from lr_kafka.borrowed import BorrowedProducer
from lr_kafka.clients import AdminClient, Cluster, KafkaError, KafkaHeaders, Message, Producer, Record
from lr_kafka.coordinator import CoordinatorWatch
from lr_kafka.errors import kafka_errors, translate
from lr_kafka.groups import Committed
from lr_kafka.member import GroupMember, TopicPart
from lr_kafka.reading import headers_of
from lr_wire import naming
from lr_wire.deadletter import dead_letter_headers
from lr_wire.errors import BrokerError, ReplicationError

# For this long after a crash in the middle nobody can read the committed offset, nor past the open transaction.
_TRANSACTION_TIMEOUT_MS = 15_000

# No limit of our own: the records have come from a queue of the same cluster, which decides.
_MESSAGE_MAX_BYTES = 1_000_000_000

_ROOM_S = 0.1


class DeadLetters:
    """Writes dead letters for one client on one cluster. Connects when the first one is written."""

    def __init__(
        self,
        cluster: Cluster,
        admin: AdminClient,
        client: naming.ClientName,
        timeout_s: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Choose, but connect to nothing yet."""
        self._cluster = cluster
        self._admin = admin
        self._client = client
        self._timeout_s = timeout_s
        self._now_ms = now_ms
        self._producer: Producer | None = None
        self._watch = CoordinatorWatch()
        self._topics: set[str] = set()

    def write(
        self,
        source: naming.SiteId,
        records: Sequence[Record],
        reason: str,
        member: GroupMember,
        offsets: Mapping[TopicPart, Committed],
    ) -> None:
        """
        Write records and commit offsets, both or neither.

        1. Make the topic if it is not there.
        2. Get a producer that can write transactions. Its id is new for each process: what fences a process that lost
           its partitions is the group's membership, which step 3 carries along.
        3. Records and offsets in one transaction.

        After any failure the producer is thrown away, and whether it happened is for the committed offset to tell.
        """
        try:
            topic = self._made(source)
            self._transact(self._ready(), topic, records, reason, member, offsets)
        except ReplicationError:
            self.close()
            raise

    def close(self) -> None:
        """Let the producer go."""
        producer, self._producer = self._producer, None
        self._topics.clear()
        if producer is not None:
            producer.purge()

    def _made(self, source: naming.SiteId) -> str:
        spec = layout.dead_letters(self._client, source)
        if spec.name not in self._topics:
            topics.create(self._admin, spec.name, spec.partitions, spec.config)
            self._topics.add(spec.name)
        return spec.name

    def _ready(self) -> Producer:
        if self._watch.lost:
            # A commit of the last transaction may be under way twice, and the second one would end the next half way.
            self.close()
        if self._producer is None:
            self._watch = CoordinatorWatch()
            producer = self._cluster.producer(
                watch=self._watch,
                transactional_id=f"LR_deadletter_{self._client}_{uuid.uuid4()}",
                transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
                message_max_bytes=_MESSAGE_MAX_BYTES,
            )
            with kafka_errors("get ready to write dead letters"):
                producer.init_transactions(self._timeout_s)
            self._producer = producer
        return self._producer

    def _transact(
        self,
        producer: Producer,
        topic: str,
        records: Sequence[Record],
        reason: str,
        member: GroupMember,
        offsets: Mapping[TopicPart, Committed],
    ) -> None:
        transaction = BorrowedProducer(producer)
        refused: list[KafkaError] = []
        committing = False
        try:
            transaction.begin()
            for record in records:
                self._produce(producer, topic, record, reason, refused)
            with kafka_errors(f"commit offsets with a dead letter to {topic}"):
                producer.send_offsets_to_transaction(
                    member.positions(offsets), member.group_metadata(), self._timeout_s
                )
            committing = True
            transaction.commit(self._timeout_s)
        except BrokerError as problem:
            # Once the commit is sent an abort may hit it half way: then only its time-out ends the transaction.
            if problem.abortable or not committing:
                with contextlib.suppress(ReplicationError):
                    transaction.abort(self._timeout_s)
            if refused:
                raise translate(refused[0], f"write a dead letter to {topic}") from problem
            raise

    def _produce(self, producer: Producer, topic: str, record: Record, reason: str, refused: list[KafkaError]) -> None:
        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        headers: KafkaHeaders = [
            *dead_letter_headers(
                reason, record.topic(), record.partition(), record.offset(), self._now_ms(), headers_of(record)
            )
        ]
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                with kafka_errors(f"write a dead letter to {topic}"):
                    producer.produce(
                        topic,
                        value=record.value(),
                        key=record.key(),
                        headers=headers,
                        timestamp=max(0, record.timestamp()[1]),
                        on_delivery=on_delivery,
                    )
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"dead letters to {topic} wait for longer than {self._timeout_s:g} s", retriable=True
                    ) from error
                producer.poll(_ROOM_S)
            else:
                return
