"""SIGSTOP: a reader that stands still in the middle of a transaction, and wakes up when the world has moved on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from lr_kafka.clients import Cluster
from lr_kafka.status import read_status
from lr_source.reader.hooks import Step
from lr_wire.naming import SiteId
from tests.chaos.conftest import StartReader, create_send_queue
from tests.support.brokers import BrokerFactory, Site
from tests.support.checker import Watch, judge_log, until
from tests.support.faults import QUICK, Fault, ReaderConfig
from tests.support.send_log import SendLog, high_watermarks
from tests.support.workload import Profile, Workload

pytestmark = pytest.mark.chaos

CLIENTS = ("policy", "inventory")
FLOWS = ("site-a->site-a", "site-a->site-b", "site-a->site-c")


def queue_ends(bootstrap_servers: str, *, committed: bool = False) -> dict[str, dict[int, int]]:
    """Where the receive queues of a sink end, aborted records and markers included."""
    queues = [f"LRQ_Recv_{client}_site-a" for client in CLIENTS]
    return {queue: high_watermarks(bootstrap_servers, queue, 3, committed=committed) for queue in queues}


def test_a_frozen_reader_that_wakes_up_after_another_took_over_can_write_nothing(
    sites: Callable[..., list[Site]], start_reader: StartReader, seed: int
) -> None:
    """The first is frozen with an open transaction; whatever comes to the sinks after that is the second one's."""
    source, *sinks = sites("site-a", "site-b", "site-c")
    create_send_queue(source)
    servers = {site.id: site.bootstrap_servers for site in sinks}
    config = ReaderConfig("site-a", {"site-a": source.bootstrap_servers, **servers}, CLIENTS)
    profile = Profile("site-a", ("site-b", "site-c"), CLIENTS, producers=4, unterminated=0.1)
    freeze = Fault(Step.BEFORE_COMMIT, "site-b", 3, signal.SIGSTOP, records_sent=True)
    with Watch("site-a", servers) as watch:
        with Workload(source.bootstrap_servers, profile, seed) as load:
            first = start_reader(config, freeze)
            first.await_frozen()
            assert first.events("fault.fired", signal="SIGSTOP")
            ends = queue_ends(servers["site-b"])
            assert ends != queue_ends(servers["site-b"], committed=True), "no transaction is open"
            second = start_reader(replace(config, owner="second"))
            load.write_more(30)
            load.stop()
        log = SendLog(source.bootstrap_servers)
        watch.await_arrival(log)

        # Nobody has anything to do any more: whatever is written to the queues from here on, the first one writes.
        before = {sink: queue_ends(servers[sink]) for sink in servers}
        troubles = second.events("flow.blocked")
        first.send_signal(signal.SIGCONT)
        for flow in FLOWS:
            first.await_event("flow.taken_over", flow=flow)
        assert {sink: queue_ends(servers[sink]) for sink in servers} == before
        for sink, address in servers.items():
            cluster = Cluster(SiteId(sink), {"bootstrap.servers": address})
            assert read_status(cluster).owners[SiteId("site-a"), SiteId(sink)].owner == "second"

        # And the second one goes on.
        more = Workload(source.bootstrap_servers, replace(profile, producers=2, first_producer=4), seed)
        with more:
            more.write_more(10)
            more.stop()
        log = SendLog(source.bootstrap_servers)
        watch.await_arrival(log)
        assert second.events("flow.blocked") == troubles
        first.stop()
        second.stop()
        assert watch.verdict(log) == []
    load.written |= more.written
    assert judge_log(log, load) == []


def test_a_reader_frozen_for_longer_than_its_transaction_may_take_recovers_by_itself(
    fresh_broker: BrokerFactory, sites: Callable[..., list[Site]], start_reader: StartReader, seed: int
) -> None:
    """The sink's cluster ends the transaction and fences its producer, but there is no other owner: it goes on."""
    [source] = sites("site-a")
    sink = fresh_broker("site-b", properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"})
    create_send_queue(source)
    limits = replace(QUICK, transaction_timeout_s=1.0, request_timeout_s=1.0)
    servers = {"site-b": sink.bootstrap_servers}
    config = ReaderConfig("site-a", {"site-a": source.bootstrap_servers, **servers}, CLIENTS, limits=limits)
    profile = Profile("site-a", ("site-b",), CLIENTS, producers=4)
    freeze = Fault(Step.BEFORE_COMMIT, "site-b", 3, signal.SIGSTOP, records_sent=True)
    with Watch("site-a", servers) as watch, Workload(source.bootstrap_servers, profile, seed) as load:
        reader = start_reader(config, freeze)
        reader.await_frozen()
        ends = queue_ends(servers["site-b"])
        assert ends != queue_ends(servers["site-b"], committed=True), "no transaction is open"
        until(
            lambda: queue_ends(servers["site-b"]) == queue_ends(servers["site-b"], committed=True),
            "the cluster ends the transaction",
        )
        reader.send_signal(signal.SIGCONT)
        reader.await_event("flow.blocked", flow="site-a->site-b")
        load.write_more(20)
        load.stop()
        log = SendLog(source.bootstrap_servers)
        watch.await_arrival(log)
        assert not reader.events("flow.taken_over")
        assert len(reader.events("flow.connected", flow="site-a->site-b")) >= 2
        reader.stop()
        assert watch.verdict(log) == []
    assert judge_log(log, load) == []
