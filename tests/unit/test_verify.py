"""The audit reports exactly what is wrong: every kind of damage is done to a sound world and found, alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lr_ops.verify.model import Finding, Kind, TotalsResult
from lr_wire import codec
from lr_wire.naming import PositionKey, SessionKey
from lr_wire.records import Applied, RunningTotal, TxnId
from tests.support.world import CLIENTS, SINKS, SOURCE, Queue, QueueRecord, Transaction, World

Test = Callable[..., None]


def holds_for(*strategies: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Test with enough worlds to be sure and few enough for `make unit`; a busy machine is no failure."""
    return lambda test: settings(max_examples=50, deadline=None)(given(*strategies)(test))


DESTINATIONS = [(SINKS[0],), (SINKS[1],), SINKS]


def random_transaction(random: Random, *, terminated: bool) -> Transaction:
    return Transaction(
        random.choice(CLIENTS),
        tuple(random.choice(DESTINATIONS) for _ in range(random.randint(1, 4))),
        aborted=random.random() < 0.1,
        terminated=terminated or random.random() < 0.5,
    )


@st.composite
def worlds(draw: st.DrawFn, *, terminated: bool = True, trimmed: bool = True) -> World:
    """
    Two partitions of interleaved transactions, forwarded to some point, applied and trimmed to others.

    Only the size and a seed are drawn: drawing every record takes ten times as long as the audit itself.
    """
    world = World()
    size = draw(st.integers(0, 12))
    random = Random(draw(st.integers(0, 2**32)))
    for partition in range(2):
        chosen = [random_transaction(random, terminated=terminated) for _ in range(size)]
        world.write(partition, chosen, random)
        records = len(world.logs[partition])
        upto = random.choice([records, random.randint(0, records)])
        world.forward(partition, upto, random.randint(upto, records))
    for (key, partition), queue in world.queues.items():
        position = world.tables[key.sink].positions.get(PositionKey(*key, partition))
        applied = random.randint(0, position.total.transactions // 2 if position else 0)
        queue.apply(applied, random.randint(0, applied) if trimmed else 0)
    return world


@dataclass
class Target:
    """A queue to be damaged, and what in it an audit must notice: forwarded, and not applied."""

    world: World
    key: SessionKey
    partition: int
    queue: Queue
    open: list[list[QueueRecord]]

    def rearranged(self, change: Callable[[list[list[QueueRecord]]], None]) -> None:
        everything = self.queue.transactions()
        change(everything)
        self.queue.arrange(everything)

    def expect(self, *findings: tuple[Kind, TxnId | None]) -> None:
        found = self.world.findings()
        assert {(finding.session, finding.partition) for finding in found} <= {(self.key, self.partition)}
        assert sorted((f.kind, f.txn or ()) for f in found) == sorted((kind, txn or ()) for kind, txn in findings)


@st.composite
def targets(draw: st.DrawFn, *, least: int = 1, trimmed: bool = True) -> Target:
    world = draw(worlds(trimmed=trimmed))
    candidates = []
    for (key, partition), queue in world.queues.items():
        position = world.tables[key.sink].positions.get(PositionKey(*key, partition))
        first = queue.applied.next_offset if queue.applied else 0
        found = [
            records
            for records in queue.transactions()
            if position and records[0].offset >= first and records[0].completed_at <= position.forwarded_through
        ]
        if len(found) >= least:
            candidates.append(Target(world, key, partition, queue, found))
    assume(candidates)
    return draw(st.sampled_from(candidates))


def index_in(everything: list[list[QueueRecord]], records: list[QueueRecord]) -> int:
    return [one[0].txn for one in everything].index(records[0].txn)


@holds_for(worlds(terminated=False))
def test_a_sound_world_has_no_findings(world: World) -> None:
    """Interleaved, aborted, unterminated, half forwarded, applied and trimmed: nothing of it is wrong."""
    reports = world.reports()
    assert [finding for report in reports for finding in report.findings] == []
    assert TotalsResult.DIFFER not in {report.totals for report in reports}


@holds_for(worlds())
def test_totals_are_compared_wherever_there_is_a_position(world: World) -> None:
    for report in world.reports():
        assert report.totals == TotalsResult.MATCH


@holds_for(worlds(), st.data())
def test_a_trimmed_source_causes_no_findings(world: World, data: st.DataObject) -> None:
    """Transactions that have left the source's log, whole or in part, cannot be compared; that is not an error."""
    for partition, log in world.logs.items():
        if log:
            world.source_starts[partition] = data.draw(st.sampled_from([offset for offset, _, _ in log]))
    assert world.findings() == []


@holds_for(targets(), st.data())
def test_a_lost_transaction_is_missing(target: Target, data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(target.open))
    txn = lost[0].txn
    target.queue.records = [record for record in target.queue.records if record.txn != txn]
    target.expect((Kind.MISSING, txn))


@holds_for(targets(), st.data())
def test_a_transaction_forwarded_again_is_a_duplicate(target: Target, data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(target.open))
    target.queue.append([record.value for record in again])
    target.expect((Kind.DUPLICATE, again[0].txn))


@holds_for(worlds(), st.data())
def test_an_applied_and_trimmed_transaction_that_comes_again_is_a_duplicate(world: World, data: st.DataObject) -> None:
    """Its first copy is gone, but the applied position tells."""
    trimmed = {place: queue.transactions() for place, queue in world.queues.items() if queue.applied}
    assume(trimmed)
    place = data.draw(st.sampled_from(sorted(trimmed)))
    queue = world.queues[place]
    gone = [records for records in trimmed[place] if records[0].offset < queue.applied.next_offset]  # type: ignore[union-attr]
    assume(gone)
    again = data.draw(st.sampled_from(gone))
    queue.start = queue.applied.next_offset  # type: ignore[union-attr]
    queue.records = [record for record in queue.records if record.offset >= queue.start]
    queue.append([record.value for record in again])
    assert [(finding.kind, finding.txn) for finding in world.findings()] == [(Kind.DUPLICATE, again[0].txn)]


@holds_for(targets(), st.data())
def test_a_lost_record_tears_its_transaction(target: Target, data: st.DataObject) -> None:
    torn = [records for records in target.open if len(records) > 1]
    assume(torn)
    lost = data.draw(st.sampled_from(data.draw(st.sampled_from(torn))))
    target.queue.records.remove(lost)
    target.expect((Kind.TORN, lost.txn))


@holds_for(targets(), st.data())
def test_a_repeated_record_is_a_duplicate(target: Target, data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(data.draw(st.sampled_from(target.open))))

    def repeat(everything: list[list[QueueRecord]]) -> None:
        records = everything[[one[0].txn for one in everything].index(record.txn)]
        records.insert(records.index(record), record)

    target.rearranged(repeat)
    target.expect((Kind.DUPLICATE, record.txn))


@holds_for(targets(least=2), st.data())
def test_a_moved_transaction_is_out_of_order(target: Target, data: st.DataObject) -> None:
    """The one that moved is named; of two neighbours that changed places, one of them."""
    moved = data.draw(st.sampled_from(target.open))
    other = data.draw(st.sampled_from([records for records in target.open if records is not moved]))

    def move(everything: list[list[QueueRecord]]) -> None:
        to = index_in(everything, other)
        everything.insert(to, everything.pop(index_in(everything, moved)))

    target.rearranged(move)
    found = target.world.findings()
    assert [finding.kind for finding in found] == [Kind.OUT_OF_ORDER]
    assert found[0].txn in {moved[0].txn, other[0].txn}


@holds_for(targets(), st.data())
def test_exchanged_records_of_a_transaction_are_out_of_order(target: Target, data: st.DataObject) -> None:
    several = [records for records in target.open if len(records) > 1]
    assume(several)
    chosen = data.draw(st.sampled_from(several))

    def turn(everything: list[list[QueueRecord]]) -> None:
        everything[index_in(everything, chosen)].reverse()

    target.rearranged(turn)
    target.expect((Kind.OUT_OF_ORDER, chosen[0].txn))


@holds_for(targets(least=2), st.data())
def test_records_that_do_not_stand_together_are_out_of_order(target: Target, data: st.DataObject) -> None:
    several = [number for number, records in enumerate(target.open[:-1]) if len(records) > 1]
    assume(several)
    number = data.draw(st.sampled_from(several))
    first, second = target.open[number], target.open[number + 1]

    def scatter(everything: list[list[QueueRecord]]) -> None:
        at = index_in(everything, first)
        everything[at : at + 2] = [first[:-1], second[:1], first[-1:], second[1:]]

    target.rearranged(scatter)
    assert {finding.kind for finding in target.world.findings()} == {Kind.OUT_OF_ORDER}
    assert first[0].txn in {finding.txn for finding in target.world.findings()}
    assert second[0].txn not in {finding.txn for finding in target.world.findings()} or len(second) > 1


@holds_for(targets(), st.data())
def test_a_transaction_of_another_session_is_misrouted(target: Target, data: st.DataObject) -> None:
    """It belongs to another client or sink, and the finding says to which."""
    mine = {
        evidence.session: evidence for evidence in target.world.evidence() if evidence.partition == target.partition
    }
    known = {sent.txn for sent in (*mine[target.key].sent, *mine[target.key].pending)}
    strangers = [
        records
        for (key, partition), queue in target.world.queues.items()
        if partition == target.partition and key != target.key
        for records in queue.transactions()
        if records[0].txn not in known
        and records[0].completed_at <= target.world.position(target.key, partition).forwarded_through
    ]
    assume(strangers)
    stranger = data.draw(st.sampled_from(strangers))
    target.queue.append([record.value for record in stranger])
    target.expect((Kind.MISROUTED, stranger[0].txn))
    (finding,) = target.world.findings()
    assert "belongs to" in finding.detail
    assert str(target.key) not in finding.detail


@holds_for(targets(), st.data())
def test_a_record_for_another_sink_is_misrouted(target: Target, data: st.DataObject) -> None:
    """A transaction may be for this sink as a whole and yet hold a record that is not."""
    other = next(sink for sink in SINKS if sink != target.key.sink)
    theirs = target.world.queue(target.key._replace(sink=other), target.partition).records
    mixed = [
        (records, record)
        for records in target.open
        for record in theirs
        if record.txn == records[0].txn and body(record) not in {body(one) for one in records}
    ]
    assume(mixed)
    records, stranger = data.draw(st.sampled_from(mixed))

    def insert(everything: list[list[QueueRecord]]) -> None:
        everything[index_in(everything, records)].append(stranger)

    target.rearranged(insert)
    target.expect((Kind.MISROUTED, records[0].txn))


def body(record: QueueRecord) -> bytes:
    return codec.decode_receive(record.value).body


@holds_for(targets(), st.data())
def test_a_changed_payload_is_told(target: Target, data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(data.draw(st.sampled_from(target.open))))
    txn = record.txn
    payload = f"{txn.first_sequence}/".encode()
    assert payload in record.value
    record.value = record.value.replace(payload, b"X" * len(payload), 1)
    target.expect((Kind.CHANGED, txn))


@holds_for(targets(), st.data())
def test_bytes_that_cannot_be_understood_are_told(target: Target, data: st.DataObject) -> None:
    """The record is reported as changed and its transaction as torn, or as missing if it had no other."""
    records = data.draw(st.sampled_from(target.open))
    txn, size = records[0].txn, len(records)
    records[0].value = b"\xff\xff"
    found = sorted((finding.kind, finding.txn is None) for finding in target.world.findings())
    gone = Kind.MISSING if size == 1 else Kind.TORN
    assert found == sorted([(Kind.CHANGED, True), (gone, False)])
    assert txn in {finding.txn for finding in target.world.findings()}


@holds_for(targets(), st.data())
def test_an_aborted_transaction_is_a_phantom(target: Target, data: st.DataObject) -> None:
    """What the source never committed must not be there."""
    aborted = target.world.encode(Transaction(target.key.client, ((target.key.sink,),), aborted=True))
    record = codec.decode_send(aborted[0])
    completed_at = data.draw(st.sampled_from([records[0].completed_at for records in target.open]))
    target.queue.append([codec.encode_receive_head(0, 1, 2, completed_at) + record.body], timestamp_ms=10_000)
    target.expect((Kind.PHANTOM, record.txn))


@holds_for(targets(), st.data())
def test_an_aborted_transaction_is_a_phantom_even_if_the_source_is_trimmed(target: Target, data: st.DataObject) -> None:
    """It is newer than the beginning of the log, so it cannot have been trimmed there."""
    newest = target.open[-1][0].completed_at
    assume(newest > 0)
    target.world.source_starts[target.partition] = data.draw(st.integers(1, newest))
    record = codec.decode_send(target.world.encode(Transaction(target.key.client, ((target.key.sink,),)))[0])
    value = codec.encode_receive_head(0, 1, 2, newest) + record.body
    target.queue.append([value], timestamp_ms=10_000)
    target.expect((Kind.PHANTOM, record.txn))


@holds_for(worlds(), st.data())
def test_a_difference_in_what_was_applied_and_trimmed_is_told_by_the_totals(world: World, data: st.DataObject) -> None:
    """Nothing that is still there shows it: only the running totals can."""
    places = [place for place, queue in world.queues.items() if queue.applied]
    assume(places)
    place = data.draw(st.sampled_from(places))
    applied = world.queues[place].applied
    assert applied is not None
    total = applied.total
    wrong = data.draw(
        st.sampled_from(
            [
                replace(total, transactions=total.transactions - 1),
                replace(total, entries=total.entries + 1),
                replace(total, checksum=total.checksum ^ 1),
            ]
        )
    )
    world.queues[place].applied = replace(applied, total=wrong)
    findings = world.findings()
    assert [(finding.kind, finding.session, finding.partition) for finding in findings] == [(Kind.TOTALS, *place)]


@holds_for(targets())
def test_a_reader_that_counts_wrongly_is_found(target: Target) -> None:
    """The position's total differs from both the source's log and the sink."""
    position = target.world.position(target.key, target.partition)
    wrong = replace(position, total=RunningTotal(1, 2, 3))
    target.world.tables[target.key.sink].positions[PositionKey(*target.key, target.partition)] = wrong
    target.expect((Kind.TOTALS, None), (Kind.TOTALS, None))


@holds_for(targets(trimmed=False))
def test_records_that_left_the_queue_unapplied_are_missing(target: Target) -> None:
    first = target.open[0]
    target.queue.start = first[-1].offset + 1
    target.queue.records = [record for record in target.queue.records if record.offset >= target.queue.start]
    findings = target.world.findings()
    assert {finding.kind for finding in findings} == {Kind.MISSING}
    assert any("left the queue before" in finding.detail for finding in findings)


@holds_for(targets())
def test_records_without_a_position_are_told(target: Target) -> None:
    """Data without its position means that it was not written in one transaction."""
    for tables in (target.world.tables, target.world.newest):
        for key in list(tables[target.key.sink].positions):
            if key.partition == target.partition:
                del tables[target.key.sink].positions[key]
    found = [f for f in target.world.findings() if (f.session, f.partition) == (target.key, target.partition)]
    assert [finding.kind for finding in found] == [Kind.TOTALS]
    assert "has no position" in found[0].detail


@holds_for(targets())
def test_records_beyond_the_newest_position_are_told(target: Target) -> None:
    position = target.world.position(target.key, target.partition)
    record = codec.decode_send(target.world.encode(Transaction(target.key.client, ((target.key.sink,),)))[0])
    target.world.newest[target.key.sink].positions.update(target.world.tables[target.key.sink].positions)
    target.queue.records = [r for r in target.queue.records if r.completed_at <= position.forwarded_through]
    target.queue.append([codec.encode_receive_head(0, 1, 2, position.forwarded_through + 1) + record.body])
    found = [f for f in target.world.findings() if (f.session, f.partition) == (target.key, target.partition)]
    assert [(finding.kind, finding.txn) for finding in found] == [(Kind.TOTALS, record.txn)]


def small_world() -> World:
    world = World()
    world.write(0, [Transaction(CLIENTS[0], ((SINKS[0],), SINKS))] * 3, Random(1))
    world.forward(0, 99)
    return world


def test_a_transaction_torn_at_the_source_does_not_belong_in_the_queue() -> None:
    """The reader puts it into the dead letter; in the receive queue it is reported."""
    world = small_world()
    log = world.logs[0]
    # Its first record never made it into the log.
    log.remove(next(one for one in log if codec.decode_send(one[1]).record == 0))
    findings = world.findings()
    assert {finding.kind for finding in findings} == {Kind.TORN}
    assert "dead letter" in findings[0].detail
    assert {finding.session.sink for finding in findings} == set(SINKS)


def test_what_waits_and_what_is_applied_are_counted_apart() -> None:
    """Received is not applied."""
    world = small_world()
    key = SessionKey(SOURCE, SINKS[0], CLIENTS[0])
    world.queue(key, 0).apply(1, 1)
    report = next(report for report in world.reports() if report.session == key)
    assert (report.forwarded, report.applied, report.waiting, report.pending, report.compared) == (3, 1, 2, 0, 2)


def test_what_is_not_forwarded_yet_is_pending_and_no_finding() -> None:
    world = World()
    world.write(0, [Transaction(CLIENTS[0], (SINKS,))] * 3, Random(1))
    world.forward(0, 1)
    reports = {report.session: report for report in world.reports()}
    report = reports[SessionKey(SOURCE, SINKS[0], CLIENTS[0])]
    assert (report.forwarded, report.pending, report.findings) == (1, 2, [])


def test_a_transaction_whose_beginning_was_trimmed_after_it_was_applied_is_not_torn() -> None:
    world = small_world()
    key = SessionKey(SOURCE, SINKS[0], CLIENTS[0])
    queue = world.queue(key, 0)
    queue.apply(1, 0)
    queue.start = queue.records[1].offset
    del queue.records[0]
    assert world.findings() == []


@holds_for(targets(), st.sampled_from([(1, 9), (5, 2)]))
def test_wrong_numbering_within_a_transaction_is_told(target: Target, place: tuple[int, int]) -> None:
    """A listener would wait for records that never come, or deliver too early."""
    record = target.open[0][0]
    txn, completed_at, old = record.txn, record.completed_at, codec.decode_receive(record.value)
    number, records = min(place), max(place)
    record.value = codec.encode_receive_head(number, records, 2, completed_at) + old.body
    found = target.world.findings()
    assert [(finding.kind, finding.txn) for finding in found if finding.kind != Kind.TOTALS] == [(Kind.CHANGED, txn)]


@pytest.mark.parametrize("applied", [Applied(0), None])
def test_an_untouched_listener_is_no_finding(applied: Applied | None) -> None:
    """A listener that has not begun, or has committed nothing of substance, is only behind."""
    world = small_world()
    for queue in world.queues.values():
        queue.applied = applied
    assert world.findings() == []


def test_a_finding_names_session_partition_and_offset() -> None:
    world = small_world()
    key = SessionKey(SOURCE, SINKS[0], CLIENTS[0])
    queue = world.queue(key, 0)
    again = queue.transactions()[0]
    queue.append([record.value for record in again])
    assert world.findings() == [
        Finding(Kind.DUPLICATE, key, 0, "2 records more than the 2 there should be", again[0].txn, again[0].offset)
    ]
