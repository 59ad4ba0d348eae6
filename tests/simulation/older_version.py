"""What an older version wrote and sent, made of what this one does: records and messages without the later fields.

Brokers of some runs are older until the fault ``upgrade``. Nothing is left out that the code of this version needs: a
later field has a default for the older form.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import MAGIC, PREAMBLE_BYTES
from kombu_opendata.storage.commit.journal_format import (
    HEADER_BYTES,
    RECORD,
    checksum,
    complete_records,
    parse_header,
)
from kombu_opendata.storage.effects import Effect, codec

from .network import ConnectedTransport

#: fields that an older version did not write, whatever their value
_LATER = {"RenewEffect": "at_ms", "SyncedTimeEffect": "unsynced", "NameOwnedSessionEffect": "owner"}
_LENGTH = struct.Struct("<I")
_WELCOME = m.Welcome.__struct_config__.tag
#: the tag of a Welcome, and its fields before ``task_outcomes``
_WELCOME_ITEMS = 1 + m.Welcome.__struct_fields__.index("task_outcomes")


def older_segment(data: bytes) -> bytes | None:
    """Return a segment of a journal in its older form; None if that is no sound segment."""
    header = parse_header(data)
    if header is None:
        return None
    parts, expected = [data[:HEADER_BYTES]], header.first
    for record in complete_records(data, header.first, 0):
        if record.sequence != expected:
            return None
        payload = _older_commit(record.payload)
        parts += RECORD.pack(len(payload), checksum(expected, payload), expected), payload
        expected += 1
    return b"".join(parts).ljust(len(data), b"\0")


def _older_commit(payload: bytes) -> bytes:
    effects, rows = codec.decode(payload), msgspec.msgpack.decode(payload)
    return msgspec.msgpack.encode([row[: 1 + _needed(each)] for each, row in zip(effects, rows, strict=True)])


def _needed(effect: Effect) -> int:
    """Return the number of an effect's fields without those at the end that have their defaults."""
    fields = msgspec.structs.fields(effect)
    count = len(fields)
    for field in reversed(fields):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        is_later = _LATER.get(type(effect).__name__) == field.name
        if not is_later and (default is msgspec.NODEFAULT or getattr(effect, field.name) != default):
            break
        count -= 1
    return count


class OlderTransport(ConnectedTransport):
    """The transport of an older broker, whose Welcome has fewer fields."""

    _has_welcomed = False

    def write(self, data: Any) -> None:
        super().write(data if self._has_welcomed else self._older(bytes(data)))

    def _older(self, data: bytes) -> bytes:
        offset = PREAMBLE_BYTES if data.startswith(MAGIC) else 0
        parts = [data[:offset]]
        while offset < len(data):
            start = offset + _LENGTH.size
            offset = start + _LENGTH.unpack_from(data, offset)[0]
            body = data[start:offset]
            message = msgspec.msgpack.decode(body)
            if message[0] == _WELCOME:
                self._has_welcomed, body = True, msgspec.msgpack.encode(message[:_WELCOME_ITEMS])
            parts += _LENGTH.pack(len(body)), body
        return b"".join(parts)
