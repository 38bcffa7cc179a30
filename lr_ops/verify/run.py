"""The audit from end to end: read the sinks, then the source, then judge."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lr_kafka.clients import Cluster
from lr_kafka.reading import Progress
from lr_ops.positions import position_of
from lr_ops.source_log import LogCut, LogReading, Undecided, cut_log
from lr_ops.verify.audit import Index, audit
from lr_ops.verify.evidence import QueueReading, SourceReading, evidence
from lr_ops.verify.model import Evidence, Finding, PartitionReport
from lr_ops.verify.sink import SinkReading, read_sink
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import BrokerError, ReplicationError
from lr_wire.naming import SEND_LOG_ENTRIES, SessionKey, SiteId
from lr_wire.v1.control_pb2 import SessionStatus

# A cluster looks every 10 s for transactions whose process has vanished and whose time is over.
_PATIENCE_S = 15.0

ShowProgress = Callable[[str], Progress]
"""Gives the progress of something that is named for people."""


@dataclass(frozen=True, slots=True)
class NotAudited:
    """What the audit could not look at, and why."""

    what: str
    reason: str


@dataclass(slots=True)
class VerifyReport:
    """What an audit found."""

    source: SiteId
    partitions: list[PartitionReport] = field(default_factory=list)
    not_audited: list[NotAudited] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong."""
        return [finding for report in self.partitions for finding in report.findings]

    @property
    def exit_code(self) -> int:
        """0: everything was looked at and is right; 1: something is wrong; 2: something could not be looked at."""
        return 1 if self.findings else 2 if self.not_audited else 0


def verify(settings: ReaderSettings, show: ShowProgress) -> VerifyReport:
    """Audit every session of a source."""
    report = VerifyReport(settings.source)
    sinks = _read_sinks(settings, show, report)
    home = settings.sites[settings.source]
    cut, log, source = _read_source(home, settings.source, sinks, show)
    found = []
    for session in _sessions(settings, sinks, source, report):
        reading = sinks[session.sink]
        if reason := _not_comparable(session, reading, cut):
            report.not_audited.append(NotAudited(str(session), reason))
            continue
        found.extend(_evidence(session, reading, cut, log, source))
    index = Index([*found, *_strangers(source, found)])
    report.partitions = [audit(one, index) for one in found]
    return report


def _read_sinks(settings: ReaderSettings, show: ShowProgress, report: VerifyReport) -> dict[SiteId, SinkReading]:
    patience_s = _PATIENCE_S + settings.limits.transaction_timeout_s
    sinks: dict[SiteId, SinkReading] = {}
    # One connection after the other would add up their latencies; what limits is then this machine.
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="verify") as pool:
        readings = {
            sink: pool.submit(read_sink, settings.sites[sink], settings.source, patience_s, show)
            for sink in sorted(settings.sinks)
        }
    for sink, reading in readings.items():
        try:
            sinks[sink] = reading.result()
        except ReplicationError as error:
            report.not_audited.append(NotAudited(sink, str(error)))
    return sinks


def _read_source(
    cluster: Cluster, source: SiteId, sinks: dict[SiteId, SinkReading], show: ShowProgress
) -> tuple[LogCut, LogReading, SourceReading]:
    while True:
        cut = cut_log(cluster)
        log = LogReading(cluster, cut)
        reading = SourceReading(source, {sink: found.table for sink, found in sinks.items()})
        try:
            for partition, transaction in log.transactions(progress=show(f"{SEND_LOG_ENTRIES} on {source}")):
                reading.add(partition, transaction, cut.starts[partition])
        except BrokerError as error:
            # Retention took the beginning away while we read: begin where the log begins now.
            if error.code != "_AUTO_OFFSET_RESET" or cut_log(cluster).starts == cut.starts:
                raise
            continue
        return cut, log, reading


def _sessions(
    settings: ReaderSettings, sinks: dict[SiteId, SinkReading], source: SourceReading, report: VerifyReport
) -> list[SessionKey]:
    """Give every session that the log or a sink knows; note those that cannot be looked at."""
    found = {session for session, _ in source.flows}
    found |= {SessionKey(settings.source, sink, client) for sink in sinks for client, _ in sinks[sink].queues}
    for sink in sorted({session.sink for session in found} - settings.sites.keys()):
        count = sum(len(flow.pending) for (session, _), flow in source.flows.items() if session.sink == sink)
        reason = f"{count} transactions are for it, but the configuration has no such site"
        report.not_audited.append(NotAudited(sink, reason))
    return sorted(session for session in found if session.sink in sinks)


def _not_comparable(session: SessionKey, reading: SinkReading, cut: LogCut) -> str:
    """Tell why a session's position does not belong to the log as it is now; empty if it does."""
    for partition in cut.starts:
        position = position_of(reading.table, session, partition)
        if position and (position.topic_id, position.cluster_id) != (cut.topic_id, cut.cluster_id):
            return (
                "its position belongs to another send queue (re-created, or another cluster): "
                "there is nothing to compare it with"
            )
        if position and position.resume_from < cut.starts[partition]:
            return (
                f"partition {partition} of the log begins at offset {cut.starts[partition]}, the session must read on "
                f"from {position.resume_from}: what lay between left the log before it was forwarded"
            )
    status = reading.table.sessions.get(session)
    if status is not None and status.state == SessionStatus.NEEDS_SNAPSHOT:
        return f"it needs a snapshot: {status.reason}"
    return ""


def _evidence(
    session: SessionKey, reading: SinkReading, cut: LogCut, log: LogReading, source: SourceReading
) -> list[Evidence]:
    partitions = cut.starts.keys() | {p for client, p in reading.queues if client == session.client}
    return [
        evidence(
            session,
            partition,
            source,
            cut.starts.get(partition, 0),
            log.first_ms.get(partition, 0),
            log.undecided.get(partition, Undecided()),
            reading.queues.get((session.client, partition)) or QueueReading(),
            reading.newest,
        )
        for partition in sorted(partitions)
    ]


def _strangers(source: SourceReading, found: list[Evidence]) -> list[Evidence]:
    """Give what the log has for sessions that are not audited, so that it is known if it turns up elsewhere."""
    audited = {(one.session, one.partition) for one in found}
    return [
        Evidence(session, partition, sent=flow.sent, pending=flow.pending)
        for (session, partition), flow in source.flows.items()
        if (session, partition) not in audited
    ]
