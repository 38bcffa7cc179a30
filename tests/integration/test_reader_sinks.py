"""Sinks come, go, fall behind, refuse and freeze: the others never notice, and nobody misses or doubles anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_wire.errors import ConfigError
from lr_wire.naming import SiteId
from lr_wire.v1.control_pb2 import SessionStatus
from tests.support.brokers import Broker, BrokerFactory, Site, wipe
from tests.support.reader import (
    QUICK,
    Gate,
    RunningReader,
    cluster,
    clusters,
    payloads,
    position,
    recount,
    running,
    settings_for,
    status,
    wait_for,
)
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]
State = SessionStatus.State


def shown(at: Cluster, sink: str, state: State, client: str = "policy") -> SessionStatus:
    """Wait until a cluster's table shows a session in this state."""

    def found() -> SessionStatus | None:
        session = status(at, sink, client)
        return session if session is not None and session.state == state else None

    return wait_for(found, f"{client} to {sink} is {State.Name(state)} at {at.site}")


def served_again(source: Cluster, sink: Cluster) -> None:
    """Wait until the newest word on a session that was blocked is that of its own sink."""
    blocked = shown(source, sink.site, State.BLOCKED)
    wait_for(
        lambda: shown(sink, sink.site, State.LOG_ENTRY_SYNC).heartbeat_ms > blocked.heartbeat_ms, "a later heartbeat"
    )


def test_a_destination_that_is_not_configured_is_shown_and_served_fully_once_it_is(sites: Sites) -> None:
    """It gets everything that the log still has, from the beginning, while the others go on."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    with running(source, b) as reader:
        for number in range(3):
            writer.send(b"%d" % number, to=["site-b", "site-c"])
        writer.send(b"only c", to=["site-c"])
        reader.forwarded(3, "site-b")
        blocked = shown(source, "site-c", State.BLOCKED)
        assert "entries for site-c are in the log, but the configuration has no such site" in blocked.reason

        reader.service.reconfigure(settings_for(source, b, c))
        reader.forwarded(4, "site-c")
        writer.send(b"both", to=["site-b", "site-c"])
        reader.forwarded(4, "site-b")
        reader.forwarded(5, "site-c")
        served_again(source, c)

    assert payloads(b) == [b"0", b"1", b"2", b"both"]
    assert payloads(c) == [b"0", b"1", b"2", b"only c", b"both"]


def test_a_client_that_appears_in_the_log_gets_its_session_by_itself(sites: Sites) -> None:
    """Nobody told the reader of it; its queue is there with its first entry."""
    source, sink = clusters(sites, "site-a", "site-b", partitions=2)
    with running(source, sink, clients=["policy"]) as reader:
        Writer(source).send(b"known")
        reader.forwarded(1)
        Writer(source, "new-client").send(b"new", partition=1)
        reader.forwarded(1, client="new-client")

    assert payloads(sink) == [b"known"]
    assert payloads(sink, "new-client") == [b"new"]


def test_a_site_that_is_removed_is_stopped_and_the_others_go_on(sites: Sites) -> None:
    """Its sessions say that they are stopped; when it is added again, it goes on where it was."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    with running(source, b, c) as reader:
        writer.send(b"1", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        reader.forwarded(1, "site-c")
        reader.service.reconfigure(settings_for(source, b))
        stopped = status(c, "site-c")
        assert stopped is not None
        assert stopped.state == State.STOPPED
        writer.send(b"2", to=["site-b", "site-c"])
        reader.forwarded(2, "site-b")
        reader.service.reconfigure(settings_for(source, b, c))
        reader.forwarded(2, "site-c")

    assert payloads(b) == payloads(c) == [b"1", b"2"]


def test_a_change_of_the_source_is_refused_and_changes_nothing(sites: Sites) -> None:
    """Neither another site as the source nor another way to the same one; what runs goes on as before."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    elsewhere = Cluster(source.site, {**source.settings, "client.id": "other"})
    with running(source, b) as reader:
        for settings in (settings_for(b, source), settings_for(elsewhere, b, c)):
            with pytest.raises(ConfigError, match="cannot change in a running reader"):
                reader.service.reconfigure(settings)
        writer.send(b"1", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        shown(source, "site-c", State.BLOCKED)

    assert payloads(b) == [b"1"]
    assert topics.names(c.admin()) == []


def test_a_sink_that_is_down_at_the_start_catches_up_and_joins(
    sites: Sites, fresh_broker: BrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one goes on; the late one is reported with the reason, reads the log by itself, then joins."""
    monkeypatch.setattr(topics, "REQUEST_TIMEOUT_S", 1.0)
    source, b = clusters(sites, "site-a", "site-b", partitions=2)
    broker = fresh_broker("site-c")
    broker.stop()
    late = impatient(cluster(broker))
    writer = Writer(source)
    sent = []
    with running(source, b, late) as reader:
        for number in range(20):
            writer.send(b"%02d" % number, to=["site-b", "site-c"], partition=number % 2)
            sent.append(b"%02d" % number)
        reader.forwarded(20, "site-b")
        assert "create topic LR_Status" in shown(source, "site-c", State.BLOCKED).reason
        broker.start()
        reader.event("flow.joined", flow="site-a->site-c")
        for number in range(20, 25):
            writer.send(b"%02d" % number, to=["site-b", "site-c"], partition=number % 2)
            sent.append(b"%02d" % number)
        reader.forwarded(25, "site-c")
        reader.forwarded(25, "site-b")
        served_again(source, late)
        assert reader.found("flow.joined", flow="site-a->site-c")[-1]["with_own_scan"]

    in_order = [*(one for one in sent if int(one) % 2 == 0), *(one for one in sent if int(one) % 2 == 1)]
    assert payloads(b) == in_order
    assert payloads(late) == in_order
    assert recount(b) == recount(late)


def test_a_sink_that_does_not_keep_up_falls_off_and_catches_up(sites: Sites) -> None:
    """Its feed is full and closed; the other sink has everything meanwhile; then it reads what it missed, exactly."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer = Writer(source)
    gate = Gate("site-b")
    with running(source, b, c, hooks=gate, limits=replace(QUICK, buffer_bytes=1000)) as reader:
        gate.shut()
        for number in range(30):
            # One by one, so that each is a chunk of its own for the feed.
            writer.send(b"%02d" % number * 50, to=["site-b", "site-c"])
            reader.forwarded(number + 1, "site-c")
        reader.event("sink.fell_behind", sink="site-b")
        gate.open()
        reader.event("flow.joined", flow="site-a->site-b", with_own_scan=True)
        reader.forwarded(30, "site-b")
        writer.send(b"after", to=["site-b", "site-c"])
        reader.forwarded(31, "site-b")
        reader.forwarded(31, "site-c")

    everything = [*(b"%02d" % number * 50 for number in range(30)), b"after"]
    assert payloads(b) == payloads(c) == everything
    assert {0: position(b).total} == recount(b)


@pytest.mark.chaos
def test_a_clean_shutdown_commits_what_healthy_sinks_have_waiting_and_waits_for_no_frozen_one(
    sites: Sites, fresh_broker: BrokerFactory
) -> None:
    """All within one deadline, and the state says stopped."""
    source, b = clusters(sites, "site-a", "site-b")
    broker = fresh_broker("site-c")
    frozen = cluster(broker)
    writer = Writer(source)
    gate = Gate("site-b")
    limits = replace(QUICK, drain_s=2.0, request_timeout_s=6.0)
    with running(source, b, frozen, hooks=gate, limits=limits) as reader:
        writer.send(b"first", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        reader.forwarded(1, "site-c")
        broker.pause()
        gate.shut()
        size = gate.fetched_bytes
        for number in range(20):
            size += len(writer.send(b"%d" % number, to=["site-b", "site-c"]).values[0])
        # The scan hands out what it has fetched before it fetches more: then all twenty are in the feeds.
        gate.wait(lambda: gate.fetched_bytes >= size, lambda: "twenty are fetched")
        writer.send(b"marker", to=["site-c"])
        gate.wait(lambda: gate.fetched_bytes > size, lambda: "the marker is fetched")
        threading.Timer(0.2, gate.open).start()
        took_s = reader.stop()
        broker.resume()

    assert took_s < limits.drain_s + 1
    assert reader.found("reader.stopped_late", sinks=["site-c"])
    assert payloads(b) == [b"first", *(b"%d" % number for number in range(20))]
    stopped = status(b, "site-b")
    assert stopped is not None
    assert (stopped.state, stopped.reason) == (State.STOPPED, "the reader was stopped")


AUTHORISER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def assert_backs_off(reader: RunningReader, flow: str) -> None:
    """Each wait after a failure is the next one of a growing row, with jitter."""
    reader.event("flow.blocked", 4, flow=flow)
    blocked = reader.found("flow.blocked", flow=flow)
    assert [event["failures"] for event in blocked] == list(range(1, len(blocked) + 1))
    limits = reader.settings.limits
    for number, event in enumerate(blocked):
        longest = min(limits.backoff_max_s, limits.backoff_initial_s * 2**number)
        assert longest / 2 - 0.1 <= event["retry_in_s"] <= longest + 0.1


class Refusal:
    """Rules under which a site does not let us write to something."""

    def __init__(self, site: Cluster, kind: ResourceType, name: str) -> None:
        self._admin = site.admin()
        us = (kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
        # Once there is any rule for something, only what a rule allows is allowed.
        self._rest = AclBinding(*us, AclOperation.ALL, AclPermissionType.ALLOW)
        self._refusal = AclBinding(*us, AclOperation.WRITE, AclPermissionType.DENY)
        self._filter = AclBindingFilter(*us, AclOperation.WRITE, AclPermissionType.DENY)

    def begin(self) -> None:
        for made in self._admin.create_acls([self._rest, self._refusal]).values():
            made.result(10)

    def end(self) -> None:
        for deleted in self._admin.delete_acls([self._filter]).values():
            assert deleted.result(10)


@pytest.mark.parametrize(
    "kind, name, reason",
    [
        pytest.param(
            ResourceType.TRANSACTIONAL_ID,
            "LR_forward_site-a_site-c",
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            id="may not begin",
        ),
        pytest.param(
            ResourceType.TOPIC, "LRQ_Recv_policy_site-a", "TOPIC_AUTHORIZATION_FAILED", id="may not write entries"
        ),
    ],
)
def test_a_sink_that_does_not_let_us_write_is_reported_and_backed_off_from(
    sites: Sites, refusing_site: Cluster, kind: ResourceType, name: str, reason: str
) -> None:
    """Blocked, with Kafka's reason, and ever more rarely tried; once it lets us, everything arrives."""
    source, b = clusters(sites, "site-a", "site-b")
    c = refusing_site
    writer = Writer(source)
    refusal = Refusal(c, kind, name)
    refusal.begin()
    limits = replace(QUICK, backoff_initial_s=0.2, backoff_max_s=1.0)
    with running(source, b, c, clients=["policy"], limits=limits) as reader:
        for number in range(3):
            writer.send(b"%d" % number, to=["site-b", "site-c"])
        reader.forwarded(3, "site-b")
        assert_backs_off(reader, "site-a->site-c")
        assert reason in shown(source, "site-c", State.BLOCKED).reason
        refusal.end()
        reader.forwarded(3, "site-c")
        served_again(source, c)

    assert payloads(b) == payloads(c) == [b"0", b"1", b"2"]


def test_a_session_that_only_the_log_has_told_of_is_shown_as_long_as_it_is_blocked(
    sites: Sites, refusing_site: Cluster
) -> None:
    """Each attempt tells of it anew, and since when."""
    source, c = clusters(sites, "site-a")[0], refusing_site
    writer = Writer(source)
    refusal = Refusal(c, ResourceType.TRANSACTIONAL_ID, "LR_forward_site-a_site-c")
    with running(source, c) as reader:
        writer.send(b"1", to=["site-c"])
        reader.forwarded(1, "site-c")
        refusal.begin()
        blocked = shown(source, "site-c", State.BLOCKED)
        again = wait_for(
            lambda: (
                found if (found := shown(source, "site-c", State.BLOCKED)).heartbeat_ms > blocked.heartbeat_ms else None
            ),
            "it is told of again",
        )
        assert again.changed_ms == blocked.changed_ms
        assert again.heartbeat_ms > again.changed_ms
        writer.send(b"2", to=["site-c"])
        refusal.end()
        reader.forwarded(2, "site-c")
        served_again(source, c)

    assert payloads(c) == [b"1", b"2"]


@pytest.fixture
def refusing_site(refusing_broker: Broker) -> Cluster:
    """The site of that broker, emptied."""
    wipe(Site(refusing_broker.name, refusing_broker.bootstrap_servers))
    return cluster(refusing_broker)


@pytest.fixture(scope="module")
def refusing_broker(make_broker: BrokerFactory) -> Iterator[Broker]:
    """A broker that asks who may do what; without a rule, everybody may."""
    broker = make_broker("site-c", properties=AUTHORISER)
    yield broker.start()
    broker.close()


def test_a_sink_that_cannot_be_reached_is_reported_and_backed_off_from(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocked, with the reason; the other sink has everything long before anybody gives up waiting."""
    monkeypatch.setattr(topics, "REQUEST_TIMEOUT_S", 0.3)
    source, b = clusters(sites, "site-a", "site-b")
    nowhere = Cluster(SiteId("site-c"), {"bootstrap.servers": "127.0.0.1:1"})
    limits = replace(QUICK, backoff_initial_s=0.2, backoff_max_s=1.0, drain_s=3)
    with running(source, b, nowhere, clients=["policy"], limits=limits) as reader:
        Writer(source).send(b"1", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        assert_backs_off(reader, "site-a->site-c")
        blocked = shown(source, "site-c", State.BLOCKED)

    assert "create topic LR_Status" in blocked.reason
    assert payloads(b) == [b"1"]


def impatient(site: Cluster) -> Cluster:
    """The same cluster, for clients that look again at once when it is back."""
    return Cluster(site.site, {**site.settings, "reconnect.backoff.max.ms": 200})
