"""The reader as a whole: one shared scan, one flow for each sink, and a clean beginning and end."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Mapping

import structlog

from lr_kafka.backoff import Backoff
from lr_source.reader.flow import Flow, unknown_site
from lr_source.reader.hooks import Hooks
from lr_source.reader.scan import Scan
from lr_source.reader.settings import ReaderSettings
from lr_source.reader.sharing import SharedScan
from lr_source.reader.source import SendQueue
from lr_wire.errors import ConfigError
from lr_wire.naming import ClientName, SiteId

_log = structlog.get_logger("lr.reader")

# The shared scan begins when every sink has been tried once, or after this long: those that are later catch up by
# themselves.
_START_WINDOW_S = 3.0

_IDLE_S = 0.2


def default_owner() -> str:
    """Name this process among the readers."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"


def relax_collector() -> None:
    """
    Look for garbage cycles less often; for a process that is a reader and nothing else.

    A reader makes and drops a handful of small objects for every record and no cycles. Looking for cycles as often as
    Python does by default takes a fifth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


class ReaderService:
    """Forwards everything that one source has for all configured sinks."""

    def __init__(self, settings: ReaderSettings, *, hooks: Hooks | None = None, owner: str | None = None) -> None:
        """Prepare; nothing is connected before `run`."""
        self._settings = settings
        self._hooks = hooks or Hooks()
        self._owner = owner or default_owner()
        self._queue = SendQueue(settings.sites[settings.source])
        self._shared = SharedScan(self._open_scan, self._undelivered)
        self._flows: dict[SiteId, Flow] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._reported: set[tuple[SiteId, ClientName]] = set()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, then drain within the limit."""
        settings = self._settings
        _log.info("reader.started", source=settings.source, sinks=sorted(settings.sinks), owner=self._owner)
        with self._lock:
            # The source's own cluster is a flow too: it takes what belongs to no sink.
            for site in settings.sites:
                self._add_flow(site)
        scanner = threading.Thread(target=self._scan, name="shared-scan", daemon=True)
        scanner.start()
        stop.wait()
        self._drain(scanner)

    def reconfigure(self, settings: ReaderSettings) -> None:
        """Take new settings without a restart; refuse what only a restart can change."""
        with self._lock:
            old = self._settings
            if settings.source != old.source or settings.sites[settings.source] != old.sites[old.source]:
                raise ConfigError("the source and how to reach it cannot change in a running reader", hint="restart it")
            self._settings = settings
            leaving = [
                self._flows.pop(site)
                for site in list(self._flows)
                if settings.limits != old.limits or settings.sites.get(site) != old.sites.get(site)
            ]
            deadline = time.monotonic() + settings.limits.drain_s
            for flow in leaving:
                flow.stop()
            for flow in leaving:
                flow.join(max(0.0, deadline - time.monotonic()))
            for site in settings.sites:
                if site not in self._flows:
                    self._add_flow(site)
            for flow in self._flows.values():
                flow.add_clients(settings.clients)
            self._reported.clear()
        _log.info("reader.reconfigured", sinks=sorted(settings.sinks), clients=list(settings.clients))

    def _add_flow(self, site: SiteId) -> None:
        settings = self._settings
        flow = Flow(
            self._queue,
            settings.sites[site],
            settings.clients,
            settings.limits,
            self._shared,
            self._open_scan,
            self._report,
            self._hooks,
            self._owner,
        )
        self._flows[site] = flow
        flow.start()

    def _open_scan(self, topic_id: str, starts: Mapping[int, int], only: SiteId | None) -> Scan:
        return Scan(
            self._queue,
            topic_id,
            starts,
            lambda: self._settings.sinks,
            self._settings.limits.metadata_s,
            self._hooks,
            only,
        )

    def _scan(self) -> None:
        """Repeat the shared scan's step; after a failure all negotiate anew, and it begins where they need it."""
        deadline = time.monotonic() + _START_WINDOW_S
        for flow in list(self._flows.values()):
            flow.tried.wait(max(0.0, deadline - time.monotonic()))
        limits = self._settings.limits
        backoff = Backoff(limits.backoff_initial_s, limits.backoff_max_s)
        while not self._stop.is_set():
            try:
                if self._shared.step():
                    backoff.reset()
                else:
                    self._stop.wait(_IDLE_S)
            except Exception as error:  # noqa: BLE001 - a defect here must not end the process's only scan silently
                _log.warning("scan.failed", reason=str(error), exc_info=not hasattr(error, "hint"))
                self._shared.fail(str(error))
                self._stop.wait(backoff.next_s())
        self._shared.fail("the reader was stopped")

    def _drain(self, scanner: threading.Thread) -> None:
        """Stop reading, let every flow commit what it has, all within one deadline."""
        deadline = time.monotonic() + self._settings.limits.drain_s
        with self._lock:
            flows = list(self._flows.values())
        for flow in flows:
            flow.stop()
        self._stop.set()
        scanner.join(max(0.0, deadline - time.monotonic()))
        late = [flow.sink for flow in flows if not flow.join(max(0.0, deadline - time.monotonic()))]
        if late:
            # Nothing is lost: what they had not committed is not on the sink, and the next reader goes on from there.
            _log.warning("reader.stopped_late", sinks=late, hint="their open transactions end when they are fenced")
        _log.info("reader.stopped", source=self._settings.source)

    def _undelivered(self, sink: SiteId, clients: frozenset[ClientName]) -> None:
        """Show sessions of which the log tells but which nobody serves now."""
        flow = self._flows.get(sink)
        if flow is not None:
            flow.add_clients(clients)
        if sink in self._settings.sites:
            return
        for client in clients:
            if (sink, client) not in self._reported:
                self._reported.add((sink, client))
                _log.warning("destination.unknown", sink=sink, client=client, hint="add the site to the configuration")
                self._report(*unknown_site(self._settings.source, sink, client, self._owner))

    def _report(self, key: str, value: bytes) -> None:
        home = self._flows.get(self._settings.source)
        if home is not None:
            home.post(key, value)
