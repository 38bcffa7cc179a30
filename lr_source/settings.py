"""What an application may set for its client. Every value has a default that suits most applications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from lr_wire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Sizes in bytes, times in seconds."""

    max_record_bytes: int = 64 * 1024
    """Entries with the same destinations share a record up to this size. Larger ones are hardly cheaper per entry."""

    max_open_bytes: int = 1024 * 1024
    """What the records of a transaction that still take entries may hold together; beyond it the largest go out."""

    max_payload_bytes: int = 900_000
    """The largest payload. Below Kafka's limit for a message by enough for several hundred destinations."""

    max_message_bytes: int = 1_000_000
    """The producer's own `message.max.bytes` (this is librdkafka's default): set both, and the topic's, or neither."""

    commit_timeout_s: float = 60.0
    """How long a commit or abort may take before its result counts as unknown. Kafka's own limit for a transaction."""

    queue_timeout_s: float = 30.0
    """How long to wait for room in the producer's local queue."""

    metadata_timeout_s: float = 10.0
    """How long the question for the send queue's partitions may take."""

    metadata_max_age_s: float = 300.0
    """How often to ask that again, so that added partitions are used."""

    def __post_init__(self) -> None:
        """Refuse values that can only be mistakes."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="it must be greater than 0")
        if self.max_payload_bytes >= self.max_message_bytes:
            raise ConfigError(
                f"max_payload_bytes is {self.max_payload_bytes}, and with it a record would not fit into "
                f"max_message_bytes, which is {self.max_message_bytes}",
                hint="leave room for destinations and tags: about 150 bytes for each, and 250 for the rest",
            )


class ClientOptions(TypedDict, total=False):
    """The same as keyword arguments of `RoutingQueueClient`."""

    max_record_bytes: int
    max_open_bytes: int
    max_payload_bytes: int
    max_message_bytes: int
    commit_timeout_s: float
    queue_timeout_s: float
    metadata_timeout_s: float
    metadata_max_age_s: float
