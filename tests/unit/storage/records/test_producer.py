from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, producer

KEY = keys.producer_key(bytes(16))


def test_round_trip() -> None:
    last = producer.Producer(7, 258, 2, 1769385600000)
    assert producer.decode(KEY, producer.encode(last)) == last
    assert len(producer.encode(last)) == 28


def test_refuses() -> None:
    with pytest.raises(RequestError, match="last_sequence"):
        producer.encode(producer.Producer(-1, 0, 0, 0))
    with pytest.raises(CorruptRecord):
        producer.decode(KEY, bytes(29))
