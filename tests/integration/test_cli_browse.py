"""`lr browse` on real clusters: every record of every LR queue is readable, or shown with the reason why not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lr_kafka.clients import Cluster
from tests.support.brokers import Site
from tests.support.cli import Shown, lr, write_config
from tests.support.reader import clusters, running
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]


@pytest.fixture
def queues(sites: Sites, tmp_path: Path) -> tuple[Path, Cluster, list[str]]:
    """Two clients' transactions, an aborted one, and bytes that are no record; all forwarded. Gives the ids."""
    a, b, c = clusters(sites, "site-a", "site-b", "site-c")
    policy, inventory = Writer(a), Writer(a, "inventory")
    with running(a, b, c) as reader:
        first = policy.begin()
        first.add([b"one", b"two"], ["site-b", "site-c"])
        first.add([bytes([0, 159, 146])], ["site-b"], last=True, key=b"k", headers=[("h", b"v")])
        first.commit()
        aborted = policy.begin()
        aborted.add([b"never"], last=True)
        aborted.abort()
        second = inventory.send(b"three", to=["site-c"])
        policy.raw(b"\xff\xff", headers=[("lrq_logentry_site-b", b"")])
        reader.forwarded(1)
        reader.forwarded(1, sink="site-c", client="inventory")
        reader.rejected(1)
    return write_config(tmp_path, a, b, c), a, [str(first.id), str(second.id)]


def payloads(shown: Shown) -> list[str | None]:
    return [one["payload"] for one in shown.lines]


def test_the_send_queue_is_readable(queues: tuple[Path, Cluster, list[str]]) -> None:
    """One row for each entry: ids, transaction, destinations, place, payload as text or hex; and what is broken."""
    config, _, (first, second) = queues
    shown = lr("browse", "send", "--json", config=config)
    assert shown.code == 0
    one, two, three, four, broken = shown.lines
    assert (one["payload"], one["txn"], one["index"], one["destinations"]) == ("one", first, 0, ["site-b", "site-c"])
    assert (two["payload"], two["id"], two["size"]) == ("two", f"{first.rpartition('-')[0]}:1", 3)
    assert (three["payload"], three["payload_encoding"], three["last"]) == ("009f92", "hex", True)
    assert (three["key"], three["headers"]) == ("k", {"h": "v"})
    assert (four["client"], four["txn"]) == ("inventory", second)
    assert (broken["payload"], broken["txn"]) == ("ffff", None)
    assert "not a RoutingTableEntryMsg" in broken["reason"]
    people = lr("browse", "send", config=config)
    assert first in people.out
    assert "not a RoutingTableEntryMsg" in people.out


def test_options_choose_what_is_shown(queues: tuple[Path, Cluster, list[str]]) -> None:
    """What cannot be understood is never filtered out: it could be what one is looking for."""
    config, _, (first, _) = queues
    for option, value, wanted in [
        ("--destination", "site-c", ["one", "two", "three", "ffff"]),
        ("--client", "inventory", ["three", "ffff"]),
        ("--txn", first, ["one", "two", "009f92", "ffff"]),
        ("--limit", "2", ["one", "two"]),
        ("--from", "2", ["three", "ffff"]),
        ("--from", "end", []),
        ("--from", "1h", ["one", "two", "009f92", "three", "ffff"]),
        ("--from", "2999-01-01", []),
        ("--preview", "2", ["on", "tw", "009f", "th", "ffff"]),
    ]:
        shown = lr("browse", "send", "--json", option, value, config=config)
        assert (option, value, shown.code, payloads(shown)) == (option, value, 0, wanted)


def test_uncommitted_entries_are_shown_when_asked_for(queues: tuple[Path, Cluster, list[str]]) -> None:
    config, _, _ = queues
    assert "never" not in payloads(lr("browse", "send", "--json", config=config))
    assert "never" in payloads(lr("browse", "send", "--json", "--uncommitted", config=config))


def test_a_receive_queue_is_readable(queues: tuple[Path, Cluster, list[str]]) -> None:
    config, _, (first, _) = queues
    shown = lr("browse", "LRQ_Recv_policy_site-a", "--site", "site-b", "--json", config=config)
    assert payloads(shown) == ["one", "two", "009f92"]
    assert {(one["client"], one["txn"]) for one in shown.lines} == {("policy", first)}
    assert [(one["record"], one["records"], one["completed_at"]) for one in shown.lines] == [
        (0, 2, 1),
        (0, 2, 1),
        (1, 2, 1),
    ]


def test_a_dead_letter_tells_its_reason_and_origin(queues: tuple[Path, Cluster, list[str]]) -> None:
    config, _, _ = queues
    shown = lr("browse", "LRQ_DeadLetter_unknown_site-a", "--site", "site-b", "--json", config=config)
    (letter,) = shown.lines
    assert "not a RoutingTableEntryMsg" in letter["reason"]
    assert (letter["payload"], letter["origin_topic"]) == ("ffff", "LRQ_Send_LogEntries")
    origin = lr("browse", "send", "--json", "--from", str(letter["origin_offset"]), "--limit", "1", config=config)
    assert payloads(origin) == ["ffff"]


def test_the_status_topic_is_readable(queues: tuple[Path, Cluster, list[str]]) -> None:
    """Sessions, positions and owners with their fields by name."""
    config, _, _ = queues
    rows = lr("browse", "status", "--site", "site-b", "--limit", "1000", "--json", config=config).lines
    newest = {row["status_key"]: row for row in rows}
    assert newest["session/site-a/site-b/policy"]["state"] == "STOPPED"
    assert newest["position/site-a/site-b/policy/0"]["entries"] == 3
    assert newest["owner/site-a/site-b"]["owner"]
    assert {row["reason"] for row in rows if row["status_key"].startswith("position")} == {None}


def test_what_cannot_be_shown_is_one_line(queues: tuple[Path, Cluster, list[str]]) -> None:
    """On stderr, with exit code 2."""
    config, _, _ = queues
    for arguments, problem in [
        (["LRQ_Recv_policy_site-a"], "say which with --site"),
        (["LRQ_Recv_policy_site-a", "--site", "site-z"], "--site site-z is none of site-a, site-b, site-c"),
        (["orders"], "orders is not a queue of LR"),
        (["LRQ_Recv_nobody_site-a", "--site", "site-b"], "LRQ_Recv_nobody_site-a does not exist on site-b"),
        (["send", "--partition", "7"], "has no partition 7"),
        (["send", "--from", "yesterday"], "--from yesterday is no place to begin"),
    ]:
        shown = lr("browse", *arguments, config=config)
        assert (arguments, shown.code, shown.out) == (arguments, 2, "")
        assert problem in shown.err
        assert len(shown.err.splitlines()) == 1


def test_following_shows_what_arrives(queues: tuple[Path, Cluster, list[str]]) -> None:
    """From the end on, until the limit is reached."""
    config, a, _ = queues
    found: list[Shown] = []
    following = threading.Thread(
        target=lambda: found.append(lr("browse", "send", "--follow", "--limit", "3", "--json", config=config))
    )
    following.start()
    writer = Writer(a)
    deadline = time.monotonic() + 30
    while following.is_alive() and time.monotonic() < deadline:
        writer.send(b"new")
        following.join(0.05)
    assert not following.is_alive()
    assert payloads(found[0]) == ["new"] * 3
