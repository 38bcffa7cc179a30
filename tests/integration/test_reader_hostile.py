"""What cannot be understood goes to the dead letter, once, as it was; the flow goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lr_kafka import topics
from lr_wire import codec
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Header, TxnId
from lr_wire.v1.entry_pb2 import RoutingTableEntryMsg, SendHead
from tests.support import send_queue
from tests.support.brokers import Site
from tests.support.reader import clusters, dead_letters, payloads, position, positions, recount, running, wait_for
from tests.support.send_queue import Writer, into

Sites = Callable[..., list[Site]]

TXN = TxnId(b"i" * 16, 7)
SITE_B = codec.encode_destinations([SiteId("site-b")])
BODY = codec.encode_body([b"payload"], [0], TXN, 1)
VALID = codec.encode_send(SITE_B, ClientName("policy"), 0, True, BODY)


@dataclass(frozen=True)
class Hostile:
    """A value that no client of ours writes, and what its dead letter must say."""

    value: bytes | None
    reason: str
    client: str = "policy"


def message(**fields: Any) -> bytes:
    complete: dict[str, Any] = {
        "type": 1,
        "opaque_payload": [b"payload"],
        "incarnation": TXN.incarnation,
        "first_sequence": TXN.first_sequence,
        "whole": True,
    }
    return RoutingTableEntryMsg(**complete | fields).SerializeToString()


def sent(to: list[str], client: str = "policy", **fields: Any) -> bytes:
    fragment = RoutingTableEntryMsg(destinations=to).SerializeToString()
    return codec.encode_send(fragment, ClientName(client), 0, True, message(**fields))


def with_head(**head: Any) -> bytes:
    return SITE_B + RoutingTableEntryMsg(send=SendHead(client="policy", last=True, **head)).SerializeToString() + BODY


HOSTILE = [
    Hostile(None, "no value", "unknown"),
    Hostile(b"", "type is 0", "unknown"),
    *(Hostile(random.Random(seed).randbytes(1 + 20 * seed), "", "unknown") for seed in range(8)),
    Hostile(sent(["site-b"], type=0), "type is 0"),
    Hostile(sent(["site-b"], type=3), "type is 3"),
    Hostile(sent(["site-b"], type=99), "type is 99"),
    Hostile(sent(["site-b"], opaque_payload=[]), "no payload"),
    Hostile(sent(["site-b"], incarnation=b""), "names no transaction"),
    Hostile(sent(["site-b"], indexes=[1, 2, 3]), "1 payloads but 3 indexes"),
    Hostile(sent(["site-b", "site-b"]), "stands twice"),
    Hostile(sent(["site-b"], destinations=["site-c"]), "at the beginning"),
    Hostile(sent([]), "no destinations"),
    Hostile(sent(["site_b"]), "no valid name"),
    Hostile(sent(["site-b", "x" * 65]), "no valid name"),
    Hostile(sent(["site-b"], client="a_b"), "client has no valid name", "unknown"),
    Hostile(sent(["site-b"], client=""), "client has no valid name", "unknown"),
    Hostile(with_head(destinations_size=0, body_offset=9), "does not begin"),
    Hostile(with_head(destinations_size=8, body_offset=len(SITE_B)), "does not begin"),
    Hostile(with_head(destinations_size=8, body_offset=2**32 - 1), "does not begin"),
    Hostile(with_head(destinations_size=2**32 - 1, body_offset=2**32 - 1), "does not begin"),
    Hostile(message(), "does not begin", "unknown"),
    Hostile(message(receive={"record": 0, "records": 1, "entries": 1}), "", "unknown"),
    # A head whose last byte looks like the tag of a head, and that says it begins there.
    Hostile(
        b'\x0a\x06site-b\x22\x10\x18\x01\x25\x19\x00\x00\x00\x2d\x1a\x00\x00\x00\x0a\x02a"' + message(),
        "has no length",
        "unknown",
    ),
]

# A record that was cut off is no record, wherever that was.
CUT = [VALID[:length] for length in range(1, len(VALID))]


def test_a_record_that_cannot_be_understood_goes_to_the_dead_letter_of_the_sink_it_is_tagged_for(sites: Sites) -> None:
    """Once, also for a reader that starts anew: with the reason, where it was, its key, headers and bytes."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    tags: list[Header] = [("x", b"1"), ("lrq_logentry_site-b", b""), ("lrq_logentry_nowhere", b"")]
    cases = [*HOSTILE, *(Hostile(value, "", "") for value in CUT)]
    with running(source, sink) as reader:
        writer.send(b"before")
        offsets = writer.raw(*(case.value for case in cases), headers=tags, key=b"key")
        writer.send(b"after")
        reader.forwarded(2)
        reader.rejected(len(cases))
        wait_for(lambda: position(sink).resume_from == send_queue.ends(source)[0], "the end")
    with running(source, sink) as reader:
        writer.send(b"after a restart")
        reader.forwarded(1)
    assert not reader.hooks.dead_letters

    assert payloads(sink) == [b"before", b"after", b"after a restart"]
    found = {
        int(letter.facts["offset"]): letter for client in ("policy", "unknown") for letter in dead_letters(sink, client)
    }
    assert len(dead_letters(sink)) + len(dead_letters(sink, "unknown")) == len(cases)
    for case, offset in zip(cases, offsets, strict=True):
        letter = found[offset]
        assert (letter.value, letter.key, list(letter.headers)) == (case.value, b"key", tags)
        assert case.reason in letter.reason
        assert letter.reason
        assert (letter.facts["topic"], letter.facts["partition"]) == ("LRQ_Send_LogEntries", "0")
        assert letter.facts["time"]
    for client in ("policy", "unknown"):
        at = {int(letter.facts["offset"]) for letter in dead_letters(sink, client)}
        assert at >= {offset for case, offset in zip(cases, offsets, strict=True) if case.client == client}
    assert not dead_letters(source, "unknown")


def test_what_tells_no_known_sink_goes_to_the_source_s_own_dead_letter(sites: Sites) -> None:
    """Without tags, or with tags of sites that nobody knows: once, at home, over a restart as well."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        writer.raw(b"\xffno headers")
        writer.raw(b"\xffunknown tag", headers=[("lrq_logentry_nowhere", b""), ("lrq_snapsync_site-b", b"")])
        writer.raw(b"\xffno tag", headers=[("lrq_logentry_", b""), ("lrq_logentry_site_b", b""), ("other", None)])
        writer.send(b"good")
        reader.rejected(3)
        reader.forwarded(1)
        wait_for(lambda: position(source, "*").resume_from == send_queue.ends(source)[0], "the end")
    with running(source, sink) as reader:
        writer.send(b"more")
        reader.forwarded(1)

    assert payloads(sink) == [b"good", b"more"]
    letters = dead_letters(source, "unknown")
    assert [letter.value for letter in letters] == [b"\xffno headers", b"\xffunknown tag", b"\xffno tag"]
    assert not dead_letters(sink, "unknown")


def test_a_transaction_that_lacks_a_record_is_not_delivered_in_part(sites: Sites) -> None:
    """Each destination's dead letter gets what there is for it; whole transactions around it arrive."""
    source, b, c = clusters(sites, "site-a", "site-b", "site-c")
    writer, other = Writer(source), Writer(source)
    with running(source, b, c) as reader:
        torn = writer.begin()
        torn.add([b"0"], ["site-b"], number=0)
        whole = other.begin()
        whole.add([b"whole 1"], ["site-b"])
        torn.add([b"2"], ["site-b", "site-c"], number=2)
        whole.add([b"whole 2"], ["site-b"], last=True)
        torn.add([b"3"], ["site-c"], number=3, last=True)
        whole.commit()
        torn.commit()
        headless = writer.begin()
        headless.add([b"4"], ["site-b"], number=1, last=True)
        headless.commit()
        writer.send(b"after", to=["site-b", "site-c"])
        reader.forwarded(2, "site-b")
        reader.forwarded(1, "site-c")
        reader.rejected(3)
    with running(source, b, c) as reader:
        writer.send(b"restarted", to=["site-b", "site-c"])
        reader.forwarded(1, "site-b")
        reader.forwarded(1, "site-c")
    assert not reader.hooks.dead_letters

    assert payloads(b) == [b"whole 1", b"whole 2", b"after", b"restarted"]
    assert payloads(c) == [b"after", b"restarted"]
    at_b, at_c = dead_letters(b), dead_letters(c)
    assert [letter.value for letter in at_b] == [torn.values[0], torn.values[1], headless.values[0]]
    assert [letter.value for letter in at_c] == [torn.values[1], torn.values[2]]
    assert [int(letter.facts["offset"]) for letter in at_b] == [torn.offsets[0], torn.offsets[1], headless.offsets[0]]
    assert all(f"transaction {torn.id} is not whole" in letter.reason for letter in (*at_b[:2], *at_c))
    assert {0: positions(b)[0].total} == recount(b)


def test_a_garbled_record_in_the_middle_tears_its_transaction(sites: Sites) -> None:
    """Neither the garbage nor the rest of the transaction arrives; both are in the dead letter."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        txn = writer.begin()
        txn.add([b"0"])
        writer.producer.produce(send_queue.TOPIC, b"\xff", partition=0, headers=[("lrq_logentry_site-b", b"")])
        txn.add([b"2"], number=2, last=True)
        txn.commit()
        writer.send(b"after")
        reader.forwarded(1)
        reader.rejected(2)

    assert payloads(sink) == [b"after"]
    assert [letter.value for letter in dead_letters(sink, "unknown")] == [b"\xff"]
    assert [letter.value for letter in dead_letters(sink)] == txn.values


def test_a_garbled_last_record_tears_its_transaction(sites: Sites) -> None:
    """It looks like one that was committed around LR, but it may lack its end: nothing of it is delivered."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        txn = writer.begin()
        txn.add([b"0"])
        txn.add([b"1"])
        writer.producer.produce(send_queue.TOPIC, b"\xff", partition=0, headers=[("lrq_logentry_site-b", b"")])
        txn.commit()
        writer.send(b"after")
        reader.forwarded(1)
        reader.rejected(2)

    assert payloads(sink) == [b"after"]
    assert [letter.value for letter in dead_letters(sink, "unknown")] == [b"\xff"]
    assert [letter.value for letter in dead_letters(sink)] == txn.values


def test_garbage_as_large_as_a_broker_takes_does_not_stop_the_flow(sites: Sites) -> None:
    """With the reason beside it, it is larger than what a topic takes by default."""
    source, sink = clusters(sites, "site-a", "site-b")
    producer = source.producer(message_max_bytes=2_000_000)
    garbage = b"\xff" * 1_048_480
    producer.produce(
        send_queue.TOPIC, garbage, partition=0, headers=[("lrq_logentry_site-b", b"")], on_delivery=into([])
    )
    assert producer.flush(20) == 0
    with running(source, sink) as reader:
        Writer(source).send(b"after")
        reader.forwarded(1)

    [letter] = dead_letters(sink, "unknown")
    assert letter.value == garbage
    assert payloads(sink) == [b"after"]


def test_an_entry_for_its_own_site_is_not_replicated_to_itself(sites: Sites) -> None:
    """No client of ours writes it; it is a dead letter at its other destinations, or at home if it has none."""
    source, sink = clusters(sites, "site-a", "site-b")
    writer = Writer(source)
    with running(source, sink) as reader:
        both = writer.send(b"loop", to=["site-a", "site-b"])
        home = writer.send(b"loop", to=["site-a"])
        writer.send(b"after")
        reader.forwarded(1)
        reader.rejected(2)

    assert payloads(sink) == [b"after"]
    assert "LRQ_Recv_policy_site-a" not in topics.names(source.admin())
    for site, txn in ((sink, both), (source, home)):
        [letter] = dead_letters(site)
        assert letter.value == txn.values[0]
        assert letter.reason == "the record is addressed to site-a, the site it comes from"
