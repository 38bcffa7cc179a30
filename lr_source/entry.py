"""One entry as the application hands it over, and what is wrong with one that cannot be taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lr_wire.errors import InvalidEntry, PayloadTooLarge
from lr_wire.records import Header


@dataclass(frozen=True, slots=True)
class Entry:
    """A payload and where it goes. With a key or headers it travels in a record of its own, and both arrive with it."""

    payload: bytes
    destinations: Sequence[str]
    key: bytes | None = None
    headers: Sequence[Header] = ()


def check_payload(payload: bytes, limit: int) -> None:
    """Refuse what is not bytes, or too many of them."""
    if not isinstance(payload, bytes):
        raise InvalidEntry(
            f"a payload of type {type(payload).__name__}",
            hint="a payload is bytes: encode text, copy buffers with bytes()",
        )
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"a payload of {len(payload)} bytes; the limit is {limit}",
            hint="send less at once, or raise max_payload_bytes, max_message_bytes and Kafka's own limits",
        )


def checked_headers(key: bytes | None, headers: Iterable[Header] | None) -> tuple[Header, ...]:
    """Refuse a key or headers that could not travel; give the headers as they will."""
    if key is not None and not isinstance(key, bytes):
        raise InvalidEntry(f"a key of type {type(key).__name__}", hint="a key is bytes or None")
    if not headers:
        return ()
    return tuple(_checked_header(header) for header in headers)


def _checked_header(header: Header) -> Header:
    try:
        name, value = header
        name.encode()
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidEntry(
            f"{header!r} is not a header",
            hint="headers are a list of (name, value), the name a str, the value bytes or None",
        ) from error
    if value is not None and not isinstance(value, bytes):
        raise InvalidEntry(
            f"the header {name!r} has a value of type {type(value).__name__}", hint="a header's value is bytes or None"
        )
    return name, value
