"""`lr status` on real clusters: state, position, lag, what is applied, and who is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster
from lr_wire import naming
from lr_wire.naming import SessionKey, SiteId
from lr_wire.v1.control_pb2 import SessionStatus
from tests.support import send_queue
from tests.support.brokers import Site
from tests.support.cli import Shown, lr, write_config
from tests.support.listener import Recorder
from tests.support.reader import POLICY, QUICK, cluster, clusters, position, running, wait_for
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]

NOBODY = Cluster(SiteId("site-x"), {"bootstrap.servers": "127.0.0.1:9"})


def session(shown: Shown, sink: str = "site-b", client: str = POLICY) -> dict[str, Any]:
    (found,) = [one for one in shown.json["sessions"] if (one["sink"], one["client"]) == (sink, client)]
    return dict(found)


def put_status(site: Cluster, sink: str, status: SessionStatus) -> None:
    """Write the state of the session of `policy`, as a reader does."""
    spec = layout.status()
    topics.create(site.admin(), spec.name, spec.partitions, spec.config)
    producer = site.producer()
    key = naming.session_key(SessionKey(SiteId("site-a"), SiteId(sink), POLICY))
    producer.produce(naming.STATUS, status.SerializeToString(), key.encode())
    assert producer.flush(20) == 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_without_a_reader_the_log_tells_what_waits(sites: Sites, tmp_path: Path) -> None:
    """Lag is the number of complete transactions for the sink; aborted, open and other sinks' ones do not count."""
    a, b, c = clusters(sites, "site-a", "site-b", "site-c", partitions=2)
    writer, other = Writer(a), Writer(a)
    for number in range(3):
        writer.send(b"%d" % number, to=["site-b"], partition=number % 2)
    writer.send(b"both", b"of", to=["site-b", "site-c"])
    aborted = writer.begin()
    aborted.add([b"never"], last=True)
    aborted.abort()
    unfinished = other.begin(partition=1)
    unfinished.add([b"not yet"], last=True)
    began = time.monotonic()
    shown = lr("status", "--json", config=write_config(tmp_path, a, b, c, clients=["policy"]))
    assert time.monotonic() - began < 5, "an open transaction must not keep us waiting"
    unfinished.abort()
    assert shown.code == 0
    to_b, to_c = session(shown), session(shown, "site-c")
    assert (to_b["state"], to_b["reason"]) == ("UNKNOWN", "no reader has reported it yet")
    assert (to_b["lag"]["transactions"], to_b["lag"]["at_least"]) == (4, False)
    assert 0 < to_b["lag"]["seconds"] < 60
    assert to_c["lag"]["transactions"] == 1
    assert [one["lag"]["transactions"] for one in to_b["partitions"]] == [3, 1]


def test_a_running_session_shows_its_position_and_what_is_applied(sites: Sites, tmp_path: Path) -> None:
    """No lag, the position of each partition, forwarded and applied apart; after the reader's end the lag grows."""
    site_a, site_b = sites("site-a", "site-b")
    a, b = cluster(site_a), cluster(site_b)
    send_queue.create(a)
    writer = Writer(a)
    config = write_config(tmp_path, a, b)
    with running(a, b) as reader:
        writer.send(b"1")
        writer.send(b"2", b"3")
        reader.forwarded(2)
        end = send_queue.ends(a)[0]
        wait_for(lambda: position(b).resume_from == end, "the position is behind the last marker")
        with Recorder(site_b) as listener:
            wait_for(lambda: listener.step() is None or len(listener.applied) == 1, "one applied")
        shown = session(lr("status", "--json", config=config))
        assert (shown["state"], shown["stale"], shown["receive_queue"]) == (
            "LOG_ENTRY_SYNC",
            False,
            "LRQ_Recv_policy_site-a",
        )
        assert shown["lag"] == {"transactions": 0, "seconds": 0.0, "at_least": False}
        assert shown["forwarded"] == {"transactions": 2, "entries": 3}
        assert 1 <= shown["applied"]["transactions"] <= 2
        assert shown["owner"]
        assert shown["heartbeat_age_s"] < 5
        (only,) = shown["partitions"]
        assert (only["resume_from"], only["forwarded_through"]) == (end, end - 1)
    writer.send(b"4")
    stopped = session(lr("status", "--json", config=config))
    assert (stopped["state"], stopped["stale"], stopped["lag"]["transactions"]) == ("STOPPED", False, 1)
    people = lr("status", "--partitions", config=config)
    assert people.code == 0
    assert "policy site-a->site-b" in people.out
    assert "STOPPED" in people.out
    assert "forwarded through" in people.out


def test_a_client_that_only_the_log_shows_is_listed(sites: Sites, tmp_path: Path) -> None:
    a, b = clusters(sites, "site-a", "site-b")
    Writer(a, "inventory").send(b"1")
    shown = lr("status", "--json", config=write_config(tmp_path, a, b))
    assert [(one["client"], one["lag"]["transactions"]) for one in shown.json["sessions"]] == [("inventory", 1)]


def test_a_sink_that_does_not_answer_is_shown_with_the_others(sites: Sites, tmp_path: Path) -> None:
    """Its sessions are there with the reason; a reader that says why counts more than that we could not reach it."""
    a, b = clusters(sites, "site-a", "site-b")
    Writer(a).send(b"1", to=["site-b", "site-x"])
    config = write_config(tmp_path, a, b, NOBODY, clients=["policy"])
    shown = lr("status", "--json", config=config)
    assert shown.code == 0
    assert set(shown.json["unreachable"]) == {"site-x"}
    assert session(shown, "site-b")["lag"]["transactions"] == 1
    away = session(shown, "site-x")
    assert (away["state"], away["lag"]) == ("UNREACHABLE", None)
    assert "no answer within" in away["reason"]
    blocked = SessionStatus(state=SessionStatus.BLOCKED, reason="wrong password", heartbeat_ms=now_ms(), owner="me")
    put_status(a, "site-x", blocked)
    away = session(lr("status", "--json", config=config), "site-x")
    assert (away["state"], away["reason"], away["owner"]) == ("BLOCKED", "wrong password", "me")


def test_the_newer_of_two_reports_counts(sites: Sites, tmp_path: Path) -> None:
    """While a sink is away the source's cluster knows more; afterwards the sink does."""
    a, b = clusters(sites, "site-a", "site-b")
    now = now_ms()
    put_status(b, "site-b", SessionStatus(state=SessionStatus.LOG_ENTRY_SYNC, heartbeat_ms=now - 1000))
    put_status(a, "site-b", SessionStatus(state=SessionStatus.BLOCKED, reason="away", heartbeat_ms=now))
    config = write_config(tmp_path, a, b)
    assert session(lr("status", "--json", config=config))["state"] == "BLOCKED"
    put_status(b, "site-b", SessionStatus(state=SessionStatus.LOG_ENTRY_SYNC, heartbeat_ms=now + 1000))
    assert session(lr("status", "--json", config=config))["state"] == "LOG_ENTRY_SYNC"


def test_a_session_without_a_heartbeat_is_stale(sites: Sites, tmp_path: Path) -> None:
    """The state is that of a reader which is gone: it is shown, with the question that it raises."""
    a, b = clusters(sites, "site-a", "site-b")
    put_status(b, "site-b", SessionStatus(state=SessionStatus.LOG_ENTRY_SYNC, heartbeat_ms=now_ms() - 60_000))
    config = write_config(tmp_path, a, b)
    assert session(lr("status", "--json", config=config))["stale"]
    assert "is a reader running?" in lr("status", config=config).out
    patient = write_config(tmp_path, a, b, limits=replace(QUICK, heartbeat_s=60))
    assert not session(lr("status", "--json", config=patient))["stale"]


def test_a_source_that_does_not_answer_leaves_the_lag_unknown(sites: Sites, tmp_path: Path) -> None:
    (b,) = map(cluster, sites("site-b"))
    put_status(b, "site-b", SessionStatus())
    away = Cluster(SiteId("site-a"), NOBODY.settings)
    shown = lr("status", "--json", config=write_config(tmp_path, away, b, clients=["policy"]))
    assert shown.code == 0
    assert set(shown.json["unreachable"]) == {"site-a"}
    assert session(shown)["lag"] is None
    assert "?" in lr("status", config=tmp_path / "reader.yaml").out
