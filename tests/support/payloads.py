"""
Payloads that tell everything about themselves.

Whoever finds such a payload anywhere can say, from it alone, where it may be and whether it was changed on the way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True)
class Told:
    """What a payload says of itself."""

    source: str
    client: str
    producer: int
    number: int  # of the transaction, among its producer's
    index: int  # of the entry, in its transaction
    entries: int  # in the whole transaction
    destinations: tuple[str, ...]
    keyed: bool  # it travels with `key` and `headers`
    filler: int  # bytes that follow, determined by all the above

    @property
    def transaction(self) -> tuple[str, int, int]:
        return self.source, self.producer, self.number

    @property
    def key(self) -> bytes | None:
        return f"{self.producer}/{self.number}/{self.index}".encode() if self.keyed else None

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return (("index", str(self.index).encode()), ("empty", None)) if self.keyed else ()

    def payload(self) -> bytes:
        words = json.dumps(asdict(self)).encode()
        return words + b"\n" + hashlib.shake_128(words).digest(self.filler)

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Read a payload; raise ValueError if it is not, byte for byte, one that was made here."""
        values = json.loads(payload.partition(b"\n")[0])
        told = cls(**{**values, "destinations": tuple(values["destinations"])})
        if told.payload() != payload:
            raise ValueError(f"the payload of {told} was changed")
        return told
