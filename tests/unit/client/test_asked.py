"""What is asked for in lists and explanations, on its way to the wire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kombu_opendata.client.filters import header_texts
from kombu_opendata.client.history import count_messages_request, list_attempts_request, list_messages_request
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
