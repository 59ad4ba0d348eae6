"""Bodies on their way out and in, the latter with limits on bytes, elements, depth and time."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pytest
from kombu import compression

from kombu_opendata.errors import BodyTooLarge, InvalidMessage
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.queue_client import body_codec
from kombu_opendata.queue_client.message_models import Message, bodies_of_page
from kombu_opendata.queue_client.tasks import arguments_of, result_of


@dataclass
class Reading:
    value: float


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("around", [lambda n: n, lambda n: {"a": [1, n]}, lambda n: (None, {n}), Reading])
def test_a_number_that_json_has_not_is_refused_and_not_sent_as_null(number: float, around: Any) -> None:
    with pytest.raises(InvalidMessage, match="JSON does not have"):
        body_codec.encode(around(number))


@pytest.mark.parametrize("body", [None, {"a": None}, "null", [1.5, None, "null"]])
def test_null_is_sent(body: Any) -> None:
    raw, content_type, encoding = body_codec.encode(body)
    stored = raw.encode() if isinstance(raw, str) else raw
    assert body_codec.decode(stored, content_type, encoding, {}) == body


def test_values_of_subclasses_are_sent_as_plain_ones() -> None:
    text, number = type("Markup", (str,), {})("<b>"), type("Rate", (float,), {})
    assert body_codec.encode({"text": text, "rates": [number(0.5), None]})[0] == '{"text":"<b>","rates":[0.5,null]}'
    with pytest.raises(InvalidMessage, match="JSON does not have nan"):
        body_codec.encode([number("nan")])


# ---------------------------------------------------------------------- limits
EXPECTED = {"application/x-gzip", "application/x-bz2", "application/x-lzma", "application/x-brotli", "application/zstd"}


def pressed(plain: bytes, method: str) -> bytes:
    raw: bytes = compression.compress(plain, method)[0]  # type: ignore[no-untyped-call]
    return raw


@cache
def bomb_of(method: str, megabytes: int = 9) -> bytes:
    return pressed(b"[" + b"{}," * (megabytes * 1_000_000 // 3) + b"{}]", method)


def compressed(plain: bytes, method: str, content_type: str = "application/json") -> Message:
    return Message(1, "q", {"compression": method}, content_type, "utf-8", raw=pressed(plain, method))


def peak_of(call: Callable[[], Any]) -> int:
    """The memory that a call takes at most, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_each_method_of_kombu_is_known() -> None:
    assert set(compression.encoders()) == EXPECTED  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("method", sorted(EXPECTED))
def test_a_compressed_body_is_read(method: str) -> None:
    message = compressed(b'{"a": [1, 2]}', method)
    assert message.body == message.displayed() == {"a": [1, 2]}


@pytest.mark.parametrize("method", sorted(EXPECTED))
def test_a_damaged_body_stays_bytes(method: str) -> None:
    whole = compressed(json.dumps(list(range(10_000))).encode(), method)
    for raw in (whole.raw[: len(whole.raw) // 2], b"junk", b""):
        cut = Message(1, "q", whole.headers, "application/json", "utf-8", raw=raw)
        assert cut.displayed() == cut.body
        assert isinstance(cut.body, bytes)


@pytest.mark.parametrize("method", sorted(EXPECTED))
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/data", "application/x-yaml"])
def test_a_decompression_bomb_is_not_displayed(method: str, content_type: str) -> None:
    bomb = Message(1, "q", {"compression": method}, content_type, "utf-8", raw=bomb_of(method))

    def look() -> None:
        with pytest.raises(BodyTooLarge, match=r"too large to display: its [\d,]+ bytes decompress to .* -dz?`"):
            bomb.displayed()

    assert peak_of(look) < 32 << 20
    assert len(bomb.raw) < 32 << 10


def test_a_bomb_that_a_program_receives_stays_compressed() -> None:
    for megabytes in (9, 90):  # too many elements, too many bytes
        bomb = Message(1, "q", {"compression": "gzip"}, "application/json", "utf-8", raw=bomb_of("gzip", megabytes))
        assert peak_of(lambda: bomb.body) < 192 << 20  # noqa: B023
        assert bomb.body == bomb.raw


@pytest.mark.parametrize(
    ("content_type", "raw"),
    [
        ("application/json", b"[" + b"{}," * 300_000 + b"{}]"),
        ("application/json", b"[" * 300_000),
        ("application/x-msgpack", b"\xdd\x00\x04\x93\xe0" + b"\x80" * 300_000),
    ],
)  # fmt: skip
def test_a_body_with_many_elements_is_not_displayed(content_type: str, raw: bytes) -> None:
    message = Message(1, "q", {}, content_type, "utf-8", raw=raw)

    def look() -> None:
        with pytest.raises(BodyTooLarge, match="may have more than 250,000 elements"):
            message.displayed()

    assert peak_of(look) < 8 << 20


def test_commas_and_brackets_in_texts_are_no_elements() -> None:
    rows = "a,b,[c],{d}," * 100_000 + '\\"'
    message = Message(1, "q", {}, "application/json", "utf-8", raw=json.dumps({"csv": rows}).encode())
    assert message.displayed() == {"csv": rows}


@pytest.mark.parametrize("raw", [b'"' + b'\\"' * 1_000_000, b'["' * 200_000 + b"," * 300_000, b"\\" * 2_000_000])
def test_damaged_texts_are_counted_in_linear_time(raw: bytes) -> None:
    assert body_codec.json_elements(raw, 0) <= len(raw)  # quadratic time would take hours


def test_a_deep_body_is_not_displayed() -> None:
    for content_type, raw in (
        ("application/json", b"[" * 150 + b"]" * 150),
        ("application/x-msgpack", b"\x91" * 150 + b"\x90"),
    ):
        message = Message(1, "q", {}, content_type, "utf-8", raw=raw)
        with pytest.raises(BodyTooLarge, match="more than 100 levels deep"):
            message.displayed()
        assert isinstance(message.body, list)
    for depth in (50_000, 200_000):
        deep = Message(1, "q", {}, "application/json", "utf-8", raw=b"[" * depth + b"]" * depth)
        assert deep.body == deep.displayed() == deep.raw  # deeper than the decoder goes


@pytest.mark.parametrize("digits", [5_000, 5_000_000])
def test_a_long_number_takes_no_time(digits: int) -> None:
    raw = b"[" + b"9" * digits + b"]"
    assert Message(1, "q", {}, "application/json", "utf-8", raw=raw).displayed() == raw
    assert result_of(b'{"status": "SUCCESS", "result": ' + raw + b"}").encoding == "unknown"


@pytest.mark.parametrize("encoding", ["punycode", "idna", "Punycode", "nonsense", "zlib", "unicode_escape"])
def test_an_encoding_that_is_slow_or_none_of_text(encoding: str) -> None:
    raw = b"a" * (1 << 20) + b"-" + b"b" * (1 << 20)
    assert Message(1, "q", {}, "text/plain", encoding, raw=raw).displayed() in (raw, raw.decode())


def test_yaml_and_pickle_are_never_loaded() -> None:
    laughs = b"a: &a [lol, lol]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    for content_type, raw in (("application/x-yaml", laughs), ("application/x-python-serialize", pickle.dumps([1]))):
        message = Message(1, "q", {}, content_type, "utf-8", raw=raw)
        assert message.displayed() == message.body == raw


def test_the_bodies_of_a_page_share_one_limit() -> None:
    bomb = pressed(b"[" + b"{}," * 50_000 + b"{}]", "gzip")
    body_of = bodies_of_page()
    envelope = encode_envelope(bomb, "application/json", "utf-8", {"compression": "gzip"}, {}, "", "q")
    read = [body_of(envelope) for _ in range(100)]
    assert [type(one) for one in read[:3]] == [list, list, bytes]
    assert all(type(one) is bytes for one in read[2:])


def test_arguments_and_results_that_are_too_large() -> None:
    large = b"[" + b"0," * 300_000 + b"0]"
    message = Message(1, "q", {}, "application/json", "utf-8", raw=b"[" + large + b", {}, {}]")
    args, kwargs, note = arguments_of(message)
    assert (args, kwargs) == (None, None)
    assert "too large to display" in note
    assert result_of(b'{"status": "SUCCESS", "result": ' + large + b"}").encoding == "too large"
    deep = b"[" * 150 + b"]" * 150
    assert result_of(b'{"status": "SUCCESS", "result": ' + deep + b"}").encoding == "too large"
    packed = Message(1, "q", {}, "application/x-msgpack", "binary", raw=msgspec.msgpack.encode([[1], {"a": 2}, {}]))
    assert arguments_of(packed) == ([1], {"a": 2}, "")
