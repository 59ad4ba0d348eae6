"""Topology: exchanges and the bindings of queues to them. Their names are in the keys.

===========  =========  ==================================================
exchange     type       meaning
===========  =========  ==================================================
type         ``Utf8``   direct, topic, fanout or headers
flags        u8         bit 0 durable, bit 1 auto delete; others are 0
arguments    JSON       the arguments of the declaration
===========  =========  ==================================================

===========  =========  ==================================================
binding      type       meaning
===========  =========  ==================================================
arguments    JSON       the arguments of the binding
===========  =========  ==================================================

JSON is one object as ``Utf8``. The key of a binding to a headers exchange has a digest of its arguments, as a queue may
have several such bindings with the same routing key. The formats are defined here.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from . import types

_FLAGS = struct.Struct("<B")
_DURABLE = 1
_AUTO_DELETE = 2


class ExchangeRecord(NamedTuple):
    """An exchange, without its name."""

    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]


def encode_exchange(exchange: ExchangeRecord) -> bytes:
    """Encode `exchange`."""
    flags = _DURABLE * bool(exchange.durable) | _AUTO_DELETE * bool(exchange.auto_delete)
    return types.utf8(exchange.type) + _FLAGS.pack(flags) + types.json_utf8(exchange.arguments)


def decode_exchange(key: bytes, value: bytes) -> ExchangeRecord:
    """Decode the exchange in `value`."""
    kind, offset = types.read_utf8(key, value, 0)
    (flags,) = types.read(_FLAGS, key, value, offset)
    if flags & ~(_DURABLE | _AUTO_DELETE):
        raise types.corrupt(key, offset, f"exchange flags {flags:#04x}")
    arguments, end = types.read_json(key, value, offset + _FLAGS.size)
    types.check_end(key, value, end)
    return ExchangeRecord(kind, bool(flags & _DURABLE), bool(flags & _AUTO_DELETE), arguments)


def encode_binding(arguments: dict[str, Any]) -> bytes:
    """Encode a binding with these arguments."""
    return types.json_utf8(arguments)


def decode_binding(key: bytes, value: bytes) -> dict[str, Any]:
    """Decode the arguments of the binding in `value`."""
    arguments, end = types.read_json(key, value, 0)
    types.check_end(key, value, end)
    return arguments
