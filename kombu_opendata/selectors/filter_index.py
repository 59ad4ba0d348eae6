"""Index of filters, which finds those that match a message without evaluating all of them.

A filter is indexed under keys of which a message must meet at least one (:mod:`.required_conditions`). A message is
looked up by its headers, and only the filters under the keys that it meets are evaluated. Filters under one key that
read the same few headers form a *group*, whose result is cached for the values of these headers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from .compiler import Headers
from .language import number_of
from .required_conditions import EXISTS, NUMBER, PREFIX, RANGE, SUFFIX, TEXT, LookupKey, required_keys
from .selector import Selector

#: cost of a key without filters: an estimate of the number of messages that meet keys of its kind
_COSTS = {TEXT: 1.0, NUMBER: 1.1, PREFIX: 2.0, SUFFIX: 2.0, RANGE: 4.0, EXISTS: 50.0}
#: estimated share of a header's ranges that contain a number
_RANGE_SHARE = 0.1


class FilterIndex:
    """Filters by name, indexed to find those that match a message."""

    def __init__(self) -> None:
        self._selectors: dict[str, Selector] = {}
        self._keys: dict[str, list[LookupKey] | None] = {}
        self._headers: dict[str, _Slot] = {}
        self._always = FilterBucket()

    def __len__(self) -> int:
        return len(self._selectors)

    def add(self, name: str, selector: Selector) -> None:
        """Add a filter to the index; it replaces one with the same name."""
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
        """Remove a filter, if there is one with this name."""
        if self._selectors.pop(name, None) is None:
            return
        self._always.remove(name)
        for key in self._keys.pop(name) or ():
            slot = self._headers[key.header]
            slot.remove(key, name)
            if slot.is_empty:
                del self._headers[key.header]

    def matching(self, headers: Headers) -> list[str]:
        """Return the names of the filters that match these headers, each once."""
        names: dict[str, None] = {}
        slots = self._headers
        if len(slots) < len(headers):
            for name, slot in slots.items():
                text = headers.get(name)
                if text is not None:
                    slot.ask(text, headers, names)
        else:
            for name, text in headers.items():
                met = slots.get(name)
                if met is not None:
                    met.ask(text, headers, names)
        if self._always.selectors:
            self._always.ask(headers, names)
        return list(names)

    def _cost(self, key: LookupKey) -> float:
        slot = self._headers.get(key.header)
        return _COSTS[key.kind] + (slot.filed(key) if slot is not None else 0)


class _Slot:
    """Filters under keys of one header."""

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
        return not (tables or self.ranges.filed or self.existence.selectors)

    def filed(self, key: LookupKey) -> float:
        """Return the approximate number of filters that must be evaluated for a message that meets the key."""
        if key.kind == EXISTS:
            return len(self.existence.selectors)
        if key.kind == RANGE:
            return _RANGE_SHARE * len(self.ranges.filed)
        by_length = self.prefixes if key.kind == PREFIX else self.suffixes
        exact = key.kind in (TEXT, NUMBER)
        table: dict[Any, FilterBucket] = self._table(key) if exact else by_length.get(len(str(key.value)), {})
        bucket = table.get(key.value)
        return 0 if bucket is None else len(bucket.selectors)

    def ask(self, text: str, headers: Headers, found: dict[str, None]) -> None:
        """Add the names of the filters that match a message whose header has this text."""
        bucket = self.texts.get(text)
        if bucket is not None:
            bucket.ask(headers, found)
        for length, table in self.prefixes.items():
            bucket = table.get(text[:length])
            if bucket is not None:
                bucket.ask(headers, found)
        for length, table in self.suffixes.items():
            bucket = table.get(text[-length:])
            if bucket is not None:
                bucket.ask(headers, found)
        if self.numbers or self.ranges.filed:
            number = number_of(text)
            if number is not None:
                bucket = self.numbers.get(number)
                if bucket is not None:
                    bucket.ask(headers, found)
                if self.ranges.filed:
                    self.ranges.at(number).ask(headers, found)
        if self.existence.selectors:
            self.existence.ask(headers, found)


#: number of filters below which evaluation is faster than a look-up of their result
_GROUP_SIZE = 8
_GROUP_HEADERS = 3
#: limit for the results that a group caches, and for the characters of the values of one result
_REMEMBERED = 256
_REMEMBERED_LENGTH = 256
#: limit for the entries of the table of ranges for each range; above that, all ranges are evaluated each time
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

    def ask(self, headers: Headers, found: dict[str, None]) -> None:
        """Add the names of the filters that match."""
        single = self._single
        if single is None:
            single = self._arrange()
        for name, selector in single:
            if selector.matches(headers):
                found[name] = None
        for group in self._groups:
            found.update(dict.fromkeys(group.ask(headers)))

    def _arrange(self) -> list[tuple[str, Selector]]:
        single: list[tuple[str, Selector]] = []
        alike: dict[frozenset[str], list[tuple[str, Selector]]] = {}
        for item in self.selectors.items():
            alike.setdefault(item[1].names, []).append(item)
        self._groups = []
        for names, items in alike.items():
            if len(items) >= _GROUP_SIZE and len(names) <= _GROUP_HEADERS:
                self._groups.append(_Group(names, items))
            else:
                single += items
        self._single = single
        return single


class _Group:
    """Filters that read the same few headers, and their results for the values of these headers."""

    __slots__ = ("_answers", "_hits", "_items", "_misses", "_names")

    def __init__(self, names: Iterable[str], items: list[tuple[str, Selector]]) -> None:
        self._names = tuple(names)
        self._items = items
        self._answers: dict[tuple[str | None, ...], tuple[str, ...]] | None = {}
        self._hits = self._misses = 0

    def ask(self, headers: Headers) -> tuple[str, ...]:
        answers = self._answers
        if answers is None:
            return self._evaluate(headers)
        values = tuple(map(headers.get, self._names))
        answer = answers.get(values)
        if answer is not None:
            self._hits += 1
            return answer
        self._misses += 1
        answer = self._evaluate(headers)
        if sum(len(value) for value in values if value is not None) <= _REMEMBERED_LENGTH:
            if len(answers) >= _REMEMBERED:
                answers.clear()
                if self._hits < self._misses:  # a header that is always different, such as a task's id
                    self._answers = None
                self._hits = self._misses = 0
            answers[values] = answer
        return answer

    def _evaluate(self, headers: Headers) -> tuple[str, ...]:
        return tuple([name for name, selector in self._items if selector.matches(headers)])


class Ranges:
    """Filters by ranges of numbers, for the look-up of those whose range includes a number.

    The ends of all ranges divide the numbers into points and the gaps between them; each has a bucket with the ranges
    that include it. If ranges overlap so much that this table would be large, one bucket has all of them.
    """

    __slots__ = ("_buckets", "_points", "filed")

    def __init__(self) -> None:
        self.filed: dict[tuple[tuple[float, float], str], Selector] = {}
        self._points: list[float] = []
        self._buckets: list[FilterBucket] | None = None  # gap, point, gap, point, …, gap; None: not built yet

    def add(self, ends: tuple[float, float], name: str, selector: Selector) -> None:
        self.filed[ends, name] = selector
        self._buckets = None

    def remove(self, ends: tuple[float, float], name: str) -> None:
        self.filed.pop((ends, name), None)
        self._buckets = None

    def at(self, number: float) -> FilterBucket:
        """Return the filters that may match this number."""
        buckets = self._arrange() if self._buckets is None else self._buckets
        return buckets[self._place(number) if len(buckets) > 1 else 0]

    def _place(self, number: float) -> int:
        at = bisect_left(self._points, number)
        return 2 * at + (at < len(self._points) and self._points[at] == number)

    def _arrange(self) -> list[FilterBucket]:
        finite = {end for ends, _name in self.filed for end in ends if abs(end) != float("inf")}
        self._points = sorted(finite)
        places = [(self._place(low), self._place(high)) for (low, high), _name in self.filed]
        if sum(max(0, last - first + 1) for first, last in places) > _MAX_COVER * len(places):
            places = [(0, 0)] * len(places)
            self._points = []
        self._buckets = buckets = [FilterBucket() for _ in range(2 * len(self._points) + 1)]
        for ((_ends, name), selector), (first, last) in zip(self.filed.items(), places, strict=True):
            for place in range(first, last + 1):
                buckets[place].add(name, selector)
        return buckets
