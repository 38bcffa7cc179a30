"""Judging what the clusters told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lr_kafka import layout
from lr_ops.doctor.model import Finding, Level, Site, Topic
from lr_source.reader.settings import Limits
from lr_wire import naming

_LONG_MAX = 2**63 - 1
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_FOUR_WEEKS_MIN = 28 * 24 * 60

# A broker has these settings from this release on: the only way to tell that a client of ours has.
_RELEASES = (("4.0", "share.coordinator.state.topic.replication.factor"), ("3.6", "log.message.timestamp.after.max.ms"))

_SOURCE_RIGHTS = {naming.SEND_LOG_ENTRIES: ("READ", "DESCRIBE"), naming.STATUS: ("READ", "WRITE", "DESCRIBE")}
_STATUS_RIGHTS = ("READ", "WRITE", "DESCRIBE")
_RECEIVE_RIGHTS = ("WRITE", "DESCRIBE")


def examine(sites: Iterable[Site], limits: Limits) -> list[Finding]:
    """Judge all sites together."""
    found = list(sites)
    source = next((site for site in found if site.is_source), None)
    send_queue = source.topics.get(naming.SEND_LOG_ENTRIES) if source else None
    findings: list[Finding] = []
    for site in found:
        findings += _examine_site(site, limits, send_queue)
    return findings


def _examine_site(site: Site, limits: Limits, send_queue: Topic | None) -> Iterator[Finding]:
    if site.unreachable or site.cluster is None:
        yield Finding(
            Level.ERROR,
            site.id,
            "cluster",
            f"does not answer: {site.unreachable}",
            "check its bootstrap.servers, the network in between, and its security settings",
        )
        return
    count = len(site.cluster.brokers)
    text = f"answers: {count} {'broker' if count == 1 else 'brokers'}, cluster id {site.cluster.cluster_id}"
    yield Finding(Level.OK, site.id, "cluster", text)
    for reason in site.unreadable:
        yield Finding(
            Level.WARNING, site.id, "cluster", reason, "grant DescribeConfigs, so that the settings can be checked"
        )
    yield from _brokers(site, limits)
    yield from _cluster_rights(site)
    yield from (_source_topics(site) if site.is_source else _sink_topics(site, send_queue))
    for topic in site.topics.values():
        yield from _safety(site, topic)


def _brokers(site: Site, limits: Limits) -> Iterator[Finding]:
    for broker, config in sorted(site.brokers.items()):
        problems = list(_broker(config, limits, len(site.brokers)))
        for level, text, advice in problems:
            yield Finding(level, site.id, f"broker {broker}", text, advice)
        if not problems:
            release = next((release for release, setting in _RELEASES if setting in config), None)
            yield Finding(Level.OK, site.id, f"broker {broker}", f"Kafka {release} or newer, settings are fit")


def _broker(config: Mapping[str, str], limits: Limits, brokers: int) -> Iterator[tuple[Level, str, str]]:
    if not any(setting in config for _, setting in _RELEASES):
        yield Level.ERROR, "is older than Kafka 3.6", "LR's topics need settings that it does not know: upgrade it"
    wanted_ms = int(limits.transaction_timeout_s * 1000)
    allowed_ms = _number(config, "transaction.max.timeout.ms")
    if allowed_ms is not None and allowed_ms < wanted_ms:
        yield (
            Level.ERROR,
            f"transaction.max.timeout.ms is {allowed_ms}, the reader asks for {wanted_ms}",
            "raise it, or lower limits.transaction_timeout_s",
        )
    if config.get("auto.create.topics.enable") == "true":
        yield (
            Level.WARNING,
            "auto.create.topics.enable is true: a mistyped or deleted queue comes back with the wrong settings",
            "set it to false",
        )
    kept_min = _number(config, "offsets.retention.minutes")
    if kept_min is not None and kept_min < _FOUR_WEEKS_MIN:
        days = f"{kept_min / 1440:g} days"
        yield (
            Level.WARNING,
            f"offsets.retention.minutes is {kept_min}: a listener away for over {days} loses its applied position",
            "raise it to the longest absence that listeners must survive, or keep positions in a store",
        )
    for setting in ("transaction.state.log.replication.factor", "offsets.topic.replication.factor"):
        copies = _number(config, setting)
        if brokers > 1 and copies is not None and copies < 2:
            yield (
                Level.WARNING,
                f"{setting} is {copies} although there are {brokers} brokers",
                "give Kafka's own topics as many copies as LR's",
            )


def _cluster_rights(site: Site) -> Iterator[Finding]:
    assert site.cluster is not None
    if site.cluster.rights and "CREATE" not in site.cluster.rights:
        yield Finding(
            Level.WARNING,
            site.id,
            "cluster",
            "no right to create topics in general",
            "grant Create on the topics LR_* and LRQ_*, or make them with `lr topics create` as somebody who may",
        )


def _source_topics(site: Site) -> Iterator[Finding]:
    topic = site.topics.get(naming.SEND_LOG_ENTRIES)
    if topic is None:
        yield Finding(
            Level.ERROR, site.id, naming.SEND_LOG_ENTRIES, "does not exist", "make it with `lr topics create`"
        )
    else:
        yield from _send_queue(site, topic)
    yield from _status(site, site.topics.get(naming.STATUS))
    for name, needed in _SOURCE_RIGHTS.items():
        if name in site.topics:
            yield from _topic_rights(site, site.topics[name], needed)


def _send_queue(site: Site, topic: Topic) -> Iterator[Finding]:
    problems: list[Finding] = []

    def add(level: Level, text: str, advice: str) -> None:
        problems.append(Finding(level, site.id, topic.name, text, advice))

    if "compact" in topic.config.get("cleanup.policy", ""):
        add(Level.ERROR, "is compacted: entries vanish before they are forwarded", "set cleanup.policy to delete")
    kept_ms = _number(topic.config, "retention.ms")
    if kept_ms is not None and 0 <= kept_ms < _DAY_MS:
        level = Level.ERROR if kept_ms < _HOUR_MS else Level.WARNING
        add(
            level,
            f"keeps entries for only {kept_ms / _HOUR_MS:g} h: a sink that is away for longer needs a full copy",
            "raise retention.ms to the longest outage of a sink that log entries alone must bridge",
        )
    if (_number(topic.config, "retention.bytes") or -1) >= 0:
        add(
            Level.WARNING,
            "has a size limit: a burst can push out entries that no sink has yet",
            "set retention.bytes to -1 and watch the disk",
        )
    yield from problems
    if not problems:
        kept = "for ever" if kept_ms is None or kept_ms < 0 else f"for {kept_ms / _DAY_MS:g} days"
        yield Finding(Level.OK, site.id, topic.name, f"{topic.facts.partitions} partitions, keeps entries {kept}")


def _sink_topics(site: Site, send_queue: Topic | None) -> Iterator[Finding]:
    yield from _status(site, site.topics.get(naming.STATUS))
    if naming.STATUS in site.topics:
        yield from _topic_rights(site, site.topics[naming.STATUS], _STATUS_RIGHTS)
    for topic in site.topics.values():
        if naming.parse_receive_topic(topic.name):
            yield from _receive_queue(site, topic, send_queue)
            yield from _topic_rights(site, topic, _RECEIVE_RIGHTS)


def _receive_queue(site: Site, topic: Topic, send_queue: Topic | None) -> Iterator[Finding]:
    problems: list[Finding] = []

    def add(level: Level, text: str, advice: str) -> None:
        problems.append(Finding(level, site.id, topic.name, text, advice))

    config = topic.config
    if "compact" in config.get("cleanup.policy", ""):
        add(Level.ERROR, "is compacted: entries vanish before they are applied", "set cleanup.policy to delete")
    for setting in ("retention.ms", "retention.bytes"):
        kept = _number(config, setting)
        if kept is not None and kept >= 0:
            add(
                Level.ERROR,
                f"{setting} is {kept}: entries vanish before they are applied",
                f"set {setting} to -1; listeners delete what they have applied",
            )
    before_ms = _number(config, "message.timestamp.before.max.ms")
    if before_ms is not None and before_ms < _LONG_MAX:
        add(
            Level.ERROR,
            f"refuses records older than {before_ms / _HOUR_MS:g} h: after an outage of that length forwarding stops",
            f"set message.timestamp.before.max.ms to {_LONG_MAX}",
        )
    after_ms = _number(config, "message.timestamp.after.max.ms")
    if after_ms is not None and after_ms < _HOUR_MS:
        add(
            Level.WARNING,
            f"refuses records from a clock that is more than {after_ms / 1000:g} s ahead",
            f"set message.timestamp.after.max.ms to {_LONG_MAX}",
        )
    if config.get("message.timestamp.type") == "LogAppendTime":
        add(Level.WARNING, "replaces the source's timestamps by its own", "set message.timestamp.type to CreateTime")
    if send_queue is not None:
        for level, text, advice in _against_source(topic, send_queue):
            add(level, text, advice)
    yield from problems
    if not problems:
        yield Finding(Level.OK, site.id, topic.name, f"{topic.facts.partitions} partitions, keeps until applied")


def _against_source(topic: Topic, send_queue: Topic) -> Iterator[tuple[Level, str, str]]:
    if topic.facts.partitions < send_queue.facts.partitions:
        yield (
            Level.WARNING,
            f"has {topic.facts.partitions} partitions, the send queue {send_queue.facts.partitions}",
            "a running reader adds them; `lr topics create` does so, too",
        )
    here = _number(topic.config, "max.message.bytes")
    there = _number(send_queue.config, "max.message.bytes")
    if here is not None and there is not None and here < there:
        yield (
            Level.ERROR,
            f"max.message.bytes is {here}, but {there} in the send queue: a large record would stop the flow",
            f"raise it to {there} here",
        )


def _status(site: Site, topic: Topic | None) -> Iterator[Finding]:
    if topic is None:
        yield Finding(
            Level.WARNING, site.id, naming.STATUS, "does not exist yet", "a reader makes it; so does `lr topics create`"
        )
        return
    policy = topic.config.get("cleanup.policy", "")
    if policy != "compact":
        yield Finding(
            Level.ERROR,
            site.id,
            topic.name,
            f"cleanup.policy is {policy}: positions vanish, and what was forwarded would be forwarded again",
            "set it to compact",
        )
    elif topic.facts.partitions != layout.status().partitions:
        yield Finding(
            Level.ERROR,
            site.id,
            topic.name,
            f"has {topic.facts.partitions} partitions instead of one: older records could be read after newer ones",
            "stop the reader, keep its records, and make the topic anew with one partition",
        )
    else:
        yield Finding(Level.OK, site.id, topic.name, "compacted, positions are kept")


def _topic_rights(site: Site, topic: Topic, needed: tuple[str, ...]) -> Iterator[Finding]:
    # A cluster without authorisation tells all rights, one that is too old to tell none at all.
    missing = [right for right in needed if right not in topic.facts.rights]
    if topic.facts.rights and missing:
        yield Finding(
            Level.ERROR, site.id, topic.name, f"no right to {' or '.join(missing)}", "grant it to the reader's user"
        )


def _safety(site: Site, topic: Topic) -> Iterator[Finding]:
    """Judge whether a topic survives the loss of a broker."""
    facts, config = topic.facts, topic.config
    if facts.leaderless:
        partitions = ", ".join(map(str, facts.leaderless))
        yield Finding(
            Level.ERROR, site.id, topic.name, f"partition {partitions} has no leader", "bring its brokers back"
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield Finding(
            Level.ERROR,
            site.id,
            topic.name,
            "unclean.leader.election.enable is true: committed records can vanish after a failure",
            "set it to false",
        )
    minimum = _number(config, "min.insync.replicas") or 1
    if minimum > facts.copies:
        yield Finding(
            Level.ERROR,
            site.id,
            topic.name,
            f"min.insync.replicas is {minimum}, but there are only {facts.copies} copies: nothing can be written",
            "lower it, or add copies",
        )
    elif facts.copies == 1:
        yield Finding(
            Level.WARNING,
            site.id,
            topic.name,
            "there is one copy of each record: a lost disk loses it",
            "give the topic three copies and min.insync.replicas 2",
        )
    elif minimum < 2:
        yield Finding(
            Level.WARNING,
            site.id,
            topic.name,
            f"min.insync.replicas is {minimum}: a record counts as written when only one broker has it",
            "set it to 2",
        )
    if facts.in_sync < facts.copies:
        yield Finding(
            Level.WARNING,
            site.id,
            topic.name,
            f"only {facts.in_sync} of {facts.copies} copies are up to date",
            "look after the brokers that lag behind",
        )


def _number(config: Mapping[str, str], setting: str) -> int | None:
    value = config.get(setting, "")
    return int(value) if value.removeprefix("-").isdecimal() else None
