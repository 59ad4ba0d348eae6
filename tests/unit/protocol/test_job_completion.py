"""The task that a job sends when it has ended, of any envelope that a driver may have sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.errors import InvalidMessage
from kombu_opendata.protocol.envelope import decode, encode_envelope
from kombu_opendata.protocol.job_completion import completion_task

NOW = 1_800_000_000_000
JOB = {"job_id": "job", "tasks": {"succeeded": 2}}
BODY = [[1], {"a": {"b": None}}, {"chain": [{"task": "next"}], "chord": None}]


def envelope(body: Any, kind: str | None = "application/json", **headers: Any) -> bytes:
    about = {"task": "app.report", "id": "report", **headers}
    return encode_envelope(body, kind, "utf-8", about, {"priority": 4, "correlation_id": "report"}, "x", "key")


def test_the_counts_are_an_argument_and_the_rest_stays() -> None:
    message = completion_task(envelope(json.dumps(BODY), spark_job="other"), JOB, NOW)
    body, kind, encoding, headers, properties, exchange, key = decode(message.envelope)
    assert json.loads(body) == [[1], {"a": {"b": None}, "job": JOB}, BODY[2]]
    assert (kind, encoding, exchange, key) == ("application/json", "utf-8", "x", "key")
    assert headers == {"task": "app.report", "id": "report"}
    assert properties == {"priority": 4, "correlation_id": "report"}
    assert (message.exchange, message.routing_key, message.priority, message.ttl_ms) == ("x", "key", 4, -1)
    assert (message.headers["task"], message.visible_at_ms) == ("app.report", 0)


def test_a_body_of_msgpack_stays_one() -> None:
    message = completion_task(envelope(msgspec.msgpack.encode(BODY), "application/x-msgpack"), JOB, NOW)
    assert msgspec.msgpack.decode(decode(message.envelope)[0])[1] == {"a": {"b": None}, "job": JOB}


def test_it_is_delayed_and_expires_as_it_says() -> None:
    raw = encode_envelope(
        json.dumps(BODY), "application/json", "utf-8", {"task": "t", "id": "i", "eta": "2999-01-01T00:00:00+00:00"},
        {"expiration": "5000"}, "", "q",
    )  # fmt: skip
    message = completion_task(raw, JOB, NOW)
    assert (message.visible_at_ms, message.ttl_ms) == (32_472_144_000_000, 5000)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        envelope(json.dumps(BODY), "application/x-python-serialize"),
        envelope(json.dumps(BODY), None),
        envelope(json.dumps(BODY), compression="application/x-gzip"),
        envelope(json.dumps(BODY), task=None),
        envelope(json.dumps(BODY), id=5),
        envelope("[1, 2, 3]"),
        envelope("not json"),
        envelope(json.dumps([[], {}, {}, {}])),
        envelope(json.dumps([["x" * 40_000], {}, {}])),
        envelope(json.dumps(BODY), eta="tomorrow"),
    ],
)
def test_what_can_not_get_the_argument_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidMessage):
        completion_task(wrong, JOB, NOW)


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(raw: bytes) -> None:
    with pytest.raises(InvalidMessage):
        completion_task(raw, JOB, NOW)
