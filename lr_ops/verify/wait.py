"""Waiting until every session has what the log has now."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lr_kafka.clients import Cluster
from lr_kafka.status import StatusTable, glance_at_status
from lr_ops.positions import lowest_resume_from, position_of
from lr_ops.source_log import LogCut, LogReading, cut_log
from lr_source.reader.assembly import CompleteTransaction
from lr_source.reader.positions import is_forwarded
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import BrokerError
from lr_wire.naming import SessionKey, SiteId

_POLL_S = 0.3

_Wanted = dict[tuple[SessionKey, int], list[CompleteTransaction]]


def wait_until_caught_up(
    settings: ReaderSettings, timeout_s: float, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> list[SessionKey]:
    """Wait for all that is in the log as of now to be forwarded; give the sessions that had not done so in time."""
    deadline = clock() + timeout_s
    cut = _settled(settings.sites[settings.source], deadline, clock)
    tables = _tables(settings)
    wanted = _outstanding(settings, cut, tables)
    while wanted:
        show(f"waiting for {', '.join(sorted({str(session) for session, _ in wanted}))}")
        if clock() >= deadline:
            return sorted({session for session, _ in wanted})
        time.sleep(_POLL_S)
        tables = _tables(settings)
        wanted = {
            key: left
            for key, transactions in wanted.items()
            if (left := [one for one in transactions if not _is_there(tables, *key, one)])
        }
    return []


def _settled(cluster: Cluster, deadline: float, clock: Callable[[], float]) -> LogCut:
    """Cut the log where it ends now, waiting for the transactions that are still open in it."""
    ends = cut_log(cluster).ends
    while True:
        cut = cut_log(cluster)
        if clock() >= deadline or all(cut.stable[partition] >= end for partition, end in ends.items()):
            return cut
        time.sleep(_POLL_S)


def _tables(settings: ReaderSettings) -> dict[SiteId, StatusTable]:
    """Read the positions of the sinks that can be reached."""

    def read(sink: SiteId) -> StatusTable | None:
        try:
            return glance_at_status(settings.sites[sink])
        except BrokerError:
            return None  # its sessions are not caught up then, which is what the caller is told

    sinks = sorted(settings.sinks)
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="wait") as pool:
        return {sink: table for sink, table in zip(sinks, pool.map(read, sinks), strict=True) if table is not None}


def _outstanding(settings: ReaderSettings, cut: LogCut, tables: dict[SiteId, StatusTable]) -> _Wanted:
    wanted: _Wanted = {}
    # Of a sink that cannot be reached, nothing is known to be there.
    starts = lowest_resume_from(settings.source, tables) if tables.keys() == settings.sinks else {}
    for partition, transaction in LogReading(settings.sites[settings.source], cut, starts).transactions():
        if transaction.torn:
            continue
        sinks = {sink for record in transaction.records for sink in record.destinations}
        # Only the offsets matter here, and the log may be long.
        light = replace(transaction, records=[])
        for sink in sinks & settings.sinks:
            session = SessionKey(settings.source, sink, transaction.client)
            if not _is_there(tables, session, partition, light):
                found = wanted.setdefault((session, partition), [])
                if light.terminated:
                    # A session that has the newest one has those before it.
                    found[:] = [one for one in found if not one.terminated]
                found.append(light)
    return wanted


def _is_there(
    tables: dict[SiteId, StatusTable], session: SessionKey, partition: int, transaction: CompleteTransaction
) -> bool:
    table = tables.get(session.sink)
    position = position_of(table, session, partition) if table else None
    return position is not None and is_forwarded(position, transaction)
