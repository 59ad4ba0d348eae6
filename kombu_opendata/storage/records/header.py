"""Store header: written at the creation of a store, and read before all other records.

================  =========  ==================================================
field             type       meaning
================  =========  ==================================================
format version    u16        2; the first field in every version
created at        i64        ms since the epoch
instance          ``Utf8``   the name of the store's instance
================  =========  ==================================================

The format is defined here. Version 1 was never released.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import NewerFormat, UnsupportedFormat
from . import types

#: the only version that this package reads and writes
FORMAT_VERSION = 2

_VERSION = struct.Struct("<H")
_CREATED_AT = struct.Struct("<q")


class StoreHeader(NamedTuple):
    """The header of a store."""

    created_at_ms: int
    instance: str
    format_version: int = FORMAT_VERSION


def encode(header: StoreHeader) -> bytes:
    """Encode `header`."""
    version = types.pack(_VERSION, "format version", header.format_version)
    created_at = types.pack(_CREATED_AT, "created at", header.created_at_ms)
    return version + created_at + types.utf8(header.instance)


def decode(key: bytes, value: bytes) -> StoreHeader:
    """Decode the header in `value`.

    Raises:
        UnsupportedFormat: the store has another version.
    """
    # The version is checked first: a newer version may have other fields after it.
    (version,) = types.read(_VERSION, key, value, 0)
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"the store has format version {version}, this kombu-opendata reads up to {FORMAT_VERSION}; upgrade it",
            version=version,
            supported=FORMAT_VERSION,
        )
    if version == 0:
        raise types.corrupt(key, 0, "format version 0")
    if version < FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the store has format version {version}, of a kombu-opendata that was never released; this one reads "
            f"version {FORMAT_VERSION}: let the old one empty the queues, then start with a new store",
            version=version,
            supported=FORMAT_VERSION,
        )
    (created_at,) = types.read(_CREATED_AT, key, value, _VERSION.size)
    instance, end = types.read_utf8(key, value, _VERSION.size + _CREATED_AT.size)
    types.check_end(key, value, end)
    return StoreHeader(created_at, instance, version)
