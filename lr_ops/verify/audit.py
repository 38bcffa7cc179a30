"""
Judging the evidence about one partition of a session. Pure.

Three comparisons, each reaching where the others do not:

1. What both logs still have is compared transaction by transaction, by id: this names what is wrong.
2. The reader's running total against the source's log, if that still has its beginning.
3. The listener's running total, extended by what waits in the queue, against the reader's: this covers what was applied
   and trimmed long ago.

A difference of totals that the first comparison explains is not reported again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lr_ops.verify.model import (
    Evidence,
    Finding,
    Got,
    Kind,
    PartitionReport,
    Place,
    Sent,
    TotalsResult,
)
from lr_wire.records import RunningTotal, TxnId


class Index:
    """Where the source's log says each transaction belongs; made when something is first found in a wrong place."""

    def __init__(self, evidence: Sequence[Evidence]) -> None:
        """Cover all sessions, also those that are not audited."""
        self._evidence = evidence
        self._places: dict[TxnId, list[Place]] | None = None

    def places(self, txn: TxnId) -> Sequence[Place]:
        """Give the sessions and partitions that a transaction is for."""
        if self._places is None:
            self._places = {}
            for one in self._evidence:
                for sent in (*one.sent, *one.pending):
                    self._places.setdefault(sent.txn, []).append(Place(one.session, one.partition, sent))
        return self._places.get(txn, ())


def audit(evidence: Evidence, index: Index) -> PartitionReport:
    """Judge one partition of a session."""
    report = PartitionReport(evidence.session, evidence.partition)
    case = _Case(evidence, index)
    report.findings = list(case.findings())
    report.compared = case.compared
    report.forwarded = evidence.totals.reader.transactions if evidence.totals.reader else 0
    report.applied = evidence.applied.total.transactions if evidence.applied else 0
    report.waiting = len({got.txn for got in case.got if got.offset >= case.next_offset})
    report.pending = len(evidence.pending)
    differences = list(_differences(evidence))
    totals = evidence.totals
    if totals.reader is None or (totals.source is None and totals.sink is None):
        report.totals = TotalsResult.UNKNOWN
    else:
        report.totals = TotalsResult.DIFFER if differences else TotalsResult.MATCH
    if not report.findings:
        report.findings = [case.finding(Kind.TOTALS, difference) for difference in differences]
    return report


class _Case:
    """One partition: what was expected against what is there."""

    def __init__(self, evidence: Evidence, index: Index) -> None:
        self.evidence = evidence
        self.compared = 0
        self._index = index
        cut = evidence.cut
        if cut is None and evidence.newest_cut is not None:
            cut = -1  # the session began while the evidence was read
        # Without a position nothing may be there at all, so everything is looked at.
        self.got = [got for got in evidence.got if cut is None or got.completed_at <= cut]
        self._ahead = {got.txn for got in evidence.got if cut is not None and got.completed_at > cut}
        self.next_offset = evidence.applied.next_offset if evidence.applied else 0
        self._sent = _merged(evidence.sent)
        self._pending = {sent.txn: sent for sent in evidence.pending}
        self._by_txn: dict[TxnId, list[Got]] = {}
        self._scattered: set[TxnId] = set()
        previous = None
        for got in self.got:
            if got.txn != previous and got.txn in self._by_txn:
                self._scattered.add(got.txn)
            self._by_txn.setdefault(got.txn, []).append(got)
            previous = got.txn

    def finding(self, kind: Kind, detail: str, txn: TxnId | None = None, offset: int | None = None) -> Finding:
        """Make a finding about this partition."""
        return Finding(kind, self.evidence.session, self.evidence.partition, detail, txn, offset)

    def findings(self) -> Iterator[Finding]:
        """Compare what both logs still have."""
        yield from self._trimmed_too_early()
        yield from self._without_position()
        for broken in self.evidence.broken:
            yield self.finding(Kind.CHANGED, f"cannot be understood: {broken.reason}", offset=broken.offset)
        low = self._lowest_required()
        for sent in self._sent.values():
            if sent.txn not in self._by_txn and sent.txn not in self._ahead and _is_required(sent, low):
                yield self.finding(Kind.MISSING, f"forwarded according to the position, {_what(sent)}", sent.txn)
        in_order: list[Got] = []
        for txn, got in self._by_txn.items():
            found = list(self._about(txn, got))
            yield from found
            if not found and self._has_fixed_place(txn):
                in_order.append(got[0])
        for one in _misplaced(in_order):
            yield self.finding(
                Kind.OUT_OF_ORDER,
                f"was complete at offset {one.completed_at} of the source, but stands elsewhere",
                one.txn,
                one.offset,
            )

    def _trimmed_too_early(self) -> Iterator[Finding]:
        start = self.evidence.queue_start
        if start > self.next_offset:
            yield self.finding(
                Kind.MISSING,
                f"offsets {self.next_offset} to {start - 1} left the queue before a listener had applied them",
                offset=self.next_offset,
            )

    def _without_position(self) -> Iterator[Finding]:
        newest = self.evidence.newest_cut
        if self.evidence.got and newest is None:
            yield self.finding(
                Kind.TOTALS,
                "the queue has records, but LR_Status has no position for them",
                None,
                self.evidence.got[0].offset,
            )
        beyond = [got for got in self.evidence.got if newest is not None and got.completed_at > newest]
        if beyond:
            yield self.finding(
                Kind.TOTALS,
                f"{len(beyond)} records are complete at offset {beyond[0].completed_at} of the source or later, "
                f"but the position says that nothing beyond {newest} is forwarded",
                beyond[0].txn,
                beyond[0].offset,
            )

    def _lowest_required(self) -> int:
        """Give the offset of completion from which on everything must still be in the queue."""
        applied = self.evidence.applied
        if self.evidence.queue_start == 0:
            return -1
        if applied and not (self.got and self.got[0].offset < self.next_offset):
            return applied.completed_at + 1
        return self.got[0].completed_at if self.got else -1

    def _about(self, txn: TxnId, got: Sequence[Got]) -> Iterator[Finding]:
        """Judge what the queue has of one transaction."""
        sent = self._sent.get(txn) or self._pending.get(txn)
        first = got[0]
        if first is self.got[0] and first.record > 0 and first.offset < self.next_offset:
            return  # its beginning was trimmed, and all of it was applied
        if sent is not None:
            self.compared += 1
            yield from self._compare(sent, got)
        elif txn in self.evidence.headless:
            return
        elif txn in self.evidence.torn_at_source:
            yield self.finding(
                Kind.TORN, "the source's log does not have it whole: it belongs in the dead letter", txn, first.offset
            )
        elif places := self._index.places(txn):
            where = ", ".join(sorted({f"{place.session} partition {place.partition}" for place in places}))
            yield self.finding(Kind.MISROUTED, f"belongs to {where}", txn, first.offset)
        elif self._left_the_source(first):
            yield from self._whole(txn, got)
        else:
            yield self.finding(
                Kind.PHANTOM, "the source has no such transaction: aborted there, or never written", txn, first.offset
            )

    def _left_the_source(self, got: Got) -> bool:
        """Tell whether a transaction that the source's log does not have can have been trimmed there."""
        evidence = self.evidence
        if got.completed_at < evidence.source_start:
            return True
        # One without a last record is complete somewhere behind its records, which may have left the log already.
        return evidence.source_start > 0 and got.timestamp_ms <= evidence.source_start_ms

    def _compare(self, sent: Sent, got: Sequence[Got]) -> Iterator[Finding]:
        if tuple(record.digest for record in got) == sent.digests:
            # As it should be, and nearly always is: counting would take longer than everything else.
            yield from self._in_its_place(sent, got)
            return
        expected = Counter(sent.digests)
        actual = Counter(record.digest for record in got)
        first = got[0]
        foreign = [record for record in got if record.digest not in expected]
        places = self._index.places(sent.txn) if foreign else ()
        elsewhere = {digest for place in places for digest in place.sent.digests}
        changed = 0
        for record in foreign:
            if record.digest in elsewhere:
                kind, what = Kind.MISROUTED, "is not for this sink"
            else:
                kind, what = Kind.CHANGED, "is not what the source wrote"
                changed += 1
            yield self.finding(kind, f"record {record.record} {what}", sent.txn, record.offset)
        # A record that was changed is there, if not as it should be.
        lacking = (expected - actual).total() - changed
        if lacking > 0:
            detail = f"{lacking} of {len(sent.digests)} records are not there"
            yield self.finding(Kind.TORN, detail, sent.txn, first.offset)
        again = (actual - expected).total() - len(foreign)
        if again:
            detail = f"{again} records more than the {len(sent.digests)} there should be"
            yield self.finding(Kind.DUPLICATE, detail, sent.txn, first.offset)
        if actual == expected:
            yield from self._in_its_place(sent, got)

    def _in_its_place(self, sent: Sent, got: Sequence[Got]) -> Iterator[Finding]:
        """Judge a transaction whose records are all there, once."""
        first = got[0]
        applied = self.evidence.applied
        if (
            applied
            and sent.terminated
            and sent.completed_at <= applied.completed_at
            and first.offset >= self.next_offset
        ):
            yield self.finding(Kind.DUPLICATE, "was applied already, and is in the queue again", sent.txn, first.offset)
        elif tuple(record.digest for record in got) != sent.digests:
            yield self.finding(Kind.OUT_OF_ORDER, "its records stand in another order", sent.txn, first.offset)
        elif sent.terminated and sent.txn in self._scattered:
            yield self.finding(Kind.OUT_OF_ORDER, "its records do not stand together", sent.txn, first.offset)
        elif sent.terminated and [(one.record, one.records) for one in got] != [(n, len(got)) for n in range(len(got))]:
            yield self.finding(Kind.CHANGED, "its records are numbered wrongly", sent.txn, first.offset)
        elif sent.terminated and any(record.completed_at != sent.completed_at for record in got):
            yield self.finding(
                Kind.CHANGED,
                f"says that it was complete at offset {first.completed_at}; at the source that is {sent.completed_at}",
                sent.txn,
                first.offset,
            )

    def _whole(self, txn: TxnId, got: Sequence[Got]) -> Iterator[Finding]:
        """Judge a transaction that has left the source's log: it must be whole by what it says itself."""
        first = got[0]
        numbers = Counter(record.record for record in got)
        lacking = first.records - len(numbers)
        if lacking > 0 and first.offset >= self.next_offset:
            yield self.finding(Kind.TORN, f"{lacking} of {first.records} records are not there", txn, first.offset)
        if len(got) > len(numbers):
            again = len(got) - len(numbers)
            yield self.finding(Kind.DUPLICATE, f"{again} of its records are there again", txn, first.offset)

    def _has_fixed_place(self, txn: TxnId) -> bool:
        """Tell whether the order of completion is the same for every reader of the log."""
        sent = self._sent.get(txn)
        return sent is not None and sent.terminated


def _merged(sent: Iterable[Sent]) -> dict[TxnId, Sent]:
    """Join what has the same id: an application that repeats one gets it delivered as often."""
    merged: dict[TxnId, Sent] = {}
    for one in sent:
        before = merged.get(one.txn)
        if before is not None:
            one = Sent(  # noqa: PLW2901 - the joined one stands for both
                one.txn,
                one.completed_at,
                one.last_offset,
                before.digests + one.digests,
                before.entries + one.entries,
                terminated=False,
            )
        merged[one.txn] = one
    return merged


def _is_required(sent: Sent, low: int) -> bool:
    # A transaction without a last record may have been found complete, delivered and trimmed before `low`.
    return sent.completed_at >= low if sent.terminated else sent.last_offset > low


def _what(sent: Sent) -> str:
    return f"complete at offset {sent.completed_at} of the source, {len(sent.digests)} records, {sent.entries} entries"


def _misplaced(got: Sequence[Got]) -> list[Got]:
    """Give the fewest transactions without which the others stand in the order of completion."""
    # The longest run that never falls, by patience sorting: `tails[n]` ends the best run of length n + 1 so far.
    tails: list[int] = []
    tail_index: list[int] = []
    before: list[int] = []
    for index, one in enumerate(got):
        length = bisect_right(tails, one.completed_at)
        before.append(tail_index[length - 1] if length else -1)
        tails[length : length + 1] = [one.completed_at]
        tail_index[length : length + 1] = [index]
    kept = set()
    index = tail_index[-1] if tail_index else -1
    while index >= 0:
        kept.add(index)
        index = before[index]
    return [one for index, one in enumerate(got) if index not in kept]


def _differences(evidence: Evidence) -> Iterator[str]:
    totals = evidence.totals
    if totals.reader is None:
        return
    if totals.source is not None and totals.source != totals.reader:
        yield _difference("the source's log has", totals.source, "the reader has forwarded", totals.reader)
    if totals.sink is not None and totals.sink != totals.reader:
        yield _difference("the reader has forwarded", totals.reader, "the sink has applied or waiting", totals.sink)


def _difference(left: str, expected: RunningTotal, right: str, actual: RunningTotal) -> str:
    counts = f"{left} {_counts(expected)}, {right} {_counts(actual)}"
    if (expected.transactions, expected.entries) == (actual.transactions, actual.entries):
        return f"{counts}, but their checksums differ: changed, exchanged or in another order"
    return counts


def _counts(total: RunningTotal) -> str:
    return f"{total.transactions} transactions with {total.entries} entries"
