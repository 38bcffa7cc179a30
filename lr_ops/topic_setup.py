"""Making LR's topics and telling where existing ones differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lr_kafka import layout, topics
from lr_kafka.clients import AdminClient
from lr_kafka.layout import TopicSpec
from lr_source.reader.settings import ReaderSettings
from lr_wire import naming
from lr_wire.errors import ReplicationError
from lr_wire.naming import SiteId


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one topic."""

    site: SiteId
    topic: str
    what: str
    """`created`, `there already`, `grown`, or `failed`."""

    partitions: int
    differences: tuple[str, ...] = ()
    """Settings of a topic that was there already and is not as LR would make it."""


@dataclass(frozen=True, slots=True)
class SendQueueOptions:
    """How the send queue is made."""

    partitions: int
    retention_ms: int
    replication: int


def create_all(settings: ReaderSettings, options: SendQueueOptions) -> Iterator[Outcome]:
    """Make every topic that the configuration needs, one after the other; what is there already is left as it is."""
    source = settings.source
    admins = {site: cluster.admin() for site, cluster in settings.sites.items()}
    spec = layout.send_queue(options.partitions, options.retention_ms)
    send_queue = _create(source, admins[source], spec, options.replication)
    yield send_queue
    for site in sorted(settings.sites):
        specs = [layout.status()]
        if site != source and send_queue.what != "failed":
            # As many partitions as the send queue really has: a transaction keeps its partition.
            specs += [layout.receive_queue(client, source, send_queue.partitions) for client in settings.clients]
        for wanted in specs:
            yield _create(site, admins[site], wanted, options.replication)


def _create(site: SiteId, admin: AdminClient, spec: TopicSpec, replication: int) -> Outcome:
    try:
        if topics.create(admin, spec.name, spec.partitions, spec.config, replication):
            return Outcome(site, spec.name, "created", spec.partitions)
        found = topics.describe(admin, spec.name)
        partitions = found.partitions if found else spec.partitions
        what = "there already"
        if naming.parse_receive_topic(spec.name) and partitions < spec.partitions:
            topics.grow(admin, spec.name, spec.partitions)
            partitions, what = spec.partitions, "grown"
        return Outcome(
            site, spec.name, what, partitions, differences(spec, partitions, topics.config(admin, spec.name))
        )
    except ReplicationError as error:
        return Outcome(site, spec.name, "failed", 0, (str(error),))


def differences(spec: TopicSpec, partitions: int, config: dict[str, str]) -> tuple[str, ...]:
    """Tell in what an existing topic differs from what LR would make."""
    found = [
        f"{name} is {config.get(name, 'not set')}, LR would set {value}"
        for name, value in sorted(spec.config.items())
        if config.get(name) != value
    ]
    if partitions != spec.partitions:
        found.insert(0, f"it has {partitions} partitions, not {spec.partitions}")
    return tuple(found)
