"""What an operator sets for a reader. `lr_ops.config` fills these from a file; nothing here knows YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lr_kafka.clients import Cluster
from lr_wire.errors import ConfigError
from lr_wire.naming import ClientName, SiteId


@dataclass(frozen=True, slots=True)
class Limits:
    """How much and how long; every value has a default that suits most sites."""

    transaction_records: int = 60_000
    """A transaction on a sink is committed at this many records: large ones are cheaper per record."""

    transaction_bytes: int = 32 * 1024 * 1024
    """... or at this many bytes, which bounds what a sink's readers wait for."""

    transaction_s: float = 0.2
    """... or after this long under steady load. Without load it is committed at once."""

    transaction_timeout_s: float = 30.0
    """After this long a sink's cluster ends the transaction of a reader that vanished; until then it is in the way."""

    buffer_bytes: int = 64 * 1024 * 1024
    """What may wait in memory for one sink. A sink that falls further behind reads the log with a cursor of its own."""

    heartbeat_s: float = 3.0
    """How often the state of every session is written, and the position of idle ones moved."""

    metadata_s: float = 2.0
    """How often to look for new partitions, and whether the send queue is still the same topic."""

    request_timeout_s: float = 10.0
    """How long one step towards a sink (fence, flush, commit ...) may take before it counts as failed."""

    backoff_initial_s: float = 0.5
    """The wait after a sink's first failure; it doubles with each further one, with jitter."""

    backoff_max_s: float = 30.0
    """The longest wait between two attempts at a sink."""

    drain_s: float = 20.0
    """How long a clean shutdown may take in all, whatever state the sinks are in."""

    def __post_init__(self) -> None:
        """Refuse values that can only be mistakes."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"limits.{name} is {getattr(self, name)}", hint="it must be greater than 0")
        if self.backoff_max_s < self.backoff_initial_s:
            raise ConfigError("limits.backoff_max_s is smaller than limits.backoff_initial_s")


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """One reader: the site it reads, the sites it may write to, the clients it prepares queues for."""

    source: SiteId
    sites: Mapping[SiteId, Cluster]
    """Every site with its cluster, the source among them; all others are destinations."""

    clients: tuple[ClientName, ...] = ()
    """Clients whose receive queues are made at once. Others get theirs when the log first shows them."""

    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuse a reader that has nothing to read."""
        if self.source not in self.sites:
            raise ConfigError(
                f"source {self.source} is not among the sites {sorted(self.sites)}", hint="add it to `sites`"
            )

    @property
    def sinks(self) -> frozenset[SiteId]:
        """The destinations that can be reached."""
        return frozenset(self.sites) - {self.source}
