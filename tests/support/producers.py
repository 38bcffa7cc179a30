"""
A producer without a cluster, for what a real one does only when a cluster fails at the right moment.

It keeps librdkafka's states and says its words for them (the integration tests hold these against a real broker). What
a commit, abort or produce does beyond that is scripted, one item per call: an exception is raised, all else is success.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from lr_wire import naming


def kafka_error(code: int, text: str = "", **flags: bool) -> KafkaException:
    """What confluent-kafka raises; flags are `fatal`, `retriable` and `txn_requires_abort`."""
    return KafkaException(KafkaError(code, text, **flags))


def timed_out() -> KafkaException:
    return kafka_error(KafkaError._TIMED_OUT, "timed out", retriable=True)


def fenced() -> KafkaException:
    return kafka_error(KafkaError._FENCED, "fenced by a newer instance", fatal=True)


def failed_delivery() -> KafkaException:
    return kafka_error(KafkaError._INCONSISTENT, "1 message(s) failed delivery", txn_requires_abort=True)


class FakeProducer(Producer):
    """One transactional producer and what it was asked to do."""

    def __init__(self, *, state: str = "Ready", partitions: int | None = 3) -> None:
        self.state = state
        self.partitions = partitions
        self.calls: list[str] = []
        self.produced: list[dict[str, Any]] = []
        self.commits: list[object] = []
        self.aborts: list[object] = []
        self.produces: list[object] = []
        self.on_poll: Callable[[], None] = lambda: None

    def begin_transaction(self) -> None:
        self._require("Ready")
        self.state = "InTransaction"

    def commit_transaction(self, timeout: float = -1) -> None:
        self._end("commit", self.commits)

    def abort_transaction(self, timeout: float = -1) -> None:
        self._end("abort", self.aborts)

    def produce(self, topic: str, *_: Any, **record: Any) -> None:
        if self.state != "InTransaction":
            raise kafka_error(KafkaError._STATE, "Unable to produce message: Local: Erroneous state")
        _act(self.produces)
        self.produced.append({"topic": topic, **record})

    def poll(self, timeout: float = -1) -> int:
        self.calls.append("poll")
        self.on_poll()
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self.calls.append("list_topics")
        if self.partitions is None:
            return SimpleNamespace(topics={})
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self.partitions)))
        return SimpleNamespace(topics={naming.SEND_LOG_ENTRIES: found})

    def _end(self, what: str, script: list[object]) -> None:
        self._require("InTransaction")
        self.calls.append(what)
        _act(script)
        self.state = "Ready"

    def _require(self, state: str) -> None:
        if self.state != state:
            raise kafka_error(KafkaError._STATE, f"Operation not valid in state {self.state}")


def _act(script: list[object]) -> None:
    step = script.pop(0) if script else None
    if isinstance(step, BaseException):
        raise step
