"""
A real one-node Kafka (KRaft broker and controller in one) as a child process: for the demo and the tests.

    with EmbeddedKafka("site-a") as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

It starts in about two seconds, listens on 127.0.0.1 only, and never outlives the process that started it, not even
when that one is killed (`guarded.py`). It has a session of its own: Ctrl-C in a terminal reaches the owner, which then
stops it in order. `kill()`, `pause()` and `restart()` are there to hurt it in tests.

Non-obvious: a transaction that is committed, but whose commit marker is not written yet when the broker goes down,
must get its marker after the restart. Kafka 4.3.1 drops a marker when it finds the partition without a leader, and a
node that is alone finds just that: after a crash the controller fences the broker's former life when the new one has
already loaded its transactions. Readers of the partition would then stop at that transaction for ever. So nothing may
be fenced while the broker runs: its session practically never ends, stopping hands over nothing, and before a start on
old data the controller runs alone for a moment to fence the former life.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lr_kafka.guarded import GuardedProcess
from lr_kafka.jars import kafka_jars
from lr_kafka.java import find_java
from lr_kafka.ports import HOST, free_ports, is_free
from lr_kafka.storage import format_storage
from lr_wire.errors import SetupError

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVM options for a quick start (about 1 s less) and a small footprint; the default."""

_PORT_ATTEMPTS = 5

_READY = "Kafka Server started"
"""What the broker logs once it is registered, unfenced and answers clients."""

_FENCED = "Fencing broker 1 at epoch"
"""What a controller logs when it ends the session of a broker that is gone."""

_REFUSED = "the controller returned error DUPLICATE_BROKER_REGISTRATION"
"""What a broker logs whose former life still has a session."""

_FENCE_SESSION_MS = 200
_FENCE_TIMEOUT_S = 5.0
"""How long the controller looks for a former life; it finds it 0.2 s after its start, unless there was none."""

_THROWN = re.compile(r"(Caused by: )?[\w.$]+(Exception|Error)\b")
"""The line of a Java stack trace that says what happened."""

_POLL_S = 0.02

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # Topics are made on purpose, with the settings they need.
    "auto.create.topics.enable": "false",
    # One node: nobody to replicate to. Few partitions: each costs files and time at start.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "unclean.leader.election.enable": "false",
    # See "Non-obvious" above; ten minutes also let a test pause the broker for as long as it likes.
    "broker.session.timeout.ms": "600000",
    "controlled.shutdown.enable": "false",
    # A consumer group of one needs not wait for others.
    "group.initial.rebalance.delay.ms": "0",
    # The default is 128 MB of heap for compaction.
    "log.cleaner.dedupe.buffer.size": "4194304",
    # A deleted topic's files go at once instead of after a minute.
    "file.delete.delay.ms": "0",
    # Changes of metadata (a topic is created) are written at once instead of gathered for 25 ms.
    "controller.quorum.append.linger.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
"""Broker settings fit for one node that starts often."""


class EmbeddedKafka:
    """One Kafka cluster of one node. `start()` and `stop()` may alternate; the data stays until `close()`."""

    def __init__(
        self,
        name: str = "kafka",
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        jvm_options: Sequence[str] = QUICK_START,
    ) -> None:
        """
        Choose, but start nothing yet.

        `data_dir` keeps data, log and settings, and survives; by default it is a temporary folder that `close()`
        removes. `port` is a free one by default. `properties` are broker settings that win over ours.
        """
        self.name = name
        self._properties = dict(properties or {})
        self._jvm_options = (f"-Xmx{heap}", *jvm_options)
        self._own_folder = data_dir is None
        self._folder = Path(tempfile.mkdtemp(prefix=f"lr-kafka-{name}-")) if data_dir is None else data_dir.absolute()
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        if not self._own_folder:
            self._remove.detach()
        self._wanted_port = port
        self._ports: tuple[int, int] | None = None
        self._log_start = 0
        self._process: GuardedProcess | None = None

    @property
    def port(self) -> int:
        """The port clients connect to; the same for the whole life of this object."""
        if self._ports is None:
            raise SetupError(f"the embedded Kafka {self.name} has no port before its first start", hint="call start()")
        return self._ports[0]

    @property
    def bootstrap_servers(self) -> str:
        """What a client's `bootstrap.servers` wants."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._running_process().pid

    @property
    def running(self) -> bool:
        """Whether the broker's process is there (it may be paused)."""
        return self._process is not None and self._process.running

    @property
    def data_dir(self) -> Path:
        """Where data, log and settings are."""
        return self._folder

    @property
    def log_path(self) -> Path:
        """The broker's own log; a restart goes on in the same file."""
        return self._folder / "broker.log"

    def start(self, timeout: float = 60.0) -> Self:
        """Start and return when the broker answers. Raises `SetupError`, one sentence with what to do."""
        if self.running:
            return self
        chosen_before = self._ports
        for attempt in range(_PORT_ATTEMPTS):
            self._ports = chosen_before or self._choose_ports()
            try:
                self._launch(timeout)
            except _PortTaken as exc:
                # Free ports can be lost between choosing and binding; ports that clients know cannot be exchanged.
                if self._wanted_port is not None or chosen_before or attempt == _PORT_ATTEMPTS - 1:
                    raise self._port_taken() from exc
            else:
                return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stop(self, timeout: float = 30.0) -> None:
        """Stop in order; what does not stop within `timeout` is killed. Nothing happens when it is not running."""
        if self._process is not None:
            self._process.terminate(timeout)
            self._process = None

    def kill(self) -> None:
        """SIGKILL: the broker ends at once, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self, timeout: float = 60.0) -> Self:
        """Stop if it is running, and start again with the same port and data."""
        self.stop()
        return self.start(timeout)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        self._running_process().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: go on after `pause()`."""
        self._running_process().signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop, and remove the data if the folder is ours."""
        self.stop()
        self._remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running_process(self) -> GuardedProcess:
        if self._process is None or not self._process.running:
            raise SetupError(f"the embedded Kafka {self.name} is not running", hint=f"its log is {self.log_path}")
        return self._process

    def _launch(self, timeout: float) -> None:
        """Start on the ports chosen: prepare the folder, fence the former life if there was one, run, wait."""
        deadline = time.monotonic() + timeout
        java = [str(find_java()), *self._java_options()]
        try:
            had_a_life = (self._data / "__cluster_metadata-0").exists()
            self._prepare_folder(java)
            if had_a_life:
                self._fence(java, deadline)
            while not self._run_broker(java, deadline):
                self._fence(java, deadline)
        except BaseException as exc:
            # Also on Ctrl-C: nothing half started is left.
            self.kill()
            if isinstance(exc, OSError):
                raise self._storage_error(exc) from exc
            raise

    def _run_broker(self, java: Sequence[str], deadline: float) -> bool:
        """
        Whether the broker was let in. If not, its former life is not fenced yet, and it is not running any more.

        That the controller logged the fencing does not mean that it has written it: only the answer to the broker
        counts. To kill the broker then is safe, because nothing was fenced while it ran.
        """
        self._run([*java, "kafka.Kafka", str(self._write_settings("server", self._broker_settings()))])
        if self._await_text(_READY, _REFUSED, deadline=deadline) == _READY:
            return True
        self.kill()
        return False

    def _fence(self, java: Sequence[str], deadline: float) -> None:
        """Run the controller alone until it has fenced the broker that was: no partition has a leader afterwards."""
        self._run([*java, "kafka.Kafka", str(self._write_settings("controller", self._controller_settings()))])
        self._await_text(_READY, deadline=deadline)
        # A broker that ended before it was ever let in has no session to end.
        with contextlib.suppress(_NotLogged):
            self._await_text(_FENCED, deadline=min(deadline, time.monotonic() + _FENCE_TIMEOUT_S))
        self.stop()

    def _run(self, command: Sequence[str]) -> None:
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = GuardedProcess(command, log=self.log_path, remove=self._folder if self._own_folder else None)

    def _await_text(self, *texts: str, deadline: float) -> str:
        """Return the first of `texts` that the process logs."""
        assert self._process is not None
        longest = max(len(text) for text in texts)
        with self.log_path.open(errors="replace") as log:
            log.seek(self._log_start)
            seen = ""
            while True:
                seen = seen[-longest:] + log.read()
                for text in texts:
                    if text in seen:
                        return text
                if not self._process.running:
                    raise self._start_error("ended while it started")
                if time.monotonic() > deadline:
                    raise _NotLogged(str(self._start_error("did not start in time")))
                time.sleep(_POLL_S)

    # --- what the broker is started with

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _java_options(self) -> list[str]:
        return [
            *self._jvm_options,
            # What the JVM and native libraries unpack goes away with the folder.
            f"-Djava.io.tmpdir={self._folder / 'tmp'}",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
            # A thousand lines at each start that repeat the settings.
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
            *("-cp", f"{kafka_jars()}/*"),
        ]

    def _prepare_folder(self, java: Sequence[str]) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        (self._folder / "tmp").mkdir(exist_ok=True)
        if not (self._data / "meta.properties").exists():
            format_storage(self._data, java)

    def _broker_settings(self) -> dict[str, str]:
        assert self._ports is not None
        port, controller_port = self._ports
        return {
            **SETTINGS,
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(self._data),
            **self._properties,
        }

    def _controller_settings(self) -> dict[str, str]:
        assert self._ports is not None
        settings = self._broker_settings()
        del settings["advertised.listeners"]
        return settings | {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://{HOST}:{self._ports[1]}",
            "broker.session.timeout.ms": str(_FENCE_SESSION_MS),
        }

    def _write_settings(self, name: str, settings: Mapping[str, str]) -> Path:
        file = self._folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return file

    def _choose_ports(self) -> tuple[int, int]:
        if self._wanted_port is None:
            port, controller_port = free_ports(2)
            return port, controller_port
        if not is_free(self._wanted_port):
            raise self._port_taken()
        return self._wanted_port, next(port for port in free_ports(2) if port != self._wanted_port)

    # --- what went wrong, in one sentence

    def _start_error(self, what: str) -> SetupError:
        with self.log_path.open(errors="replace") as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log if line.strip()]
        text = "\n".join(lines)
        if "Address already in use" in text:
            return _PortTaken("a port is taken")
        if "No space left on device" in text:
            return self._storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        if "insufficient memory" in text or "Could not reserve enough space" in text or "OutOfMemoryError" in text:
            return SetupError(f"there is not enough memory for the embedded Kafka {self.name}", hint="free 500 MB")
        telling = (
            [line for line in lines if _THROWN.match(line)]
            or [line for line in lines if "ERROR" in line]
            or lines[-1:]
            or ["it said nothing"]
        )
        return SetupError(
            f"the embedded Kafka {self.name} {what}: {telling[0]}",
            hint="give it a data_dir to keep its log" if self._own_folder else f"its log is {self.log_path}",
        )

    def _port_taken(self) -> SetupError:
        ports = self._ports or (self._wanted_port or 0,)
        taken = next((port for port in ports if not is_free(port)), ports[0])
        return SetupError(
            f"port {taken} on {HOST} is taken by another program",
            hint=f"end that program or choose another port for {self.name}",
        )

    def _storage_error(self, exc: OSError) -> SetupError:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            return SetupError("the disk is full", hint=f"free some space in {self._folder}, then try again")
        return SetupError(
            f"the embedded Kafka {self.name} cannot be started ({exc.filename or ''} {exc.strerror})",
            hint=f"make {self._folder} writable, or choose another folder",
        )


class _PortTaken(SetupError):
    """Another program bound one of our ports first."""


class _NotLogged(SetupError):
    """The process runs, but has not said what was waited for."""
