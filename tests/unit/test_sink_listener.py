"""How a listener is made, and what it refuses; the headers of dead letters."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

import lr_sink
from lr_kafka.clients import Cluster
from lr_sink import ListenerSettings, RoutingQueueListener, Transaction
from lr_sink.reporting import Reporter
from lr_wire.deadletter import REASON_LIMIT, dead_letter_headers
from lr_wire.errors import BrokerError, ConfigError, InvalidName, ReplicationError, UsageError
from lr_wire.naming import SiteId

NOBODY = "127.0.0.1:1"


class Policies(RoutingQueueListener):
    def on_transaction(self, txn: Transaction) -> bool:
        return True


def test_everything_public_can_be_imported() -> None:
    assert {name for name in lr_sink.__all__ if not hasattr(lr_sink, name)} == set()


def test_a_listener_without_its_callback_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="on_transaction"):
        RoutingQueueListener("policy", site="site-b", bootstrap_servers=NOBODY)  # type: ignore[abstract]


@pytest.mark.parametrize("client", ["", "a_b", "a.b", "x" * 65])
def test_a_client_must_have_a_name(client: str) -> None:
    with pytest.raises(InvalidName, match="client name"):
        Policies(client, site="site-b", bootstrap_servers=NOBODY)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param({}, id="nowhere"),
        pytest.param({"site": "site-b"}, id="no servers"),
        pytest.param({"bootstrap_servers": NOBODY}, id="no site"),
        pytest.param({"site": "site-b", "bootstrap_servers": ""}, id="empty servers"),
        pytest.param({"site": "site_b", "bootstrap_servers": NOBODY}, id="wrong site"),
        pytest.param(
            {"cluster": Cluster(SiteId("site-b"), {"bootstrap.servers": NOBODY}), "site": "site-b"}, id="both"
        ),
    ],
)
def test_a_listener_must_know_its_cluster(where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Policies("policy", **where)


@pytest.mark.parametrize(
    "settings",
    [
        {"on_failure": "skip"},
        {"max_attempts": 0},
        {"ack_s": -1},
        {"retry_initial_s": 5.0, "retry_max_s": 1.0},
    ],
)
def test_settings_that_can_only_be_mistakes_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings)).partition("_")[0]):
        Policies("policy", site="site-b", bootstrap_servers=NOBODY, **settings)


def test_the_defaults_are_settings() -> None:
    assert ListenerSettings() == ListenerSettings(on_failure="halt", delete_applied=True)


@pytest.mark.parametrize("setting", ["max_atempts", "partition_assignment_strategy", "group_protocol"])
def test_a_setting_that_nobody_knows_or_that_is_not_free_is_refused_at_the_first_step(setting: str) -> None:
    settings: dict[str, Any] = {setting: "range"}
    with (
        Policies("policy", site="site-b", bootstrap_servers=NOBODY, **settings) as listener,
        pytest.raises(ConfigError, match=setting.replace("_", "[._]")),
    ):
        listener.step()


def test_a_listener_that_was_stopped_before_it_ran_returns_at_once() -> None:
    listener = Policies("policy", site="site-b", bootstrap_servers=NOBODY)
    listener.stop()
    listener.run()
    assert listener.status() == ()


def test_a_closed_listener_cannot_go_on() -> None:
    listener = Policies("policy", site="site-b", bootstrap_servers=NOBODY)
    listener.close()
    listener.close()
    with pytest.raises(UsageError, match="closed"):
        listener.step()


def test_a_cluster_that_is_away_is_waited_for() -> None:
    """A step without a cluster is an idle one; closing does not hang."""
    with Policies("policy", site="site-b", bootstrap_servers=NOBODY, poll_s=0.01, log_level=0) as listener:
        for _ in range(3):
            assert listener.step() in {lr_sink.Step.IDLE, lr_sink.Step.READ}


def test_a_dead_letter_says_why_and_where_from() -> None:
    """Beside the original headers, as text."""
    headers = dead_letter_headers("rejected: ä", "LRQ_Recv_policy_site-a", 2, 41, 1_700_000_000_123, [("own", None)])
    assert headers == [
        ("own", None),
        ("lr_deadletter_reason", "rejected: ä".encode()),
        ("lr_deadletter_topic", b"LRQ_Recv_policy_site-a"),
        ("lr_deadletter_partition", b"2"),
        ("lr_deadletter_offset", b"41"),
        ("lr_deadletter_time", b"2023-11-14T22:13:20.123+00:00"),
    ]


def test_no_reason_keeps_a_dead_letter_from_being_written() -> None:
    """Neither its length nor characters that have no UTF-8."""
    ((_, long), *_) = dead_letter_headers("x" * 100_000, "t", 0, 0, 0, None)
    assert long is not None
    assert len(long) == REASON_LIMIT + 3
    ((_, odd), *_) = dead_letter_headers("\udcff", "t", 0, 0, 0, None)
    assert odd == b"?"


def test_an_application_that_is_too_slow_for_its_group_is_told() -> None:
    """It would get the same transaction again and again otherwise, and nobody would know why."""
    told: list[ReplicationError] = []
    Reporter(told.append, ListenerSettings()).event(BrokerError("late", code="_MAX_POLL_EXCEEDED"))
    assert "max_poll_interval_ms" in str(told[0])


def test_missing_rights_are_told_once_and_an_outage_is_logged_now_and_then() -> None:
    """Both come again and again from Kafka's client."""
    told: list[ReplicationError] = []
    now = [100.0]
    reporter = Reporter(told.append, ListenerSettings(), lambda: now[0], client="policy")
    with capture_logs() as logs:
        for _ in range(5):
            reporter.event(BrokerError("no", code="GROUP_AUTHORIZATION_FAILED", unauthorised=True))
            reporter.trouble(BrokerError("1/1 brokers are down", code="_ALL_BROKERS_DOWN", retriable=True))
        now[0] += 31
        reporter.trouble(BrokerError("1/1 brokers are down", code="_ALL_BROKERS_DOWN", retriable=True))
    assert [str(error) for error in told] == ["no"]
    assert [entry["event"] for entry in logs] == [
        "listener.error",
        "listener.cluster_trouble",
        "listener.cluster_trouble",
    ]
