"""What is asked for in lists and explanations, on its way to the wire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kombu_opendata.client.calls.explain_routing import header_texts
from kombu_opendata.client.calls.history_queries import (
    count_attempts_request,
    count_messages_request,
    list_attempts_request,
    list_messages_request,
)
from kombu_opendata.errors import InvalidFilter


def test_headers_are_explained_as_they_would_be_stored() -> None:
    sent = {"ok": True, "n": 200, "x": 1.5, "text": "a", "none": None, "nested": [1]}
    always = {"exchange": "", "routing_key": "", "priority": "0"}
    assert header_texts(sent) == {**always, "ok": "true", "n": "200", "x": "1.5", "text": "a"}


@pytest.mark.parametrize("ids", [[-1], [1 << 63], [10**30], ["1"], [True], 5])
def test_what_is_no_id_is_refused_by_name(ids: Any) -> None:
    with pytest.raises(InvalidFilter, match="message id"):
        list_messages_request({"ids": ids})
    with pytest.raises(InvalidFilter, match="message id"):
        list_attempts_request({"message_ids": ids})


def test_headers_are_a_mapping() -> None:
    with pytest.raises(InvalidFilter, match="mapping"):
        list_messages_request({"headers": ["a"]})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e18, "x", timedelta(days=1), True])
def test_a_bucket_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(InvalidFilter, match="number of seconds"):
        count_messages_request({"gte": 0, "lt": 10, "bucket_seconds": seconds})


REQUESTS: list[tuple[Any, dict[str, Any]]] = [
    (list_messages_request, {}),
    (list_attempts_request, {}),
    (count_messages_request, {"gte": 0, "lt": 1, "bucket_seconds": 1}),
    (count_attempts_request, {"gte": 0, "lt": 1, "bucket_seconds": 1}),
]


@pytest.mark.parametrize(("request_of", "needed"), REQUESTS)
@pytest.mark.parametrize("name", ["queue", "status", "until", "next_page"])
def test_an_argument_that_a_call_does_not_have_is_refused(request_of: Any, needed: dict[str, Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"{request_of.__name__.removesuffix('_request')}\(\) got an .*'{name}'"):
        request_of({**needed, name: "x"})
    request_of(needed)


@pytest.mark.parametrize("request_of", [count_messages_request, count_attempts_request])
@pytest.mark.parametrize("name", ["gte", "lt", "bucket_seconds"])
def test_an_argument_that_a_count_must_have_is_missed_by_name(request_of: Any, name: str) -> None:
    given = {"gte": 0, "lt": 1, "bucket_seconds": 1}
    del given[name]
    with pytest.raises(TypeError, match=f"missing required keyword argument '{name}'"):
        request_of(given)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"order": None}, "order: None is not of type str"),
        ({"queues": [1]}, "queues: 1 is not of type str"),
        ({"outcomes": [None]}, "outcomes: None is not of type str"),
        ({"consumers": [b"a"]}, "consumers: b'a' is not of type str"),
        ({"next": 5}, "next: 5 is not of type str"),
        ({"prev": b"x"}, "prev: b'x' is not of type str"),
        ({"manual": "yes"}, "manual: 'yes' is not of type bool"),
        ({"headers": {1: "a"}}, "name of a header: 1 is not of type str"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_the_name_of_its_argument(asked: Any, text: str) -> None:
    with pytest.raises(InvalidFilter, match=text):
        list_attempts_request(asked)
