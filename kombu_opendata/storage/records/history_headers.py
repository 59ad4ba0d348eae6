"""History headers: headers of messages that were collected before the index had all of their attempts.

The key has a number above all attempts of these messages, and the id of the first message. The record is deleted when
the stored index has all attempts below that number.

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
version             u8       1
messages            u32      number of messages
ids                 column   message id u64, ascending
sizes               column   bytes of headers u32
headers             each     number of headers u8, per header key ``Utf8`` and
                             value ``Utf8``, as in the metadata
==================  =======  =====================================================

The format is defined here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from . import field_types
from .metadata import Pairs

_HEAD = struct.Struct("<BI")
_COUNT = struct.Struct("<B")


def encode(messages: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode the headers of messages: ids, ascending, and headers as :func:`.metadata.headers_part` returns them."""
    ids, parts = zip(*messages, strict=True)
    head = field_types.pack_versioned(_HEAD, "messages", len(messages))
    return b"".join([head, field_types.pack_column("Q", ids), field_types.pack_column("I", map(len, parts)), *parts])


class HeaderTable:
    """A record whose messages are decoded individually."""

    __slots__ = ("_ends", "_key", "_start", "_value", "ids")

    def __init__(self, key: bytes, value: bytes) -> None:
        (count,) = field_types.read_versioned(_HEAD, key, value)
        if not count:
            raise field_types.corrupt(key, 1, "no messages")
        self._key, self._value = key, value
        self.ids, offset = field_types.read_column("Q", key, value, _HEAD.size, count)
        if any(following <= id for id, following in zip(self.ids, self.ids[1:], strict=False)):
            raise field_types.corrupt(key, _HEAD.size, "message ids that do not ascend")
        sizes, self._start = field_types.read_column("I", key, value, offset, count)
        self._ends = list(accumulate(sizes, initial=self._start))
        field_types.check_end(key, value, self._ends[-1])

    def find(self, id: int) -> Pairs:
        return self.at(bisect_left(self.ids, id))

    def at(self, index: int) -> Pairs:
        """Return the headers of the message in this place, as :meth:`find`."""
        key = self._key
        value = self._value
        offset = self._ends[index]
        end = self._ends[index + 1]
        (count,) = field_types.read(_COUNT, key, value, offset)
        texts, offset = field_types.read_many(field_types.read_utf8, key, value, offset + _COUNT.size, 2 * count)
        if offset != end:
            text = f"headers of message {self.ids[index]} that should end at byte {end}"
            raise field_types.corrupt(key, offset, text)
        return tuple(zip(texts[::2], texts[1::2], strict=True))


def decode(key: bytes, value: bytes) -> dict[int, Pairs]:
    """Decode the headers of each message, in stored order, by ascending message id."""
    table = HeaderTable(key, value)
    return {id: table.at(index) for index, id in enumerate(table.ids)}
