"""What is asked for in lists and explanations, on its way to the wire."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.errors import InvalidFilter
from kombu_opendata.queue_client.history import HistoryQueries
from kombu_opendata.queue_client.reading import metadata_texts


def call(name: str, **query: Any) -> Any:
    """The request of a call."""
    client = object.__new__(HistoryQueries)
    requests: list[Any] = []
    client.calls = SimpleNamespace(call_apart=requests.append)  # type: ignore[assignment]
    with suppress(AttributeError):  # there is no answer
        getattr(client, name)(**query)
    return requests[0]


def test_headers_are_explained_as_they_would_be_stored() -> None:
    sent = {"ok": True, "n": 200, "x": 1.5, "text": "a", "none": None, "nested": [1]}
    always = {"exchange": "", "routing_key": "", "priority": "0"}
    assert metadata_texts(sent) == {**always, "ok": "true", "n": "200", "x": "1.5", "text": "a"}


@pytest.mark.parametrize("ids", [[-1], [1 << 63], [10**30], ["1"], [True], 5])
def test_what_is_no_id_is_refused_by_name(ids: Any) -> None:
    with pytest.raises(InvalidFilter, match="message id"):
        call("list_messages", ids=ids)
    with pytest.raises(InvalidFilter, match="message id"):
        call("list_attempts", message_ids=ids)


def test_headers_are_a_mapping() -> None:
    with pytest.raises(InvalidFilter, match="mapping"):
        call("list_messages", headers=["a"])


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e18, "x", timedelta(days=1), True])
def test_a_bucket_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(InvalidFilter, match="number of seconds"):
        call("count_messages", gte=0, lt=10, bucket_seconds=seconds)


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("list_messages", {}),
    ("list_attempts", {}),
    ("count_messages", {"gte": 0, "lt": 1, "bucket_seconds": 1}),
    ("count_attempts", {"gte": 0, "lt": 1, "bucket_seconds": 1}),
]


@pytest.mark.parametrize(("name_of_call", "needed"), REQUESTS)
@pytest.mark.parametrize("name", ["queue", "status", "until", "next_page"])
def test_an_argument_that_a_call_does_not_have_is_refused(name_of_call: str, needed: dict[str, Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name_of_call}\(\) got an .*'{name}'"):
        call(name_of_call, **needed, **{name: "x"})
    call(name_of_call, **needed)


@pytest.mark.parametrize("name_of_call", ["count_messages", "count_attempts"])
@pytest.mark.parametrize("name", ["gte", "lt", "bucket_seconds"])
def test_an_argument_that_a_count_must_have_is_missed_by_name(name_of_call: str, name: str) -> None:
    given = {"gte": 0, "lt": 1, "bucket_seconds": 1}
    del given[name]
    with pytest.raises(TypeError, match=f"missing required keyword argument '{name}'"):
        call(name_of_call, **given)


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
        call("list_attempts", **asked)
