"""
The sessions of a source as an operator sees them: state, position, lag, what is applied.

Every sink tells about its own sessions in its `LR_Status`. The reader writes the state of those whose sink it cannot
reach to the source's own cluster, so both are read and the newer one counts.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lr_kafka import topics
from lr_kafka.clients import AdminClient, Cluster
from lr_kafka.groups import committed
from lr_kafka.status import StatusTable, glance_at_status
from lr_ops.lag import Lag, LagCounter
from lr_ops.positions import lowest_resume_from, parse_applied, position_of
from lr_ops.source_log import LogReading, cut_log
from lr_source.reader.settings import Limits, ReaderSettings
from lr_wire import naming
from lr_wire.errors import ReplicationError
from lr_wire.naming import ClientName, SessionKey, SiteId
from lr_wire.records import Applied, Position, RunningTotal
from lr_wire.v1.control_pb2 import SessionStatus

State = SessionStatus.State

_REACH_S = 4.0

# Lag is counted in the log itself, up to here; beyond that it is "at least".
_LAG_RECORDS = 100_000
_LAG_S = 5.0

# A heartbeat may be late by a slow commit or two before somebody should be worried.
_HEARTBEATS_MISSED = 4


@dataclass(slots=True)
class PartitionView:
    """One partition of a session."""

    partition: int
    position: Position | None
    lag: Lag | None
    applied: Applied | None


@dataclass(slots=True)
class SessionView:
    """One session."""

    key: SessionKey
    state: str
    reason: str = ""
    changed_ms: int = 0
    heartbeat_ms: int = 0
    stale: bool = False
    owner: str = ""
    receive_queue: str = ""
    entries_per_second: float = 0.0
    partitions: list[PartitionView] = field(default_factory=list)

    @property
    def lag(self) -> Lag | None:
        """Sum up the partitions; None if it is not known."""
        lags = [one.lag for one in self.partitions if one.lag is not None]
        return sum(lags, Lag()) if lags else None

    @property
    def forwarded(self) -> RunningTotal | None:
        """Sum up what was forwarded; None if it is not known."""
        return _sum([one.position.total for one in self.partitions if one.position])

    @property
    def applied(self) -> RunningTotal | None:
        """Sum up what was applied; None if it is not known."""
        return _sum([one.applied.total for one in self.partitions if one.applied])


@dataclass(slots=True)
class Overview:
    """All sessions of a source at one moment."""

    source: SiteId
    now_ms: int
    sessions: list[SessionView]
    unreachable: dict[SiteId, str]
    """Sites that did not answer, and why."""

    lag_unknown: str = ""
    """Why lag could not be counted."""


@dataclass(slots=True)
class _SiteView:
    table: StatusTable = field(default_factory=StatusTable)
    applied: dict[tuple[ClientName, int], Applied] = field(default_factory=dict)
    queues: set[ClientName] = field(default_factory=set)
    unreachable: str = ""


def overview(settings: ReaderSettings) -> Overview:
    """Look at all clusters at once."""
    sites = sorted(settings.sites)
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="status") as pool:
        views = dict(
            zip(sites, pool.map(lambda site: _look(settings.sites[site], settings.source), sites), strict=True)
        )
    unreachable = {site: view.unreachable for site, view in views.items() if view.unreachable}
    found = Overview(settings.source, time.time_ns() // 1_000_000, [], unreachable)
    lags = None
    try:
        if settings.source not in unreachable and settings.sinks - unreachable.keys():
            lags = _count_lag(settings, views)
    except ReplicationError as error:
        found.lag_unknown = str(error)
    for key in sorted(_session_keys(settings, views, lags)):
        found.sessions.append(_view(key, settings, views, lags, found.now_ms))
    return found


def _look(cluster: Cluster, source: SiteId) -> _SiteView:
    admin = cluster.admin()
    view = _SiteView()
    try:
        topics.reach(admin, _REACH_S)
        view.table = glance_at_status(cluster)
        if cluster.site != source:
            _look_at_queues(admin, source, view)
    except ReplicationError as error:
        view.unreachable = str(error)
    return view


def _look_at_queues(admin: AdminClient, source: SiteId, view: _SiteView) -> None:
    for topic in topics.names(admin):
        name = naming.parse_receive_topic(topic)
        info = topics.describe(admin, topic) if name and name.source == source else None
        if name is None or info is None:
            continue
        view.queues.add(name.client)
        group = naming.listener_group(name.client)
        for partition, commit in committed(admin, group, topic, range(info.partitions)).items():
            view.applied[name.client, partition] = parse_applied(commit)


@dataclass(frozen=True, slots=True)
class _Lags:
    counter: LagCounter
    log: LogReading

    def of(self, key: SessionKey, partition: int) -> Lag:
        return self.counter.lag(key, partition) + Lag(at_least=not self.log.is_whole(partition))


def _count_lag(settings: ReaderSettings, views: dict[SiteId, _SiteView]) -> _Lags:
    """Count what lies in the log beyond the positions, within a bound."""
    home = settings.sites[settings.source]
    cut = cut_log(home)
    tables = {sink: views[sink].table for sink in settings.sinks if not views[sink].unreachable}
    lowest = lowest_resume_from(settings.source, tables)
    # A sink that is far behind must not keep us from the end of the log, where the lag of all others is.
    share = _LAG_RECORDS // max(1, len(cut.starts))
    log = LogReading(home, cut, {p: max(lowest.get(p, 0), end - share) for p, end in cut.stable.items()})

    def position(key: SessionKey, partition: int) -> Position | None:
        return position_of(views[key.sink].table, key, partition) if key.sink in views else None

    counter = LagCounter(settings.source, position, log.starts)
    for partition, transaction in log.transactions(max_s=_LAG_S):
        counter.add(partition, transaction)
    return _Lags(counter, log)


def _session_keys(settings: ReaderSettings, views: dict[SiteId, _SiteView], lags: _Lags | None) -> set[SessionKey]:
    """Give every session that a cluster, the log or the configuration knows of."""
    source = settings.source
    keys = {key for view in views.values() for key in view.table.sessions if key.source == source}
    if lags is not None:
        keys |= lags.counter.behind
    for sink in settings.sinks:
        keys |= {SessionKey(source, sink, client) for client in (*settings.clients, *views[sink].queues)}
    return {key for key in keys if key.sink != source}


def _view(
    key: SessionKey, settings: ReaderSettings, views: dict[SiteId, _SiteView], lags: _Lags | None, now_ms: int
) -> SessionView:
    status = newest_status([view.table for view in views.values()], key)
    view = SessionView(key, "UNKNOWN", "no reader has reported it yet")
    if status is not None:
        view = SessionView(
            key,
            State.Name(status.state),
            status.reason,
            status.changed_ms,
            status.heartbeat_ms,
            key.sink in settings.sinks and is_stale(status, now_ms, settings.limits),
            status.owner,
            status.receive_queue,
            status.entries_per_second,
        )
    here = views.get(key.sink)
    if here is None or here.unreachable:
        # What the reader says about it, if it cannot reach it either, is nearer to the cause than what we can say.
        if view.state != State.Name(State.BLOCKED):
            view.state = "UNREACHABLE"
            view.reason = here.unreachable if here else "the configuration has no such site"
        return view
    known = {k.partition for k in here.table.positions if (k.source, k.sink) == (key.source, key.sink)}
    for partition in sorted(known | (lags.log.starts.keys() if lags else set())):
        view.partitions.append(
            PartitionView(
                partition,
                position_of(here.table, key, partition),
                lags.of(key, partition) if lags else None,
                here.applied.get((key.client, partition)),
            )
        )
    return view


def newest_status(tables: list[StatusTable], key: SessionKey) -> SessionStatus | None:
    """Give the newest of what several clusters say about a session."""
    known = [table.sessions[key] for table in tables if key in table.sessions]
    return max(known, key=lambda status: status.heartbeat_ms, default=None)


def is_stale(status: SessionStatus, now_ms: int, limits: Limits) -> bool:
    """Tell whether a session that should be served has not been heard of for too long."""
    if status.state == State.STOPPED:
        return False
    allowed_s = _HEARTBEATS_MISSED * limits.heartbeat_s
    if status.state == State.BLOCKED:
        # Such a session is only heard of when it is tried again.
        allowed_s += 2 * limits.backoff_max_s + limits.request_timeout_s
    return now_ms - status.heartbeat_ms > allowed_s * 1000


def _sum(totals: list[RunningTotal]) -> RunningTotal | None:
    if not totals:
        return None
    return RunningTotal(sum(one.transactions for one in totals), sum(one.entries for one in totals))
