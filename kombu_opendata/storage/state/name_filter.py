"""Bloom filter of names: a set of hashes that takes two bytes each, and may also contain others."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_BITS_PER_NAME = 16
_MIN_BITS = 20
_words_of = struct.Struct("<4I").unpack


class NameFilter:
    """Set of names, which are hashes of 16 bytes. Of the names that it lacks, it reports one of 400 as contained.

    With more names than its capacity, it continues in larger bits beside the full ones. Else it would soon report each
    name as contained, and each new key would be read from the store.

    Attributes:
        count: the number of additions.
    """

    __slots__ = ("_bits", "_full", "_mask", "_room", "count")

    def __init__(self, capacity: int = 0) -> None:
        self._full: list[tuple[bytearray, int]] = []
        self.count = 0
        self._grow(1 << max(_MIN_BITS, (_BITS_PER_NAME * capacity).bit_length()))

    def _grow(self, size: int) -> None:
        self._bits, self._mask, self._room = bytearray(size >> 3), size - 1, size // _BITS_PER_NAME

    def add(self, name: bytes) -> bool:
        """Add a name; return True if the set surely lacked it."""
        if not self._room:
            self._full.append((self._bits, self._mask))
            self._grow(2 * (self._mask + 1))
        bits, mask, is_new = self._bits, self._mask, False
        for word in _words_of(name):
            place, bit = (word & mask) >> 3, 1 << (word & 7)
            byte = bits[place]
            if not byte & bit:
                bits[place] = byte | bit
                is_new = True
        self._room -= 1
        self.count += 1
        return is_new and not self._full

    def __contains__(self, name: bytes) -> bool:
        words = _words_of(name)
        if _has(self._bits, self._mask, words):
            return True
        return bool(self._full) and any(_has(*full, words) for full in self._full)


def _has(bits: bytearray, mask: int, words: Iterable[int]) -> bool:
    for word in words:
        place = word & mask
        if not bits[place >> 3] & 1 << (place & 7):
            return False
    return True
