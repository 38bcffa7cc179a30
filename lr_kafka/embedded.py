"""
A real one-node Kafka (KRaft broker and controller in one) as a child process: for the demo and the tests.

    with EmbeddedKafka("site-a") as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

It starts in about two seconds, listens on 127.0.0.1 only, and never outlives the process that started it, not even
when that one is killed (`_guardian.py`). It has a session of its own: Ctrl-C in a terminal reaches the owner, which
then stops it in order. `kill()`, `pause()` and `restart()` are there to hurt it in tests.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lr_kafka.jars import kafka_jars
from lr_kafka.java import find_java
from lr_wire.errors import SetupError

HOST = "127.0.0.1"

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVM options for a quick start (about 1 s less) and a small footprint; the default."""

_GUARDIAN = Path(__file__).with_name("_guardian.py")

# Below the ranges from which Linux (32768 up) and macOS (49152 up) take the ports of outgoing connections: while a
# broker is down, a client that tries to reconnect could otherwise be given the broker's own port, and keep it.
_PORTS = range(15_000, 32_000)

_PORT_ATTEMPTS = 5

_READY = "Kafka Server started"
"""What the broker logs once it is registered, unfenced and answers clients."""

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
    # After a crash the controller lets a broker back in only when the session of its former life has ended (9 s by
    # default). Not shorter: on a busy machine a session must not end by itself.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
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
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pid = 0

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
        self._require_running()
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the broker's process is there (it may be paused)."""
        return self._guardian is not None and self._guardian.poll() is None

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
        if self._guardian is None:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._guardian.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL: the broker ends at once, as in a crash of its machine's process."""
        if self._guardian is None:
            return
        self._signal(signal.SIGKILL)
        self._guardian.wait()
        self._forget()

    def restart(self, timeout: float = 60.0) -> Self:
        """Stop if it is running, and start again with the same port and data."""
        self.stop()
        return self.start(timeout)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        self._require_running()
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: go on after `pause()`."""
        self._require_running()
        self._signal(signal.SIGCONT)

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

    def _launch(self, timeout: float) -> None:
        command = [str(find_java()), *self._java_options(), "kafka.Kafka", str(self._settings_file())]
        try:
            self._prepare_folder(command)
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            with self.log_path.open("ab") as log:
                self._guardian = subprocess.Popen(
                    [
                        # Isolated and without site: starts in 20 ms and depends on nothing that is installed.
                        *(sys.executable, "-I", "-S", str(_GUARDIAN)),
                        *(str(os.getpid()), str(self._folder) if self._own_folder else ""),
                        *command,
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as exc:
            raise self._storage_error(exc) from exc
        try:
            assert self._guardian.stdout is not None
            self._pid = int(self._guardian.stdout.readline() or 0)
            self._await_ready(time.monotonic() + timeout, log_start)
        except BaseException:
            # Also on Ctrl-C: nothing half started is left.
            self.kill()
            raise

    def _await_ready(self, deadline: float, log_start: int) -> None:
        assert self._guardian is not None
        with self.log_path.open(errors="replace") as log:
            log.seek(log_start)
            seen = ""
            while _READY not in (seen := seen[-len(_READY) :] + log.read()):
                if self._guardian.poll() is not None:
                    raise self._start_error("ended while it started", log_start)
                if time.monotonic() > deadline:
                    raise self._start_error("did not start in time", log_start)
                time.sleep(_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker, if it is still there; a zombie is kept by the guardian until that ends."""
        if self.running and self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _forget(self) -> None:
        if self._guardian is not None:
            for pipe in (self._guardian.stdin, self._guardian.stdout):
                assert pipe is not None
                pipe.close()
            self._guardian.wait()
        self._guardian = None
        self._pid = 0

    def _require_running(self) -> None:
        if not self.running:
            raise SetupError(f"the embedded Kafka {self.name} is not running", hint=f"its log is {self.log_path}")

    # --- what the broker is started with

    def _settings_file(self) -> Path:
        return self._folder / "server.properties"

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

    def _prepare_folder(self, command: Sequence[str]) -> None:
        assert self._ports is not None
        port, controller_port = self._ports
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (self._folder / "tmp").mkdir(exist_ok=True)
        settings = {
            **SETTINGS,
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(data),
            **self._properties,
        }
        self._settings_file().write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if not (data / "meta.properties").exists():
            _format(data, command[:-2], self._settings_file())

    def _choose_ports(self) -> tuple[int, int]:
        if self._wanted_port is None:
            port, controller_port = free_ports(2)
            return port, controller_port
        if not _is_free(self._wanted_port):
            raise self._port_taken()
        return self._wanted_port, next(port for port in free_ports(2) if port != self._wanted_port)

    # --- what went wrong, in one sentence

    def _start_error(self, what: str, log_start: int) -> SetupError:
        with self.log_path.open(errors="replace") as log:
            log.seek(log_start)
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
        taken = next((port for port in ports if not _is_free(port)), ports[0])
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that no outgoing connection is given either."""
    free = [port for port in random.sample(_PORTS, 100) if _is_free(port)]
    if len(free) < count:
        raise SetupError("no free port was found", hint="end programs that hold ports, then try again")
    return free[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the broker does: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _format(data: Path, java: Sequence[str], settings: Path) -> None:
    """
    Make `data` a formatted Kafka storage folder of a new cluster.

    Kafka's own tool costs a JVM (0.8 s). Of the two files it writes, `bootstrap.checkpoint` (the feature levels of a
    new cluster) is the same for every cluster of a version: it is made once and kept beside the jars.
    """
    template = kafka_jars() / "bootstrap.checkpoint"
    if not template.exists():
        with tempfile.TemporaryDirectory(dir=template.parent.parent) as temporary:
            once = Path(temporary, "once.properties")
            once.write_text(f"{settings.read_text()}log.dirs={temporary}/data\n")
            tool = [*java, "kafka.tools.StorageTool", "format", "-t", _new_id(), "-c", str(once)]
            result = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if result.returncode:
                reason = (result.stdout.splitlines() or ["it said nothing"])[-1]
                raise SetupError(f"Kafka's storage tool failed: {reason}", hint="look for free disk space and memory")
            Path(temporary, "data", template.name).rename(template)
    shutil.copyfile(template, data / template.name)
    # Last, because its presence means formatted.
    (data / "meta.properties").write_text(f"version=1\ncluster.id={_new_id()}\nnode.id=1\ndirectory.id={_new_id()}\n")


def _new_id() -> str:
    """A random id as Kafka writes them: 128 bits in URL-safe base64; its tools refuse a leading dash."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
