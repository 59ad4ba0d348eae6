"""An envelope with holes: what every row shares is encoded once, and a row's message is a join of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .template import ID_MARKER, Template

BODY = "body"
ID = "id"
ARGSREPR = "argsrepr"
KWARGSREPR = "kwargsrepr"
ETA = "eta"
EXPIRES = "expires"
EXPIRATION = "expiration"
PRIORITY = "priority"
HEADER = "header:"

encode = msgspec.msgpack.Encoder().encode

#: bytes that every row has, or the name of a hole
Part = bytes | str


def compile_envelope(
    template: Template, header_slots: Mapping[str, str], property_slots: Mapping[str, str]
) -> list[Part]:
    """The parts of a template's envelope, constants and holes in turn.

    Args:
        header_slots, property_slots: names of headers and properties that differ from row to row, and their holes.
    """
    parts: list[Part] = [b"\x97", BODY, encode(template.content_type) + encode(template.content_encoding)]
    parts += _map(template.headers, header_slots)
    parts += _map(template.properties, property_slots)
    parts.append(encode(template.exchange) + encode(template.routing_key))
    return _merge(parts)


def _map(values: Mapping[str, Any], slots: Mapping[str, str]) -> list[Part]:
    parts: list[Part] = [_map_header(len(values))]
    for name, value in values.items():
        parts.append(encode(name))
        if value == ID_MARKER:
            parts.append(ID)
        else:
            parts.append(slots[name] if name in slots else encode(value))
    return parts


def _map_header(size: int) -> bytes:
    return bytes((0x80 | size,)) if size < 16 else b"\xde" + size.to_bytes(2, "big")


def _merge(parts: list[Part]) -> list[Part]:
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return merged
