"""Results: the value of a task's result, when it expires, and the parts of chords that wait for more.

Result, ``01 19 <key TB>``:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1
kind              u8       ``00`` interim, ``01`` ready, ``02`` final: kept
expires at        i64      ms since the epoch, 0 for never
value             bytes    the rest of the record
================  =======  =====================================================

Result expiry, ``01 1a <expires at u64> <key TB>``: empty. It may be older than the result's own expires at.

Chord, ``01 1e <group TB>``:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1
expires at        i64      ms since the epoch, 0 for never
size              i64      header tasks, -1 when it was not told yet
added             i64      header tasks that were added later
header            bytes    the rest of the record, may be empty
================  =======  =====================================================

Chord part, ``01 1f <group TB> <index u32> <member TB>``:

================  =======  =====================================================
field             type     meaning
================  =======  =====================================================
version           u8       1
value             bytes    the rest of the record
================  =======  =====================================================

The formats are ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kombu_opendata.storage.records import types

_RESULT = struct.Struct("<BBq")
_CHORD = struct.Struct("<Bqqq")
_PART = struct.Struct("<B")
_VERSION = 1

#: kinds of results
INTERIM, READY, FINAL = range(3)
#: the index of a part that has none: after all others
NO_INDEX = 0xFFFF_FFFF


class Result(NamedTuple):
    """A stored result."""

    kind: int
    expires_at_ms: int
    value: bytes


class Chord(NamedTuple):
    """The head of a chord."""

    expires_at_ms: int
    size: int
    added: int
    header: bytes


def encode_result(result: Result) -> bytes:
    """The record of `result`."""
    return types.pack(_RESULT, "version, kind, expires_at_ms", _VERSION, *result[:2]) + result.value


def decode_result(key: bytes, value: bytes) -> Result:
    """The result in `value`."""
    version, kind, expires_at = types.read(_RESULT, key, value, 0)
    _check_version(key, version)
    if kind > FINAL:
        raise types.corrupt(key, 1, f"result kind {kind}")
    return Result(kind, expires_at, value[_RESULT.size :])


def encode_expiry() -> bytes:
    """The record that says by its key when a result may go."""
    return b""


def decode_expiry(key: bytes, value: bytes) -> None:
    """Nothing is in `value`."""
    types.check_end(key, value, 0)


def encode_chord(chord: Chord) -> bytes:
    """The record of `chord`."""
    return types.pack(_CHORD, "version, expires_at_ms, size, added", _VERSION, *chord[:3]) + chord.header


def decode_chord(key: bytes, value: bytes) -> Chord:
    """The chord in `value`."""
    version, expires_at, size, added = types.read(_CHORD, key, value, 0)
    _check_version(key, version)
    return Chord(expires_at, size, added, value[_CHORD.size :])


def encode_part(value: bytes) -> bytes:
    """The record of a chord's part."""
    return _PART.pack(_VERSION) + value


def decode_part(key: bytes, value: bytes) -> bytes:
    """The part in `value`."""
    (version,) = types.read(_PART, key, value, 0)
    _check_version(key, version)
    return value[_PART.size :]


def _check_version(key: bytes, version: int) -> None:
    if version != _VERSION:
        raise types.corrupt(key, 0, f"record version {version}")
