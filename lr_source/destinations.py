"""Where entries go: lists of destinations, checked once per distinct list and ready for the wire."""

from __future__ import annotations

from collections.abc import Iterable

from lr_kafka.borrowed import KafkaHeaders
from lr_source.settings import ClientSettings
from lr_wire import codec, naming
from lr_wire.errors import InvalidEntry, OwnSite
from lr_wire.naming import SiteId, site_id

# An application has few distinct lists. One that makes up ever new ones must not fill the memory.
_REMEMBERED = 10_000

# What a send record has besides destinations, tags and entries: its head, what names the transaction in the body (at
# most 48 bytes), and what librdkafka counts for a message (36). A tag costs its name and up to 8 bytes of lengths.
_RECORD_BYTES = codec.SEND_HEAD_BOUND + 48 + 36
_TAG_BYTES = 8

_TEXT = (str, bytes)


class DestinationSet:
    """Destinations that some entries of a transaction share, in order and without doubles."""

    __slots__ = ("capacity", "fragment", "names", "room", "tags")

    def __init__(self, names: tuple[SiteId, ...], settings: ClientSettings) -> None:
        self.names = names
        self.fragment = codec.encode_destinations(names)
        self.tags: KafkaHeaders = [(naming.log_entry_tag(name), b"") for name in names]
        overhead = _RECORD_BYTES + len(self.fragment) + sum(len(tag) + _TAG_BYTES for tag, _ in self.tags)
        self.room = settings.max_message_bytes - overhead
        """How many bytes of entries a record can hold at most."""
        self.capacity = min(settings.max_record_bytes, self.room)
        """How many bytes of entries a record takes before the next one is begun."""


class Destinations:
    """The lists of destinations that an application uses."""

    def __init__(self, source: SiteId, settings: ClientSettings) -> None:
        self._source = source
        self._settings = settings
        self._by_list: dict[tuple[str, ...], DestinationSet] = {}
        self._by_names: dict[tuple[SiteId, ...], DestinationSet] = {}

    def resolve(self, destinations: Iterable[str]) -> DestinationSet:
        """Give the set for a list; equal sets are the same object, however the lists are ordered."""
        if isinstance(destinations, _TEXT):
            # A str is a sequence of one-letter names, each of them valid.
            raise InvalidEntry(f"the destinations are {destinations!r}", hint="give a list: ['site-b', 'site-c']")
        try:
            asked = tuple(destinations)
        except TypeError as error:
            raise InvalidEntry(f"the destinations are {destinations!r}", hint="give a list: ['site-b']") from error
        try:
            return self._by_list[asked]
        except (KeyError, TypeError):
            return self._add(asked)

    def _add(self, asked: tuple[str, ...]) -> DestinationSet:
        names = tuple(sorted({site_id(name) for name in asked}))
        if self._source in names:
            raise OwnSite(
                f"{self._source} is among the destinations, and is where the entry comes from",
                hint="leave it out: what this site needs it has",
            )
        if len(self._by_list) >= _REMEMBERED:
            self._by_list.clear()
            self._by_names.clear()
        found = self._by_names.get(names)
        if found is None:
            found = self._by_names[names] = DestinationSet(names, self._settings)
        self._by_list[asked] = found
        return found
