"""Filters in the topology: routing with and without them, their coming and going."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kombu_opendata.errors import NotFound, RequestError, SelectorError
from kombu_opendata.storage.routing.queue_filters import QueueFilters, filter_of
from kombu_opendata.storage.routing.topology import Topology


class Untouched(Mapping[str, str]):
    """Headers that nobody may look at."""

    def __getitem__(self, key: str) -> str:
        raise AssertionError(key)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


def topology(**filters: Any) -> Topology:
    """Queues by name; a filter may be a text, a (text, mode) or None."""
    made = Topology()
    for name, given in filters.items():
        text, mode = given if isinstance(given, tuple) else (given, "any")
        made.add_queue(name, {} if text is None else {"x-filter": text, "x-filter-mode": mode})
    return made


def test_without_filters_nobody_looks_at_the_headers() -> None:
    made = topology(one=None)
    assert made.route("", "one", dict, Untouched()) == ("one",)
    made.add_queue("two", {"x-filter": "a = 1"})
    assert made.route("", "one") == ("one",), "bindings alone, where no headers are given"
    made.remove_queue("two")
    assert made.route("", "one", dict, Untouched()) == ("one",)
    assert not made.filters


def test_any_and_all() -> None:
    made = topology(any="a = 1", all=("a = 1", "all"), plain=None)
    for queue in ("all", "plain"):
        made.bind(queue, "amq.fanout", "", {})
    assert set(made.route("amq.fanout", "", dict, {"a": "1"})) == {"any", "all", "plain"}
    assert made.route("amq.fanout", "", dict, {"a": "2"}) == ("plain",)
    assert made.route("", "any", dict, {"a": "1"}) == ("any",), "once"
    assert made.route("", "all", dict, {"a": "1"}) == ("all", "any")
    assert made.route("", "all", dict, {}) == ()
    assert made.route("", "nobody", dict, {"a": "1"}) == ("any",)
    with pytest.raises(NotFound):
        made.route("nowhere", "", dict, {"a": "1"})


def test_routes_are_not_mixed_up_with_those_of_filters() -> None:
    made = topology(all=("a = 1", "all"), rest=None)
    made.add_exchange("first", "direct", True, False, {"alternate-exchange": "amq.fanout"})
    made.bind("all", "first", "k", {})
    made.bind("rest", "amq.fanout", "", {})
    for _ in range(2):  # the second from what is remembered
        assert made.route("first", "k", dict, {"a": "1"}) == ("all",)
        assert made.route("first", "k", dict, {"a": "2"}) == ("rest",)
        assert made.route("first", "k") == ("all",)
    made.unbind("all", "first", "k", {})
    assert made.route("first", "k", dict, {"a": "1"}) == ("rest",)
    made.bind("all", "first", "k", {})
    made.remove_queue("all")
    assert made.route("first", "k", dict, {"a": "1"}) == ("rest",)


def test_a_dead_letter_is_new_to_filters_that_were_not_true_before() -> None:
    made = topology(same="a = 1", new="died = 'yes'", all=("a = 1", "all"))
    made.bind("all", "amq.fanout", "", {})
    now, before = {"a": "1", "died": "yes"}, {"a": "1"}
    assert made.route("amq.fanout", "", dict, now, before) == ("all", "new")
    assert made.route("", "same", dict, now, before) == ("same", "new"), "a binding counts all the same"


def test_arguments() -> None:
    assert filter_of({}) is None
    assert filter_of({"x-filter-mode": "all"}) is None
    found = filter_of({"x-filter": "a = 1"})
    assert found is not None
    assert (found.selector.text, found.mode) == ("a = 1", "any")
    with pytest.raises(SelectorError):
        filter_of({"x-filter": "a ="})
    for arguments in ({"x-filter": 5}, {"x-filter": "a = 1", "x-filter-mode": "none"}):
        with pytest.raises(RequestError):
            filter_of(arguments)


def test_arguments_from_a_store_that_are_no_filter(caplog: pytest.LogCaptureFixture) -> None:
    """They were declared when the argument had no effect; the broker must start."""
    filters = QueueFilters()
    with caplog.at_level(logging.ERROR):
        filters.add("old", {"x-filter": "SELECT *"})
        filters.add("older", {"x-filter": 5})
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["old", "older"]
    assert not filters
    assert filters.get("old") is None


def test_the_text_of_a_queue_with_bindings() -> None:
    made = topology(any="a = 1 OR b", all=("a = 1 OR b", "all"))
    assert made.filter_of("any") == "(exchange = '' AND routing_key = 'any') OR (a = 1 OR b)"
    assert made.filter_of("all") == "(exchange = '' AND routing_key = 'all') AND (a = 1 OR b)"
    made.bind("all", "amq.fanout", "", {})
    text = "((exchange = '' AND routing_key = 'all') OR (exchange = 'amq.fanout')) AND (a = 1 OR b)"
    assert made.filter_of("all") == text
    size = made.filter_size("all", "amq.direct", "ü", {})
    made.bind("all", "amq.direct", "ü", {})
    assert size == len(made.filter_of("all").encode())
