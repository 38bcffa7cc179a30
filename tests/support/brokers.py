"""
Brokers for tests: one per site and xdist worker, started when the first test asks for it.

LR's topic names are fixed, so tests that share a broker cannot share its topics. `wipe` deletes them between tests,
which takes a tenth of a second; a broker of its own takes two.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewTopic

_TIMEOUT_S = 30.0


class Broker(Protocol):
    """What a test may do to a broker of its own: the embedded one, or one in a container."""

    name: str

    @property
    def bootstrap_servers(self) -> str:
        """What a client's `bootstrap.servers` wants; the same after a restart."""

    @property
    def running(self) -> bool:
        """Whether its process is there."""

    def start(self, timeout: float = ...) -> Self:
        """Start and return when it answers."""

    def stop(self, timeout: float = ...) -> None:
        """Stop in order."""

    def kill(self) -> None:
        """End it at once, as a crash does."""

    def restart(self, timeout: float = ...) -> Self:
        """Stop if running, and start with the same port and data."""

    def pause(self) -> None:
        """Freeze it."""

    def resume(self) -> None:
        """Let it go on."""

    def close(self) -> None:
        """Stop and remove its data."""


BrokerFactory = Callable[..., Broker]
"""`make(name, properties={...})`: a broker that is not started yet."""


@dataclass(frozen=True)
class Site:
    """A site whose broker other tests use too: do not stop it."""

    id: str
    bootstrap_servers: str


class SharedBrokers:
    """The brokers that the tests of one process share, by site id."""

    def __init__(self, make: BrokerFactory) -> None:
        self._make = make
        self._brokers: dict[str, Broker] = {}

    def site(self, site_id: str) -> Site:
        """The site, its broker running."""
        if site_id not in self._brokers:
            self._brokers[site_id] = self._make(site_id).start()
        return Site(site_id, self._brokers[site_id].bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self._brokers.values():
            broker.close()


def admin(bootstrap_servers: str, **settings: Any) -> AdminClient:
    """An admin client that is quiet about brokers that a test takes away."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2, **settings})


def create_topic(site: Site | Broker, topic: str, *, partitions: int = 1, **settings: str) -> None:
    """Create a topic, and return when the broker lists it; `settings` are topic settings with `_` for `.`."""
    # The client must be kept until the answer is there: it ends its requests when it is garbage.
    client = admin(site.bootstrap_servers)
    config = {key.replace("_", "."): value for key, value in settings.items()}
    for created in client.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        created.result(_TIMEOUT_S)
    # The answer comes from the controller; the broker hears of the topic a moment later.
    _until(lambda: topic in topic_names(client), time.monotonic() + _TIMEOUT_S)


def wipe(site: Site) -> None:
    """Delete every topic of the site, and return when topics and committed offsets are gone."""
    client = admin(site.bootstrap_servers)
    deadline = time.monotonic() + _TIMEOUT_S
    # A topic created a moment ago may not be listed yet. Metadata is one ordered log: once this one is listed, all
    # that were created before are.
    marker = f"wipe-{uuid.uuid4()}"
    create_topic(site, marker)
    _until(lambda: marker in topic_names(client), deadline)
    for deleted in client.delete_topics(sorted(topic_names(client))).values():
        deleted.result(_TIMEOUT_S)
    _until(lambda: not topic_names(client), deadline)
    # Kafka drops the committed offsets of deleted topics by itself, a moment later.
    _until(lambda: _offsets_are_forgotten(client), deadline)


def topic_names(client: AdminClient) -> set[str]:
    """Names of all topics but Kafka's own."""
    return {name for name in client.list_topics(timeout=_TIMEOUT_S).topics if not name.startswith("__")}


def _offsets_are_forgotten(client: AdminClient) -> bool:
    """Whether no group has committed offsets: they would count for a topic of the same name in the next test."""
    groups = [group.group_id for group in client.list_consumer_groups().result(_TIMEOUT_S).valid]
    # One group per request is all that the client supports.
    requests = [client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group] for group in groups]
    return not any(request.result(_TIMEOUT_S).topic_partitions for request in requests)


def _until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker's topics or committed offsets are not as asked after {_TIMEOUT_S} s")
        time.sleep(0.005)
