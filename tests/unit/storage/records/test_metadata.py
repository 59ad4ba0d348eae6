from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidMessage, RequestError
from kombu_opendata.storage.records import keys, metadata

KEY = keys.metadata_key(1)


def encode(headers: dict[str, str] | list[tuple[str, str]]) -> bytes:
    return metadata.encode(1, 2, 3, 4, 5, headers)


def test_headers_come_back_as_a_dict() -> None:
    headers = {"task": "proj.añadir", "empty": "", "long": "x" * 300, "y" * 300: "long key", "longest": "z" * 65535}
    for _ in range(2):  # the second time the keys are known
        assert metadata.decode(KEY, encode(headers)) == metadata.Metadata(1, 2, 3, 4, 5, tuple(headers.items()))
    assert metadata.decode(KEY, encode(headers)).headers == headers


def test_repeated_keys_are_kept() -> None:
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    decoded = metadata.decode(KEY, encode(pairs))
    assert decoded.header_pairs == tuple(pairs)
    assert decoded.headers == {"a": "3", "b": "2"}


def test_more_headers_than_are_remembered() -> None:
    for number in range(0, 5000, 250):
        headers = {f"key-{number + i}": str(i) for i in range(250)}
        assert metadata.decode(KEY, encode(headers)).headers == headers
    assert len(metadata._pairs) <= metadata._PAIRS_KEPT


def test_255_headers_and_no_more() -> None:
    headers = {str(number): "" for number in range(256)}
    with pytest.raises(InvalidMessage) as caught:
        encode(headers)
    assert caught.value.values == {"limit": 255, "size": 256}
    headers.pop("0")
    assert metadata.decode(KEY, encode(headers)).headers == headers


@pytest.mark.parametrize("headers", [{"a": "x" * 65536}, {"x" * 65536: "a"}, {"a": "\ud800"}, {"\ud800": "a"}])
def test_headers_that_cannot_be_stored(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage):
        encode(headers)


@pytest.mark.parametrize("place", range(5))
def test_numbers_out_of_range(place: int) -> None:
    numbers = [1, 2, 3, 4, 5]
    numbers[place] = 2**64
    with pytest.raises(RequestError):
        metadata.encode(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], {})


def test_decode_tells_where_a_header_is_broken() -> None:
    value = bytearray(encode({"key": "text"}))
    value[-1] = 0xFF
    with pytest.raises(CorruptRecord, match="not UTF-8") as caught:
        metadata.decode(KEY, bytes(value))
    assert caught.value.values["offset"] == len(value) - 1
