"""The same broker in a container, for `--kafka=testcontainers`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Self

import docker
from confluent_kafka import KafkaException
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer

from lr_kafka.embedded import SETTINGS
from lr_kafka.jars import KAFKA_VERSION
from lr_kafka.ports import free_ports
from lr_kafka.storage import random_id
from tests.support.brokers import admin

_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
_INSIDE = 9092
_CONTROLLER = 9093


def engine_answers() -> bool:
    """Whether there is a Docker engine to run containers on."""
    try:
        client = docker.from_env()
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except DockerException:
        return False
    finally:
        client.close()


class ContainerKafka:
    """One Kafka cluster of one node in a container; the counterpart of `EmbeddedKafka`, with the same settings."""

    def __init__(self, name: str = "kafka", *, properties: Mapping[str, str] | None = None) -> None:
        # A port chosen here, not by the engine: it must be known before the start, to be advertised, and stay.
        [self._port] = free_ports(1)
        self.name = name
        self._container = DockerContainer(_IMAGE).with_bind_ports(_INSIDE, self._port)
        host = self._container.get_docker_client().host()
        self._address = f"{host}:{self._port}"
        settings = {
            **SETTINGS,
            "controller.quorum.voters": f"1@localhost:{_CONTROLLER}",
            "listeners": f"PLAINTEXT://:{_INSIDE},CONTROLLER://:{_CONTROLLER}",
            "advertised.listeners": f"PLAINTEXT://{self._address}",
            # Kafka's defaults again: a container is restarted without the step that makes ours safe (`embedded.py`),
            # and would wait ten minutes for its former session to end.
            "broker.session.timeout.ms": "9000",
            "controlled.shutdown.enable": "true",
            **(properties or {}),
        }
        # The image has a fixed one; sites are different clusters.
        self._container.with_env("CLUSTER_ID", random_id())
        for key, value in settings.items():
            self._container.with_env(f"KAFKA_{key.upper().replace('.', '_')}", value)
        self._created = False

    @property
    def bootstrap_servers(self) -> str:
        """What a client's `bootstrap.servers` wants."""
        return self._address

    @property
    def running(self) -> bool:
        """Whether the container runs (it may be paused)."""
        if not self._created:
            return False
        container = self._container.get_wrapped_container()
        container.reload()
        return container.status in {"running", "paused"}

    def start(self, timeout: float = 120.0) -> Self:
        """Start and return when the broker answers."""
        if not self.running:
            if self._created:
                self._container.get_wrapped_container().start()
            else:
                self._container.start()
                self._created = True
        deadline = time.monotonic() + timeout
        client = admin(self.bootstrap_servers)
        while True:
            try:
                client.list_topics(timeout=1.0)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            else:
                return self

    def stop(self, timeout: float = 30.0) -> None:
        """Stop in order."""
        if self.running:
            self._container.get_wrapped_container().stop(timeout=int(timeout))

    def kill(self) -> None:
        """SIGKILL."""
        if self.running:
            self._container.get_wrapped_container().kill()

    def restart(self, timeout: float = 120.0) -> Self:
        """Stop if running, and start with the same port and data."""
        self.stop()
        return self.start(timeout)

    def pause(self) -> None:
        """Freeze every process in the container."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        """Let it go on."""
        self._container.get_wrapped_container().unpause()

    def close(self) -> None:
        """Remove the container and its data."""
        if self._created:
            self._container.stop()
            self._created = False
