"""The match of a headers exchange."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata.errors import RequestError
from kombu_opendata.storage.routing import header_match


@pytest.mark.parametrize(
    ("arguments", "headers", "all", "any"),
    [
        ({}, {}, True, False),
        ({}, {"a": 1}, True, False),
        ({"a": 1}, {}, False, False),
        ({"a": 1}, {"a": 1, "b": 2}, True, True),
        ({"a": 1}, {"a": 1.0}, True, True),
        ({"a": 1}, {"a": "1"}, False, False),
        ({"a": 1}, {"a": True}, False, False),
        ({"a": False}, {"a": 0}, False, False),
        ({"a": False}, {"a": False}, True, True),
        ({"a": "x"}, {"a": "x"}, True, True),
        ({"a": "x"}, {"A": "x"}, False, False),
        ({"a": "x"}, {"a": ["x"]}, False, False),
        ({"a": None}, {"a": 5}, True, True),
        ({"a": None}, {"a": {"b": 1}}, True, True),
        ({"a": None}, {"b": 5}, False, False),
        ({"a": 1, "b": 2}, {"a": 1}, False, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True),
        ({"a": 1, "x-b": 2}, {"a": 1}, True, True),
        ({"x-b": 2}, {"x-b": 2}, True, False),
    ],
)
def test_matches(arguments: dict[str, Any], headers: dict[str, Any], all: bool, any: bool) -> None:
    assert header_match.matches(arguments, headers) is all
    assert header_match.matches({"x-match": "all", **arguments}, headers) is all
    assert header_match.matches({"x-match": "any", **arguments}, headers) is any


@pytest.mark.parametrize(
    ("headers", "all", "any"),
    [({}, False, False), ({"a": 1}, False, True), ({"x-b": 2}, False, True), ({"a": 1, "x-b": 2}, True, True)],
)
def test_matches_with_x(headers: dict[str, Any], all: bool, any: bool) -> None:
    arguments = {"a": 1, "x-b": 2}
    assert header_match.matches({"x-match": "all-with-x", **arguments}, headers) is all
    assert header_match.matches({"x-match": "any-with-x", **arguments}, headers) is any


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-match": "some"}, "x-match 'some' is unknown: use all, any, all-with-x, any-with-x"),
        ({"x-match": None}, "x-match None is unknown"),
        ({"x-match": ["all"]}, "is unknown"),
        ({"a": [1]}, "argument 'a' of a headers binding is a list"),
        ({"a": {}}, "is a dict"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        header_match.check(arguments)
