"""
Fixtures every test may ask for.

site_a .. site_d   a running broker, shared by all tests of a process, as it is
sites              the same brokers, emptied for this test: `source, sink = sites("site-a", "site-b")`
fresh_broker       brokers of the test's own, to be killed: `broker = fresh_broker("site-b", properties={...})`
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lr_kafka.embedded import EmbeddedKafka
from tests.support.brokers import Broker, BrokerFactory, SharedBrokers, Site, wipe
from tests.support.containers import ContainerKafka, engine_answers

_FACTORIES: dict[str, BrokerFactory] = {"embedded": EmbeddedKafka, "testcontainers": ContainerKafka}
_BROKER_FIXTURES = {"shared_brokers", "fresh_broker"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        choices=sorted(_FACTORIES),
        default="embedded",
        help="the brokers to test on: child processes (the default), or containers on a Docker engine",
    )


def pytest_configure(config: pytest.Config) -> None:
    # xdist's workers are asked once their controller has passed.
    if config.getoption("--kafka") == "testcontainers" and not hasattr(config, "workerinput") and not engine_answers():
        raise pytest.UsageError(
            "--kafka=testcontainers needs a Docker engine and none answers: start it (see `docker info`), or leave the "
            "option out to test on the embedded broker"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _BROKER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)


@pytest.fixture(scope="session")
def make_broker(request: pytest.FixtureRequest) -> BrokerFactory:
    return _FACTORIES[request.config.getoption("--kafka")]


@pytest.fixture(scope="session")
def shared_brokers(make_broker: BrokerFactory) -> Iterator[SharedBrokers]:
    with SharedBrokers(make_broker) as brokers:
        yield brokers


@pytest.fixture(scope="session")
def site_a(shared_brokers: SharedBrokers) -> Site:
    return shared_brokers.site("site-a")


@pytest.fixture(scope="session")
def site_b(shared_brokers: SharedBrokers) -> Site:
    return shared_brokers.site("site-b")


@pytest.fixture(scope="session")
def site_c(shared_brokers: SharedBrokers) -> Site:
    return shared_brokers.site("site-c")


@pytest.fixture(scope="session")
def site_d(shared_brokers: SharedBrokers) -> Site:
    return shared_brokers.site("site-d")


@pytest.fixture
def sites(shared_brokers: SharedBrokers) -> Iterator[Callable[..., list[Site]]]:
    """`sites("site-a", "site-b")`: these sites, without a topic; emptied again after the test."""
    given: list[Site] = []

    def give(*ids: str) -> list[Site]:
        asked = [shared_brokers.site(site_id) for site_id in ids]
        for site in asked:
            wipe(site)
        given.extend(asked)
        return asked

    yield give
    for site in given:
        wipe(site)


@pytest.fixture
def fresh_broker(make_broker: BrokerFactory) -> Iterator[BrokerFactory]:
    """`fresh_broker("site-b", properties={...})`: a started broker that belongs to this test alone."""
    with contextlib.ExitStack() as stack:

        def start(name: str = "kafka", **settings: Any) -> Broker:
            broker = make_broker(name, **settings)
            stack.callback(broker.close)
            return broker.start()

        yield start
