"""Producer: the last publish of a producer's session, so that a repeated one is recognized.

=================  ======  ====================================================
field              type    meaning
=================  ======  ====================================================
last sequence      u64     the producer's number of its last stored publish
last message id    u64     what that publish was answered with
last queues        u32     to how many queues it went
at                 i64     when it was stored, ms since the epoch
=================  ======  ====================================================

The format is ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kombu_opendata.storage.records import types

_PRODUCER = struct.Struct("<QQIq")


class Producer(NamedTuple):
    """The last publish of a session."""

    last_sequence: int
    last_message_id: int
    last_queues: int
    at_ms: int


_FIELDS = ", ".join(Producer._fields)


def encode(producer: Producer) -> bytes:
    """The record of `producer`; a plain tuple of the same fields will do."""
    return types.pack(_PRODUCER, _FIELDS, *producer)


def decode(key: bytes, value: bytes) -> Producer:
    """The producer in `value`."""
    return Producer(*types.read_all(_PRODUCER, key, value))
