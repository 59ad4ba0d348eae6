"""Buckets of filters under the same key; they cache results, so that not every filter is evaluated each time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from .compiler import Headers
from .selector import Selector

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
