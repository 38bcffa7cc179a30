"""Reading the facts from the clusters, all at the same time, changing nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from lr_kafka import inspection, topics
from lr_kafka.clients import AdminClient, Cluster
from lr_ops.doctor.model import Site, Topic
from lr_ops.queue_rows import kind_of
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import BrokerError
from lr_wire.naming import SiteId

_REACH_S = 5.0


def look(settings: ReaderSettings) -> list[Site]:
    """Look at every site."""
    sites = sorted(settings.sites)
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="doctor") as pool:
        return list(pool.map(lambda site: _look(settings.sites[site], settings.source), sites))


def _look(cluster: Cluster, source: SiteId) -> Site:
    site = Site(cluster.site, cluster.site == source)
    admin = cluster.admin()
    try:
        topics.reach(admin, _REACH_S)
        site.cluster = inspection.inspect_cluster(admin)
        names = [name for name in topics.names(admin) if kind_of(name) is not None]
    except BrokerError as error:
        site.unreachable = str(error)
        return site
    for broker in site.cluster.brokers:
        try:
            site.brokers[broker] = inspection.broker_config(admin, broker)
        except BrokerError as error:
            site.unreadable.append(str(error))
    for name in names:
        _look_at_topic(admin, name, site)
    return site


def _look_at_topic(admin: AdminClient, name: str, site: Site) -> None:
    try:
        facts = inspection.inspect_topic(admin, name)
        if facts is not None:
            site.topics[name] = Topic(facts, topics.config(admin, name))
    except BrokerError as error:
        site.unreadable.append(str(error))
