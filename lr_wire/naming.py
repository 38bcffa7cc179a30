"""
Names of topics, tags and keys, formatted and parsed back.

A site id or client name is 1 to 64 of `A-Z a-z 0-9 -`. With neither `_` nor `.` in it, every topic and tag parses
back to exactly one meaning: the queue of client `a` is never taken for that of `a-b`, nor for that of `a_b`.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

from lr_wire.errors import InvalidName

SiteId = NewType("SiteId", str)
ClientName = NewType("ClientName", str)

SEND_LOG_ENTRIES = "LRQ_Send_LogEntries"
SEND_SNAP_SYNC = "LRQ_Send_SnapSync"
METADATA = "LR_Metadata"
STATUS = "LR_Status"
ACKS = "LR_Acks"

LOG_ENTRY_TAG_PREFIX = "lrq_logentry_"
RECEIVE_TAG_PREFIX = "lrq_recv_"
RECEIVE_TOPIC_PREFIX = "LRQ_Recv_"
DEAD_LETTER_PREFIX = "LRQ_DeadLetter_"

# The client that a dead letter is filed under when the record does not tell.
UNKNOWN_CLIENT = ClientName("unknown")

# The client key of the position that holds for every client without one of its own.
ANY_CLIENT = "*"

_NAME = "[A-Za-z0-9-]{1,64}"
_NAME_RULE = re.compile(_NAME)
_PAIR = re.compile(f"({_NAME})_({_NAME})")
_SESSION_KEY = re.compile(f"session/({_NAME})/({_NAME})/({_NAME})")
_OWNER_KEY = re.compile(f"owner/({_NAME})/({_NAME})")
_POSITION_KEY = re.compile(rf"position/({_NAME})/({_NAME})/({_NAME}|\*)/(0|[1-9][0-9]*)")


class QueueName(NamedTuple):
    """The client and the source that a receive queue or dead letter belongs to."""

    client: ClientName
    source: SiteId


class SessionKey(NamedTuple):
    """One session: what `client` on `source` sends to `sink`."""

    source: SiteId
    sink: SiteId
    client: ClientName

    def __str__(self) -> str:
        """Write it as people read it: `policy site-a->site-b`."""
        return f"{self.client} {self.source}->{self.sink}"


class PositionKey(NamedTuple):
    """One partition of a session; `client` may be `ANY_CLIENT`."""

    source: SiteId
    sink: SiteId
    client: str
    partition: int


def site_id(value: str) -> SiteId:
    """Check a site id."""
    return SiteId(_checked("site id", value))


def client_name(value: str) -> ClientName:
    """Check a client name."""
    return ClientName(_checked("client name", value))


def _checked(what: str, value: object) -> str:
    if not isinstance(value, str) or not _NAME_RULE.fullmatch(value):
        raise InvalidName(f"{value!r} is not a {what}", hint="1 to 64 of A-Z a-z 0-9 and '-', no '_', no '.'")
    return value


def receive_topic(client: ClientName, source: SiteId) -> str:
    """Name the queue on the sink that holds what `source` sent for `client`."""
    return f"{RECEIVE_TOPIC_PREFIX}{client}_{source}"


def parse_receive_topic(topic: str) -> QueueName | None:
    """Tell whose receive queue `topic` is; None if it is none."""
    return _parse_pair(RECEIVE_TOPIC_PREFIX, topic)


def receive_topic_pattern(client: ClientName) -> str:
    """Give the regular expression that matches the receive queues of exactly this client, for a subscription."""
    # Without the length limit: not every regular expression library behind a Kafka client knows `{1,64}`.
    return f"^{RECEIVE_TOPIC_PREFIX}{client}_[A-Za-z0-9-]+$"


def dead_letter_topic(client: ClientName, source: SiteId) -> str:
    """Name the queue of what could not be understood or was rejected for good."""
    return f"{DEAD_LETTER_PREFIX}{client}_{source}"


def parse_dead_letter_topic(topic: str) -> QueueName | None:
    """Tell whose dead letters `topic` holds; None if it is no such topic."""
    return _parse_pair(DEAD_LETTER_PREFIX, topic)


def _parse_pair(prefix: str, topic: str) -> QueueName | None:
    match = _PAIR.fullmatch(topic, len(prefix)) if topic.startswith(prefix) else None
    return QueueName(ClientName(match[1]), SiteId(match[2])) if match else None


def log_entry_tag(sink: SiteId) -> str:
    """Name the header that tags a record of the send queue for `sink`."""
    return f"{LOG_ENTRY_TAG_PREFIX}{sink}"


def parse_log_entry_tag(tag: str) -> SiteId | None:
    """Tell for which site a tag of the send queue is; None if it is no such tag."""
    return SiteId(tag.removeprefix(LOG_ENTRY_TAG_PREFIX)) if _is_tag(LOG_ENTRY_TAG_PREFIX, tag) else None


def receive_tag(client: ClientName) -> str:
    """Name the header that tags a record of a receive queue for `client`."""
    return f"{RECEIVE_TAG_PREFIX}{client}"


def parse_receive_tag(tag: str) -> ClientName | None:
    """Tell for which client a tag of a receive queue is; None if it is no such tag."""
    return ClientName(tag.removeprefix(RECEIVE_TAG_PREFIX)) if _is_tag(RECEIVE_TAG_PREFIX, tag) else None


def _is_tag(prefix: str, tag: str) -> bool:
    return tag.startswith(prefix) and _NAME_RULE.fullmatch(tag, len(prefix)) is not None


def session_key(key: SessionKey) -> str:
    """Format the key of a session's state in `LR_Status`."""
    return f"session/{key.source}/{key.sink}/{key.client}"


def parse_session_key(text: str) -> SessionKey | None:
    """Parse the key of a session's state; None if it is another kind of key."""
    match = _SESSION_KEY.fullmatch(text)
    return SessionKey(SiteId(match[1]), SiteId(match[2]), ClientName(match[3])) if match else None


def position_key(key: PositionKey) -> str:
    """Format the key of a position in `LR_Status`."""
    return f"position/{key.source}/{key.sink}/{key.client}/{key.partition}"


def parse_position_key(text: str) -> PositionKey | None:
    """Parse the key of a position; None if it is another kind of key."""
    match = _POSITION_KEY.fullmatch(text)
    return PositionKey(SiteId(match[1]), SiteId(match[2]), match[3], int(match[4])) if match else None


def owner_key(source: SiteId, sink: SiteId) -> str:
    """Format the key of the record that tells who writes source->sink."""
    return f"owner/{source}/{sink}"


def parse_owner_key(text: str) -> tuple[SiteId, SiteId] | None:
    """Parse the key of an owner; None if it is another kind of key."""
    match = _OWNER_KEY.fullmatch(text)
    return (SiteId(match[1]), SiteId(match[2])) if match else None


def forwarder_transactional_id(source: SiteId, sink: SiteId) -> str:
    """Name the `transactional.id` that the owner of the sessions source->sink writes with, and is fenced by."""
    return f"LR_forward_{source}_{sink}"


def listener_group(client: ClientName) -> str:
    """Name the consumer group in which the listeners of `client` keep how far they have applied."""
    return f"LR_listener_{client}"
