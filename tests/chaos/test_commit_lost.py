"""A network that loses, delays or cuts off the one request that matters: the commit on the sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.conftest import StartReader, create_send_queue
from tests.support.brokers import Site, wipe
from tests.support.checker import Watch, judge_log
from tests.support.faults import QUICK, ReaderConfig
from tests.support.proxy import Harm, Proxy, Spoiler
from tests.support.send_log import SendLog
from tests.support.workload import Profile, Workload

pytestmark = pytest.mark.chaos

HARMED = 2

LIMITS = replace(QUICK, request_timeout_s=1.0)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(Harm.DELAY_REQUEST, id="request comes after the time-out"),
        pytest.param(Harm.DROP_REQUEST, id="request is lost"),
        pytest.param(Harm.DROP_RESPONSE, id="answer is lost"),
        pytest.param(Harm.CUT, id="connection breaks before the answer"),
        pytest.param(Harm.CUT_AND_DELAY, id="connection breaks and the request comes in the middle of the next"),
    ],
)
def test_a_harmed_commit_is_neither_lost_nor_repeated(
    harm: Harm, proxied: tuple[Site, Proxy], sites: Callable[..., list[Site]], start_reader: StartReader, seed: int
) -> None:
    """Whatever became of the commit, the transaction is on the sink exactly once, and so are all after it."""
    [source] = sites("site-a")
    sink, proxy = proxied
    wipe(sink)
    create_send_queue(source)
    config = ReaderConfig(
        "site-a", {"site-a": source.bootstrap_servers, "site-b": proxy.bootstrap_servers}, limits=LIMITS
    )
    profile = Profile("site-a", ("site-b",), producers=4)
    spoiler = Spoiler(harm, "LR_forward_site-a_site-b", times=HARMED, skip=2, delay_s=2 * LIMITS.request_timeout_s)
    with Watch("site-a", {"site-b": sink.bootstrap_servers}) as watch:
        proxy.spoil(spoiler)
        reader = start_reader(config)
        with Workload(source.bootstrap_servers, profile, seed) as load:
            load.write_until(lambda: spoiler.done == HARMED or bool(watch["site-b"].problems))
            load.stop()
        proxy.spoil(None)
        log = SendLog(source.bootstrap_servers)
        watch.await_arrival(log)
        reader.stop()
        assert watch.verdict(log) == []
    assert spoiler.done == HARMED
    assert judge_log(log, load) == []
