"""What an application on a sink imports: callbacks for what arrives, and a loop that calls them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

from lr_kafka.clients import Cluster, Setting
from lr_sink.engine import Engine, Step
from lr_sink.partition import QueueStatus
from lr_sink.settings import NAMES, ListenerSettings
from lr_sink.store import PositionStore
from lr_sink.transaction import Transaction
from lr_wire import naming
from lr_wire.errors import ConfigError, ReplicationError, UsageError


class RoutingQueueListener(ABC):
    """
    Receives everything that any source sends to one client on this site.

        class Policies(RoutingQueueListener):
            def on_transaction(self, txn):
                for entry in txn.entries:
                    apply(entry.payload)
                return True

        Policies("policy", site="site-b", bootstrap_servers="localhost:9092").run()

    Transactions come whole, one call each, in order within a partition of a queue. Callbacks are called by the thread
    that runs the listener, one at a time. Queues are found as they appear; several listeners of one client, in as many
    processes, share them.
    """

    def __init__(
        self,
        client: str,
        *,
        site: str | None = None,
        bootstrap_servers: str | None = None,
        cluster: Cluster | None = None,
        positions: PositionStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Setting,
    ) -> None:
        """
        Choose, but connect to nothing yet.

        Give `site` and `bootstrap_servers`, or a `cluster`. `positions` keeps the applied positions in the
        application's database, for exactly once. `settings` are those of `ListenerSettings`; all others go to
        librdkafka, with `_` for `.`: `security_protocol="SASL_SSL"`.
        """
        own = {name: value for name, value in settings.items() if name in NAMES}
        kafka = {_librdkafka_name(name): value for name, value in settings.items() if name not in NAMES}
        self.__client = naming.client_name(client)
        self.__cluster = _cluster(site, bootstrap_servers, cluster, kafka)
        self.__settings = ListenerSettings(**cast("dict[str, Any]", own))
        self.__positions = positions
        self.__clock = clock
        self.__engine: Engine | None = None
        self.__stopping = False
        self.__closed = False

    @abstractmethod
    def on_transaction(self, txn: Transaction) -> bool:
        """
        Apply one whole source transaction; True if that is done.

        False or an exception: it comes again, after a wait that grows, while other partitions go on. After
        `max_attempts` the setting `on_failure` decides.
        """

    def on_error(self, error: ReplicationError) -> None:  # noqa: B027 - not every application has to do something here
        """Hear what needs somebody: a halted partition, a dead letter, missing rights. The log has it, too."""

    def run(self) -> None:
        """Receive until `stop()`; then commit and leave. An exception that ends it is one that no waiting will mend."""
        try:
            while not self.__stopping:
                self.step()
        finally:
            self.close()

    def step(self) -> Step:
        """Do one unit of work and tell what it was; waits for `poll_s` at most if there is none."""
        if self.__closed:
            raise UsageError("the listener is closed", hint="make a new one")
        if self.__engine is None:
            self.__engine = Engine(self.__client, self.__cluster, self, self.__settings, self.__positions, self.__clock)
        return self.__engine.step()

    def stop(self) -> None:
        """Let `run()` end after the step it is in. From any thread, a callback, or a signal handler."""
        self.__stopping = True

    def close(self) -> None:
        """Commit what is applied and leave the group. `run()` does this itself; after `step()` it is the caller's."""
        if not self.__closed:
            self.__closed = True
            if self.__engine is not None:
                self.__engine.close()

    def status(self) -> tuple[QueueStatus, ...]:
        """Tell how each partition of each queue stands that this listener has now; from any thread."""
        return self.__engine.status() if self.__engine is not None else ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _librdkafka_name(name: str) -> str:
    # The only one of its names that has an underscore itself.
    return name if name == "log_level" else name.replace("_", ".")


def _cluster(
    site: str | None, bootstrap_servers: str | None, cluster: Cluster | None, kafka: dict[str, Setting]
) -> Cluster:
    if cluster is not None:
        if site is not None or bootstrap_servers is not None:
            raise ConfigError("a listener got a cluster and a site or bootstrap_servers", hint="give one or the other")
        return Cluster(cluster.site, {**cluster.settings, **kafka})
    if site is None or bootstrap_servers is None:
        raise ConfigError("a listener needs to know its cluster", hint="give site and bootstrap_servers, or a cluster")
    return Cluster(naming.site_id(site), {**kafka, "bootstrap.servers": bootstrap_servers})
