"""`lr verify` on real clusters: what is right passes also while everything moves; what is wrong is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_kafka.groups import committed
from lr_kafka.status import StatusTable, read_status
from lr_ops.verify import sink
from lr_wire import codec
from lr_wire.naming import SiteId
from tests.support import send_queue
from tests.support.brokers import Site
from tests.support.cli import Shown, lr, write_config
from tests.support.listener import Recorder
from tests.support.reader import POLICY, cluster, clusters, position, put_position, received, running, wait_for
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]

RECEIVE_QUEUE = "LRQ_Recv_policy_site-a"
NOBODY = Cluster(SiteId("site-x"), {"bootstrap.servers": "127.0.0.1:9"})


def kinds(shown: Shown) -> list[str]:
    """The kinds of findings, sorted."""
    return sorted(one["kind"] for one in shown.json["findings"])


def append(sink: Cluster, *values: bytes, partition: int = 0) -> None:
    """Write into a receive queue past the reader."""
    producer = sink.producer()
    for value in values:
        producer.produce(RECEIVE_QUEUE, value, partition=partition)
    assert producer.flush(20) == 0


@pytest.fixture
def forwarded(sites: Sites, tmp_path: Path) -> tuple[Path, Cluster, Cluster]:
    """Two sites; three transactions of two records are forwarded, and the reader has stopped."""
    a, b = clusters(sites, "site-a", "site-b")
    writer = Writer(a)
    with running(a, b) as reader:
        for number in range(3):
            writer.send(b"%d/0" % number, b"%d/1" % number)
        reader.forwarded(3)
    return write_config(tmp_path, a, b), a, b


def test_everything_in_its_place_is_clean(sites: Sites, tmp_path: Path) -> None:
    """Interleaved transactions to several sinks, aborted ones among them: exit code 0, and all were compared."""
    a, b, c = clusters(sites, "site-a", "site-b", "site-c", partitions=2)
    config = write_config(tmp_path, a, b, c, clients=["policy"])
    first, second = Writer(a), Writer(a, "inventory")
    with running(a, b, c, clients=["policy"]):
        one, other = first.begin(partition=1), second.begin(partition=1)
        one.add([b"1", b"2"], ["site-b", "site-c"])
        other.add([b"3"], ["site-c"])
        one.add([b"4"], ["site-b"], last=True)
        one.commit()
        other.add([b"5"], ["site-c"], last=True)
        other.commit()
        aborted = first.begin()
        aborted.add([b"never"], ["site-b", "site-c"], last=True)
        aborted.abort()
        shown = lr("verify", "--wait", "20", "--json", config=config)
    assert shown.code == 0
    report = shown.json
    assert report["clean"]
    assert report["findings"] == report["not_audited"] == []
    compared = {(one["sink"], one["client"], one["partition"]): one["compared"] for one in report["partitions"]}
    assert {key: count for key, count in compared.items() if count} == {
        ("site-b", "policy", 1): 1,
        ("site-c", "policy", 1): 1,
        ("site-c", "inventory", 1): 1,
    }
    assert {one["totals"] for one in report["partitions"]} == {"match"}
    people = lr("verify", config=config)
    assert people.code == 0
    assert "Every committed entry is at exactly its destinations, once, whole and in order" in people.out


def test_what_was_applied_and_deleted_is_audited_by_the_totals(sites: Sites, tmp_path: Path) -> None:
    """The queue is empty, the totals of both ends match; a listener that counted otherwise is found."""
    site_a, site_b = sites("site-a", "site-b")
    a, b = cluster(site_a), cluster(site_b)
    send_queue.create(a)
    writer = Writer(a)
    config = write_config(tmp_path, a, b)
    with running(a, b) as reader, Recorder(site_b) as listener:
        for number in range(5):
            writer.send(b"%d" % number)
        reader.forwarded(5)
        wait_for(lambda: listener.step() is None or len(listener.applied) == 5, "5 applied")
        end = topics.high_watermarks(b.admin(), RECEIVE_QUEUE, [0])[0]
        wait_for(
            lambda: listener.step() is None or topics.log_starts(b.admin(), RECEIVE_QUEUE, [0])[0] >= end - 1, "deleted"
        )
    shown = lr("verify", "--json", config=config)
    (line,) = shown.json["partitions"]
    assert (shown.code, line["forwarded"], line["applied"], line["waiting"]) == (0, 5, 5, 0)
    assert (line["compared"], line["totals"]) == (0, "match")
    before = position(b)
    put_position(b, replace(before, total=replace(before.total, checksum=1)))
    spoiled = lr("verify", "--json", config=config)
    assert spoiled.code == 1
    assert set(kinds(spoiled)) == {"totals"}


def test_a_transaction_that_is_there_twice_is_a_duplicate(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    config, _, b = forwarded
    again = received(b)[:2]
    append(b, *(one.value for one in again))
    shown = lr("verify", "--json", config=config)
    assert shown.code == 1
    (finding,) = shown.json["findings"]
    assert (finding["kind"], finding["txn"], finding["sink"]) == ("duplicate", str(again[0].record.txn), "site-b")
    people = lr("verify", config=config)
    assert people.code == 1
    assert f"duplicate: policy site-a->site-b partition 0 transaction {again[0].record.txn}" in people.out


def test_a_record_of_a_transaction_that_was_aborted_is_a_phantom(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    config, a, b = forwarded
    aborted = Writer(a).begin()
    body = aborted.add([b"never"], last=True)
    aborted.abort()
    append(b, codec.encode_receive_head(0, 1, 1, received(b)[-1].record.completed_at) + body)
    shown = lr("verify", "--json", config=config)
    assert [(one["kind"], one["txn"]) for one in shown.json["findings"]] == [("phantom", str(aborted.id))]


def test_records_deleted_before_they_were_applied_are_missing(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    """The second transaction's first record and all before it are gone."""
    config, _, b = forwarded
    topics.delete_before(b.admin(), RECEIVE_QUEUE, {0: received(b)[2].offset + 1})
    shown = lr("verify", "--json", config=config)
    assert shown.code == 1
    assert kinds(shown) == ["missing", "torn"]
    assert "left the queue before a listener had applied them" in shown.out


def test_a_position_that_claims_too_much_shows_what_is_missing(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    """What the position says is forwarded and is not in the queue is named."""
    config, a, b = forwarded
    lost = Writer(a).send(b"lost")
    before = position(b)
    end = send_queue.ends(a)[0]
    put_position(b, replace(before, resume_from=end, forwarded_through=end - 1))
    shown = lr("verify", "--json", config=config)
    assert [(one["kind"], one["txn"]) for one in shown.json["findings"]] == [("missing", str(lost.id))]


def test_bytes_that_are_no_record_are_told(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    config, _, b = forwarded
    append(b, b"\xff\xff\xff")
    shown = lr("verify", "--json", config=config)
    (finding,) = shown.json["findings"]
    assert (finding["kind"], finding["txn"]) == ("changed", None)
    assert "cannot be understood" in finding["detail"]


def test_a_dead_letter_is_not_missed(sites: Sites, tmp_path: Path) -> None:
    """What cannot be understood, or is torn at the source, belongs in the dead letter and in no queue."""
    a, b = clusters(sites, "site-a", "site-b")
    writer = Writer(a)
    with running(a, b) as reader:
        writer.raw(b"\xff\xff", headers=[("lrq_logentry_site-b", b"")])
        torn = writer.begin()
        torn.add([b"second"], number=1, last=True)
        torn.commit()
        writer.send(b"sound")
        reader.forwarded(1)
        reader.rejected(2)
    shown = lr("verify", "--json", config=write_config(tmp_path, a, b))
    assert (shown.code, shown.json["findings"]) == (0, [])


def test_a_transaction_without_a_last_record_is_audited(sites: Sites, tmp_path: Path) -> None:
    """It is forwarded when the reader has passed it, at an offset that differs from reader to reader."""
    a, b = clusters(sites, "site-a", "site-b")
    writer, other = Writer(a), Writer(a)
    with running(a, b) as reader:
        open_one = writer.begin()
        open_one.add([b"1"])
        other.send(b"2")
        open_one.add([b"3"])
        open_one.commit()
        other.send(b"4")
        reader.forwarded(3)
        shown = lr("verify", "--wait", "20", "--json", config=write_config(tmp_path, a, b))
    assert (shown.code, shown.json["findings"]) == (0, [])
    (line,) = shown.json["partitions"]
    assert line["compared"] == 3


def test_what_has_left_the_source_is_not_missed(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    """Retention took the first transaction and half of the second; what is left is compared."""
    config, a, _ = forwarded
    send_queue.trim(a, {0: 4})
    shown = lr("verify", "--json", config=config)
    assert (shown.code, shown.json["findings"]) == (0, [])
    (line,) = shown.json["partitions"]
    assert (line["forwarded"], line["compared"]) == (3, 1)


def test_a_sink_that_cannot_be_reached_leaves_the_audit_incomplete(
    forwarded: tuple[Path, Cluster, Cluster], tmp_path: Path
) -> None:
    """The others are audited; exit code 2 says that not everything was."""
    _, a, b = forwarded
    shown = lr("verify", "--json", config=write_config(tmp_path, a, b, NOBODY))
    assert shown.code == 2
    assert [one["what"] for one in shown.json["not_audited"]] == ["site-x"]
    assert [one["compared"] for one in shown.json["partitions"]] == [3]


def test_entries_for_a_site_that_is_not_configured_leave_the_audit_incomplete(
    forwarded: tuple[Path, Cluster, Cluster],
) -> None:
    config, a, _ = forwarded
    Writer(a).send(b"for nobody", to=["site-z"])
    shown = lr("verify", "--json", config=config)
    assert shown.code == 2
    assert shown.json["not_audited"] == [
        {"what": "site-z", "reason": "1 transactions are for it, but the configuration has no such site"}
    ]


def test_a_send_queue_made_anew_cannot_be_compared_with(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    config, a, _ = forwarded
    send_queue.recreate(a)
    shown = lr("verify", "--json", config=config)
    assert shown.code == 2
    assert "another send queue" in shown.json["not_audited"][0]["reason"]


def test_waiting_ends_when_the_reader_has_caught_up(forwarded: tuple[Path, Cluster, Cluster]) -> None:
    """With a reader that starts late everything is there; without one the time is over, and that is told."""
    config, a, b = forwarded
    Writer(a).send(b"late")
    tired = lr("verify", "--wait", "0.5", "--json", config=config)
    assert tired.code == 2
    assert tired.json["not_audited"] == [{"what": "policy site-a->site-b", "reason": "had not caught up after 0.5 s"}]
    assert [one["pending"] for one in tired.json["partitions"]] == [1]
    found: list[Shown] = []
    waiting = threading.Thread(target=lambda: found.append(lr("verify", "--wait", "30", "--json", config=config)))
    waiting.start()
    with running(a, b) as reader:
        reader.forwarded(1)
        waiting.join(40)
    assert [one.code for one in found] == [0]
    assert [one["pending"] for one in found[0].json["partitions"]] == [0]


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    """Repeat `work` in a thread until the with-block ends; what it raises is raised here."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def repeat() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_an_audit_is_clean_while_entries_flow_are_applied_and_deleted(sites: Sites, tmp_path: Path) -> None:
    """Application, reader and a listener that deletes are all at work; the audit finds a cut at which all is right."""
    site_a, site_b = sites("site-a", "site-b")
    a, b = cluster(site_a), cluster(site_b)
    send_queue.create(a, 2)
    config = write_config(tmp_path, a, b, clients=["policy"])
    random = Random(7)
    writers = [Writer(a), Writer(a)]

    def write() -> None:
        for partition, writer in enumerate(writers):
            txn = writer.begin(partition)
            for number in range(size := random.randint(1, 4)):
                txn.add([b"x" * 50], last=number == size - 1)
            txn.abort() if random.random() < 0.1 else txn.commit()

    # It deletes often, but not faster than a queue can be read on a busy machine: then there would be no cut to find.
    with running(a, b, clients=["policy"]) as reader, Recorder(site_b, delete_s=1.0) as listener:
        with in_background(write), in_background(listener.step):
            reader.hooks.wait(lambda: reader.hooks.transactions[reader.session()] > 20, lambda: "20 transactions")
            shown = [lr("verify", "--json", config=config) for _ in range(6)]
        final = lr("verify", "--wait", "20", "--json", config=config)
    for one in [*shown, final]:
        assert (one.code, one.json["findings"], one.json["not_audited"]) == (0, [], [])
        assert {line["totals"] for line in one.json["partitions"]} == {"match"}
    # It was not idle: later audits saw more than earlier ones, and some of it was applied and deleted by then.
    seen = [sum(line["forwarded"] for line in one.json["partitions"]) for one in shown]
    assert seen == sorted(set(seen))
    assert sum(line["applied"] for line in shown[-1].json["partitions"]) > 0
    assert max(topics.log_starts(b.admin(), RECEIVE_QUEUE, [0, 1]).values()) > 0
    assert POLICY in {line["client"] for line in final.json["partitions"]}


@pytest.mark.parametrize("delete", [True, False], ids=["deleted", "kept"])
def test_what_happens_between_two_steps_of_an_audit_does_not_deceive_it(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delete: bool
) -> None:
    """Right before and right after the positions are read, more is forwarded and applied, and maybe deleted."""
    site_a, site_b = sites("site-a", "site-b")
    a, b = cluster(site_a), cluster(site_b)
    send_queue.create(a)
    writer = Writer(a)
    config = write_config(tmp_path, a, b)
    with running(a, b) as reader, Recorder(site_b, delete_applied=delete) as listener:

        def traffic() -> None:
            writer.send(b"1", b"2")
            count = len(listener.applied) + 1
            wait_for(lambda: listener.step() is None or len(listener.applied) == count, f"{count} applied")
            # Committed, and deleted if that is wanted: a moment later, by the listener itself.
            wait_for(lambda: listener.step() is None or _applied_offset(b) >= _end_of_data(b), "committed")
            if delete:
                wait_for(lambda: listener.step() is None or _log_start(b) >= _end_of_data(b), "deleted")

        reads: list[Cluster] = []

        def read_between_traffic(cluster: Cluster, patience_s: float) -> StatusTable:
            reads.append(cluster)
            if len(reads) > 2:
                return read_status(cluster, patience_s)
            traffic()
            table = read_status(cluster, patience_s)
            traffic()
            return table

        traffic()
        reader.forwarded(1)
        monkeypatch.setattr(sink, "read_status", read_between_traffic)
        shown = lr("verify", "--json", config=config)
    assert len(reads) >= 2
    assert (shown.code, shown.json["findings"]) == (0, [])
    (line,) = shown.json["partitions"]
    assert line["totals"] == "match"
    assert line["forwarded"] >= 2


def _applied_offset(site: Cluster) -> int:
    found = committed(site.admin(), "LR_listener_policy", RECEIVE_QUEUE, [0])
    return found[0].offset if found else -1


def _log_start(site: Cluster) -> int:
    return topics.log_starts(site.admin(), RECEIVE_QUEUE, [0])[0]


def _end_of_data(site: Cluster) -> int:
    # The last offset is that of a commit marker, behind which no listener can be.
    return topics.high_watermarks(site.admin(), RECEIVE_QUEUE, [0])[0] - 1
