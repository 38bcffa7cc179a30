"""The wire format: what is encoded comes back, and nothing that arrives can do worse than a WireError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lr_wire import codec
from lr_wire.errors import WireError
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Applied, Header, Position, ReplicationId, RunningTotal, TxnId
from lr_wire.v1 import control_pb2, entry_pb2
from tests.unit.test_naming import clients, names, site_ids

uint64 = st.integers(0, 2**64 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
txn_ids = st.builds(TxnId, st.binary(min_size=1, max_size=16), st.integers(0, 2**63))
destination_lists = st.lists(site_ids, min_size=1, max_size=6, unique=True)
headers: st.SearchStrategy[list[Header]] = st.lists(st.tuples(st.text(), st.none() | st.binary()), max_size=3)
# Payloads with their indexes, which grow and may have gaps.
indexed_payloads = st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=50), min_size=1, max_size=8).map(
    lambda payloads: dict(sorted(payloads.items()))
)

BODY = codec.encode_body([b"first", b"second"], [3, 7], TxnId(b"i" * 16, 40), 1_700_000_000_000, b"key", [("h", b"v")])
SEND = codec.encode_send(codec.encode_destinations([SiteId("site-b")]), ClientName("policy"), 2, True, BODY)
RECEIVE = codec.encode_receive_head(0, 1, 2, 99) + BODY


@given(clients, destination_lists, indexed_payloads, txn_ids, int64, st.none() | st.binary(), headers)
def test_an_entry_comes_back_from_both_queues_as_it_was(
    client: ClientName,
    destinations: list[SiteId],
    payloads: dict[int, bytes],
    txn: TxnId,
    source_time_ms: int,
    key: bytes | None,
    own_headers: list[Header],
) -> None:
    """The record of the send queue tells the route; its body behind a receive head tells the entries."""
    body = codec.encode_body(list(payloads.values()), list(payloads), txn, source_time_ms, key, own_headers)
    value = codec.encode_send(codec.encode_destinations(destinations), client, 5, True, body)
    sent = codec.decode_send(value)
    assert (sent.client, sent.txn, sent.destinations) == (client, txn, tuple(destinations))
    assert (sent.record, sent.last, sent.entries, sent.body) == (5, True, len(payloads), body)

    received = codec.decode_receive(codec.encode_receive_head(0, 2, 9, 1234) + sent.body)
    assert (received.txn, received.record, received.records) == (txn, 0, 2)
    assert (received.entries_in_txn, received.completed_at, received.body) == (9, 1234, body)
    assert {entry.index: entry.payload for entry in received.entries} == payloads
    for entry in received.entries:
        assert entry.id == ReplicationId(txn.incarnation, txn.first_sequence + entry.index)
        assert (entry.source_time_ms, entry.key, entry.headers) == (source_time_ms, key, tuple(own_headers))


@given(clients, st.integers(0, 2**32 - 1), st.booleans())
def test_the_head_of_a_send_record_stays_within_its_bound(client: ClientName, record: int, last: bool) -> None:
    destinations = codec.encode_destinations([SiteId("b")])
    value = codec.encode_send(destinations, client, record, last, BODY)
    assert len(value) - len(destinations) - len(BODY) <= codec.SEND_HEAD_BOUND


def test_consecutive_indexes_cost_nothing() -> None:
    """A record that holds neighbours writes the first index only."""
    txn = TxnId(b"i" * 16, 0)
    neighbours = codec.encode_body([b"x"] * 100, list(range(500, 600)), txn, 0)
    strangers = codec.encode_body([b"x"] * 100, list(range(500, 700, 2)), txn, 0)
    assert len(strangers) - len(neighbours) > 100


def test_both_queues_hold_ordinary_protobuf_messages() -> None:
    """A decoder that knows the .proto file alone reads every field."""
    sent = entry_pb2.RoutingTableEntryMsg.FromString(SEND)
    assert list(sent.destinations) == ["site-b"]
    assert list(sent.opaque_payload) == [b"first", b"second"]
    assert (sent.send.client, sent.send.last, list(sent.indexes)) == ("policy", True, [3, 7])
    assert entry_pb2.RoutingTableEntryMsg.FromString(RECEIVE).receive.completed_at == 99


def test_a_single_payload_looks_like_a_plain_bytes_field() -> None:
    body = codec.encode_body([b"payload"], [0], TxnId(b"i", 0), 0)
    assert b"\x1a\x07payload" in body


def test_fields_that_this_version_does_not_know_travel_on() -> None:
    """A newer client's field 1000 in the body arrives at the sink."""
    newer = entry_pb2.RoutingTableEntryMsg.FromString(BODY).SerializeToString() + bytes.fromhex("c23e036e6577")
    value = codec.encode_send(codec.encode_destinations([SiteId("site-b")]), ClientName("policy"), 0, True, newer)
    body = codec.decode_send(value).body
    assert body == newer
    assert codec.decode_receive(codec.encode_receive_head(0, 1, 2, 0) + body).body == newer


DECODERS: list[Any] = [
    pytest.param(codec.decode_send, id="send"),
    pytest.param(codec.decode_receive, id="receive"),
    pytest.param(codec.decode_position, id="position"),
]
Decoder = Callable[[bytes], object]


@pytest.mark.parametrize("decode", DECODERS)
@settings(max_examples=500)
@given(data=st.binary(max_size=200))
def test_random_bytes_give_a_wire_error_or_a_record(decode: Decoder, data: bytes) -> None:
    _only_wire_errors(decode, data)


@pytest.mark.parametrize("decode, value", [(codec.decode_send, SEND), (codec.decode_receive, RECEIVE)])
@settings(max_examples=500)
@given(data=st.data())
def test_a_damaged_record_gives_a_wire_error_or_a_record(decode: Decoder, value: bytes, data: st.DataObject) -> None:
    """Bytes replaced, cut out or put in anywhere."""
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 8)))
    _only_wire_errors(decode, value[:start] + data.draw(st.binary(max_size=8)) + value[end:])


@settings(max_examples=500)
@given(st.data())
def test_what_can_be_routed_can_be_read_at_the_sink(data: st.DataObject) -> None:
    """However a record was damaged: if the reader takes it, the listener can, and sees the same transaction."""
    start = data.draw(st.integers(0, len(SEND)))
    end = data.draw(st.integers(start, min(len(SEND), start + 4)))
    value = SEND[:start] + data.draw(st.binary(max_size=4)) + SEND[end:]
    try:
        sent = codec.decode_send(value)
    except WireError:
        return
    received = codec.decode_receive(codec.encode_receive_head(0, 1, sent.entries, 7) + sent.body)
    assert (received.txn, len(received.entries), received.body) == (sent.txn, sent.entries, sent.body)


@pytest.mark.parametrize("decode, value", [(codec.decode_send, SEND), (codec.decode_receive, RECEIVE)])
def test_a_record_cut_off_anywhere_is_refused(decode: Decoder, value: bytes) -> None:
    """Also where a field happens to end: the last field of a record says that it is whole."""
    refused = [length for length in range(len(value)) if _only_wire_errors(decode, value[:length]) is None]
    assert refused == list(range(len(value)))


def test_a_record_for_the_site_it_comes_from_is_refused() -> None:
    """Whoever knows the site says so; nothing replicates to itself."""
    assert codec.decode_send(SEND, SiteId("site-a")).destinations == ("site-b",)
    with pytest.raises(WireError, match="the site it comes from"):
        codec.decode_send(SEND, SiteId("site-b"))


@pytest.mark.parametrize("decode", [codec.decode_send, codec.decode_receive])
@pytest.mark.parametrize("value", [None, b""])
def test_a_record_without_content_is_refused(decode: Callable[[bytes | None], object], value: bytes | None) -> None:
    with pytest.raises(WireError):
        decode(value)


def _message(**fields: Any) -> entry_pb2.RoutingTableEntryMsg:
    complete: dict[str, Any] = {
        "type": entry_pb2.LOG_ENTRY_SYNC,
        "opaque_payload": [b"x"],
        "incarnation": b"i",
        "first_sequence": 1,
    }
    return entry_pb2.RoutingTableEntryMsg(**complete | fields)


def _send(to: list[str], client: str = "policy", **fields: Any) -> bytes:
    fragment = entry_pb2.RoutingTableEntryMsg(destinations=to).SerializeToString()
    return codec.encode_send(fragment, ClientName(client), 0, True, _message(**fields).SerializeToString())


def _with_head(destinations: bytes, **head: Any) -> bytes:
    message = entry_pb2.RoutingTableEntryMsg(send=entry_pb2.SendHead(client="policy", **head))
    return destinations + message.SerializeToString() + _message().SerializeToString()


SITE_B = codec.encode_destinations([SiteId("site-b")])


@pytest.mark.parametrize(
    "value, reason",
    [
        pytest.param(_send(["site-b"], type=0), "type is 0", id="type NONE"),
        pytest.param(_send(["site-b"], type=2), "type is 2", id="type of another kind"),
        pytest.param(_send(["site-b"], type=77), "type is 77", id="unknown type"),
        pytest.param(_send(["site-b"], opaque_payload=[]), "no payload", id="no payload"),
        pytest.param(_send(["site-b"], incarnation=b""), "names no transaction", id="no transaction"),
        pytest.param(_send(["site-b"], indexes=[1, 2]), "1 payloads but 2 indexes", id="more indexes than payloads"),
        pytest.param(_send([]), "no destinations", id="no destinations"),
        pytest.param(_send(["site_b"]), "no valid name", id="destination with a wrong name"),
        pytest.param(_send(["site-b", "site-b"]), "stands twice", id="destination twice"),
        pytest.param(_send(["site-b"], client="a_b"), "client has no valid name", id="client with a wrong name"),
        pytest.param(_send(["site-b"], client=""), "client has no valid name", id="no client"),
        pytest.param(_send(["site-b"], destinations=["site-c"]), "beginning", id="destinations in the body"),
        pytest.param(
            _send(["site-b"], receive={"records": 1}), "place in a receive queue", id="receive head in the body"
        ),
        pytest.param(_with_head(SITE_B, destinations_size=0, body_offset=9), "does not begin", id="size 0"),
        pytest.param(_with_head(SITE_B, destinations_size=8, body_offset=40), "does not begin", id="body begins later"),
        pytest.param(
            _with_head(SITE_B, destinations_size=8, body_offset=999), "does not begin", id="body beyond the end"
        ),
        pytest.param(
            _with_head(SITE_B, destinations_size=8, body_offset=8), "does not begin", id="body before the head"
        ),
        # The head's last byte, a quotation mark, is what the tag of a head looks like.
        pytest.param(
            b'\x0a\x06site-b\x22\x10\x18\x01\x25\x19\x00\x00\x00\x2d\x1a\x00\x00\x00\x0a\x02a"'
            + _message().SerializeToString(),
            "has no length",
            id="head that says it begins at its own last byte",
        ),
    ],
)
def test_a_send_record_that_cannot_be_routed_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        codec.decode_send(value)


@pytest.mark.parametrize(
    "value, reason",
    [
        pytest.param(BODY, "does not begin with its place", id="no head"),
        pytest.param(BODY + codec.encode_receive_head(0, 1, 1, 0), "does not begin with its place", id="head behind"),
        pytest.param(codec.encode_receive_head(1, 1, 1, 0) + BODY, "number 1 of 1", id="place beyond the end"),
        pytest.param(codec.encode_receive_head(0, 1, 1, 0), "type is 0", id="no body"),
    ],
)
def test_a_receive_record_that_cannot_be_placed_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        codec.decode_receive(value)


def test_the_client_of_a_record_that_is_otherwise_useless_can_be_told() -> None:
    assert codec.client_of(_send([])) == "policy"
    assert codec.client_of(b"\xff") is None
    assert codec.client_of(None) is None


@given(
    st.builds(
        Position,
        resume_from=int64,
        forwarded_through=int64,
        topic_id=st.text(),
        cluster_id=st.text(),
        total=st.builds(RunningTotal, uint64, uint64, uint64),
        unterminated=st.dictionaries(txn_ids, int64, max_size=3),
        updated_ms=int64,
    )
)
def test_a_position_comes_back_as_it_was(position: Position) -> None:
    assert codec.decode_position(codec.encode_position(position)) == position


def test_bytes_that_are_no_position_are_refused() -> None:
    with pytest.raises(WireError):
        codec.decode_position(b"\xff")
    assert codec.decode_position(control_pb2.PartitionPosition().SerializeToString()).resume_from == 0


@given(st.lists(st.binary(), min_size=2, max_size=6, unique=True), st.randoms())
def test_the_running_checksum_tells_content_and_order(bodies: list[bytes], random: Any) -> None:
    def chained(of: list[bytes]) -> int:
        checksum = 0
        for body in of:
            checksum = codec.extend_checksum(checksum, body)
        return checksum

    shuffled = random.sample(bodies, len(bodies))
    assert (chained(shuffled) == chained(bodies)) == (shuffled == bodies)
    assert chained(bodies[:-1]) != chained(bodies)


@given(txn_ids)
def test_a_transaction_id_comes_back_from_its_text(txn: TxnId) -> None:
    assert TxnId.parse(str(txn)) == txn


@given(st.text() | names)
@example("")
@example("-")
@example("zz-1")
@example("aa-")
def test_other_text_is_no_transaction_id(text: str) -> None:
    try:
        txn = TxnId.parse(text)
    except WireError:
        return
    assert TxnId.parse(str(txn)) == txn


@given(
    st.builds(
        Applied, st.integers(0, 2**63 - 1), st.builds(RunningTotal, uint64, uint64, uint64), st.integers(-1, 2**63 - 1)
    )
)
def test_an_applied_position_comes_back_from_a_commit(applied: Applied) -> None:
    assert Applied.from_commit(applied.next_offset, applied.metadata()) == applied


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(str))
@example("")
@example("{}")
@example("[]")
@example('{"transactions": null, "entries": 0, "checksum": "0", "completed_at": 0}')
@example('{"transactions": 0, "entries": 0, "checksum": 0, "completed_at": 0}')
@example('{"transactions": Infinity, "entries": 0, "checksum": "0", "completed_at": 0}')
def test_metadata_of_others_is_refused(metadata: str) -> None:
    with pytest.raises(WireError, match="LR did not write"):
        Applied.from_commit(5, metadata)


def _only_wire_errors(decode: Decoder, value: bytes) -> object | None:
    """Decode; None for a WireError. Everything else that is raised fails the test."""
    try:
        return decode(value)
    except WireError:
        return None
