from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidMessage, RequestError
from kombu_opendata.storage.records import field_types

KEY = b"\x01\x02q\x00"


def test_terminated_escapes_what_would_end_it() -> None:
    assert field_types.terminated(b"\x00\x01\xff") == b"\x01\x01\x01\x02\x01\x03\x00"
    assert field_types.terminated(b"") == b"\x00"


@pytest.mark.parametrize("raw", [b"q", b"", b"a\xffb\x00", b"a\x01\x00", b"a\x01\x04\x00", b"a\x01\n\x00"])
def test_read_terminated_refuses(raw: bytes) -> None:
    with pytest.raises(CorruptRecord):
        field_types.read_terminated(raw, 0)


def test_utf8_takes_65535_bytes_and_no_more() -> None:
    longest = "é" * 32767 + "x"
    assert field_types.read_utf8(KEY, field_types.utf8(longest), 0) == (longest, 65537)
    with pytest.raises(InvalidMessage) as caught:
        field_types.utf8("é" * 32768)
    assert caught.value.values == {"limit": 65535, "size": 65536}


def test_utf8_refuses_lone_surrogates() -> None:
    with pytest.raises(InvalidMessage):
        field_types.utf8("\ud800")


def test_read_utf8_tells_where_the_text_is_broken() -> None:
    with pytest.raises(CorruptRecord) as caught:
        field_types.read_utf8(KEY, b"..\x03\x00ab\xff", 2)
    assert caught.value.values == {"key": KEY, "offset": 6}
    assert KEY.hex() in str(caught.value)


@pytest.mark.parametrize("arguments", [{"x": float("nan")}, {"x": b"bytes"}, {"x": object()}])
def test_json_refuses_what_it_cannot_express(arguments: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        field_types.json_utf8(arguments)


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"a":' * 20000])
def test_read_json_refuses(text: str) -> None:
    with pytest.raises(CorruptRecord):
        field_types.read_json(KEY, field_types.utf8(text[:60000]), 0)


def test_array_count_is_bounded() -> None:
    assert field_types.array_count(65535, "messages") == b"\xff\xff"
    with pytest.raises(RequestError, match="65536 messages"):
        field_types.array_count(65536, "messages")
