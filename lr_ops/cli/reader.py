"""`lr reader`: run a reader until it is told to stop, following its configuration file."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Protocol

import structlog
import typer

from lr_ops import config, logs
from lr_ops.cli.common import ConfigFile, required
from lr_ops.cli.signals import SignalMailbox
from lr_source.reader.service import ReaderService, relax_collector
from lr_source.reader.settings import ReaderSettings
from lr_wire.errors import ConfigError

log = structlog.get_logger("lr.reader")

# Kubernetes exchanges a mounted ConfigMap without telling anybody.
_LOOK_EVERY_S = 2.0


class Service(Protocol):
    """What this command needs of a reader."""

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set."""

    def reconfigure(self, settings: ReaderSettings) -> None:
        """Take new settings while running."""


def reader(
    config_file: ConfigFile = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(logs.LEVELS)}.")] = "info",
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-console", help="Default: JSON unless stderr is a terminal.")
    ] = None,
) -> None:
    """
    Forward everything that the source has for the configured sinks, until SIGTERM or SIGINT.

    The configuration is read again on SIGHUP and when the file changes. One that is wrong is refused and the running
    one stays.
    """
    if log_level not in logs.LEVELS:
        raise ConfigError(f"--log-level {log_level!r} is none of {', '.join(logs.LEVELS)}")
    logs.configure(log_level, json=log_json)
    watch = ConfigWatch(required(config_file))
    relax_collector()
    run(ReaderService(watch.first), watch)


class ConfigWatch:
    """A configuration file and whether it has changed."""

    def __init__(self, path: Path) -> None:
        """Load it for the first time."""
        self._path = path
        self._seen = config.read_text(path)
        self.first = config.parse(self._seen, path.name)

    def changed(self, *, force: bool = False) -> ReaderSettings | None:
        """Give new settings if the file has changed, or if asked to by force; raise ConfigError once if it is wrong."""
        try:
            text = config.read_text(self._path)
        except ConfigError:
            # While a file is being exchanged it can be gone for a moment; an unreadable one is told of once.
            if self._seen == "" and not force:
                return None
            self._seen = ""
            raise
        if text == self._seen and not force:
            return None
        self._seen = text
        return config.parse(text, self._path.name)


def run(service: Service, watch: ConfigWatch, look_every_s: float = _LOOK_EVERY_S) -> None:
    """Run the service in a thread of its own; this one waits for signals and looks after the file."""
    stop = threading.Event()
    failure: list[BaseException] = []
    with SignalMailbox(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as mailbox:

        def serve() -> None:
            try:
                service.run(stop)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                failure.append(error)
            finally:
                mailbox.wake()

        thread = threading.Thread(target=serve, name="reader", daemon=True)
        thread.start()
        while thread.is_alive():
            received = mailbox.wait(look_every_s)
            for number in received:
                if number != signal.SIGHUP:
                    _stop(stop, number)
            if thread.is_alive() and not stop.is_set():
                apply_changes(service, watch, force=signal.SIGHUP in received)
    if failure:
        raise failure[0]


def _stop(stop: threading.Event, number: signal.Signals) -> None:
    if stop.is_set():
        # Whoever asks twice does not want to wait for the drain. Nothing is lost: it was not committed.
        os._exit(128 + number)
    log.info("reader.stopping", signal=number.name)
    stop.set()


def apply_changes(service: Service, watch: ConfigWatch, *, force: bool) -> None:
    """Reconfigure the service if its file has changed; a file that is wrong changes nothing."""
    try:
        settings = watch.changed(force=force)
        if settings is not None:
            service.reconfigure(settings)
            log.info("config.reloaded", sinks=sorted(settings.sinks), clients=list(settings.clients))
    except ConfigError as error:
        log.warning("config.refused", reason=str(error), running="the configuration before stays in force")
