from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import checkpoint_marks as marks
from kombu_opendata.storage.records import keys


def test_round_trip_and_limits() -> None:
    assert marks.encode_journal_position(258) == b"\x02\x01" + bytes(6)
    highest = marks.encode_journal_position(2**64 - 1)
    assert marks.decode_journal_position(keys.JOURNAL_POSITION_KEY, highest) == 2**64 - 1
    with pytest.raises(RequestError):
        marks.encode_journal_position(2**64)
    with pytest.raises(CorruptRecord):
        marks.decode_journal_position(keys.JOURNAL_POSITION_KEY, bytes(9))
