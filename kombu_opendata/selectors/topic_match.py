"""Patterns of topic exchanges, as in AMQP 0-9-1: ``*`` is one word, ``#`` is any number of words.

Words are separated by dots; an empty text has no words. The match of a pattern takes one step for each of its parts,
without backtracking. Its state is a set of numbers, as the bits of an integer: N is in the set if the parts so far can
match the first N words of the text. Each part shifts the bits. The bits of each word's positions depend only on the
text and are cached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache


def topic_matches(pattern: str, routing_key: str) -> bool:
    return compile_topic(pattern)(routing_key)


@lru_cache(maxsize=10_000)
def compile_topic(pattern: str) -> Callable[[str], bool]:
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
    return lambda text: _matches_all(parts, *_word_positions(text))


def constant_prefix(pattern: str) -> tuple[str, bool]:
    """Return the beginning of every matching text, and True if that is the whole text."""
    parts = words_of(pattern)
    end = next((at for at, part in enumerate(parts) if part in ("*", "#")), len(parts))
    if end == len(parts):
        return pattern, True
    start = ".".join(parts[:end])
    return (start + "." if parts[end] == "*" and end else start), False


def words_of(text: str) -> tuple[str, ...]:
    """Return the words between the dots; an empty text has none."""
    return tuple(text.split(".")) if text else ()


def _words_only(parts: tuple[str, ...]) -> Callable[[str], bool]:
    fixed = [(at, part) for at, part in enumerate(parts) if part != "*"]
    count = len(parts)

    def matches(text: str) -> bool:
        words = words_of(text)
        return len(words) == count and all(words[at] == part for at, part in fixed)

    return matches


@lru_cache(maxsize=64)
def _word_positions(text: str) -> tuple[int, dict[str, int]]:
    """Return the number of words in a text, and a bit for each position of a word."""
    positions: dict[str, int] = {}
    words = words_of(text)
    for at, word in enumerate(words):
        positions[word] = positions.get(word, 0) | 1 << at
    return len(words), positions


def _matches_all(parts: tuple[str, ...], count: int, positions: dict[str, int]) -> bool:
    everywhere = (1 << count) - 1
    reached = 1  # a bit for each number of words that the pattern so far can match
    for part in parts:
        if part == "#":
            lowest = reached & -reached
            reached = (everywhere << 1 | 1) & -lowest
        else:
            reached = (reached & (everywhere if part == "*" else positions.get(part, 0))) << 1
        if not reached:
            return False
    return bool(reached >> count)
