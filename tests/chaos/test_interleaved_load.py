"""Many applications, many sinks, nothing broken: the guarantees under load alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.conftest import StartReader, create_send_queue
from tests.support.brokers import Site
from tests.support.checker import Watch, judge_log
from tests.support.faults import ReaderConfig
from tests.support.send_log import SendLog
from tests.support.workload import Outcome, Profile, Workload

pytestmark = pytest.mark.chaos

SINKS = ("site-b", "site-c", "site-d")


def test_interleaved_transactions_arrive_once_whole_and_in_order_at_their_destinations_only(
    sites: Callable[..., list[Site]], start_reader: StartReader, seed: int
) -> None:
    """
    Eight producers, transactions of 1 to 50 entries on three partitions, random destinations, some aborted.

    A `read_committed` checker at each sink watches all along.
    """
    source, *sinks = sites("site-a", *SINKS)
    create_send_queue(source)
    servers = {site.id: site.bootstrap_servers for site in sinks}
    profile = Profile("site-a", SINKS, clients=("policy", "inventory", "claims"))
    with Watch("site-a", servers) as watch, Workload(source.bootstrap_servers, profile, seed) as load:
        reader = start_reader(ReaderConfig("site-a", {"site-a": source.bootstrap_servers, **servers}))
        load.write_until(lambda: load.committed >= 400, within_s=60.0)
        load.stop()
        log = SendLog(source.bootstrap_servers)
        watch.await_arrival(log)
        reader.stop()
        assert watch.verdict(log) == []
    assert judge_log(log, load) == []
    outcomes = [written.outcome for written in load.written.values()]
    assert outcomes.count(Outcome.ABORTED) > 20
    assert all(log.partitions.values())
    assert log.overlapping() > 20
    assert max(len(transaction.records) for transaction in log.transactions) > 10
