from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, leases

KEY = keys.session_key(bytes(16))


def test_round_trip() -> None:
    held = {"celery": [1, 2**64 - 1], "empty": [], "many": list(range(70000))}
    assert leases.decode(KEY, leases.encode("celery@a", -1, held)) == ("celery@a", -1, held)


def test_refuses_what_does_not_fit() -> None:
    for ids in ([-1], [2**64]):
        with pytest.raises(RequestError):
            leases.encode("c", 0, {"q": ids})
    with pytest.raises(RequestError):
        leases.encode("c", 2**63, {})


def test_a_count_beyond_the_record_is_corrupt() -> None:
    stored = leases.encode("c", 0, {"q": []})[:-4] + b"\xff\xff\xff\xff"
    with pytest.raises(CorruptRecord, match="4294967295 message ids"):
        leases.decode(KEY, stored)


def test_a_repeated_queue_is_corrupt() -> None:
    stored = leases.encode("c", 0, {"p": [1], "q": [2]})
    with pytest.raises(CorruptRecord, match="twice"):
        leases.decode(KEY, stored.replace(b"p", b"q"))
