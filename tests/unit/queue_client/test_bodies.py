"""Bodies on their way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kombu_opendata.errors import InvalidMessage
from kombu_opendata.queue_client import bodies


@dataclass
class Reading:
    value: float


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("around", [lambda n: n, lambda n: {"a": [1, n]}, lambda n: (None, {n}), Reading])
def test_a_number_that_json_has_not_is_refused_and_not_sent_as_null(number: float, around: Any) -> None:
    with pytest.raises(InvalidMessage, match="JSON does not have"):
        bodies.encode(around(number))


@pytest.mark.parametrize("body", [None, {"a": None}, "null", [1.5, None, "null"]])
def test_null_is_sent(body: Any) -> None:
    raw, content_type, encoding = bodies.encode(body)
    assert bodies.decode(raw, content_type, encoding, {}) == body
