"""
A reader in a process of its own, that can be told to kill or freeze itself at a step of forwarding.

    with ReaderProcess(settings, fault=Fault(Step.BEFORE_COMMIT, "site-b", nth=3, signal=signal.SIGKILL)) as reader:
        assert reader.wait() == -signal.SIGKILL

The process never outlives the test: it watches a pipe that the test holds, and where the kernel can do it, it dies
with its parent even while it is frozen.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from lr_kafka import topics
from lr_kafka.clients import Cluster
from lr_source.reader.hooks import Hooks, Step
from lr_source.reader.service import ReaderService
from lr_source.reader.settings import Limits, ReaderSettings
from lr_wire.naming import ClientName, SiteId, parse_receive_topic
from tests.support.checker import until

_PR_SET_PDEATHSIG = 1

# A sink that is up has records and markers in its log long before that.
_ON_THE_BROKER_S = 5.0

# By then a signal has reached all threads.
_SIGNAL_S = 0.3

QUICK = Limits(
    transaction_s=0.1,
    transaction_timeout_s=60.0,
    heartbeat_s=0.5,
    metadata_s=1.0,
    request_timeout_s=3.0,
    backoff_initial_s=0.1,
    backoff_max_s=0.5,
    drain_s=10.0,
)
"""
Limits with which failures are noticed and overcome quickly.

A transaction may stay open for longer than a test waits for anything: nothing is overcome by that time-out.
"""


@dataclass(frozen=True)
class Fault:
    """What the process does to itself: a signal, when forwarding to `sink` comes to `step` for the nth time."""

    step: Step
    sink: str
    nth: int
    signal: signal.Signals
    records_sent: bool = False
    """Wait first until records of the open transaction are in the sink's log, so that it is cut in its middle."""


@dataclass(frozen=True)
class ReaderConfig:
    """A reader, as it is handed to its process."""

    source: str
    sites: dict[str, str]
    """The bootstrap servers of each site."""

    clients: tuple[str, ...] = ()
    owner: str = "first"
    limits: Limits = QUICK
    settings: dict[str, str | int] = dataclasses.field(default_factory=lambda: {"reconnect.backoff.max.ms": 300})
    """Of librdkafka, for all sites."""

    def to_settings(self) -> ReaderSettings:
        sites = {
            SiteId(site): Cluster(SiteId(site), {"bootstrap.servers": servers, **self.settings})
            for site, servers in self.sites.items()
        }
        return ReaderSettings(SiteId(self.source), sites, tuple(map(ClientName, self.clients)), self.limits)


class ReaderProcess:
    """A running reader. Leaving the block ends it in any case, without asking."""

    def __init__(self, config: ReaderConfig, log: Path, fault: Fault | None = None) -> None:
        self.config = config
        self._log = log
        self._fault = fault
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        told = {"config": dataclasses.asdict(self.config), "fault": self._fault and dataclasses.asdict(self._fault)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.faults", json.dumps(told)],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def events(self, name: str, **facts: Any) -> list[dict[str, Any]]:
        """Give the events of that name that it has logged with these facts."""
        found = []
        # The newest line may still be under way.
        for line in self._log.read_bytes().split(b"\n")[:-1]:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a traceback of the interpreter; `output` shows it
            if event.get("event") == name and facts.items() <= event.items():
                found.append(event)
        return found

    @property
    def output(self) -> str:
        """All that it has logged."""
        return self._log.read_text(errors="replace")

    def await_event(self, name: str, within_s: float = 20.0, **facts: Any) -> None:
        """Wait until it has logged this."""
        until(lambda: bool(self.events(name, **facts)), f"{name} {facts} in the reader's log", within_s)

    def wait(self, within_s: float = 30.0) -> int:
        """Wait for its end; give the exit code, negative for a signal."""
        return self.process.wait(within_s)

    def await_frozen(self, within_s: float = 30.0) -> None:
        """Wait until it is stopped by SIGSTOP."""
        deadline = time.monotonic() + within_s
        while True:
            pid, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
            if pid:
                assert os.WIFSTOPPED(status), f"the reader ended with status {status} instead of being frozen"
                return
            assert time.monotonic() < deadline, "the reader was not frozen"
            time.sleep(0.01)

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> int:
        """SIGKILL, at any time."""
        self.process.kill()
        return self.wait()

    def stop(self) -> None:
        """Ask for a clean end, and insist that it is one."""
        self.process.terminate()
        assert self.wait() == 0, self.output[-3000:]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class _Saboteur(Hooks):
    """Carries the fault out, inside the reader's process."""

    def __init__(self, fault: Fault, sink: Cluster, source: str) -> None:
        self._fault = fault
        self._admin = sink.admin()
        self._source = source
        self._left = fault.nth

    def step(self, sink: SiteId, step: Step) -> None:
        fault = self._fault
        if sink != fault.sink:
            return
        if step is Step.BEFORE_SEND and fault.records_sent:
            # A commit is answered before its markers are written: until then the transaction before looks open.
            until(lambda: not self._has_open_transaction(), "the transaction before has ended", _ON_THE_BROKER_S)
        if step is not fault.step:
            return
        self._left -= 1
        if self._left != 0:
            return
        if fault.records_sent:
            until(self._has_open_transaction, "records of the transaction are on the sink", _ON_THE_BROKER_S)
        structlog.get_logger().warning("fault.fired", step=step, sink=sink, signal=fault.signal.name)
        os.kill(os.getpid(), fault.signal)
        # A signal to a process need not hit this thread first, which must not take a step further meanwhile.
        time.sleep(_SIGNAL_S)

    def _has_open_transaction(self) -> bool:
        """Whether a receive queue of the sink holds records that nobody can read yet."""
        for topic in topics.names(self._admin):
            queue = parse_receive_topic(topic)
            info = topics.describe(self._admin, topic) if queue and queue.source == self._source else None
            partitions = range(info.partitions if info else 0)
            stable = topics.last_stable_offsets(self._admin, topic, partitions)
            if stable != topics.high_watermarks(self._admin, topic, partitions):
                return True
        return False


def _die_with_parent() -> None:
    """Let this process end when the test does: while it is frozen by the kernel, otherwise by the closed pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        # Not through `sys.stdin`: the interpreter's end would wait for its lock.
        os.read(0, 1)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main(told: dict[str, Any]) -> None:
    """Run the reader until SIGTERM."""
    _die_with_parent()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    values = dict(told["config"])
    config = ReaderConfig(**{**values, "limits": Limits(**values["limits"])})
    settings = config.to_settings()
    hooks: Hooks | None = None
    if told["fault"]:
        values = told["fault"]
        fault = Fault(**{**values, "step": Step(values["step"]), "signal": signal.Signals(values["signal"])})
        hooks = _Saboteur(fault, settings.sites[SiteId(fault.sink)], config.source)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ReaderService(settings, hooks=hooks, owner=config.owner).run(stop)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
