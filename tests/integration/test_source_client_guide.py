"""`docs/source-client.md` is true: its examples run, and its tables name what there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lr_kafka.clients import Cluster
from lr_kafka.reading import read_to_end
from lr_source.settings import ClientSettings
from lr_wire import codec, errors, naming
from lr_wire.naming import SiteId
from tests.support.brokers import Site, create_topic

GUIDE = Path(__file__).parents[2] / "docs" / "source-client.md"


def test_the_examples_of_the_guide_run(
    sites: Callable[..., list[Site]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one program; afterwards the send queue holds what they committed, and nothing of what they aborted."""
    [site] = sites("site-a")
    create_topic(site, naming.SEND_LOG_ENTRIES, partitions=3)
    create_topic(site, "orders")
    monkeypatch.setenv("KAFKA", site.bootstrap_servers)
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE))
    exec(compile(program, str(GUIDE), "exec"), {})

    cluster = Cluster(SiteId("site-a"), {"bootstrap.servers": site.bootstrap_servers})
    payloads: dict[bytes, tuple[str, ...]] = {}
    for message in read_to_end(cluster, naming.SEND_LOG_ENTRIES):
        record = codec.decode_send(message.value())
        entries = codec.decode_receive(codec.encode_receive_head(0, 1, record.entries, 0) + record.body).entries
        payloads |= {entry.payload: record.destinations for entry in entries}
    assert payloads == {
        b"policy for order 1": ("site-b", "site-c"),
        b"for one site": ("site-b",),
        b"for two": ("site-b", "site-c"),
        b"with its own key": ("site-b",),
        b"a new address": ("site-b",),
        b"policy for order 3": ("site-b",),
        b"something smaller": ("site-b",),
    }
    assert [message.value() for message in read_to_end(cluster, "orders")] == [b"order 1", b"order 3"]
    assert "the limit is 900000" in capsys.readouterr().out


def test_the_settings_of_the_guide_are_those_of_the_client() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", GUIDE.read_text(), re.MULTILINE))
    settings = ClientSettings()
    assert {name: float(value) for name, value in rows.items()} == {
        name: getattr(settings, name) for name in settings.__dataclass_fields__
    }


def test_the_errors_of_the_guide_exist() -> None:
    names = re.findall(r"^\| `([A-Z]\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert len(names) == 10
    assert all(issubclass(getattr(errors, name), errors.ReplicationError) for name in names)
