"""Attempts: the consumers that claimed a message, in the order of the claims.

===========  ==================  =========================================
field        type                meaning
===========  ==================  =========================================
attempts     ``Array<Utf8>``     consumer ids, earliest claim first
===========  ==================  =========================================

Source: RFC 0001, which leaves the type of a consumer id open: here ``Utf8``.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import types


def encode(consumers: Sequence[str]) -> bytes:
    """Encode the claims of one message."""
    return types.array_count(len(consumers), "attempts") + b"".join(map(types.utf8, consumers))


def decode(key: bytes, value: bytes) -> list[str]:
    """Decode the consumer ids, earliest claim first."""
    consumers, end = types.read_texts(key, value, 0)
    types.check_end(key, value, end)
    return consumers
