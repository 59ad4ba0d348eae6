"""The message that runs a task again, of any envelope that a client may have sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.errors import InvalidMessage
from kombu_opendata.protocol.envelope import decode, encode_envelope
from kombu_opendata.protocol.retried_task import retried_task

NOW = 1_800_000_000_000
BODY = json.dumps([[], {}, {"chord": None}])


def envelope(body: Any = BODY, kind: str = "application/json", **headers: Any) -> bytes:
    about = {"task": "app.pay", "id": "old", "group": "g", "group_index": 1, **headers}
    return encode_envelope(body, kind, "utf-8", about, {"correlation_id": "old"}, "x", "key")


def headers_of(made: bytes) -> dict[Any, Any]:
    message = retried_task(made, NOW)
    assert message is not None
    return dict(decode(message.envelope)[3])


@pytest.mark.parametrize(
    ("body", "kind", "is_in_chord"),
    [
        (BODY, "application/json", False),
        (json.dumps([[], {}, {}]), "application/json", False),
        (json.dumps([[], {}, {"chord": {"task": "t"}}]), "application/json", True),
        (msgspec.msgpack.encode([[], {}, {"chord": None}]), "application/x-msgpack", False),
        (msgspec.msgpack.encode([[], {}, {"chord": {"task": "t"}}]), "application/x-msgpack", True),
        (b"\x80\x04.", "application/x-python-serialize", True),
        ("[", "application/json", True),
        ("[1, 2, 3]", "application/json", True),
        (BODY, "application/data", True),
    ],
)
def test_only_what_may_be_in_a_chord_leaves_its_group(body: Any, kind: str, is_in_chord: bool) -> None:
    assert ("group" not in headers_of(envelope(body, kind))) is is_in_chord


def test_a_compressed_body_is_not_read() -> None:
    assert "group" not in headers_of(envelope(compression="application/x-gzip"))


def test_where_it_was_published_and_its_body_stay() -> None:
    message = retried_task(envelope(root_id="above", parent_id="above"), NOW)
    assert message is not None
    body, kind, encoding, headers, properties, exchange, key = decode(message.envelope)
    assert (body, kind, encoding, exchange, key) == (BODY, "application/json", "utf-8", "x", "key")
    assert (headers["id"], headers["parent_id"], headers["root_id"]) == ("old", "above", "above")
    assert properties == {"correlation_id": "old"}
    assert (message.headers["id"], message.headers["parent_id"], message.ttl_ms) == ("old", "above", -1)


@pytest.mark.parametrize("headers", [{"task": None}, {"task": 5}, {"id": None}, {"id": ""}, {"id": 7}])
def test_what_is_no_task_is_not_made_one(headers: dict[str, Any]) -> None:
    assert retried_task(envelope(**headers), NOW) is None


@pytest.mark.parametrize("expires", ["2020-01-01", "never", 5, None, "9999-99-99", ["a"]])
def test_an_expiry_that_is_over_or_wrong_is_left_out(expires: Any) -> None:
    assert headers_of(envelope(expires=expires))["expires"] is None


@given(st.binary(max_size=200))
def test_nothing_that_is_no_envelope_is_a_task(raw: bytes) -> None:
    assert retried_task(raw, NOW) is None


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8) | st.binary(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@given(st.dictionaries(st.text(max_size=8), values, max_size=5), st.dictionaries(st.text(max_size=8), values), values)
def test_odd_headers_and_properties_break_nothing(headers: Any, properties: Any, result: Any) -> None:
    given = {**properties, "x-opendata-result": result, "priority": result}
    about = {**headers, "task": "t", "id": "old"}
    try:
        message = retried_task(encode_envelope(b"", None, None, about, given, "", ""), NOW)
    except InvalidMessage:
        return
    assert message is not None
    assert decode(message.envelope)[3]["id"] == "old"


def test_another_task_has_an_id_and_a_queue_and_a_job() -> None:
    made = envelope(spark_job="nightly", spark_message="17/old", price=5)
    message = retried_task(made, NOW, new_id="new", job_id="later", queue="other")
    assert message is not None
    body, _kind, _encoding, headers, properties, exchange, key = decode(message.envelope)
    assert (body, exchange, key, message.exchange, message.routing_key) == (BODY, "", "other", "", "other")
    assert (headers["id"], headers["parent_id"], headers["root_id"], headers["price"]) == ("new", "old", "old", 5)
    assert properties == {"correlation_id": "new"}
    assert (headers["spark_job"], "spark_message" in headers) == ("later", False)
    assert (message.headers["id"], message.headers["routing_key"]) == ("new", "other")
