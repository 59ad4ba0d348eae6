"""The rows of a scan in one block of memory, for readers that need no object for each key and value."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[bytes, bytes]

#: bytes between a key and its value
GAP = 4
#: the fewest bytes that follow the last value
TAIL = 4


#: Consecutive rows whose keys and whose values have the same length: the offset of the first value, the distance
#: to the next one, the length of a key (it ends ``GAP`` bytes before its value), the length of a value, the number of
#: rows. A plain tuple, as there may be one for each row.
Run = tuple[int, int, int, int, int]


class Rows:
    """Keys and values, in the order of the keys.

    Attributes:
        data: all keys and values, with other bytes in between; at least ``TAIL`` bytes follow the last value.
        runs: the places of the rows in ``data``.
    """

    __slots__ = ("_count", "data", "runs")

    def __init__(self, data: bytes, runs: Sequence[Run], count: int) -> None:
        self.data = data
        self.runs = runs
        self._count = count

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Rows:
        """Build rows of these pairs."""
        parts: list[bytes] = []
        runs: list[Run] = []
        at = 0
        for key, value in pairs:
            parts += key, _FILL, value
            at += len(key) + GAP
            runs.append((at, 0, len(key), len(value), 1))
            at += len(value)
        return cls(b"".join((*parts, bytes(TAIL))), runs, len(runs))

    def __len__(self) -> int:
        return self._count

    @property
    def last_key(self) -> bytes:
        start, step, key, _value, count = self.runs[-1]
        end = start + step * (count - 1) - GAP
        return self.data[end - key : end]

    def pairs(self) -> list[Pair]:
        """Return each key and value."""
        data = self.data
        pairs: list[Pair] = []
        for start, step, key, value, count in self.runs:
            if count == 1:
                pairs.append((data[start - GAP - key : start - GAP], data[start : start + value]))
            else:
                places = range(start, start + step * count, step)
                pairs += [(data[at - GAP - key : at - GAP], data[at : at + value]) for at in places]
        return pairs


_FILL = bytes(GAP)
