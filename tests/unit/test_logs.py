"""Logs: JSON lines unless somebody watches, and librdkafka's own remarks only when asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from lr_ops import logs


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Logs are set up for a whole process; this one is not ours."""
    before = structlog.get_config()
    library = logging.getLogger("lr.librdkafka")
    handlers, level, propagate = library.handlers, library.level, library.propagate
    yield
    structlog.configure(**before)
    library.handlers, library.propagate = handlers, propagate
    library.setLevel(level)


def test_without_a_terminal_every_event_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    structlog.get_logger("lr.test").info("session.state_changed", old="a", new="b")
    structlog.get_logger("lr.test").debug("not.shown")
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["new"]) == ("session.state_changed", "info", "b")
    assert event["timestamp"].endswith("Z")


def test_an_exception_is_part_of_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", json=True)
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("flow.defect")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"][0]["exc_value"] == "boom"


def test_the_console_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", json=False)
    structlog.get_logger().info("reader.started", source="site-a")
    assert "reader.started" in (shown := capsys.readouterr().err)
    assert "source=site-a" in shown


@pytest.mark.parametrize("level, shown", [("info", 0), ("debug", 1)])
def test_librdkafka_is_heard_when_debugging(capsys: pytest.CaptureFixture[str], level: str, shown: int) -> None:
    """It calls every reconnect an error; whoever waits for a result is told there what matters."""
    logs.configure(level, json=True)
    logging.getLogger("lr.librdkafka").error("broker down")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["text"] for event in events] == ["broker down"] * shown
