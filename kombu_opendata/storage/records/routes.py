"""Routes of one message: in how many queues it is still kept. Stores had them before :mod:`.routes_block` did.

======  ======  =============================
field   type    meaning
======  ======  =============================
count   u16     queues that hold the message
======  ======  =============================

They are put into blocks when a broker opens the store. The format is ours.
"""

from __future__ import annotations

from kombu_opendata.storage.records import types


def encode(count: int) -> bytes:
    """The record of a message that `count` queues hold."""
    return types.pack(types.COUNT, "count of queues", count)


def decode(key: bytes, value: bytes) -> int:
    """How many queues hold the message."""
    (count,) = types.read_all(types.COUNT, key, value)
    return int(count)
