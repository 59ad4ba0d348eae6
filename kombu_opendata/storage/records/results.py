"""Results of tasks with their expiry, and chords with the results of their tasks.

Result, ``01 19 <key TB>``:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1
kind              u8       ``00`` interim, ``01`` ready, ``02`` final
expires at        i64      ms since the epoch, 0 means never
value             bytes    a u32 length, then the value
================  =======  =====================================================

Result expiry, ``01 1a <expires at u64> <key TB>``: its version as u8, 1. Its time may precede the result's.

Chord, ``01 1e <group TB>``:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1; 2 with the body, 3 also with the members
expires at        i64      ms since the epoch, 0 means never
size              i64      header tasks, -1 if unknown
added             i64      header tasks that were added later
header            bytes    a u32 length, then the header
body              bytes    a u32 length, then the task id of the callback
members           array    a u32 count, then the task id of each task that was
                           added later, as the body
================  =======  =====================================================

Chord part, ``01 1f <group TB> <index u32> <member TB>``:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1
value             bytes    a u32 length, then the value
================  =======  =====================================================

Large value, ``01 30 <key TB>``, of the result or part with this key, in whose own record the value is empty. The value
is in a payload segment (version 2) or in chunks, ``01 31 <key TB> <number u32>``, raw bytes of 1 MiB but for the last:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1; 2 with a URI and no further field
chunks            u32      number of chunks
size              u64      of the value, bytes
URI               Utf8     place in a segment, as of a payload
================  =======  =====================================================

The formats are defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import field_types
from .payload import Chunks
from .payload_places import EnvelopePlace, is_segment, parse_payload_uri

_RESULT = struct.Struct("<BBq")
_CHORD = struct.Struct("<Bqqq")
_LARGE = struct.Struct("<BIQ")
_SIZE = struct.Struct("<I")
_CHORD_WITH_BODY, _CHORD_WITH_MEMBERS = 2, 3
_IN_SEGMENT = 2

#: kinds of results
INTERIM, READY, FINAL = range(3)
#: the index of a part without an index: after all others
NO_INDEX = 0xFFFF_FFFF


class Result(NamedTuple):
    """A result; ``value`` is empty if it is at a ``place``, which its record lacks."""

    kind: int
    expires_at_ms: int
    value: bytes
    place: Chunks | EnvelopePlace | None = None


class Chord(NamedTuple):
    """The head of a chord."""

    expires_at_ms: int
    size: int
    added: int
    header: bytes
    body: bytes = b""
    members: tuple[bytes, ...] = ()


def encode_large_value(large: Chunks | EnvelopePlace) -> bytes:
    if isinstance(large, EnvelopePlace):
        return bytes((_IN_SEGMENT,)) + field_types.utf8(large.segment_uri)
    return field_types.pack_versioned(_LARGE, "chunks, size", *large)


def decode_large_value(key: bytes, value: bytes) -> Chunks | EnvelopePlace:
    if value[:1] != bytes((_IN_SEGMENT,)):
        return Chunks(*field_types.read_all_versioned(_LARGE, key, value))
    uri, end = field_types.read_utf8(key, value, 1)
    field_types.check_end(key, value, end)
    place = parse_payload_uri(uri)
    if place is None or not is_segment(place.path):
        raise field_types.corrupt(key, 1, f"{uri}, an unknown URI")
    return place


def encode_result(result: Result) -> bytes:
    return field_types.pack_versioned(_RESULT, "kind, expires_at_ms", *result[:2]) + _bytes(result.value)


def decode_result(key: bytes, value: bytes) -> Result:
    kind, expires_at = field_types.read_versioned(_RESULT, key, value)
    if kind > FINAL:
        raise field_types.corrupt(key, 1, f"result kind {kind}")
    return Result(kind, expires_at, _read_bytes(key, value, _RESULT.size))


def encode_chord(chord: Chord) -> bytes:
    version = _CHORD_WITH_BODY if chord.body else field_types.VERSION
    texts = [chord.header, chord.body] if chord.body else [chord.header]
    count = b""
    if chord.members:
        version, texts, count = _CHORD_WITH_MEMBERS, [chord.header, chord.body], _SIZE.pack(len(chord.members))
    fixed = field_types.pack(_CHORD, "version, expires_at_ms, size, added", version, *chord[:3])
    return fixed + b"".join(map(_bytes, texts)) + count + b"".join(map(_bytes, chord.members))


def decode_chord(key: bytes, value: bytes) -> Chord:
    version, expires_at, size, added = field_types.read(_CHORD, key, value, 0)
    if version not in (_CHORD_WITH_BODY, _CHORD_WITH_MEMBERS):
        field_types.check_version(key, version)
    (header, *body), end = field_types.read_many(_read_field, key, value, _CHORD.size, min(version, 2))
    members: list[bytes] = []
    if version == _CHORD_WITH_MEMBERS:
        (count,) = field_types.read(_SIZE, key, value, end)
        members, end = field_types.read_many(_read_field, key, value, end + _SIZE.size, count)
    field_types.check_end(key, value, end)
    return Chord(expires_at, size, added, header, b"".join(body), tuple(members))


def encode_part(value: bytes) -> bytes:
    return field_types.VERSION_ONLY + _bytes(value)


def decode_part(key: bytes, value: bytes) -> bytes:
    field_types.check_version(key, value[0] if value else 0)
    return _read_bytes(key, value, 1)


def _bytes(value: bytes) -> bytes:
    return field_types.pack(_SIZE, "size", len(value)) + value


def _read_field(key: bytes, value: bytes, offset: int) -> tuple[bytes, int]:
    (size,) = field_types.read(_SIZE, key, value, offset)
    start = offset + _SIZE.size
    if start + size > len(value):
        raise field_types.corrupt(key, offset, f"{size} bytes announced where {len(value) - start} are left")
    return value[start : start + size], start + size


def _read_bytes(key: bytes, value: bytes, offset: int) -> bytes:
    """Read the last field of a record."""
    field, end = _read_field(key, value, offset)
    field_types.check_end(key, value, end)
    return field
