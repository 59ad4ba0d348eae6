"""Selectors against simpler ways to say the same: tables, regular expressions, bindings, one by one; and any text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.errors import SelectorError
from kombu_opendata.selectors import Selector, compile_selector
from kombu_opendata.selectors.compiler import compile_condition
from kombu_opendata.selectors.filter_index import FilterIndex
from kombu_opendata.selectors.like_match import compile_like
from kombu_opendata.selectors.parser import parse
from kombu_opendata.selectors.topic_match import topic_matches
from kombu_opendata.selectors.tree import (
    Arithmetic,
    Between,
    Boolean,
    Compare,
    Header,
    In,
    IsNull,
    Like,
    Logical,
    Negative,
    Not,
    Number,
    Text,
    Topic,
    all_of,
    any_of,
    text_of,
)
from kombu_opendata.storage.routing.topology import Topology

# ---------------------------------------------------------------------- trees
names = st.sampled_from(["a", "b", "task", "and", "x-y", "", 'q"', "é", "routing_key"])
texts = st.sampled_from(["", "a", "ab", "a.b", "b", "5", "5.0", "-1", "true", "false", "it's", "%", "_", "a_b", "many"])
numbers = st.sampled_from([0, 1, 5, 5.0, 0.5, 1e16, 1e-5, 2**63, 2**64 - 1])
headers = st.builds(Header, names)
values = st.recursive(
    headers | st.builds(Text, texts) | st.builds(Number, numbers) | st.builds(Boolean, st.booleans()),
    lambda inner: st.builds(Negative, inner) | st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner),
    max_leaves=4,
)
members = texts | numbers | st.booleans() | numbers.map(lambda number: -number)
patterns = st.text("ab_%.", max_size=6)
leaves = st.one_of(
    headers,
    st.builds(Boolean, st.booleans()),
    st.builds(Compare, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), values, values),
    st.builds(Compare, st.just("="), headers, st.builds(Text, texts)),
    st.builds(Between, values, values, values),
    st.builds(In, values, st.lists(members, min_size=1, max_size=4).map(tuple)),
    st.builds(Like, headers | st.builds(Text, texts), patterns),
    st.builds(IsNull, headers),
    st.builds(Topic, headers, st.sampled_from(["#", "a", "a.*", "a.#", "#.b", "*", ""])),
)
conditions: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(all_of),
        st.lists(inner, min_size=2, max_size=3).map(any_of),
    ),
    max_leaves=6,
)
messages = st.dictionaries(names, texts, max_size=6)


def simple(node: Any, message: Mapping[str, str]) -> bool | None:
    """Three-valued logic by its tables, over what the leaves are."""
    if isinstance(node, Not):
        value = simple(node.part, message)
        return None if value is None else not value
    if isinstance(node, Logical):
        found = {simple(part, message) for part in node.parts}
        ends = node.operator == "OR"
        return ends if ends in found else None if None in found else not ends
    true, false = compile_condition(node)(message), compile_condition(node, truth=False)(message)
    assert not (true and false)
    return True if true else False if false else None


@given(condition=conditions, message=messages)
def test_logic_and_texts(condition: Any, message: dict[str, str]) -> None:
    selector = Selector(condition)
    expected = simple(condition, message)
    assert selector.explain(message).value is expected
    assert selector.matches(message) is (expected is True)
    assert selector.explain(message).value is expected
    assert parse(selector.text) == condition


@given(data=st.data(), filed=st.lists(conditions, max_size=30), rounds=st.lists(messages, min_size=1, max_size=4))
def test_an_index_finds_what_asking_each_finds(data: st.DataObject, filed: list[Any], rounds: list[Any]) -> None:
    index = FilterIndex()
    selectors = {str(number): Selector(condition) for number, condition in enumerate(filed)}
    for name, selector in selectors.items():
        index.add(name, selector)
    while True:
        for message in rounds:
            for _ in range(2):  # the second answer may be a remembered one
                found = index.matching(message)
                assert len(found) == len(set(found))
                assert set(found) == {name for name, selector in selectors.items() if selector.matches(message)}
        if not selectors:
            break
        for name in data.draw(st.lists(st.sampled_from(sorted(selectors)), min_size=1, unique=True)):
            index.remove(name)
            del selectors[name]
    assert not index
    assert not index._headers  # nothing is left behind


# ---------------------------------------------------------------------- LIKE and topic
@given(pattern=st.text("ab_%!\n", max_size=10), text=st.text("ab\n", max_size=14), escape=st.sampled_from(["", "!"]))
def test_like_is_a_regular_expression(pattern: str, text: str, escape: str) -> None:
    def parts() -> Iterator[str]:
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                yield re.escape(next(characters, escape))
            else:
                yield {"%": ".*", "_": "."}.get(character, re.escape(character))

    assert compile_like(pattern, escape)(text) is bool(re.fullmatch("(?s)" + "".join(parts()), text))


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "*", "#", ""]), max_size=6),
    key=st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6),
)
def test_topics(pattern: list[str], key: list[str]) -> None:
    def matches(parts: list[str], words: list[str]) -> bool:
        if not parts:
            return not words
        if parts[0] == "#":
            return any(matches(parts[1:], words[skipped:]) for skipped in range(len(words) + 1))
        return bool(words) and parts[0] in ("*", words[0]) and matches(parts[1:], words[1:])

    given_pattern, given_key = ".".join(pattern), ".".join(key)
    expected = matches(given_pattern.split(".") if given_pattern else [], given_key.split(".") if given_key else [])
    assert topic_matches(given_pattern, given_key) is expected


# ---------------------------------------------------------------------- bindings
words = st.sampled_from(["a", "b", "a.b", "a.*", "#", "it's", "x\0y", "naïve", ""])
#: texts that don't read as numbers or booleans: the metadata of a message has no types
plain = st.sampled_from(["x", "y", "it's", "", "True", '"', "\0"])
typed = plain | st.integers(-3, 3) | st.sampled_from([0.5, -1e16, 2**63]) | st.booleans()
wanted = st.dictionaries(st.sampled_from(["h", "k", "x-h", 'h"', ""]), typed | st.none(), max_size=3)
binding: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.sampled_from(["direct", "topic", "fanout"]), words, st.just({})),
    st.tuples(st.just("headers"), words, wanted),
    st.tuples(
        st.just("headers"),
        words,
        st.builds(
            lambda given, match: {**given, "x-match": match},
            wanted,
            st.sampled_from(["all", "any", "all-with-x", "any-with-x"]),
        ),
    ),
)


def as_text(value: Any) -> str:
    """As clients write metadata headers."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


@given(
    bindings=st.lists(binding, max_size=5),
    own=st.none() | st.tuples(conditions, st.sampled_from(["any", "all"])),
    exchange=st.sampled_from(["", "direct", "topic", "fanout", "headers"]),
    key=words | st.just("queue"),
    message=st.dictionaries(st.sampled_from(["h", "k", "x-h", 'h"', ""]), typed, max_size=4),
)
def test_the_filter_of_a_queue_says_what_routing_does(
    bindings: list[Any], own: Any, exchange: str, key: str, message: dict[str, Any]
) -> None:
    topology = Topology()
    for kind in ("direct", "topic", "fanout", "headers"):
        topology.add_exchange(kind, kind, True, False, {})
    arguments = {} if own is None else {"x-filter": text_of(own[0]), "x-filter-mode": own[1]}
    topology.add_queue("queue", arguments)
    assert (topology.filters.get("queue") is None) == (own is None)
    for kind, routing_key, given_arguments in bindings:
        topology.bind("queue", kind, routing_key, given_arguments)
    metadata = {**{name: as_text(value) for name, value in message.items()}, "exchange": exchange, "routing_key": key}
    routed = topology.route(exchange, key, lambda: message, metadata)
    definition = topology.definition_of("queue")
    assert topology.filter_of("queue") == definition.text
    if "\0" not in definition.text:  # a filter from a user may not have it
        assert parse(definition.text) == definition.condition
    assert definition.selector.matches(metadata) is ("queue" in routed)


# ---------------------------------------------------------------------- any text
SCRAPS = (
    "a", "b ", "AND ", "OR ", "NOT ", "IN ", "BETWEEN ", "LIKE ", "ESCAPE ", "IS ", "NULL ", "TRUE ", "FALSE ",
    "topic", "(", ")", ",", ".", "'x'", "'", '"', '"q"', "= ", "<", ">", "<> ", "!= ", "+", "-", "*", "/", "5",
    "0x1F ", "1e5 ", "--", "/*", "*/", ";", "::", "[", "]", "{", "}", "#", "\\", "$", "@", "?", "|", "é", "CASE ",
    "WHEN ", "INTERVAL ", "ANY", "EXISTS ", "SELECT ", "FROM ", "date ", "{{", "%", "~", "^", "&", "`", "\n", "\0",
)  # fmt: skip


def selector_or_error(text: str) -> Selector | SelectorError:
    try:
        return compile_selector(text)
    except SelectorError as exc:
        return exc


@given(st.lists(st.sampled_from(SCRAPS), max_size=25).map("".join) | st.text(max_size=60))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    selector = selector_or_error(text)
    if isinstance(selector, SelectorError):
        error: Any = selector
        assert error.caret.splitlines()[-1].strip() == "^"
        assert 1 <= error.line <= text.count("\n") + 1
        assert 1 <= error.column <= len(text) + 1
        return
    for message in ({}, {"a": "5", "b": "x"}, {"a": "true", "b": "5"}):
        assert selector.explain(message).value in (True, False, None)
    assert parse(text_of(selector.condition)) == selector.condition
