"""What the tests of this folder share: a seed that is printed, a send queue, readers with their logs."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lr_kafka import layout
from lr_kafka.embedded import EmbeddedKafka
from lr_kafka.ports import free_ports
from tests.support.brokers import Broker, BrokerFactory, Site, create_topic
from tests.support.faults import Fault, ReaderConfig, ReaderProcess
from tests.support.proxy import Proxy

StartReader = Callable[..., ReaderProcess]


@pytest.fixture
def seed() -> int:
    """A new one for each run; LR_CHAOS_SEED repeats the applications' part of an earlier one."""
    chosen = int(os.environ.get("LR_CHAOS_SEED", random.randrange(10**9)))
    print(f"LR_CHAOS_SEED={chosen}")
    return chosen


@pytest.fixture(scope="session")
def proxied(make_broker: BrokerFactory) -> Iterator[tuple[Site, Proxy]]:
    """A sink that readers reach through a proxy, and everybody else directly."""
    if make_broker is not EmbeddedKafka:
        pytest.skip("a broker in a container has one listener, and its port is fixed")
    port, controller_port = free_ports(2)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        broker = make_broker("site-b", port=port, properties=proxy.broker_properties(port, controller_port))
        stack.callback(broker.close)
        broker.start()
        yield Site("site-b", broker.bootstrap_servers), proxy


@pytest.fixture
def start_reader(tmp_path: Path) -> Iterator[StartReader]:
    """`start_reader(config, fault)`: a reader that ends with the test; its log is shown when the test fails."""
    with contextlib.ExitStack() as stack:
        count = 0

        def start(config: ReaderConfig, fault: Fault | None = None) -> ReaderProcess:
            nonlocal count
            count += 1
            reader = ReaderProcess(config, tmp_path / f"reader-{count}-{config.owner}.log", fault)
            stack.callback(lambda: print(f"--- reader {count} ({config.owner})\n{reader.output[-4000:]}"))
            return stack.enter_context(reader)

        yield start


def create_send_queue(site: Site | Broker, partitions: int = 3) -> None:
    """Create the send queue with the settings that LR gives it."""
    spec = layout.send_queue(partitions)
    create_topic(site, spec.name, partitions=partitions, **{k.replace(".", "_"): v for k, v in spec.config.items()})
