"""Matching of LIKE patterns without regular expressions, in linear time for every pattern.

The ``%`` of a pattern divide it into segments. The first one is anchored at the beginning, the last one at the end.
Each segment between them is matched at its first occurrence. That is always correct, because it leaves the longest
remainder of the text for the next segments. The search for a segment uses :meth:`str.find` or, if the segment has a
``_``, the "shift-and" algorithm of Baeza-Yates and Gonnet: one bit per character of the segment, shifted along the
text.
"""

from __future__ import annotations

from collections.abc import Callable

#: a character, or None for any character
Part = str | None
Matcher = Callable[[str], bool]


def compile_like(pattern: str, escape: str = "") -> Matcher:
    """Return a function that returns True if a text matches the pattern."""
    segments = _segments(pattern, escape)
    if len(segments) == 1:
        return _exact(segments[0])
    if all(None not in segment for segment in segments) and not any(segments[1:-1]):
        return _around("".join(map(str, segments[0])), "".join(map(str, segments[-1])))
    return _general(segments)


def is_scan(pattern: str, escape: str = "") -> bool:
    """Return True for a pattern with a ``_`` between two ``%``, which takes a step for each character of the text."""
    return any(None in segment for segment in _segments(pattern, escape)[1:-1])


def constant_prefix(pattern: str, escape: str = "") -> tuple[str, bool]:
    """Return the beginning of every matching text, and True if that is the whole text."""
    segments = _segments(pattern, escape)
    first = segments[0]
    end = first.index(None) if None in first else len(first)
    return "".join(map(str, first[:end])), len(segments) == 1 and end == len(first)


def constant_suffix(pattern: str, escape: str = "") -> str:
    """Return the end of every matching text."""
    last = _segments(pattern, escape)[-1]
    begin = len(last) - last[::-1].index(None) if None in last else 0
    return "".join(map(str, last[begin:]))


def _segments(pattern: str, escape: str) -> list[list[Part]]:
    segments: list[list[Part]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            segments[-1].append(next(characters, escape))
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(None if character == "_" else character)
    return segments


def _exact(segment: list[Part]) -> Matcher:
    size, at_start = len(segment), _here(segment)
    if None not in segment:
        return "".join(map(str, segment)).__eq__
    return lambda text: len(text) == size and at_start(text, 0)


def _around(first: str, last: str) -> Matcher:
    """Return a matcher of ``first%last``."""
    if not first:
        return (lambda text: text.endswith(last)) if last else (lambda text: True)
    if not last:
        return lambda text: text.startswith(first)
    size = len(first) + len(last)
    return lambda text: len(text) >= size and text.startswith(first) and text.endswith(last)


def _general(segments: list[list[Part]]) -> Matcher:
    first, *middle, last = segments
    at_start, at_end = _here(first), _here(last)
    searches = [(_finder(segment), len(segment)) for segment in middle if segment]
    begin, tail = len(first), len(last)

    def matches(text: str) -> bool:
        limit = len(text) - tail
        if begin > limit or not at_start(text, 0) or not at_end(text, limit):
            return False
        position = begin
        for find, size in searches:
            position = find(text, position, limit)
            if position < 0:
                return False
            position += size
        return True

    return matches


def _here(segment: list[Part]) -> Callable[[str, int], bool]:
    """Return a function that tests for the segment at a position; the text must be long enough."""
    runs = []
    at = 0
    while at < len(segment):
        end = at
        while end < len(segment) and segment[end] is not None:
            end += 1
        if end > at:
            runs.append((at, "".join(map(str, segment[at:end]))))
        at = end + 1
    return lambda text, position: all(text.startswith(run, position + offset) for offset, run in runs)


def _finder(segment: list[Part]) -> Callable[[str, int, int], int]:
    """Return a function that finds the first occurrence of the segment in ``text[position:limit]``; -1 means none."""
    if None not in segment:
        literal = "".join(map(str, segment))
        return lambda text, position, limit: text.find(literal, position, limit)
    size = len(segment)
    anything = sum(1 << at for at, part in enumerate(segment) if part is None)
    fits = {part: anything for part in segment if part is not None}
    for at, part in enumerate(segment):
        if part is not None:
            fits[part] |= 1 << at
    last_bit = 1 << size - 1

    def find(text: str, position: int, limit: int) -> int:
        if limit - position < size:
            return -1
        states = 0
        for at in range(position, limit):
            states = (states << 1 | 1) & fits.get(text[at], anything)
            if states & last_bit:
                return at - size + 1
        return -1

    return find
