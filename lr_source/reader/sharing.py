"""
One scan for many sinks.

`SharedScan` reads the send queue once and puts what each sink gets into that sink's `Feed`. A feed is bounded: a sink
that does not keep up loses its feed, nothing else happens to the others, and it reads the log with a scan of its own
until it can join again.

Joining. When a feed is attached to a running scan, the scan notes its `JoinPoint`. From then on the feed gets all
that completes at or after that point. The sink's own scan brings the rest: all that completes before it. The same
transaction can come both ways, which does no harm, because a session drops what it has forwarded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from lr_source.reader.scan import Chunk, Scan, ScanStep
from lr_wire.errors import ReplicationError
from lr_wire.naming import ClientName, SiteId
from lr_wire.records import TxnId

_log = structlog.get_logger("lr.reader")

_STEP_S = 0.5

OpenScan = Callable[[str, Mapping[int, int], SiteId | None], Scan]
"""Opens a scan of the topic with this id, beginning at these offsets, for all sinks or for one."""


class Feed:
    """What waits for one sink, bounded in bytes. Written by the scan's thread, read by the sink's."""

    def __init__(self, sink: SiteId, limit_bytes: int) -> None:
        """Begin empty and open."""
        self.sink = sink
        self.limit_bytes = limit_bytes
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        # None while it is open, then why it was closed; what was put before can still be taken.
        self._closed: str | None = None
        # It was closed because there was no room: its sink reads the log by itself, from where it is.
        self.overflowed = False

    @property
    def closed(self) -> str | None:
        """Why nothing more will come, once all that was put is taken; None while more can come."""
        with self._changed:
            return self._closed if not self._chunks else None

    @property
    def empty(self) -> bool:
        """Nothing waits."""
        return not self._chunks

    def put(self, chunk: Chunk) -> bool:
        """Add a chunk; False if there is no room or it is closed, and then nothing more will come."""
        with self._changed:
            if self._closed is not None:
                return False
            if self._bytes and self._bytes + chunk.size > self.limit_bytes:
                self.overflowed = True
                self._closed = f"more than {self.limit_bytes} bytes were waiting for it"
                self._changed.notify()
                return False
            if self._chunks and chunk.empty:
                # Reading further without finding anything for this sink only moves the frontier of what waits already.
                self._chunks[-1].frontier.update(chunk.frontier)
                return True
            self._chunks.append(chunk)
            self._bytes += chunk.size
            if not chunk.empty:
                # A frontier alone wakes nobody up: it is found with the next entries, or when a heartbeat is due.
                self._changed.notify()
            return True

    def take(self, timeout_s: float) -> Chunk | None:
        """Take the oldest chunk, waiting for at most `timeout_s`; None if there is none."""
        with self._changed:
            if not self._chunks and self._closed is None:
                self._changed.wait(timeout_s)
            if not self._chunks:
                return None
            chunk = self._chunks.popleft()
            self._bytes -= chunk.size
            return chunk

    def close(self, reason: str) -> None:
        """Let nothing more in."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify()


@dataclass(frozen=True, slots=True)
class JoinPoint:
    """Where a feed began: it gets what begins at or after `passed`, and what was open and whole then."""

    passed: Mapping[int, int]
    open_whole: frozenset[TxnId]

    def reached_by(self, passed: Mapping[int, int], open_before: frozenset[TxnId]) -> bool:
        """
        Tell whether a scan that is this far has brought everything that the feed does not.

        `open_before` are the transactions that are open in this scan and began before this point. The feed brings only
        those that were open and whole in its own scan. Another one has fallen between the two: the feed's scan began in
        the middle of it, so from there it comes torn; or it has no last record, and the feed's scan found out earlier
        than this one that it is complete.
        """
        return open_before <= self.open_whole and all(
            passed.get(partition, 0) >= offset for partition, offset in self.passed.items()
        )


class SharedScan:
    """The scan that all sinks share, and its thread's work."""

    def __init__(
        self,
        open_scan: OpenScan,
        undelivered: Callable[[SiteId, frozenset[ClientName]], None],
    ) -> None:
        """Open the scan with `open_scan` once somebody wants it; tell `undelivered` of sinks that have no feed now."""
        self._open_scan = open_scan
        self._undelivered = undelivered
        self._lock = threading.Lock()
        self._feeds: dict[SiteId, Feed] = {}
        self._starts: dict[int, int] = {}
        self._topic_id = ""
        self._scan: Scan | None = None
        # Where the running scan was when it last handed out: what comes after that reaches every feed attached now.
        self._handed_out = JoinPoint({}, frozenset())

    def attach(self, feed: Feed, topic_id: str, starts: Mapping[int, int]) -> JoinPoint:
        """
        Let a feed have what completes from now on; before the first step the scan can still begin where it wants.

        Offsets mean something only together with the topic they belong to: a feed that wants another topic than the
        others is closed at once, and whoever wanted it must look again which one there is.
        """
        with self._lock:
            # A scan runs on for up to a step after its last feed has left.
            if (self._feeds or self._scan is not None) and topic_id != self._topic_id:
                feed.close(f"the shared scan reads the send queue with id {self._topic_id}, not {topic_id}")
                return JoinPoint(dict(starts), frozenset())
            self._topic_id = topic_id
            self._feeds[feed.sink] = feed
            if self._scan is not None:
                return self._handed_out
            for partition, offset in starts.items():
                self._starts[partition] = min(offset, self._starts.get(partition, offset))
            return JoinPoint(dict(starts), frozenset())

    def detach(self, feed: Feed) -> None:
        """Take a feed out; it gets nothing more."""
        feed.close("it was detached")
        with self._lock:
            if self._feeds.get(feed.sink) is feed:
                del self._feeds[feed.sink]

    def behind(self, passed: Mapping[int, int]) -> int:
        """Count the records between a scan that is this far and this one; 0 if this one is not running."""
        with self._lock:
            if self._scan is None:
                return 0
            return sum(max(0, offset - passed.get(p, 0)) for p, offset in self._handed_out.passed.items())

    def step(self) -> bool:
        """Read on and hand out; False if nobody wants anything. On any failure every feed is closed with the reason."""
        with self._lock:
            if not self._feeds:
                self._end()
                return False
            starts, self._starts = self._starts, {}
            scan, topic_id = self._scan, self._topic_id
        try:
            if scan is None:
                scan = self._open_scan(topic_id, starts, None)
                with self._lock:
                    # Who attached meanwhile was promised a scan that begins no later than it needs.
                    late = any(offset < starts.get(partition, 0) for partition, offset in self._starts.items())
                    if late:
                        scan.close()
                        for partition, offset in starts.items():
                            self._starts[partition] = min(offset, self._starts.get(partition, offset))
                        return True
                    self._scan, self._starts = scan, {}
                    self._handed_out = JoinPoint(scan.passed, frozenset())
            step = scan.step(_STEP_S)
        except ReplicationError as error:
            self.fail(str(error))
            raise
        if step.frontier or step.chunks:
            self._hand_out(step, JoinPoint(scan.passed, scan.open_whole))
        return True

    def fail(self, reason: str) -> None:
        """Close every feed: whoever wants to go on must look at its position again."""
        with self._lock:
            self._end()
            for feed in self._feeds.values():
                feed.close(reason)
            self._feeds.clear()

    def _end(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None
        # What those wanted who are gone: the next scan would begin too early, maybe before the log does.
        self._starts = {}

    def _hand_out(self, step: ScanStep, point: JoinPoint) -> None:
        with self._lock:
            self._handed_out = point
            for sink, feed in list(self._feeds.items()):
                if not feed.put(step.chunk(sink)):
                    if feed.overflowed:
                        _log.warning("sink.fell_behind", sink=sink, limit_bytes=feed.limit_bytes)
                    del self._feeds[sink]
            unknown = step.chunks.keys() - self._feeds.keys()
        for sink in unknown:
            self._undelivered(sink, frozenset(delivery.client for delivery in step.chunks[sink].deliveries))
