"""`lr topics` makes what LR needs and says what it did; `lr doctor` finds what would break a guarantee."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster
from lr_wire.naming import ClientName, SiteId
from tests.support.brokers import Site, create_topic
from tests.support.cli import lr, write_config
from tests.support.reader import cluster, wait_for

Sites = Callable[..., list[Site]]

NOBODY = Cluster(SiteId("site-x"), {"bootstrap.servers": "127.0.0.1:9"})


def until_listed(site: Cluster, *names: str) -> None:
    """A broker lists a topic a moment after its controller has made it."""
    admin = site.admin()
    wait_for(lambda: set(names) <= set(topics.names(admin)), f"{names} on {site.site}")


def test_topics_create_makes_all_topics_and_changes_nothing_the_second_time(sites: Sites, tmp_path: Path) -> None:
    """The send queue, LR_Status everywhere, and a receive queue per client and sink with as many partitions."""
    a, b = map(cluster, sites("site-a", "site-b"))
    config = write_config(tmp_path, a, b, clients=["policy", "inventory"])
    first = lr("topics", "create", "--partitions", "4", "--retention", "2d", "--json", config=config)
    assert first.code == 0
    assert {(one["site"], one["topic"], one["result"], one["partitions"]) for one in first.lines} == {
        ("site-a", "LRQ_Send_LogEntries", "created", 4),
        ("site-a", "LR_Status", "created", 1),
        ("site-b", "LR_Status", "created", 1),
        ("site-b", "LRQ_Recv_policy_site-a", "created", 4),
        ("site-b", "LRQ_Recv_inventory_site-a", "created", 4),
    }
    until_listed(a, "LRQ_Send_LogEntries", "LR_Status")
    until_listed(b, "LR_Status", "LRQ_Recv_policy_site-a", "LRQ_Recv_inventory_site-a")
    assert topics.config(a.admin(), "LRQ_Send_LogEntries")["retention.ms"] == str(2 * 24 * 3600 * 1000)
    assert topics.config(b.admin(), "LRQ_Recv_policy_site-a")["retention.ms"] == "-1"
    again = lr("topics", "create", "--partitions", "4", "--retention", "2d", "--json", config=config)
    assert again.code == 0
    assert {one["result"] for one in again.lines} == {"there_already"}
    assert [one["differences"] for one in again.lines if one["differences"]] == []


def test_topics_create_tells_where_existing_topics_differ(sites: Sites, tmp_path: Path) -> None:
    """Existing topics are left as they are, except that a receive queue is grown to the send queue's partitions."""
    a, b = sites("site-a", "site-b")
    create_topic(a, "LRQ_Send_LogEntries", partitions=2, retention_ms="3600000")
    create_topic(b, "LRQ_Recv_policy_site-a", partitions=1, retention_ms="1000")
    until_listed(cluster(a), "LRQ_Send_LogEntries")
    until_listed(cluster(b), "LRQ_Recv_policy_site-a")
    config = write_config(tmp_path, cluster(a), cluster(b), clients=["policy"])
    shown = lr("topics", "create", "--partitions", "3", config=config)
    assert shown.code == 0
    assert "site-a: LRQ_Send_LogEntries: there already, 2 partitions" in shown.out
    assert "it has 2 partitions, not 3" in shown.out
    assert "retention.ms is 3600000, LR would set 604800000" in shown.out
    assert "site-b: LRQ_Recv_policy_site-a: grown, 2 partitions" in shown.out
    assert "retention.ms is 1000, LR would set -1" in shown.out
    assert topics.config(cluster(b).admin(), "LRQ_Recv_policy_site-a")["retention.ms"] == "1000"


def test_topics_create_goes_on_with_the_other_sites_when_one_fails(sites: Sites, tmp_path: Path) -> None:
    """A cluster that refuses is reported, with exit code 2; the others are complete."""
    a, b = map(cluster, sites("site-a", "site-b"))
    config = write_config(tmp_path, a, b, clients=["policy"])
    # One broker cannot keep three copies.
    shown = lr("topics", "create", "--replication", "3", "--json", config=config)
    assert shown.code == 2
    assert {one["result"] for one in shown.lines} == {"failed"}
    assert {one["site"] for one in shown.lines} == {"site-a", "site-b"}
    assert "replication factor" in shown.lines[0]["differences"][0].lower()


def test_topics_list_shows_every_site(sites: Sites, tmp_path: Path) -> None:
    """Only LR's topics are shown; a site that does not answer is told on stderr."""
    a, b = sites("site-a", "site-b")
    config = write_config(tmp_path, cluster(a), cluster(b), clients=["policy"])
    lr("topics", "create", config=config)
    create_topic(a, "orders")
    until_listed(cluster(a), "LRQ_Send_LogEntries", "LR_Status", "orders")
    until_listed(cluster(b), "LR_Status", "LRQ_Recv_policy_site-a")
    shown = lr("topics", "list", "--json", config=config)
    assert shown.code == 0
    assert [(one["site"], one["topic"]) for one in shown.lines] == [
        ("site-a", "LRQ_Send_LogEntries"),
        ("site-a", "LR_Status"),
        ("site-b", "LRQ_Recv_policy_site-a"),
        ("site-b", "LR_Status"),
    ]
    table = lr("topics", "list", config=config)
    assert "168 h" in table.out
    assert "for ever" in table.out


def test_doctor_is_content_with_what_topics_create_made(sites: Sites, tmp_path: Path) -> None:
    """No errors; one broker alone is worth a warning."""
    a, b = map(cluster, sites("site-a", "site-b"))
    config = write_config(tmp_path, a, b, clients=["policy"])
    lr("topics", "create", config=config)
    until_listed(a, "LRQ_Send_LogEntries", "LR_Status")
    until_listed(b, "LR_Status", "LRQ_Recv_policy_site-a")
    shown = lr("doctor", "--json", config=config)
    findings = shown.json["findings"]
    assert shown.code == 0
    assert "error" not in {one["level"] for one in findings}
    texts = {(one["site"], one["subject"]): one["text"] for one in findings if one["level"] == "ok"}
    assert texts["site-a", "LRQ_Send_LogEntries"] == "3 partitions, keeps entries for 7 days"
    assert texts["site-b", "LRQ_Recv_policy_site-a"] == "3 partitions, keeps until applied"
    assert "one copy" in " ".join(one["text"] for one in findings if one["level"] == "warning")
    quiet = lr("doctor", "--quiet", config=config)
    assert quiet.code == 0
    assert "answers" not in quiet.out


def test_doctor_finds_settings_that_break_guarantees(sites: Sites, tmp_path: Path) -> None:
    """Each with what to do, and exit code 1."""
    a, b = sites("site-a", "site-b")
    spec = layout.receive_queue(ClientName("policy"), SiteId("site-a"), 1)
    create_topic(a, "LRQ_Send_LogEntries", partitions=2, retention_ms="60000", max_message_bytes="2000000")
    create_topic(b, spec.name, retention_ms="86400000", unclean_leader_election_enable="true")
    create_topic(b, "LR_Status", cleanup_policy="delete")
    until_listed(cluster(a), "LRQ_Send_LogEntries")
    until_listed(cluster(b), spec.name, "LR_Status")
    config = write_config(tmp_path, cluster(a), cluster(b), clients=["policy"])
    shown = lr("doctor", "--json", config=config)
    assert shown.code == 1
    errors = {
        (one["site"], one["subject"], one["text"].partition(":")[0])
        for one in shown.json["findings"]
        if one["level"] == "error"
    }
    assert errors == {
        ("site-a", "LRQ_Send_LogEntries", "keeps entries for only 0.0166667 h"),
        ("site-b", spec.name, "retention.ms is 86400000"),
        ("site-b", spec.name, "unclean.leader.election.enable is true"),
        ("site-b", spec.name, "max.message.bytes is 1048588, but 2000000 in the send queue"),
        ("site-b", "LR_Status", "cleanup.policy is delete"),
    }
    assert all(one["advice"] for one in shown.json["findings"] if one["level"] != "ok")
    people = lr("doctor", config=config)
    assert "-> set retention.ms to -1" in people.out


def test_doctor_tells_of_a_cluster_that_does_not_answer(sites: Sites, tmp_path: Path) -> None:
    """The others are examined all the same."""
    (a,) = map(cluster, sites("site-a"))
    config = write_config(tmp_path, a, NOBODY)
    shown = lr("doctor", "--json", config=config)
    assert shown.code == 1
    found = {(one["site"], one["level"], one["subject"]) for one in shown.json["findings"]}
    assert ("site-x", "error", "cluster") in found
    assert ("site-a", "ok", "cluster") in found
    assert ("site-a", "error", "LRQ_Send_LogEntries") in found
