"""
How fast the reader forwards, beside a bare consume -> produce loop in the same run.

Both move the same log from one embedded broker to another, with sink transactions of the same size, each in a process
of its own; they take turns. The clock runs from the first fetched record to the last commit. The bare loop does
nothing but copy values: it looks at no record, keeps no position and cannot tell one transaction from another. It is
the ceiling, not a competitor. The ratio is what counts; absolute figures depend on the machine and its mood.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lr_kafka import layout, topics
from lr_kafka.clients import Cluster, KafkaHeaders, Producer, TopicPartition
from lr_kafka.embedded import EmbeddedKafka
from lr_source.reader.hooks import Hooks
from lr_source.reader.service import ReaderService, relax_collector
from lr_source.reader.settings import Limits, ReaderSettings
from lr_wire import codec, naming
from lr_wire.naming import ClientName, SessionKey, SiteId
from lr_wire.records import TxnId
from tests.support.brokers import Site, wipe

SOURCE, SINK = SiteId("site-a"), SiteId("site-b")
CLIENT = ClientName("bench")
COPY_TOPIC = "bench_copy"
LIMITS = Limits()


@dataclass(frozen=True)
class Workload:
    """Entries of one size, so many of them in a transaction."""

    name: str
    payload_bytes: int
    entries_per_transaction: int
    transactions: int

    @property
    def entries(self) -> int:
        """All entries together."""
        return self.entries_per_transaction * self.transactions


@dataclass(frozen=True)
class Result:
    """What one run moved, and how long it took."""

    entries: int
    size: int
    seconds: float


WORKLOADS = [
    Workload("100 B x 100", 100, 100, 40_000),
    Workload("1 KB x 10", 1000, 10, 40_000),
    Workload("1 KB x 1", 1000, 1, 300_000),
]

PACKED = ("100 B x 100", "1 KB x 10")


def fill(cluster: Cluster, workload: Workload) -> int:
    """Write the log as the client does, but many of its transactions in one of Kafka's: a reader sees no difference."""
    spec = layout.send_queue(1)
    topics.create(cluster.admin(), spec.name, spec.partitions, spec.config)
    producer = cluster.producer(transactional_id="bench", queue_buffering_max_messages=1_000_000, linger_ms=20)
    producer.init_transactions(30)
    destinations = codec.encode_destinations([SINK])
    incarnation = os.urandom(16)
    payload = os.urandom(workload.payload_bytes)
    count = workload.entries_per_transaction
    headers: KafkaHeaders = [(naming.log_entry_tag(SINK), None)]
    size = 0
    producer.begin_transaction()
    for number in range(workload.transactions):
        txn = TxnId(incarnation, number * count)
        body = codec.encode_body([payload] * count, range(count), txn, time.time_ns() // 1_000_000)
        value = codec.encode_send(destinations, CLIENT, 0, True, body)
        size += len(value)
        _produce(producer, spec.name, value, headers)
        if number % 20_000 == 19_999:
            producer.commit_transaction()
            producer.begin_transaction()
    producer.commit_transaction()
    return size


def _produce(producer: Producer, topic: str, value: bytes, headers: KafkaHeaders | None) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=0, headers=headers)
            return
        except BufferError:
            producer.poll(0.01)


class _Clock(Hooks):
    """Notes when the first record was fetched, and when all entries were committed."""

    def __init__(self, entries: int) -> None:
        self._left = entries
        self.began = self.ended = 0.0
        self.size = 0
        self.done = threading.Event()

    def fetched(self, size: int) -> None:
        self.began = self.began or time.perf_counter()
        self.size += size

    def forwarded(self, session: SessionKey, transactions: int, entries: int, size: int) -> None:
        del session, transactions, size
        self._left -= entries
        if self._left <= 0:
            self.ended = time.perf_counter()
            self.done.set()


def run_lr(source: Cluster, sink: Cluster, entries: int) -> Result:
    """Forward the log with the reader."""
    relax_collector()
    clock = _Clock(entries)
    service = ReaderService(ReaderSettings(SOURCE, {SOURCE: source, SINK: sink}, (CLIENT,), LIMITS), hooks=clock)
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    clock.done.wait(300)
    stop.set()
    thread.join()
    if not clock.done.is_set():
        raise SystemExit("the reader did not finish in 300 s")
    return Result(entries, clock.size, clock.ended - clock.began)


def run_bare(source: Cluster, sink: Cluster, entries: int) -> Result:
    """Copy the log's values, and nothing else."""
    end = topics.high_watermarks(source.admin(), naming.SEND_LOG_ENTRIES, [0])[0]
    topics.create(sink.admin(), COPY_TOPIC, 1, {})
    consumer = source.consumer(queued_max_messages_kbytes=64 * 1024)
    consumer.assign([TopicPartition(naming.SEND_LOG_ENTRIES, 0, 0)])
    producer = sink.producer(
        transactional_id="bench-copy",
        linger_ms=5,
        batch_size=1024 * 1024,
        batch_num_messages=10_000,
        queue_buffering_max_messages=2 * LIMITS.transaction_records,
        queue_buffering_max_kbytes=2 * 1024 * 1024 - 1,
        delivery_report_only_error=True,
    )
    producer.init_transactions(30)
    began, size, records, pending = 0.0, 0, 0, 0
    producer.begin_transaction()
    transaction_began = time.perf_counter()
    passed = 0
    while passed < end:
        messages = consumer.consume(1000, 0.1)
        if messages and not began:
            began = transaction_began = time.perf_counter()
        for message in messages:
            if message.error() is not None:
                passed = message.offset() or passed
                continue
            value = message.value()
            assert isinstance(value, bytes)
            _produce(producer, COPY_TOPIC, value, None)
            records += 1
            pending += len(value)
            size += len(value)
        full = records >= LIMITS.transaction_records or pending >= LIMITS.transaction_bytes
        if full or time.perf_counter() - transaction_began >= LIMITS.transaction_s:
            producer.commit_transaction()
            producer.begin_transaction()
            records = pending = 0
            transaction_began = time.perf_counter()
    producer.commit_transaction()
    return Result(entries, size, time.perf_counter() - began)


@contextmanager
def brokers() -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """Start a source and a sink."""
    with EmbeddedKafka(str(SOURCE)) as source, EmbeddedKafka(str(SINK)) as sink:
        yield source, sink


def measure(kind: str, source: str, sink: str, entries: int) -> Result:
    """Run one turn in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.forwarding", "--turn", kind, source, sink, str(entries)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def turn(kind: str, source: str, sink: str, entries: int) -> None:
    """Be that process."""
    run = {"lr": run_lr, "bare": run_bare}[kind]
    clusters = (Cluster(SOURCE, {"bootstrap.servers": source}), Cluster(SINK, {"bootstrap.servers": sink}))
    print(json.dumps(asdict(run(*clusters, entries))))


def bench(repeats: int, scale: float) -> dict[str, float]:
    """Run all workloads, LR and the bare loop in turns, and print the table; give the ratio of each."""
    medians = {}
    console = Console()
    table = Table(title=f"Forwarding, one partition, one sink; median (lowest .. highest) of {repeats} turns each")
    for column in ("workload", "LR entries/s", "LR MB/s", "bare loop entries/s", "bare loop MB/s", "ratio LR / bare"):
        table.add_column(column, justify="right")
    for full in WORKLOADS:
        workload = Workload(
            full.name, full.payload_bytes, full.entries_per_transaction, max(1000, int(full.transactions * scale))
        )
        with brokers() as (source, sink), console.status(workload.name) as status:
            status.update(f"{workload.name}: writing {workload.entries:,} entries")
            fill(Cluster(SOURCE, {"bootstrap.servers": source.bootstrap_servers}), workload)
            results: dict[str, list[Result]] = {"lr": [], "bare": []}
            # The first turn of each warms up the brokers and the page cache, and does not count.
            for number in range(repeats + 1):
                for kind, found in results.items():
                    status.update(f"{workload.name}: turn {number} of {repeats}, {kind}")
                    result = measure(kind, source.bootstrap_servers, sink.bootstrap_servers, workload.entries)
                    if number:
                        found.append(result)
                    wipe(Site(str(SINK), sink.bootstrap_servers))
        rates = {kind: sorted(r.entries / r.seconds for r in found) for kind, found in results.items()}
        sizes = {kind: statistics.median(r.size / r.seconds / 1e6 for r in found) for kind, found in results.items()}
        ratios = sorted(
            (lr.entries / lr.seconds) / (bare.entries / bare.seconds)
            for lr, bare in zip(results["lr"], results["bare"], strict=True)
        )
        medians[workload.name] = statistics.median(ratios)
        table.add_row(
            workload.name,
            _spread(rates["lr"], ",.0f"),
            f"{sizes['lr']:.0f}",
            _spread(rates["bare"], ",.0f"),
            f"{sizes['bare']:.0f}",
            _spread(ratios, ".2f"),
        )
    console.print(table)
    return medians


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({values[0]:{form}} .. {values[-1]:{form}})"


def main() -> None:
    """Run the benchmark, or one turn of it."""
    parser = argparse.ArgumentParser(description="The reader beside a bare consume -> produce loop.")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the log, relative to the usual one")
    parser.add_argument("--turn", nargs=4, metavar=("KIND", "SOURCE", "SINK", "ENTRIES"), help=argparse.SUPPRESS)
    parser.add_argument("--require", type=float, default=0.0, help="exit with 1 if a packed workload's ratio is lower")
    arguments = parser.parse_args()
    if arguments.turn:
        kind, source, sink, entries = arguments.turn
        turn(kind, source, sink, int(entries))
    else:
        medians = bench(arguments.repeats, arguments.scale)
        # Only where records are packed: one entry in a record leaves Python's work for it with nothing to share it.
        low = [name for name in PACKED if medians[name] < arguments.require]
        if low:
            sys.exit(f"below {arguments.require}: {', '.join(low)}")


if __name__ == "__main__":
    main()
