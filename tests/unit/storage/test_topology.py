"""Exchanges, bindings, routing."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata.errors import NotFound, PreconditionFailed, RequestError
from kombu_opendata.storage.topology import Topology, topic_matches


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
    for position, other in ((1, "direct"), (2, False), (3, True), (4, {"x": 1})):
        changed = (*same[:position], other, *same[position + 1 :])
        with pytest.raises(PreconditionFailed, match="'events'"):
            made.check_declare(*changed)
    with pytest.raises(RequestError, match="headers"):
        made.check_declare("new", "headers", True, False, {})
    with pytest.raises(RequestError):
        made.check_declare("", "direct", True, False, {})
