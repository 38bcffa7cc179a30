"""What a dead letter says about itself: headers beside the original ones; key and value stay as they were."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from lr_wire.records import Header

REASON = "lr_deadletter_reason"
TOPIC = "lr_deadletter_topic"
PARTITION = "lr_deadletter_partition"
OFFSET = "lr_deadletter_offset"
TIME = "lr_deadletter_time"

# A reason can quote what an application raised, however long. The record that it explains may be as large as clients
# send by default (1,000,000 bytes): that leaves 48 kB up to what brokers take by default.
REASON_LIMIT = 2000


def dead_letter_headers(
    reason: str,
    topic: str,
    partition: int,
    offset: int,
    time_ms: int,
    original_headers: Iterable[Header] | None,
) -> list[Header]:
    """
    Give the headers of a dead letter: the original ones, then why, from where and when (ISO 8601, UTC), all as text.

    What is given up a second time keeps the headers of the first; the last of each name is the newest.
    """
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    facts = {
        REASON: reason if len(reason) <= REASON_LIMIT else f"{reason[:REASON_LIMIT]}...",
        TOPIC: topic,
        PARTITION: str(partition),
        OFFSET: str(offset),
        TIME: time,
    }
    # A lone surrogate (bytes that an application decoded loosely) has no UTF-8; that must not keep the record from us.
    return [*(original_headers or ()), *((name, text.encode(errors="replace")) for name, text in facts.items())]
