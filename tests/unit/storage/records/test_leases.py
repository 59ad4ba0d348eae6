from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, leases
from kombu_opendata.storage.records.leases import SessionLeases

KEY = keys.session_key(bytes(16))


def test_round_trip() -> None:
    held = {"celery": [1, 2**64 - 1], "empty": [], "many": list(range(70000))}
    for deadlines in ({}, {"celery": [0, 2**63 - 1]}, {"celery": [-1, 5], "many": list(range(70000))}):
        found = SessionLeases("celery@a", -1, held, deadlines)
        assert leases.decode(KEY, leases.encode(found)) == found


def test_what_never_expires_costs_nothing() -> None:
    stored = leases.encode(SessionLeases("c", 1, {"q": [258]}))
    assert stored.hex(" ") == "01 00 63 01 00 00 00 00 00 00 00 01 00 01 00 71 01 00 00 00 02 01 00 00 00 00 00 00"


def test_refuses_what_does_not_fit() -> None:
    for ids in ([-1], [2**64]):
        with pytest.raises(RequestError):
            leases.encode(SessionLeases("c", 0, {"q": ids}))
    with pytest.raises(RequestError):
        leases.encode(SessionLeases("c", 2**63, {}))
    with pytest.raises(RequestError):
        leases.encode(SessionLeases("c", 0, {"q": [1]}, {"q": [2**63]}))


def test_a_count_beyond_the_record_is_corrupt() -> None:
    stored = leases.encode(SessionLeases("c", 0, {"q": []}))[:-4]
    with pytest.raises(CorruptRecord, match="2147483647 integers"):
        leases.decode(KEY, stored + b"\xff\xff\xff\x7f")
    with pytest.raises(CorruptRecord, match="1 integers where 7 bytes are left"):
        leases.decode(KEY, leases.encode(SessionLeases("c", 0, {"q": [1]}, {"q": [5]}))[:-1])


def test_a_repeated_queue_is_corrupt() -> None:
    stored = leases.encode(SessionLeases("c", 0, {"p": [1], "q": [2]}))
    with pytest.raises(CorruptRecord, match="twice"):
        leases.decode(KEY, stored.replace(b"p", b"q"))
