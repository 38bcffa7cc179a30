"""What an application sets for a listener."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from lr_wire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """How patient, how often, and what to do in the end; every value has a default that suits most applications."""

    on_failure: Literal["halt", "dead_letter"] = "halt"
    """
    What happens to a transaction that was tried `max_attempts` times, or to records that cannot be understood: `halt`
    stops this partition of the queue until the listener is started again, `dead_letter` moves them to
    `LRQ_DeadLetter_<client>_<source>` and goes on.
    """

    max_attempts: int = 20
    """How often `on_transaction` is called for one transaction; with the waits below, 20 are about five minutes."""

    retry_initial_s: float = 0.2
    """The wait after the first failure; it doubles with each further one, with jitter."""

    retry_max_s: float = 30.0
    """The longest wait between two attempts."""

    ack_s: float = 1.0
    """The applied position is committed this long after a transaction at the latest ..."""

    ack_transactions: int = 1000
    """... or after this many. What is applied but not committed comes again after a crash, unless there is a store."""

    delete_applied: bool = True
    """Whether applied records are deleted from the queue. Without this somebody else must keep it from growing."""

    delete_s: float = 10.0
    """How often applied records are deleted: one request per queue."""

    discovery_s: float = 1.0
    """How often to look for new queues and partitions."""

    poll_s: float = 0.5
    """How long one step waits for a record at most, and so how long `stop()` may take to be noticed."""

    request_timeout_s: float = 10.0
    """How long one request to the cluster may take before it counts as failed."""

    stop_s: float = 10.0
    """How long a stop waits for the last position to be committed, whatever state the cluster is in."""

    def __post_init__(self) -> None:
        """Refuse values that can only be mistakes."""
        if self.on_failure not in {"halt", "dead_letter"}:
            raise ConfigError(f"on_failure is {self.on_failure!r}", hint="it is 'halt' or 'dead_letter'")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"{field.name} is {value}", hint="it must be greater than 0")
        if self.retry_max_s < self.retry_initial_s:
            raise ConfigError("retry_max_s is smaller than retry_initial_s")


NAMES = frozenset(field.name for field in fields(ListenerSettings))
