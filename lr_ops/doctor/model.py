"""What is known about the clusters, and what was found. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lr_kafka.inspection import ClusterFacts, TopicFacts
from lr_wire.naming import SiteId


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but a guarantee has less to stand on."""

    ERROR = "error"
    """It does not work, or a guarantee does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    site: SiteId
    subject: str
    """A topic, `cluster` or `brokers`."""

    text: str
    advice: str = ""
    """What to do; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of LR with its settings."""

    facts: TopicFacts
    config: Mapping[str, str]

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.facts.name


@dataclass(slots=True)
class Site:
    """One site as it was found."""

    id: SiteId
    is_source: bool
    unreachable: str = ""
    """Why it did not answer; empty if it did."""

    cluster: ClusterFacts | None = None
    brokers: dict[int, Mapping[str, str]] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """What it would not tell, with the reason."""
