"""Active messages, and the claims of a message."""

from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidMessage, RequestError
from kombu_opendata.storage.records import active, keys

# ---- active
KEY = keys.active_key("q", 1)


def test_takes_named_tuples_and_gives_plain_ones() -> None:
    value = active.encode([active.AvailableMessage(1, 2, 3, 4, 5)], [active.AvailableMessage(6, 7, 8, 9, 10)])
    available, in_flight = active.decode(KEY, value)
    assert (available, in_flight) == ([(1, 2, 3, 4, 5)], [(6, 7, 8, 9, 10)])
    assert {type(entry) for entry in available + in_flight} == {tuple}


def test_the_largest_values() -> None:
    entries = [(2**64 - 1, 255, -(2**63), 2**63 - 1, 65535)]
    assert active.decode(KEY, active.encode(entries, entries)) == (entries, entries)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("number", [2**64, -(2**64)])
def test_values_out_of_range(place: int, number: int) -> None:
    entry = [1, 2, 3, 4, 5]
    entry[place] = number
    good, bad = (1, 2, 3, 4, 5), (entry[0], entry[1], entry[2], entry[3], entry[4])
    with pytest.raises(RequestError, match="visible_at_ms"):
        active.encode([good, bad], [])
    with pytest.raises(RequestError, match="claimed_at_ms"):
        active.encode([], [good, bad])


def test_too_many_messages() -> None:
    entries = [(1, 2, 3, 4, 5)] * 65536
    with pytest.raises(RequestError):
        active.encode(entries, [])
    assert active.decode(KEY, active.encode(entries[1:], entries[1:])) == (entries[1:], entries[1:])


@pytest.mark.parametrize("value", [b"", b"\x00\x00", b"\x01\x00\x00\x00", b"\x00\x00\x01\x00", b"\x00" * 5])
def test_decode_refuses(value: bytes) -> None:
    with pytest.raises(CorruptRecord) as caught:
        active.decode(KEY, value)
    assert caught.value.values["key"] == KEY


@pytest.mark.parametrize("value", [b"", b"\x01\x00\x00\x00", b"\x01\x00" + bytes(27), b"\x01\x00" + bytes(30)])
def test_columns_are_refused_as_rows_are(value: bytes) -> None:
    with pytest.raises(CorruptRecord) as caught:
        active.decode_columns(KEY, value)
    assert caught.value.values["key"] == KEY


# ---- attempts
def test_order_and_repeats_are_kept() -> None:
    consumers = ["b", "a", "b", ""]
    assert active.decode_attempts(keys.attempts_key(1), active.encode_attempts(consumers)) == consumers


def test_refuses() -> None:
    with pytest.raises(RequestError):
        active.encode_attempts(["a"] * 65536)
    with pytest.raises(InvalidMessage):
        active.encode_attempts(["a" * 65536])
    with pytest.raises(CorruptRecord):
        active.decode_attempts(keys.attempts_key(1), b"\x02\x00\x00\x00")
