"""The values by which history is found, as hashes of 64 bits: a header's text, a queue, a status, a consumer, …

A hash that two values share is found out when the record itself is looked at. Where that is gone (a message that was
collected) the hash decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

#: hashes of values that come again are remembered, until there are so many
_REMEMBERED = 65_536

HEADER, QUEUE, SETTLED, OUTCOME, CONSUMER, MESSAGE = b"h", b"q", b"s", b"o", b"c", b"m"


class Hashes:
    """Makes the hashes of values."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str, str], int] = {}

    def __call__(self, kind: bytes, name: str, text: str = "") -> int:
        """The hash of a value: its kind, a name, and a text where the kind has one."""
        key = (kind, name, text)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[key] = hash_of(kind, name, text)
        return found

    def headers(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        """The hashes of a message's headers."""
        known = self._known
        found = []
        for name, text in pairs:
            hash = known.get((HEADER, name, text))
            found.append(self(HEADER, name, text) if hash is None else hash)
        return found


def hash_of(kind: bytes, name: str, text: str = "") -> int:
    """The hash of a value; the length keeps name and text apart."""
    raw = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(
        blake2b(
            kind + len(raw).to_bytes(4, "little") + raw + text.encode("utf-8", "surrogatepass"), digest_size=8
        ).digest(),
        "big",
    )
