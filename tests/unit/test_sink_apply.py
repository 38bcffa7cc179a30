"""What one call of the application comes to, with and without a position store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lr_sink import StoredPosition, Transaction, TxnPosition
from lr_sink.apply import Verdict, apply
from lr_wire.errors import NotAtomic, PositionConflict, UsageError
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Applied, TxnId

POSITION = TxnPosition("q", 0, "id", Applied(9), 5)
TXN = Transaction(TxnId(b"x", 1), SiteId("site-a"), ClientName("policy"), "q", 0, (), POSITION, 7)


@dataclass
class FakeStore:
    """A database in a variable."""

    stored: int | None = 5
    broken: bool = False
    loads: int = 0
    moves: list[TxnPosition] = field(default_factory=list)

    def load(self, queue: str, partition: int) -> StoredPosition | None:
        self.loads += 1
        if self.broken:
            raise ConnectionError("the database is away")
        return None if self.stored is None else StoredPosition(Applied(self.stored))

    def save(self, position: TxnPosition) -> None:
        self.stored = position.next_offset

    def move(self, position: TxnPosition) -> None:
        self.moves.append(position)


def raising(error: Exception) -> Callable[[Transaction], bool]:
    def on_transaction(_: Transaction) -> bool:
        raise error

    return on_transaction


def saving(store: FakeStore, answer: bool) -> Callable[[Transaction], bool]:
    def on_transaction(txn: Transaction) -> bool:
        store.save(txn.position)
        return answer

    return on_transaction


def test_without_a_store_the_application_is_believed() -> None:
    assert apply(TXN, lambda _: True, None).verdict is Verdict.APPLIED
    assert apply(TXN, lambda _: False, None).verdict is Verdict.AGAIN
    answer = apply(TXN, raising(ValueError("no such policy")), None)
    assert answer.verdict is Verdict.AGAIN
    assert "ValueError: no such policy" in answer.reason


@pytest.mark.parametrize("said", [None, 1, "yes"])
def test_an_answer_that_is_no_answer_is_misuse(said: object) -> None:
    """A forgotten `return True` is seen at once, not after twenty attempts."""
    answer = apply(TXN, lambda _: said, None)  # type: ignore[arg-type, return-value]
    assert answer.verdict is Verdict.MISUSED
    assert isinstance(answer.cause, UsageError)
    assert repr(said) in answer.reason


def test_applied_means_that_the_position_is_stored() -> None:
    store = FakeStore()
    assert apply(TXN, saving(store, True), store).verdict is Verdict.APPLIED


def test_true_without_a_stored_position_is_misuse() -> None:
    """Exactly once would be lost silently."""
    answer = apply(TXN, lambda _: True, FakeStore())
    assert answer.verdict is Verdict.MISUSED
    assert isinstance(answer.cause, NotAtomic)
    assert "save(txn.position)" in answer.reason


def test_a_refusal_with_nothing_stored_comes_again() -> None:
    assert apply(TXN, lambda _: False, FakeStore()).verdict is Verdict.AGAIN
    assert apply(TXN, raising(OSError()), FakeStore()).verdict is Verdict.AGAIN


def test_a_refusal_although_it_is_stored_means_look_again() -> None:
    """The database has it, whatever the application says: it must not come again."""
    store = FakeStore()
    assert apply(TXN, saving(store, False), store).verdict is Verdict.MOVED


@pytest.mark.parametrize("stored", [None, 4, 12])
def test_a_position_that_another_process_moved_means_look_again(stored: int | None) -> None:
    for answer in (True, False):
        assert apply(TXN, lambda _, said=answer: said, FakeStore(stored)).verdict is Verdict.MOVED  # type: ignore[misc]


def test_a_conflict_means_look_again() -> None:
    assert apply(TXN, raising(PositionConflict("taken")), FakeStore()).verdict is Verdict.MOVED


def test_a_position_that_would_not_be_atomic_is_misuse() -> None:
    """Trying again would write the data again."""
    assert apply(TXN, raising(NotAtomic("autocommit")), FakeStore()).verdict is Verdict.MISUSED


@pytest.mark.parametrize("said", [True, False])
def test_a_database_that_is_away_afterwards_means_look_again(said: bool) -> None:
    """Whether the transaction is applied is not known: the position will tell once it can be read."""
    assert apply(TXN, lambda _: said, FakeStore(broken=True)).verdict is Verdict.MOVED


def test_what_is_not_committed_is_given_up_after_every_call() -> None:
    """Whatever the answer, the next transaction on the same connection must not commit it."""
    for on_transaction in (
        lambda _: False,
        lambda _: None,
        raising(ValueError()),
        raising(PositionConflict("taken")),
        raising(NotAtomic("autocommit")),
    ):
        store = FakeStore()
        apply(TXN, on_transaction, store)  # type: ignore[arg-type]
        assert store.loads == 1
