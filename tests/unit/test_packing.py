"""Packing: whatever is handed over comes out of the records again, once, at its destinations, in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_source import destinations as destinations_module
from lr_source.destinations import Destinations
from lr_source.entry import Entry
from lr_source.packing import Packed, Packer, entry_size
from lr_source.partitions import PartitionCount, partition_of
from lr_source.settings import ClientSettings
from lr_wire import codec, naming
from lr_wire.errors import InvalidEntry, InvalidName, OwnSite
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import Header, LogEntry, SendRecord, TxnId

CLIENT = ClientName("policy")
SOURCE = SiteId("site-a")
TXN = TxnId(b"i" * 16, 1000)

headers: st.SearchStrategy[list[Header]] = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2
)
entries = st.builds(
    Entry,
    payload=st.binary(max_size=40) | st.binary(min_size=300, max_size=400),
    destinations=st.lists(st.sampled_from(["site-b", "site-c", "site-d"]), max_size=4),
    key=st.none() | st.binary(max_size=5),
    headers=headers,
)
small_settings = st.builds(
    ClientSettings,
    max_record_bytes=st.integers(1, 300),
    max_open_bytes=st.integers(1, 600),
    max_payload_bytes=st.just(400),
    max_message_bytes=st.just(2000),
)


def pack(
    handed_over: list[Entry],
    settings: ClientSettings | None = None,
    clock_ms: Callable[[], int] = lambda: 0,
    watch: Callable[[Packer], None] = lambda _packer: None,
) -> list[Packed]:
    settings = settings or ClientSettings()
    resolver = Destinations(SOURCE, settings)
    packer = Packer(CLIENT, TXN, settings.max_open_bytes, clock_ms)
    records = []
    for entry in handed_over:
        own = tuple(entry.headers)
        size = entry_size(entry.payload, entry.key, own)
        records += packer.add(resolver.resolve(entry.destinations), entry.payload, size, entry.key, own)
        watch(packer)
    return records + packer.finish()


def opened(record: Packed) -> tuple[SendRecord, tuple[LogEntry, ...]]:
    sent = codec.decode_send(record.value)
    return sent, codec.decode_receive(codec.encode_receive_head(0, 1, sent.entries, 0) + sent.body).entries


@given(st.lists(entries, max_size=30), small_settings)
def test_every_destination_gets_its_entries_once_with_their_place_key_and_headers(
    handed_over: list[Entry], settings: ClientSettings
) -> None:
    arrived: dict[str, dict[int, LogEntry]] = defaultdict(dict)
    for record in pack(handed_over, settings):
        sent, contents = opened(record)
        for destination in sent.destinations:
            for entry in contents:
                assert entry.index not in arrived[destination], "an entry came twice"
                arrived[destination][entry.index] = entry
    for site in ("site-b", "site-c", "site-d"):
        expected = {
            index: (entry.payload, entry.key, tuple(entry.headers), (TXN.incarnation, TXN.first_sequence + index))
            for index, entry in enumerate(handed_over)
            if site in entry.destinations
        }
        found = {index: (entry.payload, entry.key, entry.headers, entry.id) for index, entry in arrived[site].items()}
        assert found == expected


@given(st.lists(entries, max_size=30), small_settings)
def test_records_are_numbered_and_only_the_last_one_says_so(handed_over: list[Entry], settings: ClientSettings) -> None:
    sent = [codec.decode_send(record.value) for record in pack(handed_over, settings)]
    assert [record.record for record in sent] == list(range(len(sent)))
    assert [record.last for record in sent] == [False] * (len(sent) - 1) + [True] * bool(sent)
    assert {record.txn for record in sent} <= {TXN}
    assert bool(sent) == any(entry.destinations for entry in handed_over), "no record without something to replicate"


@given(st.lists(entries, max_size=30), small_settings)
def test_records_are_tagged_for_their_destinations_and_small_enough(
    handed_over: list[Entry], settings: ClientSettings
) -> None:
    for record in pack(handed_over, settings):
        sent, contents = opened(record)
        assert record.tags == [(naming.log_entry_tag(SiteId(site)), b"") for site in sent.destinations]
        assert list(sent.destinations) == sorted(set(sent.destinations))
        assert [entry.index for entry in contents] == sorted(entry.index for entry in contents)
        if len(contents) > 1:
            assert sum(len(entry.payload) for entry in contents) <= settings.max_record_bytes
            assert all(entry.key is None and not entry.headers for entry in contents), "not alone in its record"
        assert len(record.value) + sum(len(name) + 3 for name, _ in record.tags) + 36 <= settings.max_message_bytes


@given(st.lists(entries, max_size=60), small_settings)
def test_what_is_held_back_stays_within_its_bound(handed_over: list[Entry], settings: ClientSettings) -> None:
    """A single open record may exceed it: it must stay, to be the last."""

    def watch(packer: Packer) -> None:
        assert packer._open_bytes == sum(record.size for record in packer._open.values())
        assert packer._open_bytes <= settings.max_open_bytes or len(packer._open) == 1

    pack(handed_over, settings, watch=watch)


def test_a_hundred_entries_of_a_hundred_bytes_share_one_record() -> None:
    [record] = pack([Entry(b"x" * 100, ["site-b", "site-c"])] * 100)
    assert codec.decode_send(record.value).entries == 100


def test_interleaved_destinations_share_however_they_are_listed() -> None:
    """The order of a list and doubles in it make no difference."""
    handed_over = [
        Entry(b"0", ["site-b", "site-c"]),
        Entry(b"1", ["site-d"]),
        Entry(b"2", ("site-c", "site-b")),
        Entry(b"3", ["site-d", "site-d"]),
        Entry(b"4", ["site-c", "site-b", "site-c"]),
    ]
    both, one = (opened(record) for record in pack(handed_over))
    assert (both[0].destinations, [entry.index for entry in both[1]]) == (("site-b", "site-c"), [0, 2, 4])
    assert (one[0].destinations, [entry.index for entry in one[1]]) == (("site-d",), [1, 3])


@pytest.mark.parametrize(
    "alone",
    [
        pytest.param(Entry(b"1", ["site-b"], key=b"k"), id="key"),
        pytest.param(Entry(b"1", ["site-b"], key=b""), id="empty key"),
        pytest.param(Entry(b"1", ["site-b"], headers=[("h", None)]), id="header without a value"),
    ],
)
def test_an_entry_with_a_key_or_headers_travels_alone(alone: Entry) -> None:
    handed_over = [Entry(b"0", ["site-b"]), alone, Entry(b"2", ["site-b"])]
    contents = [[entry.index for entry in opened(record)[1]] for record in pack(handed_over)]
    assert sorted(contents) == [[0, 2], [1]]


def test_an_entry_with_a_key_at_the_end_is_the_last_record() -> None:
    records = pack([Entry(b"0", ["site-b"], key=b"k"), Entry(b"1", ["site-b"], key=b"k")])
    assert [opened(record)[0].last for record in records] == [False, True]


def test_a_record_has_the_time_of_its_first_entry() -> None:
    """Both as Kafka's timestamp and for the listener."""
    clock = count(1_000_000)
    handed_over = [Entry(b"0", ["site-b"]), Entry(b"1", ["site-c"]), Entry(b"2", ["site-b"])]
    records = pack(handed_over, clock_ms=lambda: next(clock))
    assert [record.timestamp_ms for record in records] == [1_000_000, 1_000_001]
    assert [opened(record)[1][0].source_time_ms for record in records] == [1_000_000, 1_000_001]


def test_entries_without_destinations_take_a_place_and_no_record() -> None:
    [record] = pack([Entry(b"0", []), Entry(b"1", ["site-b"]), Entry(b"2", [])])
    assert [entry.index for entry in opened(record)[1]] == [1]
    assert pack([Entry(b"0", []), Entry(b"1", [], key=b"k")]) == []


def test_records_stay_below_the_limit_of_a_message_whatever_else_is_set() -> None:
    settings = ClientSettings(max_record_bytes=50_000, max_payload_bytes=400, max_message_bytes=2000)
    records = pack([Entry(b"x" * 400, ["site-b"])] * 12, settings)
    assert len(records) > 1
    assert max(len(record.value) for record in records) < 2000


def test_many_destinations_still_share_a_record() -> None:
    """The size that entries share is theirs alone: long lists of destinations do not use it up."""
    sites = [f"{number:0>64}" for number in range(1000)]
    [record] = pack([Entry(b"x" * 100, sites)] * 100)
    assert len(record.value) > 64 * 1024


@pytest.mark.parametrize(
    "wrong, error",
    [
        pytest.param("site-b", InvalidEntry, id="str"),
        pytest.param(b"site-b", InvalidEntry, id="bytes"),
        pytest.param(None, InvalidEntry, id="None"),
        pytest.param(7, InvalidEntry, id="number"),
        pytest.param(["site_b"], InvalidName, id="underscore"),
        pytest.param([""], InvalidName, id="empty name"),
        pytest.param(["x" * 65], InvalidName, id="65 characters"),
        pytest.param([b"site-b"], InvalidName, id="name of bytes"),
        pytest.param([["site-b"]], InvalidName, id="list in a list"),
        pytest.param([None], InvalidName, id="None in a list"),
        pytest.param(["site-b", "site-a"], OwnSite, id="own site"),
    ],
)
def test_wrong_destinations_are_refused_every_time(wrong: list[str], error: type[Exception]) -> None:
    resolver = Destinations(SOURCE, ClientSettings())
    for _ in range(2):
        with pytest.raises(error):
            resolver.resolve(wrong)


def test_an_application_with_ever_new_destinations_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destinations_module, "_REMEMBERED", 10)
    resolver = Destinations(SOURCE, ClientSettings())
    for number in range(100):
        assert resolver.resolve([f"site-{number}", "site-b"]).names == tuple(sorted(["site-b", f"site-{number}"]))
        assert len(resolver._by_list) <= 10
        assert len(resolver._by_names) <= 10


def test_the_partition_of_a_key_never_changes() -> None:
    """These values are part of the wire format: another hash would reorder an application's transactions."""
    assert [partition_of(key, 12) for key in (b"policy", b"inventory", b"", b"customer-42")] == [1, 10, 10, 9]


@given(st.binary(), st.integers(1, 1000))
def test_a_key_has_a_partition_within_the_count(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_partitions_are_asked_for_again_when_old_or_doubtful() -> None:
    answers = iter([3, 6, 12])
    now = [0.0]
    partitions = PartitionCount(lambda: next(answers), max_age_s=300, clock=lambda: now[0])
    assert [partitions.get(), partitions.get()] == [3, 3]
    now[0] = 301.0
    assert [partitions.get(), partitions.get()] == [6, 6]
    partitions.forget()
    assert partitions.get() == 12
