from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import journal_position, keys


def test_round_trip_and_limits() -> None:
    assert journal_position.encode(258) == b"\x02\x01" + bytes(6)
    assert journal_position.decode(keys.JOURNAL_POSITION_KEY, journal_position.encode(2**64 - 1)) == 2**64 - 1
    with pytest.raises(RequestError):
        journal_position.encode(2**64)
    with pytest.raises(CorruptRecord):
        journal_position.decode(keys.JOURNAL_POSITION_KEY, bytes(9))
