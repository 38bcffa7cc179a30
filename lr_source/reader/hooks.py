"""What a reader tells whoever wants to know: metrics, tests. The methods here do nothing."""

from __future__ import annotations

from enum import StrEnum

from lr_wire.naming import SessionKey, SiteId


class Step(StrEnum):
    """Where forwarding to a sink is; a process can die at any of them."""

    BEFORE_SEND = "before_send"
    AFTER_SEND = "after_send"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


class Hooks:
    """Called from the reader's threads, so an implementation must be quick and thread-safe."""

    def step(self, sink: SiteId, step: Step) -> None:
        """Forwarding to `sink` has come to `step` of a transaction that carries entries."""

    def forwarded(self, session: SessionKey, transactions: int, entries: int, size: int) -> None:
        """A transaction on the sink was committed, with this much for the session in it."""

    def state_changed(self, session: SessionKey, state: str, reason: str) -> None:
        """A session has entered a state."""

    def dead_letter(self, session: SessionKey, reason: str) -> None:
        """Something was written to a dead letter."""

    def fetched(self, size: int) -> None:
        """So many bytes of values were read from the send queue."""
