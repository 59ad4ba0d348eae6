"""Records of sessions."""

from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, session_records
from kombu_opendata.storage.records.session_records import SessionLeases

# ---- leases
KEY = keys.session_key(bytes(16))


def test_round_trip() -> None:
    held = {"celery": [1, 2**64 - 1], "empty": [], "many": list(range(70000))}
    for deadlines in ({}, {"celery": [0, 2**63 - 1]}, {"celery": [-1, 5], "many": list(range(70000))}):
        for owner in ("", "alice"):
            found = SessionLeases("celery@a", 2**63 - 1, held, deadlines, owner)
            assert session_records.decode_leases(KEY, session_records.encode_leases(found)) == found


def test_what_never_expires_costs_nothing() -> None:
    stored = session_records.encode_leases(SessionLeases("c", 1, {"q": [258]}))
    assert stored.hex(" ") == "01 00 63 01 00 00 00 00 00 00 00 01 00 01 00 71 01 00 00 00 02 01 00 00 00 00 00 00"


def test_an_owner_follows_the_messages() -> None:
    without = session_records.encode_leases(SessionLeases("c", 1, {"q": [258]}))
    stored = session_records.encode_leases(SessionLeases("c", 1, {"q": [258]}, owner="eve"))
    assert stored[:10] + b"\0" + stored[11:] == without + b"\x03\x00eve"
    assert stored[10] == 0x80
    for wrong in (stored[:-1], stored + b"\0", stored[: len(without)], without + b"\x03\x00eve"):
        with pytest.raises(CorruptRecord):
            session_records.decode_leases(KEY, wrong)


def test_refuses_what_does_not_fit() -> None:
    for ids in ([-1], [2**64]):
        with pytest.raises(RequestError):
            session_records.encode_leases(SessionLeases("c", 0, {"q": ids}))
    with pytest.raises(RequestError):
        session_records.encode_leases(SessionLeases("c", 2**63, {}))
    with pytest.raises(RequestError):
        session_records.encode_leases(SessionLeases("c", -1, {}))
    with pytest.raises(RequestError):
        session_records.encode_leases(SessionLeases("c", 0, {"q": [1]}, {"q": [2**63]}))


def test_a_count_beyond_the_record_is_corrupt() -> None:
    stored = session_records.encode_leases(SessionLeases("c", 0, {"q": []}))[:-4]
    with pytest.raises(CorruptRecord, match="2147483647 integers"):
        session_records.decode_leases(KEY, stored + b"\xff\xff\xff\x7f")
    with pytest.raises(CorruptRecord, match="1 integers where 7 bytes are left"):
        session_records.decode_leases(
            KEY, session_records.encode_leases(SessionLeases("c", 0, {"q": [1]}, {"q": [5]}))[:-1]
        )


def test_a_repeated_queue_is_corrupt() -> None:
    stored = session_records.encode_leases(SessionLeases("c", 0, {"p": [1], "q": [2]}))
    with pytest.raises(CorruptRecord, match="twice"):
        session_records.decode_leases(KEY, stored.replace(b"p", b"q"))


# ---- producer
KEY_OF_PRODUCER = keys.producer_key(bytes(16))


def test_round_trip_of_producer() -> None:
    last = session_records.Producer(7, 258, 2, 1769385600000)
    assert session_records.decode_producer(KEY_OF_PRODUCER, session_records.encode_producer(last)) == last
    assert len(session_records.encode_producer(last)) == 28


def test_refuses() -> None:
    with pytest.raises(RequestError, match="last_sequence"):
        session_records.encode_producer(session_records.Producer(-1, 0, 0, 0))
    with pytest.raises(CorruptRecord):
        session_records.decode_producer(KEY_OF_PRODUCER, bytes(29))
    with pytest.raises(CorruptRecord):
        session_records.decode_producer(KEY_OF_PRODUCER, bytes(19) + b"\x80" + bytes(8) + b"\x81" + b"\1" * 129)
    with pytest.raises(RequestError, match="1024 bits"):
        session_records.encode_producer(session_records.NO_PUBLISH._replace(holes=1 << 1024))


def after(*numbers: int) -> session_records.Producer:
    last = session_records.NO_PUBLISH
    for number in numbers:
        last = last.after(number, 100 + number, 1, 5)
    return session_records.decode_producer(KEY_OF_PRODUCER, session_records.encode_producer(last))


def test_numbers_that_were_skipped_are_not_taken_for_stored() -> None:
    last = after(1, 2, 5, 6, 9)
    assert [number for number in range(12) if last.has(number)] == [0, 1, 2, 5, 6, 9]
    assert last[:3] == (9, 109, 1)
    assert len(session_records.encode_producer(last)) == 28 + 2
    late = last.after(3, 110, 1, 6)
    assert [number for number in range(1, 12) if late.has(number)] == [1, 2, 3, 5, 6, 9]
    assert late[:3] == (9, 109, 1)


def test_without_holes_the_record_stays_small() -> None:
    assert len(session_records.encode_producer(after(*range(1, 2000)))) == 28


def test_holes_are_known_as_far_back_as_a_client_may_have_publishes_in_flight() -> None:
    last = after(1, 3, *range(4, 1026))
    assert (last.last_sequence, last.has(2)) == (1025, False)
    assert last.after(1026, 1, 1, 1).has(2), "too old: taken for stored"
    leap = after(1, 1 << 62)
    assert not leap.has((1 << 62) - 1023)
    assert leap.has((1 << 62) - 1024)
