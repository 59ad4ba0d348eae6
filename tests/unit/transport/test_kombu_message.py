"""What a consumer gets back, and what the broker sees."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any

import pytest

from kombu_opendata.errors import InvalidMessage
from kombu_opendata.protocol import envelope, message_properties
from kombu_opendata.transport import kombu_message


def encode(body: Any = b"body", headers: Any = None, properties: Any = None) -> bytes:
    return kombu_message.encode(body, "application/json", "utf-8", headers or {}, properties or {}, "x", "k")


@pytest.mark.parametrize("body", [b"\x00\xff", "täxt", b"", ""])
def test_it_comes_back_as_it_was(body: Any) -> None:
    headers = {"task": "t", "timelimit": [None, 3], "stamps": {"a": [1]}, "none": None, "float": 1.5}
    data = encode(body, headers, {"priority": 3, "correlation_id": "c"})
    assert envelope.decode(data) == (
        body,
        "application/json",
        "utf-8",
        headers,
        {"priority": 3, "correlation_id": "c"},
        "x",
        "k",
    )
    assert type(envelope.decode(data)[0]) is type(body)


def test_a_buffer_comes_back_as_bytes() -> None:
    assert envelope.decode(encode(memoryview(b"abc")))[0] == b"abc"


@pytest.mark.parametrize(
    ("headers", "properties", "says"),
    [
        ({"ok": 1, "bad": object()}, {}, "header 'bad' can't be encoded"),
        ({"huge": 2**70}, {}, "header 'huge' can't be encoded"),
        ({"lone": "\ud800"}, {}, "header 'lone' can't be encoded"),
        ({}, {"reply_to": object()}, "property 'reply_to' can't be encoded"),
    ],
)
def test_what_can_not_be_encoded_is_named(headers: Any, properties: Any, says: str) -> None:
    with pytest.raises(InvalidMessage, match=says):
        encode(b"", headers, properties)


def test_a_property_that_amqp_does_not_have_is_left_out_when_it_can_not_be_encoded() -> None:
    recursive: list[Any] = []
    recursive.append(recursive)
    properties = {"correlation_id": "c", "lock": object(), "huge": 2**70, "deep": recursive, "note": ["kept"]}
    sent = envelope.decode(encode(b"", {}, properties))[4]
    assert sent == {"correlation_id": "c", "note": ["kept"]}
    assert set(properties) == {"correlation_id", "lock", "huge", "deep", "note"}


@pytest.mark.parametrize("body", [None, {"a": 1}, 3])
def test_a_body_is_bytes_or_text(body: Any) -> None:
    with pytest.raises(InvalidMessage, match="the body must be bytes or text"):
        encode(body)


class Colour(enum.StrEnum):
    RED = "red"


def test_metadata_headers_are_the_scalars_as_text() -> None:
    headers = {
        "task": "t.add",
        "retries": 3,
        "ratio": 0.5,
        "ignore_result": True,
        "redelivered": False,
        "eta": None,
        "timelimit": [None, None],
        "stamps": {},
        "when": dt.datetime(2020, 1, 1),
        "argsrepr": "(1,)",
        "kwargsrepr": "{}",
        "exchange": "forged",
    }
    assert envelope.metadata_headers(headers, "x", "k", 7, "application/json") == {
        "task": "t.add",
        "retries": "3",
        "ratio": "0.5",
        "ignore_result": "true",
        "redelivered": "false",
        "exchange": "x",
        "routing_key": "k",
        "priority": "7",
        "content_type": "application/json",
    }


def test_subclasses_of_text_are_text() -> None:
    seen = envelope.metadata_headers({"colour": Colour.RED}, "", "", 0, None)
    assert type(seen["colour"]) is str
    assert "red" in seen["colour"].lower()


def test_the_number_of_headers_is_limited() -> None:
    most = {f"h{n}": n for n in range(251)}
    assert len(envelope.metadata_headers(most, "x", "k", 0, "t")) == 255
    with pytest.raises(InvalidMessage, match="256 headers; the limit is 255"):
        envelope.metadata_headers({**most, "one": 1}, "x", "k", 0, "t")


def test_the_length_of_a_header_is_limited_in_bytes() -> None:
    envelope.metadata_headers({"h": "x" * 65_535}, "", "", 0, None)
    with pytest.raises(InvalidMessage, match="value of header 'h' has 65536 bytes; the limit is 65535"):
        envelope.metadata_headers({"h": "x" * 65_536}, "", "", 0, None)
    with pytest.raises(InvalidMessage, match="has 80000 bytes"):
        envelope.metadata_headers({"h": "ä" * 40_000}, "", "", 0, None)
    with pytest.raises(InvalidMessage, match="name of header"):
        envelope.metadata_headers({"x" * 65_536: "h"}, "", "", 0, None)
    envelope.metadata_headers({"argsrepr": "x" * 100_000}, "", "", 0, None)


@pytest.mark.parametrize(("value", "priority"), [(None, 0), (0, 0), (255, 255), ("9", 9)])
def test_priority(value: Any, priority: int) -> None:
    assert message_properties.priority_of(value) == priority


@pytest.mark.parametrize("value", [300, -1, "high", 256])
def test_priority_out_of_range(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="from 0 to 255"):
        message_properties.priority_of(value)


@pytest.mark.parametrize(("value", "ttl_ms"), [(None, -1), ("", -1), ("0", 0), ("1500", 1500), (20, 20)])
def test_expiration(value: Any, ttl_ms: int) -> None:
    assert message_properties.ttl_ms_of(value) == ttl_ms


@pytest.mark.parametrize("value", ["-1", "soon", "1.5"])
def test_expiration_that_is_no_number(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="milliseconds from 0 up"):
        message_properties.ttl_ms_of(value)


@pytest.mark.parametrize(
    ("eta", "visible_at_ms"),
    [
        ("2026-01-26T00:00:00+00:00", 1_769_385_600_000),
        ("2026-01-26T01:00:00.500000+01:00", 1_769_385_600_500),
        ("2026-01-26T00:00:00", 1_769_385_600_000),
        ("9999-12-31T23:59:59+00:00", 253_402_300_799_000),
        (None, 0),
    ],
)
def test_a_task_with_an_eta_is_visible_then(eta: str | None, visible_at_ms: int) -> None:
    assert message_properties.visible_at_ms_of({"task": "proj.add", "eta": eta}) == visible_at_ms


def test_the_eta_of_something_else_than_a_task_is_no_business_of_ours() -> None:
    assert message_properties.visible_at_ms_of({"eta": "soon"}) == 0


@pytest.mark.parametrize("eta", ["soon", "", 17])
def test_an_eta_that_is_no_time_is_refused(eta: object) -> None:
    with pytest.raises(InvalidMessage, match="eta"):
        message_properties.visible_at_ms_of({"task": "proj.add", "eta": eta})
