"""The pure parts behind the commands: rows of queues, lag, doctor's judgement, options, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_kafka import layout
from lr_kafka.inspection import ClusterFacts, TopicFacts
from lr_kafka.status import StatusTable
from lr_ops.cli.browse import parse_time, row_json
from lr_ops.cli.doctor import finding_json
from lr_ops.cli.status import overview_json
from lr_ops.cli.topics import parse_retention
from lr_ops.cli.verify import report_json
from lr_ops.doctor.checks import examine
from lr_ops.doctor.model import Level, Site, Topic
from lr_ops.lag import Lag, LagCounter
from lr_ops.positions import lowest_resume_from, position_of
from lr_ops.queue_rows import Filter, Record, kind_of, preview, rows
from lr_ops.sessions import Overview, PartitionView, SessionView, is_stale, newest_status
from lr_ops.topic_setup import differences
from lr_ops.verify.model import Finding, Kind, PartitionReport
from lr_ops.verify.run import NotAudited, VerifyReport
from lr_source.reader.assembly import CompleteTransaction
from lr_source.reader.settings import Limits
from lr_wire import codec, deadletter, naming
from lr_wire.errors import ConfigError
from lr_wire.naming import ClientName, PositionKey, SessionKey, SiteId
from lr_wire.records import Applied, Position, TxnId
from lr_wire.v1.control_pb2 import SessionStatus
from tests.support.cli import lr

POLICY = ClientName("policy")
A, B, C = SiteId("site-a"), SiteId("site-b"), SiteId("site-c")
TXN = TxnId(b"\x01\x02", 7)


def record(
    value: bytes | None, key: bytes | None = None, headers: list[tuple[str, bytes | None]] | None = None
) -> Record:
    return Record(0, 5, 1000, key, value, headers or [])


def send_value(*payloads: bytes, last: bool = True) -> bytes:
    body = codec.encode_body(payloads, range(len(payloads)), TXN, 1234)
    return codec.encode_send(codec.encode_destinations([B, C]), POLICY, 0, last, body)


# --- rows


@pytest.mark.parametrize(
    "topic, is_ours",
    [
        ("LRQ_Send_LogEntries", True),
        ("LRQ_Recv_a-b_site-a", True),
        ("LRQ_DeadLetter_policy_site-a", True),
        ("LR_Status", True),
        ("LR_Acks", True),
        ("LRQ_Recv_a_b_site", False),
        ("orders", False),
    ],
)
def test_topics_of_lr_are_known(topic: str, is_ours: bool) -> None:
    assert (kind_of(topic) is not None) == is_ours


@given(st.binary(), st.sampled_from(["LRQ_Send_LogEntries", "LRQ_Recv_policy_site-a", "LR_Status", "LR_Acks"]))
def test_every_record_has_at_least_one_row(value: bytes, topic: str) -> None:
    """Random bytes are shown with a reason, never skipped, and never an exception."""
    found = rows(topic, record(value, b"position/site-a/site-b/policy/0"))
    assert found
    assert all(row.payload is not None or row.facts for row in found)


@given(st.lists(st.binary(), min_size=1, max_size=5))
def test_every_entry_of_a_send_record_has_a_row(payloads: list[bytes]) -> None:
    found = rows(naming.SEND_LOG_ENTRIES, record(send_value(*payloads)))
    assert [row.payload for row in found] == payloads
    assert [row.index for row in found] == list(range(len(payloads)))
    assert {(row.txn, row.client, row.destinations, row.last) for row in found} == {
        ("0102-7", "policy", ("site-b", "site-c"), True)
    }
    assert found[-1].id == f"0102:{7 + len(payloads) - 1}"


def test_a_dead_letter_of_a_sound_record_shows_its_entries_and_why_it_is_there() -> None:
    headers = deadletter.dead_letter_headers("torn", "LRQ_Send_LogEntries", 3, 41, 0, [])
    (row,) = rows("LRQ_DeadLetter_policy_site-a", record(send_value(b"x"), headers=headers))
    assert (row.payload, row.txn, row.reason) == (b"x", "0102-7", "torn")
    assert (row.facts["origin_partition"], row.facts["origin_offset"]) == (3, 41)


def test_a_removed_status_and_an_unknown_key_are_shown() -> None:
    (removed,) = rows(naming.STATUS, record(None, b"session/site-a/site-b/policy"))
    assert removed.facts["removed"]
    (unknown,) = rows(naming.STATUS, record(b"", b"future/thing"))
    assert "does not know" in unknown.reason


def test_a_filter_lets_what_cannot_be_understood_pass() -> None:
    (broken,) = rows(naming.SEND_LOG_ENTRIES, record(b"\xff"))
    (sound,) = rows(naming.SEND_LOG_ENTRIES, record(send_value(b"x")))
    assert Filter(client="inventory").passes(broken)
    assert not Filter(client="inventory").passes(sound)
    assert Filter("site-c", "policy", "0102-7").passes(sound)
    assert not Filter(txn="0102-8").passes(sound)


@pytest.mark.parametrize(
    "payload, limit, shown",
    [
        (b"text", None, ("text", "utf-8", False)),
        ("ümlaut".encode(), 1, ("", "utf-8", True)),
        ("aümlaut".encode(), 3, ("aü", "utf-8", True)),
        (b"\x00\x01", None, ("0001", "hex", False)),
        (b"ab\xff", 2, ("ab", "utf-8", True)),
        (b"\xc3", None, ("c3", "hex", False)),
        (b"", 0, ("", "utf-8", False)),
    ],
)
def test_a_preview_is_text_if_it_can_be(payload: bytes, limit: int | None, shown: tuple[str, str, bool]) -> None:
    assert preview(payload, limit) == shown


# --- options


@pytest.mark.parametrize(
    "text, milliseconds",
    [("15m", 1_000_000_000 - 900_000), ("0.5h", 1_000_000_000 - 1_800_000), ("1970-01-02T00:00:00+00:00", 86_400_000)],
)
def test_ages_and_times_are_read(text: str, milliseconds: int) -> None:
    assert parse_time(text, 1_000_000) == milliseconds


@pytest.mark.parametrize("text, milliseconds", [("7d", 604_800_000), ("90m", 5_400_000), ("forever", -1)])
def test_retention_is_read(text: str, milliseconds: int) -> None:
    assert parse_retention(text) == milliseconds


@pytest.mark.parametrize("text", ["7", "0d", "week", "-1d"])
def test_a_retention_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_retention(text)


# --- lag and positions


def transaction(
    last_offset: int, *sinks: SiteId, first_offset: int | None = None, **values: Any
) -> CompleteTransaction:
    found = codec.decode_send(
        codec.encode_send(codec.encode_destinations(sinks), POLICY, 0, True, codec.encode_body([b"x"], [0], TXN, 0))
    )
    found.timestamp_ms = 1000 * last_offset
    first = last_offset if first_offset is None else first_offset
    return CompleteTransaction(POLICY, TxnId(b"i", last_offset), [found], first, last_offset, last_offset, **values)


TO_B = SessionKey(A, B, POLICY)


def test_lag_counts_what_lies_beyond_the_position() -> None:
    """The seconds are the age of the oldest of them; torn ones, other sinks' and forwarded ones do not count."""
    position = Position(4, 3, "", "")
    counter = LagCounter(A, lambda key, _: position if key == TO_B else None, {0: 0})
    for one in (
        transaction(3, B),
        transaction(5, B),
        transaction(7, C),
        transaction(8, B, C),
        transaction(9, B, torn=True),
    ):
        counter.add(0, one)
    lag = counter.lag(TO_B, 0)
    assert lag == Lag(2, 5000)
    assert lag.seconds(9000) == 4.0
    assert counter.lag(SessionKey(A, C, POLICY), 0) == Lag(2, 7000)
    assert counter.behind == {TO_B, SessionKey(A, C, POLICY)}
    assert Lag().seconds(9000) == 0.0


def test_lag_is_at_least_when_counting_began_behind_the_position() -> None:
    near, far = Position(50, 49, "", ""), Position(5, 4, "", "")
    positions = {TO_B: near, SessionKey(A, C, POLICY): far}
    counter = LagCounter(A, lambda key, _: positions[key], {0: 20})
    assert not counter.lag(TO_B, 0).at_least
    assert counter.lag(SessionKey(A, C, POLICY), 0).at_least
    assert (Lag(1, 5) + Lag(2, 3, at_least=True)) == Lag(3, 3, at_least=True)


def test_a_session_without_a_position_has_that_of_all_clients() -> None:
    own, common = Position(9, 8, "", ""), Position(5, 4, "", "")
    table = StatusTable(positions={PositionKey(A, B, "policy", 0): own, PositionKey(A, B, "*", 0): common})
    assert position_of(table, TO_B, 0) == own
    assert position_of(table, SessionKey(A, B, ClientName("new")), 0) == common
    assert position_of(table, TO_B, 1) is None
    assert lowest_resume_from(A, {B: table}) == {0: 5}
    assert lowest_resume_from(A, {B: table, C: StatusTable()}) == {}


# --- sessions


def test_the_newest_heartbeat_counts() -> None:
    old, new = SessionStatus(heartbeat_ms=1, owner="old"), SessionStatus(heartbeat_ms=2, owner="new")
    tables = [StatusTable(sessions={TO_B: new}), StatusTable(sessions={TO_B: old}), StatusTable()]
    found = newest_status(tables, TO_B)
    assert found is not None
    assert found.owner == "new"
    assert newest_status([StatusTable()], TO_B) is None


@pytest.mark.parametrize(
    "state, age_s, stale",
    [
        (SessionStatus.LOG_ENTRY_SYNC, 11, False),
        (SessionStatus.LOG_ENTRY_SYNC, 13, True),
        (SessionStatus.STOPPED, 10_000, False),
        (SessionStatus.BLOCKED, 60, False),
        (SessionStatus.BLOCKED, 90, True),
    ],
)
def test_a_session_is_stale_after_a_few_heartbeats(state: SessionStatus.State, age_s: int, stale: bool) -> None:
    """A blocked one is only heard of when it is tried again; a stopped one says nothing more."""
    status = SessionStatus(state=state, heartbeat_ms=1_000_000)
    assert is_stale(status, 1_000_000 + age_s * 1000, Limits(heartbeat_s=3)) == stale


# --- topics and doctor


def test_differences_of_a_topic_are_told() -> None:
    spec = layout.receive_queue(POLICY, A, 3)
    assert differences(spec, 3, dict(spec.config)) == ()
    assert differences(spec, 2, {**spec.config, "retention.ms": "5"}) == (
        "it has 2 partitions, not 3",
        "retention.ms is 5, LR would set -1",
    )


ALL = frozenset({"READ", "WRITE", "CREATE", "DESCRIBE", "ALTER"})
BROKER = {
    "share.coordinator.state.topic.replication.factor": "3",
    "log.message.timestamp.after.max.ms": "3600000",
    "transaction.max.timeout.ms": "900000",
    "auto.create.topics.enable": "false",
    "offsets.retention.minutes": "100000",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
}
SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "max.message.bytes": "1048588"}


def topic(spec: layout.TopicSpec, **facts: Any) -> Topic:
    found = TopicFacts(spec.name, spec.partitions, 3, 3, (), ALL)
    return Topic(replace(found, **facts), {**SAFE, **spec.config})


def sound_sites() -> tuple[Site, Site]:
    source = Site(
        A, is_source=True, cluster=ClusterFacts("id-a", (1, 2, 3), ALL), brokers={1: BROKER, 2: BROKER, 3: BROKER}
    )
    sink = Site(
        B, is_source=False, cluster=ClusterFacts("id-b", (1, 2, 3), ALL), brokers={1: BROKER, 2: BROKER, 3: BROKER}
    )
    for site, spec in [
        (source, layout.send_queue(3)),
        (source, layout.status()),
        (sink, layout.status()),
        (sink, layout.receive_queue(POLICY, A, 3)),
    ]:
        site.topics[spec.name] = topic(spec)
    return source, sink


RECEIVE = "LRQ_Recv_policy_site-a"
SEND = "LRQ_Send_LogEntries"


def test_a_sound_set_up_is_all_ok() -> None:
    assert {finding.level for finding in examine(sound_sites(), Limits())} == {Level.OK}


@pytest.mark.parametrize(
    "where, name, change, level, text",
    [
        (0, SEND, {"retention.ms": "3599999"}, Level.ERROR, "keeps entries for only"),
        (0, SEND, {"retention.ms": "7200000"}, Level.WARNING, "keeps entries for only 2 h"),
        (0, SEND, {"retention.bytes": "1000"}, Level.WARNING, "size limit"),
        (0, SEND, {"cleanup.policy": "compact"}, Level.ERROR, "compacted"),
        (0, SEND, {"unclean.leader.election.enable": "true"}, Level.ERROR, "can vanish after a failure"),
        (1, RECEIVE, {"retention.ms": "1000"}, Level.ERROR, "before they are applied"),
        (1, RECEIVE, {"retention.bytes": "1000"}, Level.ERROR, "before they are applied"),
        (1, RECEIVE, {"cleanup.policy": "compact,delete"}, Level.ERROR, "compacted"),
        (1, RECEIVE, {"message.timestamp.before.max.ms": "3600000"}, Level.ERROR, "refuses records older than 1 h"),
        (1, RECEIVE, {"message.timestamp.after.max.ms": "5000"}, Level.WARNING, "more than 5 s ahead"),
        (1, RECEIVE, {"message.timestamp.type": "LogAppendTime"}, Level.WARNING, "replaces the source's timestamps"),
        (1, RECEIVE, {"max.message.bytes": "1000"}, Level.ERROR, "a large record would stop the flow"),
        (1, RECEIVE, {"min.insync.replicas": "1"}, Level.WARNING, "min.insync.replicas is 1"),
        (1, RECEIVE, {"min.insync.replicas": "4"}, Level.ERROR, "nothing can be written"),
        (1, "LR_Status", {"cleanup.policy": "compact,delete"}, Level.ERROR, "positions vanish"),
        (0, "LR_Status", {"cleanup.policy": "delete"}, Level.ERROR, "positions vanish"),
    ],
)
def test_a_setting_that_breaks_a_guarantee_is_found(
    where: int, name: str, change: dict[str, str], level: Level, text: str
) -> None:
    """Exactly it, at the right topic, with what to do."""
    sites = sound_sites()
    before = sites[where].topics[name]
    sites[where].topics[name] = replace(before, config={**before.config, **change})
    (finding,) = [one for one in examine(sites, Limits()) if one.level != Level.OK]
    assert (finding.site, finding.subject, finding.level) == (sites[where].id, name, level)
    assert text in finding.text
    assert finding.advice


@pytest.mark.parametrize(
    "name, facts, level, text",
    [
        (RECEIVE, {"partitions": 2}, Level.WARNING, "has 2 partitions, the send queue 3"),
        (RECEIVE, {"leaderless": (1,)}, Level.ERROR, "partition 1 has no leader"),
        (RECEIVE, {"in_sync": 2}, Level.WARNING, "only 2 of 3 copies"),
        (RECEIVE, {"rights": frozenset({"DESCRIBE"})}, Level.ERROR, "no right to WRITE"),
        ("LR_Status", {"partitions": 2}, Level.ERROR, "2 partitions instead of one"),
        ("LR_Status", {"rights": frozenset({"DESCRIBE", "READ"})}, Level.ERROR, "no right to WRITE"),
    ],
)
def test_a_topic_in_a_bad_way_is_found(name: str, facts: dict[str, Any], level: Level, text: str) -> None:
    source, sink = sound_sites()
    before = sink.topics[name]
    sink.topics[name] = replace(before, facts=replace(before.facts, **facts))
    (finding,) = [one for one in examine([source, sink], Limits()) if one.level != Level.OK]
    assert (finding.subject, finding.level) == (name, level)
    assert text in finding.text


@pytest.mark.parametrize(
    "change, level, text",
    [
        ({"transaction.max.timeout.ms": "29999"}, Level.ERROR, "the reader asks for 30000"),
        ({"auto.create.topics.enable": "true"}, Level.WARNING, "auto.create.topics.enable"),
        ({"offsets.retention.minutes": "10080"}, Level.WARNING, "over 7 days"),
        ({"offsets.topic.replication.factor": "1"}, Level.WARNING, "although there are 3 brokers"),
    ],
)
def test_a_broker_setting_is_judged(change: dict[str, str], level: Level, text: str) -> None:
    source, sink = sound_sites()
    sink.brokers[2] = {**BROKER, **change}
    (finding,) = [one for one in examine([source, sink], Limits()) if one.level != Level.OK]
    assert (finding.subject, finding.level) == ("broker 2", level)
    assert text in finding.text


def test_an_old_broker_and_missing_topics_are_found() -> None:
    source, sink = sound_sites()
    source.brokers[1] = {"transaction.max.timeout.ms": "900000"}
    del source.topics[SEND], sink.topics["LR_Status"]
    found = {(one.site, one.subject, one.level) for one in examine([source, sink], Limits()) if one.level != Level.OK}
    assert found == {
        (A, "broker 1", Level.ERROR),
        (A, SEND, Level.ERROR),
        (B, "LR_Status", Level.WARNING),
    }


# --- verify's report, and errors


def test_the_exit_code_tells_findings_from_gaps() -> None:
    """1 if something is wrong, 2 if something could not be looked at, 0 only if everything was and is right."""
    clean = PartitionReport(TO_B, 0)
    wrong = PartitionReport(TO_B, 1, findings=[Finding(Kind.TORN, TO_B, 1, "half", TXN, 4)])
    gap = NotAudited("site-c", "away")
    assert VerifyReport(A, [clean]).exit_code == 0
    assert VerifyReport(A, [clean], [gap]).exit_code == 2
    report = VerifyReport(A, [clean, wrong], [gap])
    assert report.exit_code == 1
    assert json.loads(json.dumps(report_json(report)))["findings"] == [
        {
            "kind": "torn",
            "sink": "site-b",
            "client": "policy",
            "partition": 1,
            "txn": "0102-7",
            "offset": 4,
            "detail": "half",
        }
    ]


def test_a_failure_is_one_line_and_with_debug_a_traceback(tmp_path: Path) -> None:
    for command in (["status"], ["verify"], ["doctor"], ["topics", "list"], ["topics", "create"], ["browse", "send"]):
        shown = lr(*command, config=tmp_path / "nothing.yaml")
        assert (shown.code, shown.out) == (2, "")
        assert shown.err.startswith("lr: the configuration")
        assert len(shown.err.splitlines()) == 1
        assert "Traceback" in lr(*command, "--debug", config=tmp_path / "nothing.yaml").err


def test_a_command_without_a_configuration_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LR_CONFIG", raising=False)
    shown = lr("status")
    assert shown.code == 2
    assert "use --config reader.yaml or set LR_CONFIG" in shown.err
    monkeypatch.setenv("LR_CONFIG", "/nowhere/reader.yaml")
    assert "/nowhere/reader.yaml cannot be read" in lr("status").err


def test_help_lists_every_command() -> None:
    shown = lr("--help")
    assert shown.code == 0
    for command in ("reader", "status", "browse", "topics", "doctor", "verify"):
        assert command in shown.out
        assert lr(command, "--help").code == 0


def keys_of(value: Any) -> set[str]:
    """All keys of a JSON value, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_every_key_of_the_json_output_is_documented() -> None:
    """Scripts rely on them: what is printed stands in docs/commands.md."""
    view = SessionView(TO_B, "LOG_ENTRY_SYNC")
    view.partitions = [PartitionView(0, Position(1, 0, "", ""), Lag(1, 5), Applied(3))]
    (row,) = rows(naming.SEND_LOG_ENTRIES, record(send_value(b"x")))
    letter_headers = deadletter.dead_letter_headers("torn", naming.SEND_LOG_ENTRIES, 3, 41, 0, [])
    (letter,) = rows("LRQ_DeadLetter_policy_site-a", record(send_value(b"x"), headers=letter_headers))
    wrong = PartitionReport(TO_B, 1, findings=[Finding(Kind.TORN, TO_B, 1, "half", TXN, 4)])
    printed = [
        overview_json(Overview(A, 10, [view], {})),
        report_json(VerifyReport(A, [wrong], [NotAudited("site-c", "away")])),
        row_json(naming.SEND_LOG_ENTRIES, row, None),
        row_json("LRQ_DeadLetter_policy_site-a", letter, None),
        *(finding_json(finding) for finding in examine(sound_sites(), Limits())),
    ]
    documented = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert {key for key in keys_of(printed) if f"`{key}`" not in documented} == set()
