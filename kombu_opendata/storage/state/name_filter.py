"""Bloom filter of names: a set of hashes that takes two bytes each, and may also contain others."""

from __future__ import annotations

_BITS_PER_NAME = 16
_MIN_BITS = 20
_SHIFTS = (0, 32, 64, 96)


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

    def add(self, name: bytes) -> None:
        if not self._room:
            self._full.append((self._bits, self._mask))
            self._grow(2 * (self._mask + 1))
        number, bits, mask = int.from_bytes(name, "little"), self._bits, self._mask
        for shift in _SHIFTS:
            place = number >> shift & mask
            bits[place >> 3] |= 1 << (place & 7)
        self._room -= 1
        self.count += 1

    def __contains__(self, name: bytes) -> bool:
        number, bits, mask = int.from_bytes(name, "little"), self._bits, self._mask
        for shift in _SHIFTS:
            place = number >> shift & mask
            if not bits[place >> 3] & 1 << (place & 7):
                return bool(self._full) and self._is_in_full(number)
        return True

    def _is_in_full(self, number: int) -> bool:
        return any(
            all(bits[(number >> shift & mask) >> 3] & 1 << (number >> shift & 7) for shift in _SHIFTS)
            for bits, mask in self._full
        )
