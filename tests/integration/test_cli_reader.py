"""`lr reader` as a process of its own: it forwards, follows its configuration, and ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lr_kafka import topics
from lr_kafka.clients import Cluster
from tests.support.brokers import Site
from tests.support.cli import lr, write_config
from tests.support.reader import clusters, payloads, wait_for
from tests.support.send_queue import Writer

Sites = Callable[..., list[Site]]

LR = Path(sys.executable).with_name("lr")


class Process:
    """A running `lr reader` and what it has logged."""

    def __init__(self, config: Path, log: Path) -> None:
        self._log = log
        environment = {name: value for name, value in os.environ.items() if name != "LR_CONFIG"}
        with log.open("wb") as stderr:
            self.popen = subprocess.Popen(
                [LR, "reader", "--config", config], stderr=stderr, stdout=stderr, env=environment
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has logged under a name."""
        lines = self._log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def logged(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait until it has logged something so many times; give the newest."""

        def newest() -> dict[str, Any] | None:
            assert self.popen.poll() is None, self._log.read_text()
            found = self.events(name)
            return found[-1] if len(found) >= count else None

        return wait_for(newest, f"{name} in {self._log.read_text()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; give the exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(30)


@contextmanager
def reader_process(config: Path, folder: Path) -> Iterator[Process]:
    process = Process(config, folder / "reader.log")
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()


def test_a_reader_forwards_is_visible_and_ends_on_sigterm(sites: Sites, tmp_path: Path) -> None:
    """The whole way: topics, reader, status, verify; the end is clean and told."""
    a, b = clusters(sites, "site-a", "site-b")
    config = write_config(tmp_path, a, b, clients=["policy"])
    with reader_process(config, tmp_path) as process:
        Writer(a).send(b"one", b"two")
        verified = lr("verify", "--wait", "30", "--json", config=config)
        (session,) = lr("status", "--json", config=config).json["sessions"]
        assert process.end() == 0
    assert verified.code == 0
    assert [line["compared"] for line in verified.json["partitions"]] == [1]
    assert (session["state"], session["lag"]["transactions"], session["stale"]) == ("LOG_ENTRY_SYNC", 0, False)
    assert payloads(b) == [b"one", b"two"]
    assert process.events("reader.stopping")[0]["signal"] == "SIGTERM"
    (session,) = lr("status", "--json", config=config).json["sessions"]
    assert session["state"] == "STOPPED"


def test_a_changed_file_takes_effect_without_a_restart(sites: Sites, tmp_path: Path) -> None:
    """A new site and a new client are served by the same process; what was served before goes on."""
    a, b, c = clusters(sites, "site-a", "site-b", "site-c")
    config = write_config(tmp_path, a, b, clients=["policy"])
    writer = Writer(a)
    with reader_process(config, tmp_path) as process:
        writer.send(b"to b", to=["site-b"])
        wait_for(lambda: _has(b, "LRQ_Recv_policy_site-a"), "the receive queue of policy")
        writer.send(b"to both", to=["site-b", "site-c"])
        # As a mounted ConfigMap is exchanged: another file under the same name.
        new = tmp_path / "new"
        new.mkdir()
        write_config(new, a, b, c, clients=["policy", "inventory"]).replace(config)
        assert process.logged("config.reloaded")["sinks"] == ["site-b", "site-c"]
        verified = lr("verify", "--wait", "30", "--json", config=config)
        wait_for(lambda: _has(b, "LRQ_Recv_inventory_site-a"), "the receive queue of inventory")
        assert process.end() == 0
    assert (verified.code, verified.json["not_audited"]) == (0, [])
    assert payloads(b) == [b"to b", b"to both"]
    assert payloads(c) == [b"to both"]


def test_a_broken_file_is_refused_and_the_running_configuration_stays(sites: Sites, tmp_path: Path) -> None:
    """The reason is logged once for each change, on SIGHUP again; entries flow on."""
    a, b = clusters(sites, "site-a", "site-b")
    config = write_config(tmp_path, a, b, clients=["policy"])
    writer = Writer(a)
    with reader_process(config, tmp_path) as process:
        writer.send(b"before")
        assert lr("verify", "--wait", "30", config=config).code == 0
        good = config.read_text()
        config.write_text(good + "limitz: {}\n")
        assert "unknown key 'limitz'" in process.logged("config.refused")["reason"]
        process.popen.send_signal(signal.SIGHUP)
        assert "unknown key 'limitz'" in process.logged("config.refused", count=2)["reason"]
        config.write_text(good.replace("source: site-a", "source: site-b"))
        assert "cannot change" in process.logged("config.refused", count=3)["reason"]
        config.write_text(good)
        process.logged("config.reloaded")
        writer.send(b"after")
        assert lr("verify", "--wait", "30", config=config).code == 0
        assert process.end(signal.SIGINT) == 0
    assert payloads(b) == [b"before", b"after"]


def test_a_reader_without_a_usable_configuration_does_not_start(tmp_path: Path) -> None:
    """One line says why; exit code 2."""
    broken = tmp_path / "reader.yaml"
    broken.write_text("source: site-a\nsites: {site-a: {bootstrap.servers: 'a:1', nonsense: 1}}\n")
    shown = lr("reader", config=broken)
    assert shown.code == 2
    assert shown.err == ('lr: reader.yaml:2: sites.site-a.nonsense: No such configuration property: "nonsense"\n')
    assert "none of debug, info" in lr("reader", "--log-level", "loud", config=broken).err


def _has(site: Cluster, topic: str) -> bool:
    return topic in topics.names(site.admin())
