"""Two sites that replicate to each other, under the same client name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.chaos.conftest import StartReader, create_send_queue
from tests.support.brokers import Site, admin, topic_names
from tests.support.checker import Watch, judge_log
from tests.support.faults import ReaderConfig
from tests.support.send_log import SendLog
from tests.support.workload import Profile, Workload

pytestmark = pytest.mark.chaos


def test_sites_that_replicate_to_each_other_get_exactly_what_the_other_wrote(
    sites: Callable[..., list[Site]], start_reader: StartReader, seed: int
) -> None:
    """Each gets the other's entries once, and nothing of its own comes back."""
    pair = sites("site-a", "site-b")
    servers = {site.id: site.bootstrap_servers for site in pair}
    opposite = {"site-a": "site-b", "site-b": "site-a"}
    for site in pair:
        create_send_queue(site)
    with contextlib.ExitStack() as stack:
        watches, loads, readers = {}, {}, {}
        for source, sink in opposite.items():
            watches[source] = stack.enter_context(Watch(source, {sink: servers[sink]}))
            profile = Profile(source, (sink,), ("policy",), producers=3)
            loads[source] = stack.enter_context(Workload(servers[source], profile, seed))
            readers[source] = start_reader(ReaderConfig(source, servers, ("policy",), owner=f"reader-of-{source}"))
        for load in loads.values():
            load.write_until(lambda load=load: load.committed >= 100)  # type: ignore[misc]
        for load in loads.values():
            load.stop()
        logs = {source: SendLog(servers[source]) for source in opposite}
        for source in opposite:
            watches[source].await_arrival(logs[source])
        for reader in readers.values():
            reader.stop()
        for source, sink in opposite.items():
            assert watches[source].verdict(logs[source]) == []
            assert judge_log(logs[source], loads[source]) == []
            # A site has what the other one sent, and nothing that came back.
            received = {name for name in topic_names(admin(servers[sink])) if name.startswith("LRQ_Recv_")}
            assert received == {f"LRQ_Recv_policy_{source}"}
