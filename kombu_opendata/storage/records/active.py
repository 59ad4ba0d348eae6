"""Active messages: one bucket of the available and in-flight messages of a queue; and the claims of a message.

===========  ==============================  =====================================
field        type                            meaning
===========  ==============================  =====================================
available    ``Array<AvailableMessage>``     waiting for a consumer
in flight    ``Array<InFlightMessage>``      leased to a consumer
===========  ==============================  =====================================

=====  =================  ====  =================  ====  ==========================================
bytes  AvailableMessage   type  InFlightMessage    type  meaning
=====  =================  ====  =================  ====  ==========================================
0      message id         u64   message id         u64
8      priority           u8    priority           u8    1 before 2
9      visible at         i64   claimed at         i64   ms since the epoch
17     retention deadline i64   lease deadline     i64   ms since the epoch; retention: 0 means never
25     attempts           u16   attempts           u16   claims so far
=====  =================  ====  =================  ====  ==========================================

Both entries have the same layout and share one struct.

===========  ==============================  =====================================
attempts     type                            meaning
===========  ==============================  =====================================
attempts     ``Array<Utf8>``                 ids of the consumers that claimed a message, earliest claim first
===========  ==============================  =====================================

Source: RFC 0001, which leaves the type of a consumer id open: here ``Utf8``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import starmap
from typing import NamedTuple

from . import field_types

#: an entry of either list; see :class:`AvailableMessage` and :data:`IN_FLIGHT_FIELDS` for its fields
Entry = tuple[int, int, int, int, int]

_ENTRY = struct.Struct("<QBqqH")
ENTRY_BYTES = _ENTRY.size
IN_FLIGHT_FIELDS = ("message_id", "priority", "claimed_at_ms", "lease_deadline_ms", "attempts")
#: one field of an entry and padding for the others: id, priority, visible at, retention deadline
_FIELDS = ("Q19x", "8xB18x", "9xq10x", "17xq2x")


class AvailableMessage(NamedTuple):
    message_id: int
    priority: int
    visible_at_ms: int
    retention_deadline_ms: int
    attempts: int


class Columns(NamedTuple):
    """The fields of the available messages of a bucket, each for all of them in stored order; attempts are left out."""

    ids: Sequence[int]
    priorities: Sequence[int]
    visible_at_ms: Sequence[int]
    deadlines_ms: Sequence[int]


def encode(available: Sequence[Entry], in_flight: Sequence[Entry], first: bytes = b"") -> bytes:
    """Encode one bucket, with its entries in the given order; ``first`` are available ones that are encoded already."""
    pack, count = _ENTRY.pack, field_types.COUNT.pack
    number = len(first) // ENTRY_BYTES + len(available)
    try:
        return b"".join(
            (count(number), first, *starmap(pack, available), count(len(in_flight)), *starmap(pack, in_flight))
        )
    except struct.error:  # raises, as a value is out of range
        lists = (number, available, AvailableMessage._fields), (len(in_flight), in_flight, IN_FLIGHT_FIELDS)
        return b"".join(_encode_list(*entries) for entries in lists)


def encoded_available(value: bytes, first_id: int, count: int) -> bytes:
    """Return the last ``count`` available entries of a bucket, encoded, if these begin with the id; else nothing."""
    (number,) = field_types.COUNT.unpack_from(value)
    end = field_types.COUNT.size + number * ENTRY_BYTES
    start = end - count * ENTRY_BYTES
    if 0 < count <= number and _ENTRY.unpack_from(value, start)[0] == first_id:
        return value[start:end]
    return b""


def _encode_list(number: int, entries: Sequence[Entry], fields: tuple[str, ...]) -> bytes:
    count = field_types.array_count(number, "messages")
    return count + b"".join(field_types.pack(_ENTRY, ", ".join(fields), *entry) for entry in entries)


def decode(key: bytes, value: bytes) -> tuple[list[Entry], list[Entry]]:
    """Decode (available, in flight) of one bucket, as plain tuples in stored order."""
    available, middle = _decode_list(key, value, 0)
    in_flight, end = _decode_list(key, value, middle)
    field_types.check_end(key, value, end)
    return available, in_flight


def decode_columns(key: bytes, value: bytes) -> Columns | None:
    """Decode the available messages of one bucket; return None if it has others or none.

    A field of all messages is read by one call, which takes a third of the time of :func:`decode`.
    """
    (count,) = field_types.read(field_types.COUNT, key, value, 0)
    end = field_types.COUNT.size + count * ENTRY_BYTES
    if not count or field_types.read(field_types.COUNT, key, value, end) != (0,):
        return None
    field_types.check_end(key, value, end + field_types.COUNT.size)
    return Columns(*(layout.unpack_from(value, field_types.COUNT.size) for layout in _column_layouts(count)))


@lru_cache(maxsize=8)
def _column_layouts(count: int) -> tuple[struct.Struct, ...]:
    return tuple(struct.Struct("<" + field * count) for field in _FIELDS)


def _decode_list(key: bytes, value: bytes, offset: int) -> tuple[list[Entry], int]:
    (count,) = field_types.read(field_types.COUNT, key, value, offset)
    start = offset + field_types.COUNT.size
    end = start + count * ENTRY_BYTES
    if end > len(value):
        raise field_types.corrupt(key, offset, f"{count} messages in the {len(value) - start} bytes that are left")
    return list(_ENTRY.iter_unpack(value[start:end])), end


def encode_attempts(consumers: Sequence[str]) -> bytes:
    return field_types.array_count(len(consumers), "attempts") + b"".join(map(field_types.utf8, consumers))


def decode_attempts(key: bytes, value: bytes) -> list[str]:
    """Decode the consumer ids, earliest claim first."""
    consumers, end = field_types.read_texts(key, value, 0)
    field_types.check_end(key, value, end)
    return consumers
