"""Every short topic pattern against every short key, by AMQP's definition."""

from __future__ import annotations

from itertools import product

from kombu_opendata.selectors.topic_match import constant_prefix, topic_matches


def words(text: str) -> list[str]:
    return text.split(".") if text else []


def matches(pattern: list[str], key: list[str]) -> bool:
    """The definition, word by word."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[skipped:]) for skipped in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


def test_all_short_ones() -> None:
    patterns = {".".join(parts) for size in range(4) for parts in product(["a", "*", "#", ""], repeat=size)}
    keys = {".".join(parts) for size in range(4) for parts in product(["a", "b", ""], repeat=size)}
    for pattern, key in product(patterns, keys):
        expected = matches(words(pattern), words(key))
        assert topic_matches(pattern, key) is expected, (pattern, key)
        prefix, whole = constant_prefix(pattern)
        if expected:
            assert key == prefix if whole else key.startswith(prefix), (pattern, key)


def test_a_long_key_and_a_hostile_pattern() -> None:
    """Linear: with backtracking it would not end."""
    key = ".".join(["a"] * 30_000)
    assert not topic_matches(".".join(["#", "a"] * 60) + ".b", key)
    assert topic_matches(".".join(["#", "a"] * 60), key)
