"""Settings that can only be mistakes are refused with what is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from lr_kafka.clients import Cluster
from lr_source.reader.settings import Limits, ReaderSettings
from lr_wire.errors import ConfigError
from lr_wire.naming import SiteId

A, B = SiteId("site-a"), SiteId("site-b")
CLUSTERS = {site: Cluster(site, {"bootstrap.servers": "127.0.0.1:9092"}) for site in (A, B)}


def test_the_default_limits_fit_together() -> None:
    """A commit must have failed before the sink's cluster ends its transaction, and a shutdown can wait for one."""
    limits = Limits()
    assert limits.request_timeout_s < limits.transaction_timeout_s
    assert limits.request_timeout_s < limits.drain_s
    assert limits.transaction_s < limits.heartbeat_s
    assert limits.transaction_bytes <= limits.buffer_bytes


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_is_not_positive_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"limits\.{name} is {value} \(it must be greater than 0\)"):
        dataclasses.replace(Limits(), **{name: value})


def test_a_back_off_that_shrinks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backoff_max_s is smaller than limits\.backoff_initial_s"):
        Limits(backoff_initial_s=2, backoff_max_s=1)


def test_a_source_that_is_no_site_is_refused() -> None:
    with pytest.raises(ConfigError, match="source site-x is not among the sites"):
        ReaderSettings(SiteId("site-x"), CLUSTERS)


def test_all_sites_but_the_source_are_sinks() -> None:
    assert ReaderSettings(A, CLUSTERS).sinks == {B}
    assert ReaderSettings(B, CLUSTERS).sinks == {A}
    assert ReaderSettings(A, {A: CLUSTERS[A]}).sinks == frozenset()
