"""The patterns of one topic exchange as a trie of their words, so that a lookup visits only what can match.

It matches as :mod:`...selectors.topic_match` does. All places in the trie that the words so far can reach are followed
at once, each once, so no pattern makes a lookup backtrack. If they are more than the patterns, each pattern is tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ...selectors.topic_match import topic_matches, words_of

_MAX_WORDS = 12  # longer patterns are tried one by one: as nodes they could take 100 times their own size
_FEW_VISITED = 50  # nodes that a lookup may visit however few the patterns are


class _Node:
    """What patterns with the same first words have in common."""

    __slots__ = ("children", "end", "repeats")

    def __init__(self, repeats: bool) -> None:
        self.repeats = repeats  # it is the node of a "#", which any further word reaches again
        self.children: dict[str, _Node] = {}
        self.end: str | None = None  # the pattern that ends here


class TopicIndex:
    """A set of topic patterns in order of their addition."""

    def __init__(self) -> None:
        self._root = _Node(repeats=False)
        self._patterns: dict[str, int] = {}  # and the numbers of their additions
        self._long: set[str] = set()
        self._numbers = count()

    def add(self, pattern: str) -> None:
        """Add a pattern that is not in the index."""
        words = words_of(pattern)
        self._patterns[pattern] = next(self._numbers)
        if len(words) > _MAX_WORDS:
            self._long.add(pattern)
            return
        node = self._root
        for word in words:
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(repeats=word == "#")
            node = child
        node.end = pattern

    def remove(self, pattern: str) -> None:
        """Remove a pattern that is in the index, and the nodes that only it needs."""
        del self._patterns[pattern]
        if pattern in self._long:
            self._long.remove(pattern)
            return
        node, path = self._root, []
        for word in words_of(pattern):
            path.append((node, word))
            node = node.children[word]
        node.end = None
        for parent, word in reversed(path):
            child = parent.children[word]
            if child.children or child.end is not None:
                return
            del parent.children[word]

    def matching(self, routing_key: str) -> list[str]:
        """The patterns that match, in order of their addition."""
        reached, visited = _with_repeats([self._root]), 0
        for word in words_of(routing_key):
            parts = ("*",) if word in ("*", "#") else (word, "*")  # a key has no wildcards
            reached = _with_repeats(
                following
                for node in reached
                for following in (node if node.repeats else None, *map(node.children.get, parts))
                if following is not None
            )
            visited += len(reached)
            if visited > _FEW_VISITED + len(self._patterns):
                return [pattern for pattern in self._patterns if topic_matches(pattern, routing_key)]
            if not reached:
                break
        found = [node.end for node in reached if node.end is not None]
        found += [pattern for pattern in self._long if topic_matches(pattern, routing_key)]
        return sorted(found, key=self._patterns.__getitem__)


def _with_repeats(nodes: Iterable[_Node]) -> set[_Node]:
    """These nodes and those that a ``#`` for no words reaches from them."""
    reached: set[_Node] = set()
    for node in nodes:
        following: _Node | None = node
        while following is not None and following not in reached:
            reached.add(following)
            following = following.children.get("#")
    return reached
