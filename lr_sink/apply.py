"""
One call of the application for one transaction, and what came of it.

With a position store, what the application says is compared with what its database has: only a position that was
really committed, together with the data, counts as applied. That turns the ways to lose "exactly once" (no `save`, no
commit, a commit that failed although the application went on) into errors that are seen at the first transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from lr_sink.store import PositionStore
from lr_sink.transaction import Transaction
from lr_wire.errors import NotAtomic, PositionConflict, UsageError


class Verdict(Enum):
    """What came of a call."""

    APPLIED = auto()
    """The application has applied the transaction; its position is stored, if there is a store."""

    AGAIN = auto()
    """The application refused it or failed; nothing is stored."""

    MOVED = auto()
    """The stored position is not the one this transaction follows, or cannot be read: look again where to go on."""

    MISUSED = auto()
    """The application does what cannot work; calling it again could apply its data twice."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, with the reason unless it is APPLIED."""

    verdict: Verdict
    reason: str = ""
    cause: Exception | None = None


_APPLIED = Answer(Verdict.APPLIED)


def apply(txn: Transaction, on_transaction: Callable[[Transaction], bool], store: PositionStore | None) -> Answer:
    """Call the application once."""
    answer = _call(txn, on_transaction)
    if store is None:
        return answer
    position = txn.position
    try:
        # This also rolls back what was not committed: it must not end up in the connection's next transaction.
        found = store.load(position.queue, position.partition)
    except Exception as error:  # noqa: BLE001 - whatever the database's driver raises
        if answer.verdict is Verdict.MISUSED:
            return answer
        return Answer(Verdict.MOVED, f"the stored position cannot be read: {_said(error)}", error)
    stored = found.applied.next_offset if found else None
    if answer.verdict is Verdict.APPLIED:
        return answer if stored == position.next_offset else _not_stored(txn, stored)
    if answer.verdict is Verdict.AGAIN and stored != position.follows:
        return Answer(Verdict.MOVED, f"{answer.reason}, and the stored position is {stored}, not {position.follows}")
    return answer


def _call(txn: Transaction, on_transaction: Callable[[Transaction], object]) -> Answer:
    try:
        said = on_transaction(txn)
    except PositionConflict as error:
        return Answer(Verdict.MOVED, str(error), error)
    except NotAtomic as error:
        return Answer(Verdict.MISUSED, str(error), error)
    except Exception as error:  # noqa: BLE001 - whatever an application raises
        return Answer(Verdict.AGAIN, f"on_transaction raised {_said(error)}", error)
    if said is True:
        return _APPLIED
    if said is False:
        return Answer(Verdict.AGAIN, "on_transaction returned False")
    misuse = UsageError(f"on_transaction returned {said!r}", hint="return True if it is applied, False if it is not")
    return Answer(Verdict.MISUSED, str(misuse), misuse)


def _not_stored(txn: Transaction, stored: int | None) -> Answer:
    if stored != txn.position.follows:
        return Answer(Verdict.MOVED, f"the stored position is {stored}, not {txn.position.next_offset}")
    error = NotAtomic(
        f"on_transaction returned True, but the stored position is still {stored}",
        hint="call save(txn.position), and commit it in one database transaction with the data before returning True",
    )
    return Answer(Verdict.MISUSED, str(error), error)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
