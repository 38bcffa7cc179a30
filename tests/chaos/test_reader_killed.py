"""SIGKILL of the reader at every step of forwarding, again and again under load."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

from lr_source.reader.hooks import Step
from tests.chaos.conftest import StartReader, create_send_queue
from tests.support.brokers import Site, wipe
from tests.support.checker import Watch, judge_log
from tests.support.faults import Fault, ReaderConfig
from tests.support.proxy import Harm, Proxy, Spoiler
from tests.support.send_log import SendLog
from tests.support.workload import Profile, Workload

pytestmark = pytest.mark.chaos

ROUNDS = 2
KILLS = (*Step, "commit unanswered")


def test_a_reader_killed_at_every_step_of_forwarding_loses_doubles_and_tears_nothing(
    proxied: tuple[Site, Proxy], sites: Callable[..., list[Site]], start_reader: StartReader, seed: int
) -> None:
    """
    Each time another reader goes on from the position on the sink, and in the end everything is there once.

    Before and after sending, before and after the commit, and while the commit is done but its answer is not there.
    """
    source, other = sites("site-a", "site-c")
    sink, proxy = proxied
    wipe(sink)
    create_send_queue(source)
    watched = {"site-b": sink.bootstrap_servers, "site-c": other.bootstrap_servers}
    config = ReaderConfig("site-a", {"site-a": source.bootstrap_servers, **watched, "site-b": proxy.bootstrap_servers})
    profile = Profile("site-a", ("site-b", "site-c"), producers=5, unterminated=0.1)
    rng = random.Random(seed)
    kills = [*KILLS] * ROUNDS
    rng.shuffle(kills)
    with Watch("site-a", watched) as watch, Workload(source.bootstrap_servers, profile, seed) as load:
        for kill in kills:
            nth = rng.randint(1, 3)
            if isinstance(kill, Step):
                # Killed inside a transaction: only when its records are in the sink's log, uncommitted.
                records_sent = kill in {Step.AFTER_SEND, Step.BEFORE_COMMIT}
                victim = start_reader(config, Fault(kill, "site-b", nth, signal.SIGKILL, records_sent))
            else:
                spoiler = Spoiler(Harm.HOLD_RESPONSE, "LR_forward_site-a_site-b", skip=nth - 1)
                proxy.spoil(spoiler)
                victim = start_reader(config)
                load.write_until(lambda: spoiler.done == 1)  # noqa: B023
                victim.kill()
                proxy.spoil(None)
            assert victim.wait() == -signal.SIGKILL
            assert not isinstance(kill, Step) or victim.events("fault.fired", step=kill)
        load.write_more(10)
        load.stop()
        reader = start_reader(config)
        log = SendLog(source.bootstrap_servers)
        watch.await_arrival(log)
        reader.stop()
        assert watch.verdict(log) == []
    assert judge_log(log, load) == []
    assert log.unterminated
    assert log.overlapping() > 10
