"""
A listener that keeps what it is given, driven by hand.

    with Recorder(sink) as listener:
        queue.write(sent(b"one"))
        drive(listener, lambda: listener.payloads() == [[b"one"]])
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lr_sink import QueueState, RoutingQueueListener, Step, Transaction
from lr_wire.errors import ReplicationError
from tests.support.brokers import Broker, Site
from tests.support.receive_queue import cluster_of

WITHIN_S = 30.0

# Quick in everything that a test would otherwise wait for.
QUICK: dict[str, Any] = {
    "discovery_s": 0.1,
    "poll_s": 0.05,
    "ack_s": 0.05,
    "delete_s": 0.05,
    "retry_initial_s": 0.01,
    "retry_max_s": 0.1,
    "fetch_wait_max_ms": 20,
    "heartbeat_interval_ms": 200,
}


class Recorder(RoutingQueueListener):
    """Applies every transaction into a list, unless `answer` says otherwise."""

    def __init__(
        self,
        site: Site | Broker,
        client: str = "policy",
        *,
        answer: Callable[[Transaction], bool] = lambda _: True,
        **settings: Any,
    ) -> None:
        super().__init__(client, cluster=cluster_of(site), **QUICK | settings)
        self.answer = answer
        self.calls: list[Transaction] = []
        self.applied: list[Transaction] = []
        self.errors: list[ReplicationError] = []

    def on_transaction(self, txn: Transaction) -> bool:
        self.calls.append(txn)
        if not self.answer(txn):
            return False
        self.applied.append(txn)
        return True

    def on_error(self, error: ReplicationError) -> None:
        self.errors.append(error)

    def payloads(self, partition: int | None = None, source: str | None = None) -> list[list[bytes]]:
        """Give what was applied: the payloads of each transaction."""
        return [
            [entry.payload for entry in txn.entries]
            for txn in self.applied
            if partition in {None, txn.partition} and source in {None, txn.source}
        ]

    def states(self) -> dict[tuple[str, int], QueueState]:
        """Give the state of each partition."""
        return {(found.queue, found.partition): found.state for found in self.status()}


def drive(listener: RoutingQueueListener, until: Callable[[], bool], within_s: float = WITHIN_S) -> list[Step]:
    """Step until something is so; tell what the steps did."""
    deadline = time.monotonic() + within_s
    steps: list[Step] = []
    while not until():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within_s} s; the queues are {listener.status()}")
        steps.append(listener.step())
    return steps
