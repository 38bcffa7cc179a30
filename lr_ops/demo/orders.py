"""The demo's application: it takes orders and tells the warehouses what concerns them."""

from __future__ import annotations

import itertools
import json
import random
import threading
from dataclasses import dataclass, field

from lr_kafka.clients import Cluster
from lr_source import Entry, RoutingQueueClient

ORDERS_TOPIC = "orders"
CLIENT = "orders"

CUSTOMERS = ("bakery", "brewery", "dairy", "forge", "mill", "pottery")
_PRODUCTS = ("anvil", "bellows", "chisel", "dowel", "easel", "file", "gimlet", "hinge")


class OrderCancelled(Exception):
    """The customer has changed their mind while the order was being written."""


@dataclass(frozen=True)
class Order:
    """One transaction of the application, and what of it each site must get, in this order."""

    number: int
    customer: str
    lines: dict[str, list[str]]


@dataclass
class Book:
    """What the application knows to be committed: the other side of the comparison at the end."""

    committed: list[Order] = field(default_factory=list)
    cancelled: int = 0

    def lines_for(self, sink: str, customer: str) -> list[str]:
        """Give what a site must have of a customer, in the order of the commits."""
        return [line for order in self.committed if order.customer == customer for line in order.lines.get(sink, [])]


class OrdersApplication:
    """Commits one order after the other until it is stopped."""

    def __init__(self, cluster: Cluster, sinks: list[str], pause_s: float, seed: int) -> None:
        """Prepare; `run` does the work on a thread of the caller's."""
        self._cluster = cluster
        self._sinks = sinks
        self._pause_s = pause_s
        self._random = random.Random(seed)  # noqa: S311 - orders, not keys
        self._stop = threading.Event()
        self.book = Book()

    def stop(self) -> None:
        """Take no more orders."""
        self._stop.set()

    def run(self) -> None:
        """Take orders: an ordinary transactional application, with LR in its transactions."""
        producer = self._cluster.producer(transactional_id="orders-application")
        producer.init_transactions(30)
        client = RoutingQueueClient(CLIENT, source=self._cluster.site, producer=producer)
        for number in itertools.count(1):
            if self._stop.wait(self._pause_s):
                return
            order, entries = self._next_order(number)
            try:
                # The orders of one customer stay in order; those of different customers use all partitions.
                with client.transaction(ordering_key=order.customer) as txn:
                    producer.produce(ORDERS_TOPIC, key=str(number).encode(), value=json.dumps(order.lines).encode())
                    txn.transmit_log_entries(entries)
                    if number % 6 == 0:
                        raise OrderCancelled
            except OrderCancelled:
                self.book.cancelled += 1
                continue
            self.book.committed.append(order)

    def _next_order(self, number: int) -> tuple[Order, list[Entry]]:
        """Give an order whose lines go to one warehouse, to the other, or to both."""
        customer = self._random.choice(CUSTOMERS)
        lines: dict[str, list[str]] = {sink: [] for sink in self._sinks}
        entries = []
        for index in range(self._random.randint(1, 12)):
            destinations = self._random.sample(self._sinks, self._random.randint(1, len(self._sinks)))
            amount, product = self._random.randint(1, 9), self._random.choice(_PRODUCTS)
            text = f"{customer}, order {number}, line {index}: {amount} x {product}"
            entries.append(Entry(text.encode(), destinations))
            for sink in destinations:
                lines[sink].append(text)
        return Order(number, customer, {sink: texts for sink, texts in lines.items() if texts}), entries
