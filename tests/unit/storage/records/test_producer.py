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
    with pytest.raises(CorruptRecord):
        producer.decode(KEY, bytes(19) + b"\x80" + bytes(8) + b"\x81" + b"\1" * 129)
    with pytest.raises(RequestError, match="1024 bits"):
        producer.encode(producer.NONE._replace(holes=1 << 1024))


def after(*numbers: int) -> producer.Producer:
    last = producer.NONE
    for number in numbers:
        last = last.after(number, 100 + number, 1, 5)
    return producer.decode(KEY, producer.encode(last))


def test_numbers_that_were_skipped_are_not_taken_for_stored() -> None:
    last = after(1, 2, 5, 6, 9)
    assert [number for number in range(12) if last.has(number)] == [0, 1, 2, 5, 6, 9]
    assert last[:3] == (9, 109, 1)
    assert len(producer.encode(last)) == 28 + 2
    late = last.after(3, 110, 1, 6)
    assert [number for number in range(1, 12) if late.has(number)] == [1, 2, 3, 5, 6, 9]
    assert late[:3] == (9, 109, 1)


def test_without_holes_the_record_stays_small() -> None:
    assert len(producer.encode(after(*range(1, 2000)))) == 28


def test_holes_are_known_as_far_back_as_a_client_may_have_publishes_in_flight() -> None:
    last = after(1, 3, *range(4, 1026))
    assert (last.last_sequence, last.has(2)) == (1025, False)
    assert last.after(1026, 1, 1, 1).has(2), "too old: taken for stored"
    leap = after(1, 1 << 62)
    assert not leap.has((1 << 62) - 1023)
    assert leap.has((1 << 62) - 1024)
