"""How to reach one site's Kafka, and the clients made from that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lr_kafka.coordinator import CoordinatorWatch
from lr_wire.errors import ConfigError
from lr_wire.naming import SiteId
from lr_wire.records import Header

__all__ = [
    "AdminClient",
    "Cluster",
    "Consumer",
    "KafkaError",
    "KafkaHeaders",
    "Message",
    "Producer",
    "Record",
    "Setting",
    "TopicPartition",
]

Setting = str | int | float | bool

KafkaHeaders = list[tuple[str, str | bytes | None]]

CommitCallback = Callable[[KafkaError | None, list[TopicPartition]], None]


class Record(Protocol):
    """
    A message that a consumer was given, typed as what it is then.

    The client library's own type also serves messages under construction, hence says None where there never is one.
    """

    def error(self) -> KafkaError | None:
        """Give what went wrong, or the event it stands for; None for a record."""

    def topic(self) -> str:
        """Give the topic."""

    def partition(self) -> int:
        """Give the partition."""

    def offset(self) -> int:
        """Give the offset."""

    def key(self) -> bytes | None:
        """Give the key."""

    def value(self) -> bytes | None:
        """Give the value."""

    def headers(self) -> list[Header] | None:
        """Give the headers in their order."""

    def timestamp(self) -> tuple[int, int]:
        """Give the kind of the timestamp and its milliseconds."""


# librdkafka speaks through this logger instead of writing to stderr.
_log = logging.getLogger("lr.librdkafka")

# librdkafka pauses a partition for this long once its local queue is full. The default of a second halves the
# throughput of a loop that keeps up with the broker.
_FETCH_QUEUE_BACKOFF_MS = 5

_SECRET_WORDS = ("password", "secret", "key.pem", "token", "jaas", "oauthbearer.config")


def _ignore(_error: KafkaError) -> None:
    """librdkafka reconnects by itself; whoever waits for a result gets the error there."""


@dataclass(frozen=True)
class Cluster:
    """One site's Kafka: its id and any librdkafka settings, `bootstrap.servers` among them."""

    site: SiteId
    settings: Mapping[str, Setting] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a site that cannot be reached by anybody."""
        if not self.settings.get("bootstrap.servers"):
            raise ConfigError(f"site {self.site} has no bootstrap.servers", hint="give it host:port[,host:port]")

    @property
    def bootstrap_servers(self) -> str:
        """Where to find the cluster."""
        return str(self.settings["bootstrap.servers"])

    def shown_settings(self) -> dict[str, Setting]:
        """Give the settings with every secret masked."""
        return {
            name: "***" if any(word in name for word in _SECRET_WORDS) else value
            for name, value in self.settings.items()
        }

    def producer(self, *, watch: CoordinatorWatch | None = None, **overrides: Setting) -> Producer:
        """Make a producer; overrides are librdkafka settings with `_` for `.`."""
        if watch is None:
            return Producer(self._config(overrides), logger=_log)
        return Producer(self._config(overrides) | watch.SETTINGS, logger=watch)

    def consumer(
        self,
        *,
        group: str = "LR_reader",
        on_commit: CommitCallback | None = None,
        on_error: Callable[[KafkaError], None] = _ignore,
        **overrides: Setting,
    ) -> Consumer:
        """Make a consumer that commits nothing by itself and reports the end of a partition."""
        defaults: dict[str, Setting] = {
            "group_id": group,
            "enable_auto_commit": False,
            "enable_auto_offset_store": False,
            "auto_offset_reset": "error",
            "enable_partition_eof": True,
            "isolation_level": "read_committed",
            "fetch_queue_backoff_ms": _FETCH_QUEUE_BACKOFF_MS,
        }
        config = self._config(defaults | overrides) | {"error_cb": on_error}
        if on_commit:
            config["on_commit"] = on_commit
        return Consumer(config, logger=_log)

    def admin(self) -> AdminClient:
        """Make an admin client."""
        return AdminClient(self._config({}), logger=_log)

    def _config(self, overrides: Mapping[str, Setting]) -> dict[str, Any]:
        # The operator's settings win over our defaults, except for those that a guarantee rests on.
        config: dict[str, Any] = {name.replace("_", "."): value for name, value in overrides.items()}
        config |= {
            name: value for name, value in self.settings.items() if name not in FIXED_SETTINGS or name not in config
        }
        config.setdefault("client.id", "lr")
        return config | {"error_cb": _ignore}


# What an operator's settings may not change: the guarantees rest on them.
FIXED_SETTINGS = frozenset(
    {
        "group.id",
        "transactional.id",
        "enable.idempotence",
        "isolation.level",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "enable.partition.eof",
    }
)
