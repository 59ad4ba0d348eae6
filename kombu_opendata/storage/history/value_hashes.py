"""Hashes of the values by which history is searched, such as a header's text, a queue, a status or a consumer.

Records are compared with the filter after a search, so a collision of hashes (64 bits) matters only for the attempts of
collected messages, whose headers were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from ..state.history_log import HeaderColumns

#: layouts of headers, after which all are forgotten
_LAYOUTS = 256
#: memory of a group besides its texts
_GROUP_BYTES = 450
#: messages in the sample that shows which headers repeat
_SAMPLE = 32
#: the most values of a header in the sample for which it counts as repeating
_REPEATING = 16

HEADER, QUEUE, SETTLED, OUTCOME, CONSUMER, STATE, EXCEPTION = b"h", b"q", b"s", b"o", b"c", b"t", b"e"


class Values(NamedTuple):
    """The hashes of a message's headers: of headers that recur together, and of the others."""

    group: tuple[int, ...]
    single: tuple[int, ...]


class Hashes:
    """Hashes of values, with a cache of those that recur.

    Args:
        max_values: entries after which the cache of values is emptied. Groups of headers, of which each message may
            have a new one, may take 64 bytes for each of these.
    """

    def __init__(self, max_values: int = 65_536) -> None:
        self._max_values, self._max_group_bytes = max_values, max_values << 6
        self._cache: dict[tuple[bytes, str, str], int] = {}
        self._layouts: dict[tuple[str, ...], _HeaderLayout] = {}
        self._group_bytes = 0  # of all layouts

    def __call__(self, kind: bytes, name: str, text: str = "") -> int:
        """Return the hash of a value: its kind, a name, and a text where the kind has one."""
        key = (kind, name, text)
        value = self._cache.get(key)
        if value is None:
            if len(self._cache) >= self._max_values:
                self._cache.clear()
            value = self._cache[key] = hash_of(kind, name, text)
        return value

    def headers(self, headers: Mapping[str, str]) -> Values:
        return self._layout(tuple(headers)).values(tuple(headers.values()))

    def columns(self, headers: HeaderColumns) -> list[Values]:
        """Return the values of each message of these columns."""
        constants, columns = headers.constants, headers.columns
        shared = [name for name in constants if name not in columns]
        names = (*shared, *columns)
        if not names:
            return [self.headers({})] * headers.rows
        rows = zip(*(repeat(constants[name]) for name in shared), *columns.values(), strict=False)
        values_of = self._layout(names).values
        return [
            values_of(texts) if None not in texts else self.headers(_present(names, texts))
            for texts in islice(rows, headers.rows)
        ]

    def _layout(self, names: tuple[str, ...]) -> _HeaderLayout:
        layout = self._layouts.get(names)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
                self._group_bytes = 0
            layout = self._layouts[names] = _HeaderLayout(names, self._count_group)
        return layout

    def _count_group(self, text_bytes: int) -> None:
        """Count a group before it is added; if the others take too much memory, forget those of all layouts."""
        if self._group_bytes >= self._max_group_bytes:
            for layout in self._layouts.values():
                layout.groups.clear()
            self._group_bytes = 0
        self._group_bytes += _GROUP_BYTES + text_bytes


def _present(names: Sequence[str], texts: Sequence[str | None]) -> dict[str, str]:
    return {name: text for name, text in zip(names, texts, strict=True) if text is not None}


class _HeaderLayout:
    """Messages with headers of these names. A sample shows the headers that repeat; these are hashed once."""

    def __init__(self, names: tuple[str, ...], count_group: Callable[[int], None]) -> None:
        self._names, self._count_group = names, count_group
        self._sample_values: list[set[int]] | None = [set() for _ in names]
        self._sampled = 0
        self.groups: dict[Any, tuple[int, ...]] = {}
        self._repeating: list[int] = []
        self._single: list[tuple[int, bytes]] = []  # place of the header, prefix of the hashed text
        self._repeating_of: Callable[[Sequence[str]], Any] = len

    def values(self, texts: tuple[str, ...]) -> Values:
        if self._sample_values is not None:
            return self._sample(self._sample_values, texts)
        groups = self.groups
        key = self._repeating_of(texts)
        group = groups.get(key)
        if group is None:
            self._count_group(sum(map(len, texts)))
            group = groups[key] = tuple(hash_of(HEADER, self._names[at], texts[at]) for at in self._repeating)
        single = [
            int.from_bytes(blake2b(prefix + texts[at].encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
            for at, prefix in self._single
        ]
        return Values(group, tuple(single))

    def _sample(self, sample: list[set[int]], texts: tuple[str, ...]) -> Values:
        for values, text in zip(sample, texts, strict=True):
            values.add(hash(text))  # a text may have 64 KiB
        self._sampled += 1
        if self._sampled >= _SAMPLE:
            self._decide(sample)
        hashes = zip(self._names, texts, strict=True)
        return Values((), tuple(hash_of(HEADER, name, text) for name, text in hashes))

    def _decide(self, sample: list[set[int]]) -> None:
        self._sample_values = None
        self._repeating = [at for at, texts in enumerate(sample) if len(texts) <= _REPEATING]
        others = ((at, name) for at, name in enumerate(self._names) if at not in self._repeating)
        self._single = [(at, _prefix(HEADER, name)) for at, name in others]
        if self._repeating:
            self._repeating_of = itemgetter(*self._repeating)


def hash_of(kind: bytes, name: str, text: str = "") -> int:
    """Return the hash of a value; the length separates name and text."""
    data = _prefix(kind, name) + text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _prefix(kind: bytes, name: str) -> bytes:
    raw = name.encode("utf-8", "surrogatepass")
    return b"%c%d:%b" % (kind, len(raw), raw)


def message_hash(id: int) -> int:
    """Return the hash of an attempt's message: different for each id, and evenly distributed."""
    return (id + 1) * 0x9E37_79B9_7F4A_7C15 & 0xFFFF_FFFF_FFFF_FFFF
