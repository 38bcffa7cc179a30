"""The embedded broker is a real one, comes back with its data, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from lr_kafka.embedded import EmbeddedKafka
from lr_kafka.ports import HOST
from lr_wire.errors import SetupError
from tests.support.brokers import BrokerFactory, Site, admin, create_topic, topic_names

# These test the embedded broker itself, whatever --kafka says.
pytestmark = pytest.mark.broker


def transactional_producer(bootstrap_servers: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": transactional_id, "log_level": 2})
    producer.init_transactions(30)
    return producer


def committed_values(bootstrap_servers: str, topic: str, *, expected: int) -> list[bytes]:
    """
    What a `read_committed` consumer sees of the topic's one partition, to its end, `expected` values at least.

    The end alone would not do: after a crash the broker finishes a committed transaction a moment after its start.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    at_end = False
    try:
        while not at_end or len(values) < expected:
            message = consumer.poll(30)
            assert message is not None, f"only {values} within 30 s"
            error, value = message.error(), message.value()
            if at_end := error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
            else:
                assert value is not None
                values.append(value)
    finally:
        consumer.close()
    return values


def await_gone(pid: int, within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, f"process {pid} is still there after {within} s"
        time.sleep(0.01)


def test_only_committed_transactions_are_read(sites: Callable[..., list[Site]]) -> None:
    """Transactions work as on any Kafka: an aborted one leaves no trace for a `read_committed` reader."""
    [site] = sites("site-a")
    create_topic(site, "orders")
    producer = transactional_producer(site.bootstrap_servers, "orders")
    for value, commit in ((b"one", True), (b"two", False), (b"three", True)):
        producer.begin_transaction()
        producer.produce("orders", value)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)

    assert committed_values(site.bootstrap_servers, "orders", expected=2) == [b"one", b"three"]


def test_sites_are_empty_at_hand_over(sites: Callable[..., list[Site]]) -> None:
    """Topics that another test made a moment ago are gone."""
    [site] = sites("site-a")
    create_topic(site, "left-behind")
    [again] = sites("site-a")

    assert again == site
    assert topic_names(admin(site.bootstrap_servers)) == set()


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_restart_keeps_port_and_data(fresh_broker: BrokerFactory, end: str) -> None:
    """What was committed before an orderly stop or a crash is there afterwards, at the same address."""
    broker = fresh_broker("site-a")
    address = broker.bootstrap_servers
    create_topic(broker, "orders")
    producer = transactional_producer(address, "orders")
    producer.begin_transaction()
    producer.produce("orders", b"kept")
    producer.commit_transaction(30)

    getattr(broker, end)()
    assert not broker.running
    broker.start()

    assert broker.bootstrap_servers == address
    assert committed_values(address, "orders", expected=1) == [b"kept"]


@pytest.mark.chaos
def test_paused_broker_answers_after_resume(fresh_broker: BrokerFactory) -> None:
    """A frozen broker keeps its clients waiting and then serves them; it can be stopped while it is frozen."""
    broker = fresh_broker("site-a")
    create_topic(broker, "orders")
    broker.pause()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    producer.produce("orders", b"patient")

    assert producer.flush(1.0) == 1
    broker.resume()
    assert producer.flush(30) == 0
    broker.pause()
    broker.stop()
    assert not broker.running


def test_own_folder_is_removed_and_given_one_kept(tmp_path: Path) -> None:
    """A temporary data folder goes with the broker; one that was given stays and can be started on again."""
    with EmbeddedKafka("own") as kafka:
        own = kafka.data_dir
        assert own.exists()
    assert not own.exists()

    with EmbeddedKafka("given", data_dir=tmp_path / "data") as kafka:
        create_topic(kafka, "orders")
    with EmbeddedKafka("given", data_dir=tmp_path / "data") as kafka:
        assert topic_names(admin(kafka.bootstrap_servers)) == {"orders"}


def test_properties_win_over_defaults(tmp_path: Path) -> None:
    """A test can set any broker setting, here one that decides what is accepted."""
    with EmbeddedKafka("small", properties={"message.max.bytes": "1000"}) as kafka:
        create_topic(kafka, "orders")
        failures: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2})
        producer.produce("orders", os.urandom(2000), on_delivery=lambda error, _: failures.append(error))
        producer.flush(30)
    assert [error and error.code() for error in failures] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_taken_port_is_one_sentence() -> None:
    """A port that another program holds is named, with what to do."""
    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]
        kafka = EmbeddedKafka("site-a", port=port)
        with pytest.raises(SetupError, match=rf"^port {port} on 127\.0\.0\.1 is taken by another program \(end that"):
            kafka.start()
        assert not kafka.running


def test_broker_that_dies_at_start_tells_why(tmp_path: Path) -> None:
    """The reason in the broker's log is in the error; nothing is left running."""
    kafka = EmbeddedKafka("site-a", data_dir=tmp_path, properties={"num.io.threads": "0"})
    with pytest.raises(SetupError, match=r"site-a ended while it started: .*num\.io\.threads") as raised:
        kafka.start()
    assert not kafka.running
    assert str(kafka.log_path) in str(raised.value)
    assert "\n" not in str(raised.value)


_OWNER = """
import sys, time
from lr_kafka.embedded import EmbeddedKafka
kafka = EmbeddedKafka("orphan").start()
print(kafka.pid, kafka.data_dir, flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner() -> Callable[[], subprocess.Popen[str]]:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)

    return start


@pytest.mark.chaos
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_broker_dies_with_a_killed_owner(owner: Callable[[], subprocess.Popen[str]], paused: bool) -> None:
    """SIGKILL of the owner leaves no broker and no temporary data behind, not even when the broker was frozen."""
    with owner() as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        if paused:
            os.kill(int(pid), signal.SIGSTOP)
        process.kill()
    await_gone(int(pid))
    deadline = time.monotonic() + 10
    while Path(folder).exists():
        assert time.monotonic() < deadline, "the temporary folder is still there"
        time.sleep(0.01)


@pytest.mark.chaos
def test_broker_is_out_of_reach_of_ctrl_c() -> None:
    """The broker has a session of its own, so the terminal's SIGINT reaches only the owner, who stops it in order."""
    with EmbeddedKafka("site-a") as kafka:
        assert os.getsid(kafka.pid) != os.getsid(0)
        assert os.getpgid(kafka.pid) != os.getpgid(0)
