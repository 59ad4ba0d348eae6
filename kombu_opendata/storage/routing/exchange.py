"""One exchange and its bindings, and the patterns of a topic exchange as a trie of their words.

The trie matches as :mod:`...selectors.topic_match` does. For each word of a key, a look-up computes the set of nodes
that the words so far can reach, so no pattern makes it backtrack. If it visits many more nodes than there are patterns,
it tries each pattern instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...protocol.queue_arguments import ALTERNATE_EXCHANGE
from ...selectors.topic_match import topic_matches, words_of
from . import header_match

_MAX_WORDS = 12  # longer patterns are tried individually: as nodes they could use 100 times their own size
_FEW_VISITED = 50  # nodes that a look-up may visit with any number of patterns


class _Node:
    """The common node of patterns with the same first words."""

    __slots__ = ("children", "end", "repeats")

    def __init__(self, repeats: bool) -> None:
        self.repeats = repeats  # True for the node of a "#", which any further word reaches again
        self.children: dict[str, _Node] = {}
        self.end: str | None = None  # the pattern that ends here


class TopicIndex:
    """A set of topic patterns in order of their addition."""

    def __init__(self) -> None:
        self._root = _Node(repeats=False)
        self._patterns: dict[str, int] = {}  # pattern → number of its addition
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
        """Return the patterns that match, in order of their addition."""
        nodes, visited = _with_repeats([self._root]), 0
        for word in words_of(routing_key):
            parts = ("*",) if word in ("*", "#") else (word, "*")  # a key has no wildcards
            nodes = _with_repeats(
                following
                for node in nodes
                for following in (node if node.repeats else None, *map(node.children.get, parts))
                if following is not None
            )
            visited += len(nodes)
            if visited > _FEW_VISITED + len(self._patterns):
                return [pattern for pattern in self._patterns if topic_matches(pattern, routing_key)]
            if not nodes:
                break
        matches = [node.end for node in nodes if node.end is not None]
        matches += [pattern for pattern in self._long if topic_matches(pattern, routing_key)]
        return sorted(matches, key=self._patterns.__getitem__)


def _with_repeats(nodes: Iterable[_Node]) -> set[_Node]:
    """Return these nodes, and the nodes that are reached from them by a ``#`` that matches no word."""
    closure: set[_Node] = set()
    for node in nodes:
        following: _Node | None = node
        while following is not None and following not in closure:
            closure.add(following)
            following = following.children.get("#")
    return closure


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange.

    ``bindings`` maps a routing key (or pattern) to the queues bound with it, in order of binding, and each queue to its
    bindings: identity → arguments. The arguments are part of a binding's identity at a headers exchange only;
    elsewhere a queue has one binding with a key, whose identity is empty. :meth:`add` and :meth:`remove` change it.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    bindings: dict[str, dict[str, dict[str, dict[str, Any]]]] = field(default_factory=dict, init=False)
    _patterns: TopicIndex = field(default_factory=TopicIndex, init=False, repr=False)  # keys of a topic exchange

    def add(self, queue: str, routing_key: str) -> dict[str, dict[str, Any]]:
        """Return the bindings of a queue with this key, to which the caller adds one."""
        if routing_key not in self.bindings:
            self.bindings[routing_key] = {}
            if self.type == "topic":
                self._patterns.add(routing_key)
        return self.bindings[routing_key].setdefault(queue, {})

    def remove(self, queue: str, routing_key: str) -> int:
        """Remove the bindings of a queue with this key, if any; return their number."""
        bound = self.bindings.get(routing_key)
        if bound is None:
            return 0
        count = len(bound.pop(queue, ()))
        if not bound:
            del self.bindings[routing_key]
            if self.type == "topic":
                self._patterns.remove(routing_key)
        return count

    def identity(self, arguments: dict[str, Any]) -> str:
        """Return the identity of a binding with these arguments among those of the same queue and key."""
        return header_match.identity(arguments) if self.type == "headers" else ""

    @property
    def alternate(self) -> str | None:
        """The exchange for messages that match no queue of this one."""
        name = self.arguments.get(ALTERNATE_EXCHANGE)
        return name if isinstance(name, str) else None

    def queues_by_headers(self, headers: Mapping[Any, Any]) -> Iterator[str]:
        """Yield the queues for a message with these headers, at a headers exchange; some may occur twice."""
        for bound in self.bindings.values():
            for queue, bindings in bound.items():
                if any(header_match.matches(arguments, headers) for arguments in bindings.values()):
                    yield queue

    def queues(self, routing_key: str) -> Iterator[str]:
        """Yield the queues for a message with this key; some may occur twice. Not for a headers exchange."""
        if self.type == "direct":
            yield from self.bindings.get(routing_key, ())
        elif self.type == "fanout":
            for bound in self.bindings.values():
                yield from bound
        else:
            for pattern in self._patterns.matching(routing_key):
                yield from self.bindings[pattern]
