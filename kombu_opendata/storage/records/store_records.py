"""Records of which a store has one: header, block of message ids, journal position, newest time, log retention.

================  ================  =========================================================================
store header      type              written at the creation of a store, and read before all other records
================  ================  =========================================================================
format version    u16               2; the first field in every version. Version 1 was never released
created at        i64               ms since the epoch
instance          ``Utf8``          the name of the store's instance
================  ================  =========================================================================

================  ================  =========================================================================
sequence block    type              the message ids that the allocator may use
================  ================  =========================================================================
base sequence     u64 big endian    the first id of the block
block size        u64 big endian    the number of ids in the block
================  ================  =========================================================================

================  ================  =========================================================================
checkpoint marks  type              written by every checkpoint, a record each
================  ================  =========================================================================
journal position  u64               the last journal entry in the store, counted through all segments of the journal
newest time       i64               the latest time in the store's state, ms since the epoch; a broker whose host's
                                    clock was set back continues from it
================  ================  =========================================================================

================  ================  =========================================================================
log retention     type              missing in a store whose metadata log never kept unneeded messages
================  ================  =========================================================================
version           u8                1
retention         i64               ms since a message was received; -1 means unlimited, 0 that no more are kept
position          u64               messages with ids below it were swept
swept at          i64               the end of the last full sweep, ms since the epoch; 0 means never
kept              u64               number of messages that only the log keeps
================  ================  =========================================================================

Source of the sequence block: OpenData-Log, to which RFC 0001 refers. The other formats are defined here.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple

from ...errors import NewerFormat, UnsupportedFormat
from . import field_types

#: the only version that this package reads and writes
FORMAT_VERSION = 2
#: an unlimited retention
FOREVER = -1

_VERSION = struct.Struct("<H")
_CREATED_AT = struct.Struct("<q")
_BLOCK = struct.Struct(">QQ")
_POSITION = struct.Struct("<Q")
_TIME = struct.Struct("<q")
_RETENTION = struct.Struct("<BqQqQ")


class StoreHeader(NamedTuple):
    created_at_ms: int
    instance: str
    format_version: int = FORMAT_VERSION


class LogRetention(NamedTuple):
    """The retention of the metadata log and its progress."""

    retention_ms: int = 0
    position: int = 0
    swept_at_ms: int = 0
    kept: int = 0


def encode_header(header: StoreHeader) -> bytes:
    version = field_types.pack(_VERSION, "format version", header.format_version)
    created_at = field_types.pack(_CREATED_AT, "created at", header.created_at_ms)
    return version + created_at + field_types.utf8(header.instance)


def decode_header(key: bytes, value: bytes) -> StoreHeader:
    """Decode the header in `value`.

    Raises:
        UnsupportedFormat: the store has another version.
    """
    # The version is checked first: a newer version may have other fields after it.
    (version,) = field_types.read(_VERSION, key, value, 0)
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"the store has format version {version}, this kombu-opendata reads up to {FORMAT_VERSION}; upgrade it",
            version=version,
            supported=FORMAT_VERSION,
        )
    if version == 0:
        raise field_types.corrupt(key, 0, "format version 0")
    if version < FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the store has format version {version}, of a kombu-opendata that was never released; this one reads "
            f"version {FORMAT_VERSION}: let the old one empty the queues, then start with a new store",
            version=version,
            supported=FORMAT_VERSION,
        )
    (created_at,) = field_types.read(_CREATED_AT, key, value, _VERSION.size)
    instance, end = field_types.read_utf8(key, value, _VERSION.size + _CREATED_AT.size)
    field_types.check_end(key, value, end)
    return StoreHeader(created_at, instance, version)


encode_seq_block = partial(field_types.pack, _BLOCK, "base sequence, block size")
encode_journal_position = partial(field_types.pack, _POSITION, "journal sequence")
encode_newest_time = partial(field_types.pack, _TIME, "at")


def decode_seq_block(key: bytes, value: bytes) -> tuple[int, int]:
    """Decode (base sequence, block size)."""
    base, size = field_types.read_all(_BLOCK, key, value)
    return base, size


def decode_journal_position(key: bytes, value: bytes) -> int:
    return int(field_types.read_all(_POSITION, key, value)[0])


def decode_newest_time(key: bytes, value: bytes) -> int:
    return int(field_types.read_all(_TIME, key, value)[0])


def encode_log_retention(retention: LogRetention) -> bytes:
    return field_types.pack_versioned(_RETENTION, ", ".join(LogRetention._fields), *retention)


def decode_log_retention(key: bytes, value: bytes) -> LogRetention:
    record = LogRetention(*field_types.read_all_versioned(_RETENTION, key, value))
    if record.retention_ms < FOREVER:
        raise field_types.corrupt(key, 1, f"a retention of {record.retention_ms} ms")
    return record
