"""The patterns of topic exchanges, as in AMQP 0-9-1: ``*`` is one word, ``#`` is any number of words.

Words are separated by dots; an empty text has no words. Matching takes time linear in the text for every pattern: there
is one bit for each position between words, and each part of the pattern moves the bits along.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache


def topic_matches(pattern: str, routing_key: str) -> bool:
    """Whether a routing key matches."""
    return compile_topic(pattern)(routing_key)


@lru_cache(maxsize=10_000)
def compile_topic(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a text matches the pattern."""
    parts = words_of(pattern)
    if "*" not in parts and "#" not in parts:
        return pattern.__eq__
    if parts == ("#",):
        return lambda text: True
    start = pattern[:-2]
    if start and "*" not in parts and parts.index("#") == len(parts) - 1:
        return lambda text: text.startswith(start) and text[len(start) : len(start) + 1] in ("", ".")
    if "#" not in parts:
        return _words_only(parts)
    return lambda text: _reaches(parts, words_of(text))


def constant_prefix(pattern: str) -> tuple[str, bool]:
    """The beginning of every matching text, and whether that is the whole text."""
    parts = words_of(pattern)
    end = next((at for at, part in enumerate(parts) if part in ("*", "#")), len(parts))
    if end == len(parts):
        return pattern, True
    start = ".".join(parts[:end])
    return (start + "." if parts[end] == "*" and end else start), False


def words_of(text: str) -> tuple[str, ...]:
    """The words between the dots; an empty text has none."""
    return tuple(text.split(".")) if text else ()


def _words_only(parts: tuple[str, ...]) -> Callable[[str], bool]:
    fixed = [(at, part) for at, part in enumerate(parts) if part != "*"]
    count = len(parts)

    def matches(text: str) -> bool:
        words = words_of(text)
        return len(words) == count and all(words[at] == part for at, part in fixed)

    return matches


def _reaches(parts: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether the whole pattern matches all words."""
    where: dict[str, int] = dict.fromkeys(parts, 0)
    for at, word in enumerate(words):
        if word in where:
            where[word] |= 1 << at
    everywhere = (1 << len(words)) - 1
    reached = 1  # a bit for each number of words that the pattern so far can match
    for part in parts:
        if part == "#":
            lowest = reached & -reached
            reached = (everywhere << 1 | 1) & -lowest
        else:
            reached = (reached & (everywhere if part == "*" else where[part])) << 1
        if not reached:
            return False
    return bool(reached >> len(words))
