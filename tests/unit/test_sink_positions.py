"""Which position counts when a partition is begun."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_sink.positions import GroupPosition, Start, StoredPosition, check, check_identity, choose, dead_letter_mark
from lr_wire.errors import QueueReplaced, QueueTrimmed, WireError
from lr_wire.records import Applied, RunningTotal


def at(offset: int) -> Applied:
    """A position whose total tells it from others with the same offset."""
    return Applied(offset, RunningTotal(offset, offset * 2, offset * 3), offset + 100)


def group(offset: int, **marks: object) -> GroupPosition:
    return GroupPosition(at(offset), **marks)  # type: ignore[arg-type]


BEGINNING = Start(Applied(0), known=False)

# The table in the module's docstring, line by line; then the same without a store.
TABLE = [
    pytest.param(None, None, BEGINNING, id="nothing anywhere"),
    pytest.param(None, group(9, in_store=True), BEGINNING, id="a new database"),
    pytest.param(None, group(9), Start(at(9)), id="a new store"),
    pytest.param(at(9), None, Start(at(9), 9), id="the group has nothing yet"),
    pytest.param(at(9), group(9, in_store=True), Start(at(9), 9), id="both alike"),
    pytest.param(at(9), group(5, in_store=True), Start(at(9), 9), id="ended between apply and ack"),
    pytest.param(at(9), group(5), Start(at(9), 9), id="the store is ahead of a group without mark"),
    pytest.param(
        at(9),
        group(12, in_store=True, dead_letter_after=9),
        Start(at(12), 9, tell_store=True),
        id="after a dead letter",
    ),
    pytest.param(
        None,
        group(12, in_store=True, dead_letter_after=-1),
        Start(at(12), None, tell_store=True),
        id="after a dead letter that came first of all",
    ),
    pytest.param(
        at(12), group(12, in_store=True, dead_letter_after=9), Start(at(12), 12), id="a dead letter the store knows of"
    ),
    pytest.param(
        at(7), group(12, in_store=True, dead_letter_after=9), Start(at(7), 7), id="put back to before a dead letter"
    ),
    pytest.param(at(5), group(9, in_store=True), Start(at(5), 5), id="the database was put back"),
    pytest.param(at(5), group(9), Start(at(9), 5), id="ran without its store"),
]


@pytest.mark.parametrize("stored, committed, expected", TABLE)
def test_with_a_store(stored: Applied | None, committed: GroupPosition | None, expected: Start) -> None:
    assert expected == choose(stored, committed, has_store=True)


@pytest.mark.parametrize(
    "committed, expected",
    [
        pytest.param(None, BEGINNING, id="nothing yet"),
        pytest.param(group(9), Start(at(9)), id="its own"),
        pytest.param(group(9, in_store=True), Start(at(9)), id="the store was taken away"),
    ],
)
def test_without_a_store(committed: GroupPosition | None, expected: Start) -> None:
    assert expected == choose(None, committed, has_store=False)


@given(st.integers(0, 2**62), st.booleans(), st.none() | st.integers(-1, 2**62), st.integers(0, 2**64 - 1))
def test_a_commit_is_read_back_as_written(offset: int, in_store: bool, mark: int | None, checksum: int) -> None:
    """Also by those who only look for the applied position in it."""
    applied = Applied(offset, RunningTotal(7, 8, checksum), 5)
    written = GroupPosition(applied, in_store, mark)
    assert written == GroupPosition.parse(offset, written.metadata())
    assert applied == Applied.from_commit(offset, written.metadata())


def test_a_commit_fits_into_what_brokers_take() -> None:
    """offset.metadata.max.bytes is 4096 by default."""
    largest = Applied(2**63 - 1, RunningTotal(2**63 - 1, 2**63 - 1, 2**64 - 1), 2**63 - 1)
    assert len(GroupPosition(largest, in_store=True, dead_letter_after=2**63 - 1).metadata()) < 1000


def test_an_operators_commit_counts_as_a_position_of_the_group() -> None:
    """Kafka's own tools write no metadata."""
    assert GroupPosition(Applied(97)) == GroupPosition.parse(97, "")


@pytest.mark.parametrize("metadata", ["hello", "{}", "[]", '{"transactions": "x"}', json.dumps({"v": 1})])
def test_a_strangers_commit_is_refused(metadata: str) -> None:
    with pytest.raises(WireError, match="97"):
        GroupPosition.parse(97, metadata)


@pytest.mark.parametrize("stored", [None, 0, 41])
def test_a_dead_letter_follows_exactly_what_was_stored(stored: int | None) -> None:
    committed = GroupPosition(at(50), in_store=True, dead_letter_after=dead_letter_mark(stored))
    assert [other for other in (None, 0, 41, 50) if committed.follows(other)] == [stored]


def test_a_trimmed_queue_is_told_with_all_the_facts() -> None:
    """What was wanted, where the queue begins, and what to do."""
    with pytest.raises(QueueTrimmed) as caught:
        check("LRQ_Recv_policy_site-a", 2, Start(at(41)), 97, 120, "LR_listener_policy")
    for fact in ("LRQ_Recv_policy_site-a", "partition 2", "41", "97", "56 offsets", "LR_listener_policy"):
        assert fact in str(caught.value)


def test_a_queue_that_begins_later_without_any_position_is_trimmed_too() -> None:
    with pytest.raises(QueueTrimmed, match="nothing is applied yet"):
        check("q", 0, BEGINNING, 1, 5, "g")


@pytest.mark.parametrize("wanted", [97, 100, 120])
def test_a_position_within_the_queue_is_fine(wanted: int) -> None:
    check("q", 0, Start(at(wanted)), 97, 120, "g")


def test_a_position_behind_the_end_is_another_queues() -> None:
    with pytest.raises(QueueReplaced, match="ends at offset 120"):
        check("q", 0, Start(at(121)), 97, 120, "g")


def test_a_stored_position_belongs_to_one_queue() -> None:
    """A queue that was deleted and made anew has the same name and another id."""
    check_identity("q", 0, None, "new")
    check_identity("q", 0, StoredPosition(at(5), "same"), "same")
    with pytest.raises(QueueReplaced, match="old"):
        check_identity("q", 0, StoredPosition(at(5), "old"), "new")
