"""The reader's configuration: what is accepted, and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from lr_ops import config
from lr_wire.errors import ConfigError
from lr_wire.naming import SiteId

SITE_B = SiteId("site-b")
SAMPLE = Path(__file__).parents[2] / "docs" / "reader.yaml"

GOOD = """\
source: site-a
sites:
  site-a: {bootstrap.servers: "a:9092"}
  site-b:
    bootstrap.servers: b:9092
    sasl.password: "${SITE_B_PASSWORD}"
clients: [policy, inventory]
limits: {heartbeat_s: 1.5, transaction_records: 1000}
"""


def problems_of(text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "reader.yaml", environment)
    return str(caught.value)


def test_a_configuration_becomes_settings() -> None:
    """Source, sites, clients and limits arrive; limits that are not named keep their default."""
    settings = config.parse(GOOD, "reader.yaml", {"SITE_B_PASSWORD": "hunter2"})
    assert settings.source == "site-a"
    assert settings.sinks == {"site-b"}
    assert settings.clients == ("policy", "inventory")
    assert (settings.limits.heartbeat_s, settings.limits.transaction_records) == (1.5, 1000)
    assert settings.limits.metadata_s == 2.0
    assert settings.sites[SITE_B].settings["sasl.password"] == "hunter2"


def test_the_sample_in_the_documentation_is_valid() -> None:
    """`docs/reader.yaml` loads, and shows every limit with its default."""
    settings = config.load(SAMPLE, {"SITE_B_PASSWORD": "x", "SITE_C_PASSWORD": "y"})
    assert settings.source == "site-a"
    text = SAMPLE.read_text()
    for name in settings.limits.__dataclass_fields__:
        assert f"{name}: {getattr(settings.limits, name):_}" in text
    assert settings.limits == type(settings.limits)()


def test_a_secret_never_shows() -> None:
    """Neither the settings' repr nor a problem's text has the value of a variable or a secret setting."""
    settings = config.parse(GOOD, "reader.yaml", {"SITE_B_PASSWORD": "hunter2"})
    assert "hunter2" not in repr(settings)
    text = GOOD.replace("sasl.password", "security.protocol: ssl\n    ssl.key.pem")
    assert "hunter2" not in problems_of(text, SITE_B_PASSWORD="hunter2")


def test_a_missing_variable_is_named() -> None:
    assert problems_of(GOOD) == (
        "reader.yaml:6: sites.site-b.sasl.password needs the environment variable SITE_B_PASSWORD, which is not set"
    )


@pytest.mark.parametrize(
    "text, value",
    [
        ("a$${b}c", "a${b}c"),
        ("pre-${X}-${Y}", "pre-1-2"),
        ("costs $5", "costs $5"),
        ("$${X}${X}", "${X}1"),
        ("0123", "0123"),
        ("1e3", "1e3"),
    ],
)
def test_values_reach_librdkafka_as_written(text: str, value: str) -> None:
    """`${X}` is filled in, `$${` is the escape, and what looks like a number stays the text it is."""
    settings = config.parse(GOOD.replace('"${SITE_B_PASSWORD}"', text), "reader.yaml", {"X": "1", "Y": "2"})
    assert settings.sites[SITE_B].settings["sasl.password"] == value


def test_a_limit_may_come_from_the_environment() -> None:
    text = GOOD.replace("1.5", '"${HEARTBEAT}"')
    assert config.parse(text, "f", {"SITE_B_PASSWORD": "", "HEARTBEAT": "4"}).limits.heartbeat_s == 4


def test_a_truth_value_of_yaml_is_one_for_librdkafka() -> None:
    text = GOOD.replace('sasl.password: "${SITE_B_PASSWORD}"', "socket.keepalive.enable: yes")
    assert config.parse(text, "f", {}).sites[SITE_B].settings["socket.keepalive.enable"] is True


def test_settings_can_be_shared_by_merging() -> None:
    """`<<: *anchor` brings another site's settings; what a site says itself wins."""
    text = """\
source: site-a
sites:
  site-a: &common {bootstrap.servers: "a:9092", client.id: us}
  site-b: {<<: *common, bootstrap.servers: "b:9092"}
"""
    assert config.parse(text, "f", {}).sites[SITE_B].settings == {"bootstrap.servers": "b:9092", "client.id": "us"}


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("limits:", "limitz:", "reader.yaml:8: unknown key 'limitz'"),
        ("source: site-a", "source: site_a", "reader.yaml:1: source: 'site_a' is not a site id"),
        ("source: site-a", "source: site-z", "reader.yaml:1: source site-z is not among the sites"),
        ("source: site-a", "source: [site-a]", "reader.yaml:1: source is a list; it must be a single value"),
        ("  site-b:\n", "  site.b:\n", "reader.yaml:4: sites: 'site.b' is not a site id"),
        ("  site-b:\n", "  site-a:\n", "reader.yaml:4: sites has 'site-a' twice"),
        ("bootstrap.servers: b:9092", "client.id: x", "reader.yaml:4: sites.site-b has no bootstrap.servers"),
        ("bootstrap.servers: b:9092", 'bootstrap.servers: ""', "sites.site-b.bootstrap.servers is empty"),
        (
            "b:9092",
            "b:9092\n    bogus.name: 1",
            "reader.yaml:6: sites.site-b.bogus.name: No such configuration property",
        ),
        ("b:9092", "b:9092\n    linger.ms: abc", "reader.yaml:6: sites.site-b.linger.ms: Invalid value"),
        ("b:9092", "b:9092\n    group.id: mine", "reader.yaml:6: sites.site-b.group.id: LR sets this itself"),
        ("b:9092", "b:9092\n    acks:", "reader.yaml:6: sites.site-b.acks is empty; it must be a single value"),
        ("b:9092", "b:9092\n    security.protocol: SASL_SSL\n    sasl.mechanism: PLAIN", "sasl.username and"),
        ("[policy, inventory]", "policy", "reader.yaml:7: clients is a single value; it must be a list"),
        ("[policy, inventory]", "[policy, inv_entory]", "reader.yaml:7: clients: 'inv_entory' is not a client name"),
        ("heartbeat_s: 1.5", "heartbeat: 1", "reader.yaml:8: unknown limit 'heartbeat'; known are transaction_records"),
        ("heartbeat_s: 1.5", "heartbeat_s: soon", "reader.yaml:8: limits.heartbeat_s must be a number"),
        ("heartbeat_s: 1.5", "heartbeat_s: yes", "reader.yaml:8: limits.heartbeat_s must be a number"),
        ("heartbeat_s: 1.5", "heartbeat_s: .inf", "reader.yaml:8: limits.heartbeat_s must be a number"),
        ("heartbeat_s: 1.5", "heartbeat_s: 0", "reader.yaml:8: limits.heartbeat_s is 0; it must be greater than 0"),
        ("1000}", "1.5}", "reader.yaml:8: limits.transaction_records must be a whole number"),
        ("heartbeat_s: 1.5", "backoff_max_s: 0.1", "reader.yaml:8: limits.backoff_max_s is smaller than"),
        ('"${SITE_B_PASSWORD}"', "${SITE B}", "reader.yaml:6: sites.site-b.sasl.password has a '${' that is not"),
        ("clients: [policy", "clients: [policy, {a: b}", "reader.yaml:7: clients is a mapping"),
        ("clients: [policy", "clients: ]policy", "reader.yaml:7: not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line(old: str, new: str, problem: str) -> None:
    """File, line, path and reason are in the one message."""
    assert old in GOOD
    assert problem in problems_of(GOOD.replace(old, new), SITE_B_PASSWORD="x")


def test_several_mistakes_are_told_together() -> None:
    text = GOOD.replace("source: site-a", "source: site_a").replace("[policy", "[pol.icy")
    told = problems_of(text, SITE_B_PASSWORD="x").splitlines()
    assert told[0] == "reader.yaml has 2 problems"
    assert [line.partition(": ")[0] for line in told[1:]] == ["reader.yaml:1", "reader.yaml:7"]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_is_refused(text: str) -> None:
    assert "the file is empty" in problems_of(text)


@pytest.mark.parametrize("missing", ["source", "sites"])
def test_what_is_required_is_named(missing: str) -> None:
    text = {"source": 'sites: {a: {bootstrap.servers: "a:1"}}', "sites": "source: a"}[missing]
    assert f"reader.yaml:1: `{missing}` is missing" in problems_of(text)


def test_a_mapping_merged_into_itself_is_refused() -> None:
    """The recursion ends with a problem."""
    text = 'source: a\nsites:\n  a: &a {<<: *a, bootstrap.servers: "a:1"}\n'
    assert "without end" in problems_of(text)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.yaml cannot be read: No such file"):
        config.load(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.load(tmp_path / "binary.yaml")
