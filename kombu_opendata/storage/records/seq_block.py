"""Sequence block: the message ids that the allocator may use.

==============  ================  ===========================================
field           type              meaning
==============  ================  ===========================================
base sequence   u64 big endian    the first id of the block
block size      u64 big endian    the number of ids in the block
==============  ================  ===========================================

Source: OpenData-Log, to which RFC 0001 refers. The only value with big endian integers.
"""

from __future__ import annotations

import struct

from . import types

_BLOCK = struct.Struct(">QQ")


def encode(base: int, size: int) -> bytes:
    """Encode the block of `size` ids from `base` on."""
    return types.pack(_BLOCK, "base sequence, block size", base, size)


def decode(key: bytes, value: bytes) -> tuple[int, int]:
    """Decode (base sequence, block size)."""
    base, size = types.read_all(_BLOCK, key, value)
    return base, size
