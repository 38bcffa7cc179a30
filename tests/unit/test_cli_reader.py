"""`lr reader` around the service: signals, and a configuration file that changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lr_ops.cli.reader import ConfigWatch, apply_changes, run
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import BrokerError, ConfigError

GOOD = "source: site-a\nsites: {site-a: {bootstrap.servers: 'a:1'}}\nclients: [%s]\n"


class Service:
    """Runs until it is stopped, and keeps what it is told."""

    def __init__(self, *, refuse: str = "", fail: Exception | None = None) -> None:
        self.started = threading.Event()
        self.told: list[ReaderSettings] = []
        self.reconfigured = threading.Event()
        self._refuse = refuse
        self._fail = fail

    def run(self, stop: threading.Event) -> None:
        self.started.set()
        if self._fail:
            raise self._fail
        assert stop.wait(30)

    def reconfigure(self, settings: ReaderSettings) -> None:
        self.told.append(settings)
        self.reconfigured.set()
        if self._refuse:
            raise ConfigError(self._refuse)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "reader.yaml"
    path.write_text(GOOD % "one")
    return path


def test_an_unchanged_file_changes_nothing(file: Path) -> None:
    watch = ConfigWatch(file)
    assert watch.first.clients == ("one",)
    assert watch.changed() is None
    file.write_text(file.read_text())
    assert watch.changed() is None


def test_a_changed_file_gives_new_settings_once(file: Path) -> None:
    watch = ConfigWatch(file)
    file.write_text(GOOD % "one, two")
    settings = watch.changed()
    assert settings is not None
    assert settings.clients == ("one", "two")
    assert watch.changed() is None


def test_force_loads_an_unchanged_file(file: Path) -> None:
    assert ConfigWatch(file).changed(force=True) is not None


def test_a_wrong_file_is_told_once_and_taken_when_it_is_mended(file: Path) -> None:
    """The reason comes again only when the file changes, or by force."""
    watch = ConfigWatch(file)
    file.write_text("nonsense: 1")
    with pytest.raises(ConfigError, match="unknown key"):
        watch.changed()
    assert watch.changed() is None
    with pytest.raises(ConfigError, match="unknown key"):
        watch.changed(force=True)
    file.write_text(GOOD % "two")
    assert watch.changed() is not None


def test_a_file_that_vanishes_is_told_once_and_taken_when_it_is_back(file: Path) -> None:
    watch = ConfigWatch(file)
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        watch.changed()
    assert watch.changed() is None
    file.write_text(GOOD % "one")
    assert watch.changed() is not None


def test_what_the_service_refuses_is_logged_and_it_goes_on(file: Path) -> None:
    watch, service = ConfigWatch(file), Service(refuse="the source cannot change")
    file.write_text(GOOD % "two")
    with capture_logs() as logs:
        apply_changes(service, watch, force=False)
        apply_changes(service, watch, force=False)
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("config.refused", "the source cannot change")]
    assert len(service.told) == 1


def test_sigterm_stops_the_service_and_old_handlers_are_back(file: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    service = Service()
    _signal_once(service, signal.SIGTERM)
    with capture_logs() as logs:
        run(service, ConfigWatch(file))
    assert "reader.stopping" in [entry["event"] for entry in logs]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_sighup_reloads_even_an_unchanged_file(file: Path) -> None:
    service = Service()
    _signal_once(service, signal.SIGHUP, then=signal.SIGTERM)
    with capture_logs():
        # Were it not for the signal, the first look at the file would be far away.
        run(service, ConfigWatch(file), look_every_s=60)
    assert [settings.clients for settings in service.told] == [("one",)]


def test_a_change_of_the_file_is_seen_by_itself(file: Path) -> None:
    service = Service()
    watch = ConfigWatch(file)
    file.write_text(GOOD % "two")
    _stop_when_reconfigured(service)
    with capture_logs():
        run(service, watch, look_every_s=0.01)
    assert [settings.clients for settings in service.told] == [("two",)]


def test_what_ends_the_service_is_raised(file: Path) -> None:
    """A failure of the service must not look like a clean end."""
    with pytest.raises(BrokerError, match="gone"):
        run(Service(fail=BrokerError("gone")), ConfigWatch(file))


HANGING = """
import sys, threading
from pathlib import Path
from lr_ops import logs
from lr_ops.cli.reader import ConfigWatch, run

class Hanging:
    def run(self, stop):
        stop.wait()
        threading.Event().wait()

logs.configure("info", json=True)
run(Hanging(), ConfigWatch(Path(sys.argv[1])))
"""


def test_a_second_signal_ends_a_drain_that_hangs(file: Path) -> None:
    """Whoever asks twice does not wait."""
    process = subprocess.Popen([sys.executable, "-c", HANGING, file], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        _send_until(process, "reader.stopping")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _send_until(process: subprocess.Popen[str], event: str) -> None:
    """Send SIGTERM as soon as the process handles it: before that it would end it the ordinary way."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc to see whether a process handles a signal")
    deadline = time.monotonic() + 20
    while not int(_field(status.read_text(), "SigCgt"), 16) >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert event in process.stderr.readline()


def _field(text: str, name: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith(name))


def _signal_once(service: Service, number: signal.Signals, then: signal.Signals | None = None) -> None:
    """Send this process a signal once the service runs, and another once it was reconfigured."""

    def send() -> None:
        assert service.started.wait(20)
        os.kill(os.getpid(), number)
        if then is not None:
            assert service.reconfigured.wait(20)
            os.kill(os.getpid(), then)

    threading.Thread(target=send).start()


def _stop_when_reconfigured(service: Service) -> None:
    def stop() -> None:
        assert service.reconfigured.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
