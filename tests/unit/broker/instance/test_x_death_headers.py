"""What is written on a dead letter, also when its envelope is none or was made by somebody hostile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kombu_opendata.broker.instance import x_death_headers
from kombu_opendata.protocol.envelope import decode, encode_fields
from kombu_opendata.storage.records.dead_letter import DeadLetter

AT = 1_700_000_000_000


def letter(reason: str = "rejected", routing_key: str | None = None) -> DeadLetter:
    return DeadLetter(reason, AT, 250, "dlx", routing_key, False)


def envelope(headers: Any, properties: Any = None) -> bytes:
    return encode_fields((b"body", "text/plain", "utf-8", headers, properties or {}, "x", "k"))


def test_one_death_after_the_other() -> None:
    first = x_death_headers.make_copy(envelope({}, {"expiration": 5}), "one", letter("expired"))
    second = x_death_headers.make_copy(first.envelope, "two", letter("rejected", "other"))
    third = x_death_headers.make_copy(second.envelope, "one", letter("expired"))
    body, content_type, _encoding, headers, properties, exchange, routing_key = decode(third.envelope)
    assert (body, content_type, properties, exchange, routing_key) == (b"body", "text/plain", {}, "dlx", "other")
    time = datetime.fromtimestamp(AT // 1000, UTC)
    assert headers["x-death"] == third.deaths == [
        {
            "count": 2, "reason": "expired", "queue": "one", "time": time, "exchange": "x", "routing-keys": ["k"],
            "original-expiration": "5",
        },
        {"count": 1, "reason": "rejected", "queue": "two", "time": time, "exchange": "dlx", "routing-keys": ["k"]},
    ]  # fmt: skip
    assert (headers["x-first-death-queue"], headers["x-first-death-exchange"]) == ("one", "x")
    assert (headers["x-last-death-queue"], headers["x-last-death-exchange"]) == ("one", "dlx")
    assert third.metadata["x-first-death-reason"] == "expired"
    assert (third.metadata["exchange"], third.metadata["routing_key"]) == ("dlx", "other")
    assert third.metadata["priority"] == "5"
    assert (first.routing_key, second.routing_key) == ("k", "other")


@pytest.mark.parametrize("count", [0, -1, True, "1", None, 1 << 60])
def test_a_count_that_is_none_starts_again(count: Any) -> None:
    made = {"queue": "q", "reason": "rejected", "count": count}
    assert x_death_headers.make_copy(envelope({"x-death": [made]}), "q", letter()).deaths == [{**made, "count": 1}]


@pytest.mark.parametrize("known", ["text", {"a": 1}, 5, None])
def test_an_x_death_that_is_no_list_is_replaced(known: Any) -> None:
    assert len(x_death_headers.make_copy(envelope({"x-death": known}), "q", letter()).deaths) == 1


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\xc1",
        b"no envelope",
        encode_fields([1, 2, 3]),
        encode_fields((b"", "t", "e", [], {}, "x", "k")),
        encode_fields((b"", "t", "e", {}, {}, 5, "k")),
        envelope({"a": 1})[:-1],
        envelope({"a": 1}) + b"x",
        encode_fields((b"", "t", "e", {}, {}, "x")) + b"\xa1\xff",
        b"\x97\xc4\x00\xc0\xc0" + b"\x81" * 200_000,
        b"\x97\xc4\x00\xc0\xc0\x81\x91\xa1a\xc0\x80\xa0",
    ],
    ids=range(11),
)
def test_bytes_that_are_no_envelope_become_the_body_of_one(hostile: bytes) -> None:
    copy = x_death_headers.make_copy(hostile, "q", letter("expired", "key"))
    body, content_type, encoding, headers, properties, exchange, routing_key = decode(copy.envelope)
    assert (body, content_type, encoding, properties) == (hostile, "application/data", "binary", {})
    assert (exchange, routing_key, headers["x-first-death-reason"]) == ("dlx", "key", "expired")
    assert x_death_headers.is_cycle("q", copy.deaths)


def test_strange_headers_stay_as_they_are() -> None:
    strange = {1: 2, b"b": msgspec.msgpack.Ext(5, b"x"), "t": datetime(2020, 1, 1, tzinfo=UTC), (1, 2): None}
    copy = x_death_headers.make_copy(envelope(strange), "q", letter())
    kept = decode(copy.envelope)[3]
    assert strange.items() <= kept.items()


def test_headers_that_are_too_many_for_the_metadata() -> None:
    own = {str(number): "v" for number in range(251)}
    copy = x_death_headers.make_copy(envelope(own), "q", letter())
    assert copy.metadata == own | {
        "exchange": "dlx", "routing_key": "k", "priority": "5", "content_type": "text/plain",
    }, "a filter sees what the consumer gets, without the deaths"  # fmt: skip
    assert len(decode(copy.envelope)[3]) == 251 + 7


def test_large_headers_are_copied_undecoded() -> None:
    own = {"nested": {str(number): [number] for number in range(5000)}, "text": "t"}
    copy = x_death_headers.make_copy(envelope(own), "a", letter())
    again = x_death_headers.make_copy(copy.envelope, "b", letter())
    headers = decode(again.envelope)[3]
    assert own.items() <= headers.items()
    assert [death["queue"] for death in headers["x-death"]] == ["b", "a"]
    assert isinstance(again.headers["nested"], msgspec.Raw)
    huge = x_death_headers.make_copy(envelope({"x-death": [0] * 100_000}), "a", letter())
    assert [death["queue"] for death in huge.deaths] == ["a"]


def death(queue: str, reason: str) -> dict[str, Any]:
    return {"queue": queue, "reason": reason}


@pytest.mark.parametrize(
    ("history", "cycle"),
    [
        ([death("b", "expired")], False),
        ([death("a", "expired")], True),
        ([death("b", "expired"), death("a", "maxlen")], True),
        ([death("b", "expired"), death("a", "delivery_limit")], True),
        ([death("b", "expired"), death("a", "rejected")], False),
        ([death("b", "rejected"), death("a", "expired")], False),
        ([death("b", "expired"), "not the broker's", death("a", "expired")], False),
        ([], False),
    ],
)
def test_cycles(history: list[Any], cycle: bool) -> None:
    assert x_death_headers.is_cycle("a", history) is cycle


@pytest.mark.parametrize(("count", "delay_ms"), [(99, 0), (100, 10), (103, 80), (1 << 40, 1000), ("many", 0)])
def test_a_message_that_is_rejected_into_its_queue_again_and_again_is_delayed(count: Any, delay_ms: int) -> None:
    deaths = [{"queue": ["odd"], "reason": "rejected"}, {"queue": "q", "reason": "rejected", "count": count}, 7]
    assert x_death_headers.return_delay_ms(["other", "q"], deaths) == delay_ms
    assert x_death_headers.return_delay_ms(["other"], deaths) == 0
