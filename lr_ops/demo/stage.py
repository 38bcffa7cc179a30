"""What the demo runs: brokers, topics, the reader as a process of its own, the application and the listeners."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster
from lr_kafka.embedded import EmbeddedKafka
from lr_kafka.guarded import GuardedProcess
from lr_ops.demo.orders import CLIENT, ORDERS_TOPIC, OrdersApplication
from lr_ops.demo.warehouse import Warehouse
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import SetupError
from lr_wire.naming import ClientName, SiteId

SOURCE = SiteId("site-a")
SINKS = [SiteId("site-b"), SiteId("site-c")]

_PARTITIONS = 3
_READER_END_S = 30.0
# Free space that three small clusters need, with room to spare.
_DISK_BYTES = 1024**3


class Stage:
    """Everything that is running, with handles to hurt and to end it."""

    def __init__(self, folder: Path, clusters: dict[SiteId, Cluster], pause_s: float, seed: int) -> None:
        """Take over brokers that are running; start nothing else yet."""
        self.folder = folder
        self.clusters = clusters
        self.settings = ReaderSettings(SOURCE, clusters, (ClientName(CLIENT),))
        self.config_path = folder / "reader.yaml"
        self.databases = {sink: folder / f"{sink}.sqlite" for sink in SINKS}
        self.application = OrdersApplication(clusters[SOURCE], [str(sink) for sink in SINKS], pause_s, seed)
        self.reader: GuardedProcess | None = None
        self._warehouses: list[Warehouse] = []
        self._threads: list[threading.Thread] = []
        self.failures: list[str] = []

    def prepare(self) -> None:
        """Make the topics and the reader's configuration."""
        sites = {str(site): dict(cluster.settings) for site, cluster in self.clusters.items()}
        config = {"source": str(SOURCE), "sites": sites, "clients": [CLIENT], "limits": {"heartbeat_s": 1}}
        self.config_path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        source = self.clusters[SOURCE].admin()
        send_queue = layout.send_queue(_PARTITIONS)
        topics.create(source, send_queue.name, send_queue.partitions, send_queue.config)
        topics.create(source, ORDERS_TOPIC, 1, {})

    def start_reader(self) -> None:
        """Start the reader as an operator would: `lr reader --config ...`."""
        command = [sys.executable, "-m", "lr_ops", "reader", "--config", str(self.config_path)]
        self.reader = GuardedProcess(command, log=self.folder / "reader.log")

    def kill_reader(self) -> int:
        """Kill the reader with SIGKILL; give its process id."""
        assert self.reader is not None
        pid = self.reader.pid
        self.reader.signal(signal.SIGKILL)
        self.reader.kill()
        self.reader = None
        return pid

    def start_listeners(self) -> None:
        """Start one warehouse on each sink."""
        for sink in SINKS:
            warehouse = Warehouse(self.clusters[sink], self.databases[sink])
            self._warehouses.append(warehouse)
            self._thread(f"warehouse at {sink}", warehouse.run)

    def start_application(self) -> None:
        """Start to take orders."""
        self._thread("orders application", self.application.run)

    def restart_application(self, pause_s: float) -> None:
        """Take orders again, with the book that the comparison knows."""
        book = self.application.book
        self.application = OrdersApplication(
            self.clusters[SOURCE], [str(sink) for sink in SINKS], pause_s, seed=len(book.committed)
        )
        self.application.book = book
        self.start_application()

    def end(self) -> None:
        """End everything but the brokers, in order: who writes first, who reads last."""
        self.application.stop()
        if self.reader is not None:
            self.reader.terminate(_READER_END_S)
            self.reader = None
        for warehouse in self._warehouses:
            warehouse.stop()
        for thread in self._threads:
            thread.join(_READER_END_S)

    def _thread(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the demo must say so and not look well
                self.failures.append(f"{name}: {error}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


@contextmanager
def staged(pause_s: float, seed: int) -> Iterator[Stage]:
    """Start three sites in a folder of their own; end everything and remove the folder afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="lr-demo-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if (free := shutil.disk_usage(folder).free) < _DISK_BYTES:
            raise SetupError(
                f"the demo needs 1 GiB of disk, {folder.parent} has {free // 1024**2} MiB left",
                hint="free some, or set TMPDIR to another disk",
            )
        clusters = {}
        for site in (SOURCE, *SINKS):
            kafka = stack.enter_context(EmbeddedKafka(str(site), data_dir=folder / str(site)))
            clusters[site] = Cluster(site, {"bootstrap.servers": kafka.bootstrap_servers})
        stage = Stage(folder, clusters, pause_s, seed)
        stack.callback(stage.end)
        stage.prepare()
        try:
            yield stage
        finally:
            # Ctrl-C again while things end in order would only leave them half ended.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
