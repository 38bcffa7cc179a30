"""Names: the rule, and that every topic, tag and key parses back to exactly one meaning."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_wire import naming
from lr_wire.errors import InvalidName
from lr_wire.naming import ClientName, PositionKey, QueueName, SessionKey, SiteId

ALLOWED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-"

names = st.text(ALLOWED, min_size=1, max_size=64)
clients = names.map(ClientName)
site_ids = names.map(SiteId)

CHECKS = [pytest.param(naming.site_id, id="site id"), pytest.param(naming.client_name, id="client name")]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", ["a", "Z", "0", "-", "site-a", "x" * 64])
def test_a_name_within_the_rule_is_accepted_unchanged(check: Callable[[str], str], value: str) -> None:
    assert value == check(value)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "x" * 65,
        "a_b",
        "a.b",
        "a b",
        "a\n",
        "\na",
        "a/b",
        "ä",
        "\uff11",
        "a\u200b",
        "*",
        "a\0",
        b"a",
        None,
        1,
        ["a"],
    ],
)
def test_anything_else_is_refused_with_the_value_and_the_rule(check: Callable[[object], str], value: object) -> None:
    with pytest.raises(InvalidName) as refused:
        check(value)
    assert repr(value) in str(refused.value)
    assert "1 to 64 of A-Z a-z 0-9 and '-'" in str(refused.value)


@given(st.text(max_size=70))
def test_a_text_is_a_name_exactly_if_the_rule_says_so(text: str) -> None:
    valid = 1 <= len(text) <= 64 and set(text) <= set(ALLOWED)
    try:
        naming.site_id(text)
    except InvalidName:
        assert not valid
    else:
        assert valid


@given(clients, site_ids)
def test_queue_names_parse_back(client: ClientName, source: SiteId) -> None:
    receive = naming.receive_topic(client, source)
    dead_letter = naming.dead_letter_topic(client, source)
    assert naming.parse_receive_topic(receive) == QueueName(client, source)
    assert naming.parse_dead_letter_topic(dead_letter) == QueueName(client, source)
    assert naming.parse_receive_topic(dead_letter) is None
    assert naming.parse_dead_letter_topic(receive) is None
    assert max(len(receive), len(dead_letter)) <= 249, "Kafka's limit for a topic name"


@given(clients, site_ids, clients, site_ids)
def test_different_queues_have_different_names(
    client: ClientName, source: SiteId, other_client: ClientName, other_source: SiteId
) -> None:
    same = (client, source) == (other_client, other_source)
    assert same == (naming.receive_topic(client, source) == naming.receive_topic(other_client, other_source))


@given(clients, clients, site_ids)
def test_a_subscription_matches_the_queues_of_its_own_client_only(
    client: ClientName, other: ClientName, source: SiteId
) -> None:
    matches = re.search(naming.receive_topic_pattern(client), naming.receive_topic(other, source))
    assert bool(matches) == (client == other)


@pytest.mark.parametrize("other", ["a-b", "b-a", "aa", "A", "a-", "-a"])
def test_client_a_never_matches_the_queue_of_a_similar_client(other: str) -> None:
    pattern = naming.receive_topic_pattern(ClientName("a"))
    topic = naming.receive_topic(ClientName(other), SiteId("site-a"))
    assert re.search(pattern, topic) is None
    assert re.search(pattern, naming.receive_topic(ClientName("a"), SiteId("site-a")))
    assert naming.parse_receive_topic(topic) == QueueName(ClientName(other), SiteId("site-a"))


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "LRQ_Recv_",
        "LRQ_Recv_a",
        "LRQ_Recv_a_",
        "LRQ_Recv__b",
        "LRQ_Recv_a_b_c",
        "LRQ_Recv_a_b.c",
        "LRQ_Recv_a_b\n",
        "lrq_recv_a_b",
        "xLRQ_Recv_a_b",
        f"LRQ_Recv_{'a' * 65}_b",
        f"LRQ_Recv_a_{'b' * 65}",
        naming.SEND_LOG_ENTRIES,
    ],
)
def test_other_topics_are_nobodys_receive_queue(topic: str) -> None:
    assert naming.parse_receive_topic(topic) is None


@given(names)
def test_tags_parse_back_and_are_not_mixed_up(name: str) -> None:
    log_entry = naming.log_entry_tag(SiteId(name))
    receive = naming.receive_tag(ClientName(name))
    assert naming.parse_log_entry_tag(log_entry) == name
    assert naming.parse_receive_tag(receive) == name
    assert naming.parse_log_entry_tag(receive) is None
    assert naming.parse_receive_tag(log_entry) is None


@pytest.mark.parametrize("tag", ["", "lrq_logentry_", "lrq_logentry_a_b", "lrq_logentry_a.b", "x", "LRQ_LOGENTRY_a"])
def test_foreign_headers_are_no_tags(tag: str) -> None:
    assert naming.parse_log_entry_tag(tag) is None
    assert naming.parse_receive_tag(tag.replace("logentry", "recv")) is None


@given(site_ids, site_ids, clients, st.integers(0, 10_000))
def test_keys_of_the_status_table_parse_back(source: SiteId, sink: SiteId, client: ClientName, partition: int) -> None:
    session = SessionKey(source, sink, client)
    position = PositionKey(source, sink, client, partition)
    for_any = PositionKey(source, sink, naming.ANY_CLIENT, partition)
    keys = [naming.session_key(session), naming.position_key(position), naming.position_key(for_any)]
    assert [naming.parse_session_key(key) for key in keys] == [session, None, None]
    assert [naming.parse_position_key(key) for key in keys] == [None, position, for_any]


@given(st.text())
def test_any_text_parses_to_a_meaning_that_formats_back_to_it_or_to_none(text: str) -> None:
    if queue := naming.parse_receive_topic(text):
        assert naming.receive_topic(queue.client, queue.source) == text
    if site := naming.parse_log_entry_tag(text):
        assert naming.log_entry_tag(site) == text
    if session := naming.parse_session_key(text):
        assert naming.session_key(session) == text
    if position := naming.parse_position_key(text):
        assert naming.position_key(position) == text


# Random text hardly ever looks like a key; pieces of keys often do.
@given(st.lists(st.sampled_from(["session", "position", "/", "a", "a-b", "*", "0", "01", "1", "_", "."])).map("".join))
def test_pieces_of_keys_never_parse_to_something_else(text: str) -> None:
    if session := naming.parse_session_key(text):
        assert naming.session_key(session) == text
    if position := naming.parse_position_key(text):
        assert naming.position_key(position) == text
