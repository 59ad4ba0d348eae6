"""Which of many selectors are true of a message, without asking each of them.

A selector is filed under the keys of which a message must meet one (:mod:`.needs`); a message is looked up by its
headers, and only what it meets is evaluated. Selectors under one key that read the same few headers are a *group*,
whose answer is remembered for the values of these headers.
"""

from __future__ import annotations

from collections.abc import Iterable

from .compiler import Headers
from .needs import NUMBER, PREFIX, TEXT, THERE, Key, needs
from .selector import Selector
from .values import number_of

#: fewer selectors are evaluated faster than their answer is looked up
_GROUP_SIZE = 8
_GROUP_HEADERS = 3
#: answers that a group remembers, and how long the values may be together, in characters
_REMEMBERED = 256
_REMEMBERED_LENGTH = 256
#: what a key of a kind costs when nothing is filed under it yet: it lets pass more or less
_COSTS = {TEXT: 1.0, NUMBER: 1.1, PREFIX: 2.0, THERE: 50.0}


class FilterIndex:
    """Selectors by name."""

    def __init__(self) -> None:
        self._selectors: dict[str, Selector] = {}
        self._keys: dict[str, list[Key] | None] = {}
        self._headers: dict[str, _Slot] = {}
        self._always = _Bucket()

    def __len__(self) -> int:
        return len(self._selectors)

    def __contains__(self, name: str) -> bool:
        return name in self._selectors

    def add(self, name: str, selector: Selector) -> None:
        """File a selector; one of that name is replaced."""
        self.remove(name)
        found = needs(selector.condition, self._cost)
        self._selectors[name] = selector
        self._keys[name] = found
        for bucket in self._buckets(found):
            bucket.add(name, selector)

    def remove(self, name: str) -> None:
        """Forget a selector, if there is one of that name."""
        if self._selectors.pop(name, None) is None:
            return
        found = self._keys.pop(name)
        for bucket in self._buckets(found):
            bucket.remove(name)
        for key in found or ():
            slot = self._headers.get(key.header)
            if slot is not None and slot.drop(key):
                del self._headers[key.header]

    def matching(self, headers: Headers) -> list[str]:
        """The names of the selectors that are true of these headers, each once."""
        found: dict[str, None] = {}
        slots = self._headers
        if len(slots) < len(headers):
            for name, slot in slots.items():
                text = headers.get(name)
                if text is not None:
                    slot.ask(text, headers, found)
        else:
            for name, text in headers.items():
                met = slots.get(name)
                if met is not None:
                    met.ask(text, headers, found)
        if self._always.selectors:
            self._always.ask(headers, found)
        return list(found)

    def _buckets(self, found: list[Key] | None) -> list[_Bucket]:
        if found is None:
            return [self._always]
        return [self._headers.setdefault(key.header, _Slot()).bucket(key) for key in found]

    def _cost(self, key: Key) -> float:
        slot = self._headers.get(key.header)
        return _COSTS[key.kind] + (slot.filed(key) if slot is not None else 0)


class _Slot:
    """What is filed under keys of one header."""

    __slots__ = ("numbers", "prefixes", "texts", "there")

    def __init__(self) -> None:
        self.texts: dict[str | int | float, _Bucket] = {}
        self.numbers: dict[str | int | float, _Bucket] = {}
        self.prefixes: dict[int, dict[str | int | float, _Bucket]] = {}  # by their length
        self.there = _Bucket()

    def _table(self, key: Key) -> dict[str | int | float, _Bucket]:
        if key.kind == PREFIX:
            return self.prefixes.setdefault(len(str(key.value)), {})
        return self.texts if key.kind == TEXT else self.numbers

    def bucket(self, key: Key) -> _Bucket:
        return self.there if key.kind == THERE else self._table(key).setdefault(key.value, _Bucket())

    def filed(self, key: Key) -> int:
        """How many selectors are filed under a key."""
        if key.kind == THERE:
            return len(self.there.selectors)
        tables = self.prefixes.get(len(str(key.value)), {}) if key.kind == PREFIX else self._table(key)
        bucket = tables.get(key.value)
        return 0 if bucket is None else len(bucket.selectors)

    def drop(self, key: Key) -> bool:
        """Forget an empty bucket; returns whether nothing is left."""
        if key.kind != THERE:
            table = self._table(key)
            bucket = table.get(key.value)
            if bucket is not None and not bucket.selectors:
                del table[key.value]
            if key.kind == PREFIX and not table:
                del self.prefixes[len(str(key.value))]
        return not (self.texts or self.numbers or self.prefixes or self.there.selectors)

    def ask(self, text: str, headers: Headers, found: dict[str, None]) -> None:
        bucket = self.texts.get(text)
        if bucket is not None:
            bucket.ask(headers, found)
        for length, table in self.prefixes.items():
            bucket = table.get(text[:length])
            if bucket is not None:
                bucket.ask(headers, found)
        if self.numbers:
            number = number_of(text)
            bucket = None if number is None else self.numbers.get(number)
            if bucket is not None:
                bucket.ask(headers, found)
        if self.there.selectors:
            self.there.ask(headers, found)


class _Bucket:
    """What is filed under one key."""

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
        """Add the names of those that are true."""
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
    """Selectors that read the same few headers, and their answers for the values of these headers."""

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
                if self._hits < self._misses:  # a header that is never the same, such as a task's id
                    self._answers = None
                self._hits = self._misses = 0
            answers[values] = answer
        return answer

    def _evaluate(self, headers: Headers) -> tuple[str, ...]:
        return tuple([name for name, selector in self._items if selector.matches(headers)])
