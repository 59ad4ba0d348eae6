"""The trie of a topic exchange's patterns; tests/property has it against trying each pattern."""

from __future__ import annotations

from kombu_opendata.storage.routing.exchange import TopicIndex


def index(*patterns: str) -> TopicIndex:
    found = TopicIndex()
    for pattern in patterns:
        found.add(pattern)
    return found


def test_matches_come_in_order_of_addition() -> None:
    assert index("#", "a.b", "b.*", "a.*", "*.b", "a.#.b").matching("a.b") == ["#", "a.b", "a.*", "*.b", "a.#.b"]


def test_a_pattern_added_again_comes_last() -> None:
    found = index("a.*", "a.#")
    found.remove("a.*")
    found.add("a.*")
    assert found.matching("a.b") == ["a.#", "a.*"]


def test_an_empty_key_has_no_words_and_a_dot_parts_two_empty_ones() -> None:
    found = index("", "#", "*", ".", "*.*", ".#")
    assert found.matching("") == ["", "#"]
    assert found.matching(".") == ["#", ".", "*.*", ".#"]


def test_wildcards_in_a_key_are_words() -> None:
    found = index("a.#.b", "a.*", "a.b", "#")
    assert found.matching("a.*") == ["a.*", "#"]
    assert found.matching("a.#") == ["a.*", "#"]


def test_removal_leaves_patterns_with_the_same_words() -> None:
    found = index("a", "a.b", "a.b.c", "a.#")
    found.remove("a.b")
    assert found.matching("a.b") == ["a.#"]
    found.remove("a.b.c")
    assert found.matching("a.b.c") == ["a.#"]
    assert found.matching("a") == ["a", "a.#"]


def test_removal_frees_all_nodes() -> None:
    patterns = ["", "a.b.#", "a.*.c", "a", "#.#"]
    found = index(*patterns)
    for pattern in patterns:
        found.remove(pattern)
    assert not found._root.children
    assert found._root.end is None


def test_a_long_key_and_a_hostile_pattern() -> None:
    """With backtracking it would not end."""
    pattern = ".".join(["#", "a"] * 20)
    assert index(pattern, pattern + ".b").matching(".".join(["a"] * 1_000)) == [pattern]
