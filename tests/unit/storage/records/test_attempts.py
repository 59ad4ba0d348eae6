from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidMessage, RequestError
from kombu_opendata.storage.records import attempts, keys


def test_order_and_repeats_are_kept() -> None:
    consumers = ["b", "a", "b", ""]
    assert attempts.decode(keys.attempts_key(1), attempts.encode(consumers)) == consumers


def test_refuses() -> None:
    with pytest.raises(RequestError):
        attempts.encode(["a"] * 65536)
    with pytest.raises(InvalidMessage):
        attempts.encode(["a" * 65536])
    with pytest.raises(CorruptRecord):
        attempts.decode(keys.attempts_key(1), b"\x02\x00\x00\x00")
