"""
Noticing that a producer has lost the connection to its transaction coordinator.

librdkafka sends a commit again by itself when that connection breaks, and tells nobody but its log. The first request
may still be under way then. It has the epoch of this producer, so whenever it arrives it ends the transaction that
this producer has open at that time, in its middle. Who must be safe from that looks here before each transaction and
goes on with a new producer, whose epoch is another.
"""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("lr.librdkafka")

# librdkafka keeps a connection to the coordinator apart from others to the same broker, and calls it and its thread so.
_COORDINATOR = "[thrd:TxnCoordinator]"
_CONNECTION_FAILED = "FAIL"

# The facility under which librdkafka logs why a transaction can only be aborted. Whoever goes on to write into it is
# told no more than that the state is wrong.
_TRANSACTION_FAILED = "TXNERR"


class CoordinatorWatch:
    """The logger of one producer. It gets what librdkafka logs when the producer is polled, flushed or commits."""

    SETTINGS: dict[str, Any] = {"log_level": 6, "log.connection.close": True}
    """What the producer must have so that a lost connection is logged (6: info)."""

    def __init__(self) -> None:
        """Begin with nothing lost."""
        self.lost = ""
        """What librdkafka said when the connection was lost for the first time; it does not repeat it each time."""

        self.failed = ""
        """What librdkafka said when a transaction failed for the first time."""

    def log(self, level: int, message: str, *args: str) -> None:
        """Take a line of librdkafka's log, and pass it on."""
        _log.log(level, message, *args)
        facility, _, text = args
        if facility == _CONNECTION_FAILED and text.startswith(_COORDINATOR):
            self.lost = self.lost or text.removeprefix(f"{_COORDINATOR}: ")
        elif facility == _TRANSACTION_FAILED:
            self.failed = self.failed or text.partition(": ")[2]
