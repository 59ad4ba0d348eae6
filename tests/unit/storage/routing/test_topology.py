"""Exchanges, bindings, routing."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata.errors import NotFound, PreconditionFailed, RequestError
from kombu_opendata.selectors.topic_match import topic_matches
from kombu_opendata.storage.routing.topology import Topology


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("*", "a", True),
        ("*", "", False),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*", "a.", True),
        ("*.b", "a.b", True),
        ("#", "", True),
        ("#", "a", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b.a", False),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "a.c.b", False),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.c", "a", False),
        ("#.b.#", "a.b.c", True),
        ("#.b.#", "a.c", False),
        ("*.#", "", False),
        ("*.#", "a", True),
        ("#.*", "a.b", True),
        ("#.#", "", True),
        ("a.*.#.d", "a.b.d", True),
        ("a.*.#.d", "a.d", False),
        ("", "", True),
        ("", "a", False),
        ("a#", "a", False),
        ("a#", "a#", True),
        ("stock.*.nyse", "stock.ibm.nyse", True),
    ],
)
def test_topic_matches(pattern: str, key: str, matches: bool) -> None:
    assert topic_matches(pattern, key) is matches


def topology() -> Topology:
    made = Topology()
    for queue in ("one", "two"):
        made.add_queue(queue)
    made.add_exchange("events", "topic", True, False, {})
    return made


def test_routes() -> None:
    made = topology()
    assert made.route("", "one") == ("one",)
    assert made.route("", "three") == ()
    assert made.route("events", "a.b") == ()
    made.bind("two", "events", "a.*", {})
    made.bind("one", "events", "#", {})
    made.bind("two", "events", "*.b", {})
    assert made.route("events", "a.b") == ("two", "one")  # each once
    assert made.route("events", "c") == ("one",)
    made.unbind("one", "events", "#", {})
    assert made.route("events", "c") == ()
    made.bind("one", "amq.fanout", "ignored", {})
    assert made.route("amq.fanout", "anything") == ("one",)
    made.bind("one", "amq.direct", "k", {})
    made.bind("two", "amq.direct", "k", {})
    assert made.route("amq.direct", "k") == ("one", "two")
    assert made.route("amq.direct", "k.k") == ()
    with pytest.raises(NotFound, match="'nowhere'"):
        made.route("nowhere", "k")


def test_a_queue_that_goes_takes_its_bindings_along() -> None:
    made = topology()
    made.bind("one", "events", "a", {})
    made.bind("one", "amq.direct", "k", {})
    made.bind("two", "events", "a", {})
    assert made.route("", "one") == ("one",)
    assert set(made.remove_queue("one")) == {("events", "a", ""), ("amq.direct", "k", "")}
    assert list(made.bindings()) == [("two", "events", "a", {})]
    assert made.route("", "one") == ()
    assert made.route("events", "a") == ("two",)
    assert not made.is_bound("one", "events", "a", {})


def test_unbinding_what_is_not_bound_does_nothing() -> None:
    made = topology()
    made.unbind("one", "events", "a", {})
    assert list(made.bindings()) == []


def test_filter_of() -> None:
    made = topology()
    made.add_queue("it's")
    assert made.filter_of("it's") == "exchange = '' AND routing_key = 'it''s'"
    made.bind("one", "events", "a.*", {})
    made.bind("one", "amq.direct", "k", {})
    made.bind("two", "amq.direct", "k", {})
    made.bind("one", "amq.fanout", "x", {})
    terms = made.filter_of("one").removeprefix("(").removesuffix(")").split(") OR (")
    assert terms[0] == "exchange = '' AND routing_key = 'one'"
    assert sorted(terms[1:]) == [
        "exchange = 'amq.direct' AND routing_key = 'k'",
        "exchange = 'amq.fanout'",
        "exchange = 'events' AND topic(routing_key, 'a.*')",
    ]
    size = made.filter_size("one", "events", "ü", {})
    made.bind("one", "events", "ü", {})
    assert abs(size - len(made.filter_of("one").encode())) <= 2


def test_declaring_again() -> None:
    made = topology()
    same: tuple[Any, ...] = ("events", "topic", True, False, {})
    assert not made.check_declare(*same)
    assert made.check_declare("new", "topic", True, False, {})
    for position, other in ((1, "direct"), (2, False), (3, True), (4, {"alternate-exchange": "a"})):
        changed = (*same[:position], other, *same[position + 1 :])
        with pytest.raises(PreconditionFailed, match="'events'"):
            made.check_declare(*changed)
    without_effect: tuple[Any, ...] = (*same[:4], {"x-delayed-type": "direct"})
    assert not made.check_declare(*without_effect)
    with pytest.raises(RequestError, match="'x-random'"):
        made.check_declare("new", "x-random", True, False, {})
    with pytest.raises(RequestError, match="alternate-exchange must be the name"):
        made.check_declare("new", "topic", True, False, {"alternate-exchange": 5})
    with pytest.raises(RequestError):
        made.check_declare("", "direct", True, False, {})


def headers_topology(*arguments: dict[str, Any]) -> Topology:
    made = topology()
    for given in arguments:
        made.bind("one", "amq.headers", "k", given)
    return made


def test_a_headers_exchange_asks_the_message_and_not_the_cache() -> None:
    made = headers_topology({"a": 1}, {"a": 2, "x-match": "any"})
    made.bind("two", "amq.match", "", {})
    for headers, queues in (({"a": 1}, ("one",)), ({"a": 3}, ()), ({"a": 2}, ("one",)), ({}, ())):
        assert made.route("amq.headers", "any key", lambda headers=headers: headers) == queues  # type: ignore[misc]
    assert made.route("amq.match", "") == ("two",)


def test_headers_bindings_differ_in_their_arguments() -> None:
    made = headers_topology({"a": 1}, {"a": True}, {"b": 1, "a": 1})
    assert len(list(made.bindings())) == 3
    made.bind("one", "amq.headers", "k", {"a": 1, "b": 1})  # the same as the third
    assert len(list(made.bindings())) == 3
    assert made.is_bound("one", "amq.headers", "k", {"a": True})
    assert not made.is_bound("one", "amq.headers", "k", {})
    made.unbind("one", "amq.headers", "k", {})
    assert len(list(made.bindings())) == 3
    made.unbind("one", "amq.headers", "k", {"a": 1})
    assert made.route("amq.headers", "", lambda: {"a": 1}) == ()
    assert made.route("amq.headers", "", lambda: {"a": True}) == ("one",)
    assert {key for _exchange, key, _identity in made.remove_queue("one")} == {"k"}
    assert list(made.bindings()) == []
    assert made.exchanges["amq.headers"].bindings == {}


def test_elsewhere_a_bindings_arguments_tell_nothing_apart() -> None:
    made = topology()
    made.bind("one", "events", "a", {"x": 1})
    assert made.is_bound("one", "events", "a", {})
    made.unbind("one", "events", "a", {"x": 2})
    assert list(made.bindings()) == []


def test_the_filter_of_headers_bindings() -> None:
    made = headers_topology({"a": "it's", "n": 1.5, "x-y": 1}, {"b c": None, "d": True, "x-match": "any"})
    made.bind("two", "amq.headers", "", {"x-match": "any"})
    assert made.filter_of("one").split(" OR (", 1)[1] == (
        """exchange = 'amq.headers' AND "a" = 'it''s' AND "n" = 1.5) OR """
        """(exchange = 'amq.headers' AND ("b c" IS NOT NULL OR "d" = TRUE))"""
    )
    assert made.filter_of("two").endswith("(exchange = 'amq.headers' AND FALSE)")


def test_alternate_exchanges() -> None:
    made = topology()
    made.add_exchange("first", "direct", True, False, {"alternate-exchange": "second"})
    made.add_exchange("second", "headers", True, False, {"alternate-exchange": "third"})
    made.add_exchange("third", "fanout", True, False, {"alternate-exchange": "first"})
    assert made.route("first", "k") == ()  # all the way round, once
    made.bind("two", "third", "", {})
    assert made.route("first", "k") == ("two",)
    made.bind("one", "second", "", {"a": 1})
    assert made.route("first", "k", lambda: {"a": 1}) == ("one",)
    assert made.route("first", "k") == ("two",)  # what depends on headers is not remembered
    made.bind("one", "first", "k", {})
    assert made.route("first", "k") == ("one",)
    made.add_exchange("first", "direct", True, False, {"alternate-exchange": ""})
    assert made.route("first", "one") == ("one",)
    assert made.route("first", "nothing") == ()
    made.add_exchange("first", "direct", True, False, {"alternate-exchange": "not there"})
    assert made.route("first", "one") == ()
