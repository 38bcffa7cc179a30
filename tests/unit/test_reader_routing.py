"""From a transaction to what each destination gets: exactly its records, in order, each in its place."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from lr_source.reader.assembly import CompleteTransaction, PartitionAssembler
from lr_source.reader.routing import reject_torn, route
from lr_wire import codec
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import TxnId
from lr_wire.v1.entry_pb2 import RoutingTableEntryMsg

POLICY = ClientName("policy")
TXN = TxnId(b"incarnation", 40)
SITES = [SiteId(f"site-{letter}") for letter in "bcde"]

destinations = st.lists(st.sampled_from(SITES), min_size=1, max_size=4, unique=True)
records = st.lists(
    st.tuples(destinations, st.lists(st.binary(max_size=20), min_size=1, max_size=4)), min_size=1, max_size=8
)
# Fields of versions to come: numbers that no message of ours has, of each wire type.
unknown_fields = st.lists(
    st.sampled_from(
        [b"\xf8\x07\x2a", b"\xe9\x3e\x01\x02\x03\x04\x05\x06\x07\x08", b"\xf2\x3e\x03abc", b"\xfd\x3e\x01\x02\x03\x04"]
    ),
    max_size=3,
).map(b"".join)


def assemble(
    parts: Sequence[tuple[list[SiteId], list[bytes]]], extra: bytes = b"", numbers: Sequence[int] | None = None
) -> CompleteTransaction:
    """Encode a transaction as a client does, and assemble it as the reader does."""
    assembler = PartitionAssembler(100)
    complete: Sequence[CompleteTransaction] = ()
    index = 0
    for number, (to, payloads) in enumerate(parts):
        body = codec.encode_body(payloads, range(index, index + len(payloads)), TXN, 1000 + number) + extra
        index += len(payloads)
        said = number if numbers is None else numbers[number]
        last = number == len(parts) - 1
        record = codec.decode_send(codec.encode_send(codec.encode_destinations(to), POLICY, said, last, body))
        record.timestamp_ms = 5000 + number
        complete = assembler.add(100 + 2 * number, record, lambda: 10_000)
    [transaction] = complete
    return transaction


@settings(max_examples=300)
@given(records, unknown_fields)
def test_every_destination_gets_exactly_its_records_in_order_and_in_their_place(
    parts: list[tuple[list[SiteId], list[bytes]]], extra: bytes
) -> None:
    """And nobody else gets anything; fields that this version does not know are still there, byte for byte."""
    transaction = assemble(parts, extra)
    routed = route(3, transaction)

    assert set(routed) == {site for to, _ in parts for site in to}
    for site, delivery in routed.items():
        mine = [(number, payloads) for number, (to, payloads) in enumerate(parts) if site in to]
        found = [codec.decode_receive(outgoing.value) for outgoing in delivery.records]
        entries = sum(len(payloads) for _, payloads in mine)
        assert [[entry.payload for entry in one.entries] for one in found] == [payloads for _, payloads in mine]
        assert [(one.record, one.records) for one in found] == [(place, len(mine)) for place in range(len(mine))]
        assert {(one.txn, one.entries_in_txn, one.completed_at) for one in found} == {
            (TXN, entries, 100 + 2 * (len(parts) - 1))
        }
        assert [outgoing.timestamp_ms for outgoing in delivery.records] == [5000 + number for number, _ in mine]
        assert [bytes(outgoing.body) for outgoing in delivery.records] == [one.body for one in found]
        assert all(one.body.endswith(extra) for one in found)
        assert (delivery.client, delivery.partition, delivery.txn) == (POLICY, 3, TXN)
        assert (delivery.first_offset, delivery.last_offset) == (100, 100 + 2 * (len(parts) - 1))
        assert delivery.entries == entries
        assert delivery.size == sum(len(outgoing.value) for outgoing in delivery.records)
        assert delivery.terminated


@given(records, unknown_fields)
def test_nothing_of_the_destinations_is_left(parts: list[tuple[list[SiteId], list[bytes]]], extra: bytes) -> None:
    """What arrives is an ordinary message that has neither destinations nor the head of a send queue."""
    for delivery in route(0, assemble(parts, extra)).values():
        for outgoing in delivery.records:
            message = RoutingTableEntryMsg.FromString(outgoing.value)
            assert not message.destinations
            assert not message.HasField("send")


def test_destinations_that_get_the_same_share_the_bytes() -> None:
    """They are built once, however many destinations there are."""
    routed = route(0, assemble([(SITES, [b"1"]), (SITES[:2], [b"2"]), (SITES, [b"3"])]))
    assert routed[SITES[0]] is routed[SITES[1]]
    assert routed[SITES[2]] is routed[SITES[3]]
    assert len(routed[SITES[0]].records) == 3
    assert len(routed[SITES[2]].records) == 2


def test_a_transaction_without_a_last_record_says_so() -> None:
    """The position must name it, since its offsets cannot tell whether it was forwarded."""
    transaction = assemble([([SITES[0]], [b"1"])])
    transaction.terminated = False
    [delivery] = route(0, transaction).values()
    assert not delivery.terminated


@given(records)
def test_of_a_torn_transaction_each_destination_is_told_what_there_is_for_it(
    parts: list[tuple[list[SiteId], list[bytes]]],
) -> None:
    """The original bytes, with their offsets and times, under a reason that names the transaction."""
    transaction = assemble(parts, numbers=range(1, len(parts) + 1))
    assert transaction.torn
    rejects = reject_torn(3, transaction)

    assert set(rejects) == {site for to, _ in parts for site in to}
    for site, reject in rejects.items():
        mine = [number for number, (to, _) in enumerate(parts) if site in to]
        assert [one.value for one in reject.records] == [transaction.records[number].value for number in mine]
        assert [one.offset for one in reject.records] == [100 + 2 * number for number in mine]
        assert [one.timestamp_ms for one in reject.records] == [5000 + number for number in mine]
        assert (reject.client, reject.partition, reject.transaction) == (POLICY, 3, transaction)
        assert reject.size == sum(len(one.value or b"") for one in reject.records)
        assert str(TXN) in reject.reason
        assert f"{len(parts)} records are here, the first of them is number 1" in reject.reason
