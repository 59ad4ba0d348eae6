"""Definitions: queues with their settings and counters, exchanges, and bindings. Their names are in the keys.

==================  =========  ===========================================================
queue config        type       meaning
==================  =========  ===========================================================
filter type         u8         ``01``: the filter is a selector text
filter              ``Utf8``   the selector
max attempts        u16        claims after which a message moves to the failed messages
done retention      u32        retention of a done message in seconds; 0 means unlimited
==================  =========  ===========================================================

===================  =========  ==========================================================
queue options        type       settings and limits that the RFC's queue config does not have
===================  =========  ==========================================================
failed retention     u32        retention of a failed message in seconds; 0 means unlimited
lease                u32        duration of a lease without a renewal in seconds
first done bucket    u64        done buckets below it, except bucket 0, are deleted
first failed bucket  u64        failed buckets below it, except bucket 0, are deleted
arguments            JSON       the arguments of the declaration
===================  =========  ==========================================================

==================  =========  ===========================================================
overrides           type       an operator's changes of a queue, which replace values of its declaration
==================  =========  ===========================================================
version             u8         1
flags               u8         1: deliveries are paused; 2: publishes are refused
paused at           i64        the time of setting the flags, ms since the epoch; 0: none
arguments           JSON       values by argument; null: as if the argument were not declared
==================  =========  ===========================================================

==================  =========  ===========================================================
queue counts        type       counters of the events of a queue; those that a record does not have are 0
==================  =========  ===========================================================
version             u8         1
created at          i64        declaration of the queue, ms since the epoch; 0 if unknown
counted since       i64        ms since the epoch
counters            u8         number of counters that follow
counter             u64 each   in the order of :data:`kombu_opendata.storage.state.queue_counters.NAMES`
==================  =========  ===========================================================

==================  =========  ===========================================================
flow                type       use of a queue's rate, and its delay; missing: all tokens are available, no delay
==================  =========  ===========================================================
version             u8         1
full at             u64        the time at which all tokens are available, ns since the epoch
delayed until       i64        nothing is delivered before it, ms since the epoch; 0: none
==================  =========  ===========================================================

==================  =========  ===========================================================
exchange            type       meaning
==================  =========  ===========================================================
type                ``Utf8``   direct, topic, fanout or headers
flags               u8         bit 0 durable, bit 1 auto delete; others are 0
arguments           JSON       the arguments of the declaration
==================  =========  ===========================================================

A binding is JSON: its arguments. The key of a binding to a headers exchange has a digest of them, as a queue may have
several such bindings with the same routing key. JSON is one object as ``Utf8``.

Source of the queue config: RFC 0001, which leaves the encoding of its FilterExpression open: here the first two
fields. The other formats are defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import field_types

_SELECTOR = b"\x01"
_LIMITS = struct.Struct("<HI")
_OPTIONS = struct.Struct("<IIQQ")
_OVERRIDES = struct.Struct("<BBq")
_COUNTS = struct.Struct("<BqqB")
_FLOW = struct.Struct("<BQq")
_EXCHANGE_FLAGS = struct.Struct("<B")
_DURABLE, _AUTO_DELETE = 1, 2
#: the flags of overrides
DELIVERIES, PUBLISHES = 1, 2


class QueueConfig(NamedTuple):
    """The RFC's part of a queue's settings."""

    filter: str
    max_attempts: int
    done_retention_seconds: int


class QueueOptionsRecord(NamedTuple):
    """The settings of a queue that the RFC does not have."""

    failed_retention_seconds: int
    lease_seconds: int
    first_done_bucket: int
    first_failed_bucket: int
    arguments: dict[str, Any]


class QueueOverrides(NamedTuple):
    """An operator's changes of one queue."""

    paused: int = 0
    paused_at_ms: int = 0
    arguments: Mapping[str, Any] = {}

    def over(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in effect: the declared ones with these in their place."""
        unchanged = {name: value for name, value in declared.items() if name not in self.arguments}
        return unchanged | {name: value for name, value in self.arguments.items() if value is not None}


#: the overrides of a queue without changes
NO_OVERRIDES = QueueOverrides()


class StoredCounts(NamedTuple):
    created_at_ms: int
    since_ms: int
    values: tuple[int, ...]


class FlowRecord(NamedTuple):
    full_at_ns: int
    delayed_until_ms: int


class ExchangeRecord(NamedTuple):
    """An exchange, without its name."""

    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]


# ---- queues
def encode_config(config: QueueConfig) -> bytes:
    limits = field_types.pack(_LIMITS, "max attempts, done retention seconds", *config[1:])
    return _SELECTOR + field_types.utf8(config.filter) + limits


def decode_config(key: bytes, value: bytes) -> QueueConfig:
    if value[:1] != _SELECTOR:
        raise field_types.corrupt(key, 0, f"filter type {value[:1].hex() or '(none)'}")
    selector, offset = field_types.read_utf8(key, value, 1)
    limits = field_types.read(_LIMITS, key, value, offset)
    field_types.check_end(key, value, offset + _LIMITS.size)
    return QueueConfig(selector, *limits)


def encode_options(options: QueueOptionsRecord) -> bytes:
    return field_types.pack(_OPTIONS, ", ".join(options._fields[:-1]), *options[:-1]) + field_types.json_utf8(
        options.arguments
    )


def decode_options(key: bytes, value: bytes) -> QueueOptionsRecord:
    numbers = field_types.read(_OPTIONS, key, value, 0)
    return QueueOptionsRecord._make((*numbers, field_types.read_last_json(key, value, _OPTIONS.size)))


def encode_overrides(overrides: QueueOverrides) -> bytes:
    head = field_types.pack_versioned(_OVERRIDES, "flags, paused at", overrides.paused, overrides.paused_at_ms)
    return head + field_types.json_utf8(dict(overrides.arguments))


def decode_overrides(key: bytes, value: bytes) -> QueueOverrides:
    flags, paused_at = field_types.read_versioned(_OVERRIDES, key, value)
    field_types.check_flags(key, 1, flags, DELIVERIES | PUBLISHES)
    return QueueOverrides(flags, paused_at, field_types.read_last_json(key, value, _OVERRIDES.size))


def encode_counts(counts: StoredCounts) -> bytes:
    head = (counts.created_at_ms, counts.since_ms, len(counts.values))
    fixed = field_types.pack_versioned(_COUNTS, "created at, counted since, counters", *head)
    return fixed + field_types.pack_column("Q", counts.values)


def decode_counts(key: bytes, value: bytes) -> StoredCounts:
    created_at_ms, since_ms, number = field_types.read_versioned(_COUNTS, key, value)
    values, end = field_types.read_column("Q", key, value, _COUNTS.size, number)
    field_types.check_end(key, value, end)
    return StoredCounts(created_at_ms, since_ms, tuple(values))


def encode_flow(flow: FlowRecord) -> bytes:
    return field_types.pack_versioned(_FLOW, "full at, delayed until", *flow)


def decode_flow(key: bytes, value: bytes) -> FlowRecord:
    return FlowRecord._make(field_types.read_all_versioned(_FLOW, key, value))


# ---- exchanges and bindings
def encode_exchange(exchange: ExchangeRecord) -> bytes:
    flags = _DURABLE * bool(exchange.durable) | _AUTO_DELETE * bool(exchange.auto_delete)
    return field_types.utf8(exchange.type) + _EXCHANGE_FLAGS.pack(flags) + field_types.json_utf8(exchange.arguments)


def decode_exchange(key: bytes, value: bytes) -> ExchangeRecord:
    kind, offset = field_types.read_utf8(key, value, 0)
    (flags,) = field_types.read(_EXCHANGE_FLAGS, key, value, offset)
    field_types.check_flags(key, offset, flags, _DURABLE | _AUTO_DELETE)
    arguments = field_types.read_last_json(key, value, offset + _EXCHANGE_FLAGS.size)
    return ExchangeRecord(kind, bool(flags & _DURABLE), bool(flags & _AUTO_DELETE), arguments)


encode_binding, decode_binding = field_types.json_utf8, field_types.read_last_json
