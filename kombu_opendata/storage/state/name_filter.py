"""Bloom filter of names: a set of hashes that takes two bytes each, and may also contain others."""

from __future__ import annotations

_BITS_PER_NAME = 16
_MIN_BITS = 20
_SHIFTS = (0, 32, 64, 96)


class NameFilter:
    """Set of names, which are hashes of 16 bytes. Of the names that it lacks, it reports one of 400 as contained.

    With more names than its capacity, it reports more of them.

    Attributes:
        count: the number of additions.
    """

    __slots__ = ("_bits", "_mask", "count")

    def __init__(self, capacity: int = 0) -> None:
        bits = 1 << max(_MIN_BITS, (_BITS_PER_NAME * capacity).bit_length())
        self._bits, self._mask = bytearray(bits >> 3), bits - 1
        self.count = 0

    def add(self, name: bytes) -> None:
        number, bits, mask = int.from_bytes(name, "little"), self._bits, self._mask
        for shift in _SHIFTS:
            place = number >> shift & mask
            bits[place >> 3] |= 1 << (place & 7)
        self.count += 1

    def __contains__(self, name: bytes) -> bool:
        number, bits, mask = int.from_bytes(name, "little"), self._bits, self._mask
        for shift in _SHIFTS:
            place = number >> shift & mask
            if not bits[place >> 3] & 1 << (place & 7):
                return False
        return True
