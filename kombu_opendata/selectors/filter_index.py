"""Index of filters, to find the filters that match a message without the evaluation of all.

A filter matches only messages that meet at least one of its keys (:mod:`.required_conditions`), and the index stores
the filter under each of these keys. The headers of a message select the keys that the message meets; only the filters
under these keys are evaluated. Filters under one key that read the same few headers form a *group*, whose result is
cached by the values of these headers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from .compiler import Headers
from .language import number_of
from .required_conditions import EXISTS, NUMBER, PREFIX, RANGE, SUFFIX, TEXT, LookupKey, required_keys
from .selector import Selector

#: cost of a key under which no filter is stored yet: a relative estimate of how many messages meet keys of its kind
_COSTS = {TEXT: 1.0, NUMBER: 1.1, PREFIX: 2.0, SUFFIX: 2.0, RANGE: 4.0, EXISTS: 50.0}
#: estimated share of a header's ranges that contain a number
_RANGE_SHARE = 0.1


class FilterIndex:
    """Filters by name, with an index to find those that match a message."""

    def __init__(self) -> None:
        self._selectors: dict[str, Selector] = {}
        self._keys: dict[str, list[LookupKey] | None] = {}
        self._headers: dict[str, _Slot] = {}
        self._always = FilterBucket()

    def __len__(self) -> int:
        return len(self._selectors)

    def add(self, name: str, selector: Selector) -> None:
        """Add a filter to the index; replace a filter with the same name."""
        self.remove(name)
        lookup_keys = required_keys(selector.condition, self._cost)
        if lookup_keys is not None:
            lookup_keys = list(dict.fromkeys(lookup_keys))  # IN ('a', 'a') has one key
        self._selectors[name] = selector
        self._keys[name] = lookup_keys
        if lookup_keys is None:
            self._always.add(name, selector)
        for key in lookup_keys or ():
            self._headers.setdefault(key.header, _Slot()).add(key, name, selector)

    def remove(self, name: str) -> None:
        if self._selectors.pop(name, None) is None:
            return
        self._always.remove(name)
        for key in self._keys.pop(name) or ():
            slot = self._headers[key.header]
            slot.remove(key, name)
            if slot.is_empty:
                del self._headers[key.header]

    def matching(self, headers: Headers) -> list[str]:
        """Return the names of the filters that match these headers, without duplicates."""
        names: dict[str, None] = {}
        slots = self._headers
        if len(slots) < len(headers):
            for name, slot in slots.items():
                text = headers.get(name)
                if text is not None:
                    slot.collect(text, headers, names)
        else:
            for name, text in headers.items():
                header_slot = slots.get(name)
                if header_slot is not None:
                    header_slot.collect(text, headers, names)
        if self._always.selectors:
            self._always.collect(headers, names)
        return list(names)

    def _cost(self, key: LookupKey) -> float:
        slot = self._headers.get(key.header)
        return _COSTS[key.kind] + (slot.size(key) if slot is not None else 0)


class _Slot:
    """Filters under the keys of one header."""

    __slots__ = ("existence", "numbers", "prefixes", "ranges", "suffixes", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, FilterBucket] = {}
        self.numbers: dict[int | float, FilterBucket] = {}
        self.prefixes: dict[int, dict[str, FilterBucket]] = {}  # by length
        self.suffixes: dict[int, dict[str, FilterBucket]] = {}
        self.ranges = Ranges()
        self.existence = FilterBucket()

    def _table(self, key: LookupKey) -> dict[Any, FilterBucket]:
        if key.kind == NUMBER:
            return self.numbers
        if key.kind == TEXT:
            return self.texts
        by_length = self.prefixes if key.kind == PREFIX else self.suffixes
        return by_length.setdefault(len(str(key.value)), {})

    def add(self, key: LookupKey, name: str, selector: Selector) -> None:
        if key.kind == EXISTS:
            self.existence.add(name, selector)
        elif isinstance(key.value, tuple):
            self.ranges.add(key.value, name, selector)
        else:
            self._table(key).setdefault(key.value, FilterBucket()).add(name, selector)

    def remove(self, key: LookupKey, name: str) -> None:
        if key.kind == EXISTS:
            self.existence.remove(name)
        elif isinstance(key.value, tuple):
            self.ranges.remove(key.value, name)
        else:
            table = self._table(key)
            bucket = table[key.value]
            bucket.remove(name)
            if not bucket.selectors:
                del table[key.value]
                if not table and key.kind in (PREFIX, SUFFIX):
                    del (self.prefixes if key.kind == PREFIX else self.suffixes)[len(str(key.value))]

    @property
    def is_empty(self) -> bool:
        tables = self.texts or self.numbers or self.prefixes or self.suffixes
        return not (tables or self.ranges.selectors or self.existence.selectors)

    def size(self, key: LookupKey) -> float:
        """Return the approximate number of filters that must be evaluated for a message that meets the key."""
        if key.kind == EXISTS:
            return len(self.existence.selectors)
        if key.kind == RANGE:
            return _RANGE_SHARE * len(self.ranges.selectors)
        by_length = self.prefixes if key.kind == PREFIX else self.suffixes
        exact = key.kind in (TEXT, NUMBER)
        table: dict[Any, FilterBucket] = self._table(key) if exact else by_length.get(len(str(key.value)), {})
        bucket = table.get(key.value)
        return 0 if bucket is None else len(bucket.selectors)

    def collect(self, text: str, headers: Headers, names: dict[str, None]) -> None:
        """Add the names of the filters that match a message whose header has this text."""
        bucket = self.texts.get(text)
        if bucket is not None:
            bucket.collect(headers, names)
        for length, table in self.prefixes.items():
            bucket = table.get(text[:length])
            if bucket is not None:
                bucket.collect(headers, names)
        for length, table in self.suffixes.items():
            bucket = table.get(text[-length:])
            if bucket is not None:
                bucket.collect(headers, names)
        if self.numbers or self.ranges.selectors:
            number = number_of(text)
            if number is not None:
                bucket = self.numbers.get(number)
                if bucket is not None:
                    bucket.collect(headers, names)
                if self.ranges.selectors:
                    self.ranges.at(number).collect(headers, names)
        if self.existence.selectors:
            self.existence.collect(headers, names)


#: minimum number of filters in a group; evaluation of fewer is faster than the look-up of their result
_GROUP_SIZE = 8
_GROUP_HEADERS = 3
#: limit for the results that a group caches, and for the characters of the header values to which a result belongs
_MAX_RESULTS = 256
_MAX_RESULT_LENGTH = 256
#: limit for the average number of table entries for a range; above it, all ranges are evaluated for each message
_MAX_COVER = 64


class FilterBucket:
    """Filters under one key."""

    __slots__ = ("_groups", "_single", "selectors")

    def __init__(self) -> None:
        self.selectors: dict[str, Selector] = {}
        self._single: list[tuple[str, Selector]] | None = None
        self._groups: list[_Group] = []

    def add(self, name: str, selector: Selector) -> None:
        self.selectors[name] = selector
        self._single = None

    def remove(self, name: str) -> None:
        self.selectors.pop(name, None)
        self._single = None

    def collect(self, headers: Headers, names: dict[str, None]) -> None:
        single = self._single
        if single is None:
            single = self._arrange()
        for name, selector in single:
            if selector.matches(headers):
                names[name] = None
        for group in self._groups:
            names.update(dict.fromkeys(group.matching(headers)))

    def _arrange(self) -> list[tuple[str, Selector]]:
        single: list[tuple[str, Selector]] = []
        by_headers: dict[frozenset[str], list[tuple[str, Selector]]] = {}
        for item in self.selectors.items():
            by_headers.setdefault(item[1].names, []).append(item)
        self._groups = []
        for names, items in by_headers.items():
            if len(items) >= _GROUP_SIZE and len(names) <= _GROUP_HEADERS:
                self._groups.append(_Group(names, items))
            else:
                single += items
        self._single = single
        return single


class _Group:
    """Filters that read the same few headers, and their results for the values of these headers."""

    __slots__ = ("_hits", "_items", "_misses", "_names", "_results")

    def __init__(self, names: Iterable[str], items: list[tuple[str, Selector]]) -> None:
        self._names = tuple(names)
        self._items = items
        self._results: dict[tuple[str | None, ...], tuple[str, ...]] | None = {}
        self._hits = self._misses = 0

    def matching(self, headers: Headers) -> tuple[str, ...]:
        results = self._results
        if results is None:
            return self._evaluate(headers)
        values = tuple(map(headers.get, self._names))
        result = results.get(values)
        if result is not None:
            self._hits += 1
            return result
        self._misses += 1
        result = self._evaluate(headers)
        if sum(len(value) for value in values if value is not None) <= _MAX_RESULT_LENGTH:
            if len(results) >= _MAX_RESULTS:
                results.clear()
                if self._hits < self._misses:  # a header that is always different, such as a task's id
                    self._results = None
                self._hits = self._misses = 0
            results[values] = result
        return result

    def _evaluate(self, headers: Headers) -> tuple[str, ...]:
        return tuple([name for name, selector in self._items if selector.matches(headers)])


class Ranges:
    """Filters by ranges of numbers, for the look-up of the ranges that include a number.

    The ends of all ranges divide the numbers into points and the gaps between them. Each point and each gap has a
    bucket with the ranges that include it. If ranges overlap so much that this table would be large, a single bucket
    has all ranges.
    """

    __slots__ = ("_buckets", "_points", "selectors")

    def __init__(self) -> None:
        self.selectors: dict[tuple[tuple[float, float], str], Selector] = {}
        self._points: list[float] = []
        self._buckets: list[FilterBucket] | None = None  # gap, point, gap, point, …, gap; None: not built yet

    def add(self, ends: tuple[float, float], name: str, selector: Selector) -> None:
        self.selectors[ends, name] = selector
        self._buckets = None

    def remove(self, ends: tuple[float, float], name: str) -> None:
        self.selectors.pop((ends, name), None)
        self._buckets = None

    def at(self, number: float) -> FilterBucket:
        """Return the filters that may match this number."""
        buckets = self._arrange() if self._buckets is None else self._buckets
        return buckets[self._place(number) if len(buckets) > 1 else 0]

    def _place(self, number: float) -> int:
        at = bisect_left(self._points, number)
        return 2 * at + (at < len(self._points) and self._points[at] == number)

    def _arrange(self) -> list[FilterBucket]:
        finite = {end for ends, _name in self.selectors for end in ends if abs(end) != float("inf")}
        self._points = sorted(finite)
        places = [(self._place(low), self._place(high)) for (low, high), _name in self.selectors]
        if sum(max(0, last - first + 1) for first, last in places) > _MAX_COVER * len(places):
            places = [(0, 0)] * len(places)
            self._points = []
        self._buckets = buckets = [FilterBucket() for _ in range(2 * len(self._points) + 1)]
        for ((_ends, name), selector), (first, last) in zip(self.selectors.items(), places, strict=True):
            for place in range(first, last + 1):
                buckets[place].add(name, selector)
        return buckets
