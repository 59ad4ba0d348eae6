"""Records of which a store has one."""

from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, NewerFormat, RequestError
from kombu_opendata.storage.records import keys, store_records
from kombu_opendata.storage.records import store_records as marks

# ---- header
KEY = keys.STORE_HEADER_KEY


def test_writes_the_current_version() -> None:
    stored = store_records.encode_header(store_records.StoreHeader(1769385600000, "default"))
    assert stored.hex() == "0200" + "00a499f79b010000" + "0700" + b"default".hex()
    assert store_records.decode_header(KEY, stored) == store_records.StoreHeader(
        1769385600000, "default", store_records.FORMAT_VERSION
    )


def test_newer_version_is_told_apart_from_damage() -> None:
    newer = (store_records.FORMAT_VERSION + 1).to_bytes(2, "little") + b"fields of a version to come"
    with pytest.raises(NewerFormat, match=r"version 3.*up to 2") as caught:
        store_records.decode_header(KEY, newer)
    assert caught.value.values == {"version": 3, "supported": 2}


def test_version_0_is_damage() -> None:
    with pytest.raises(CorruptRecord):
        store_records.decode_header(KEY, bytes(12))


# ---- seq block
def test_big_endian() -> None:
    assert store_records.encode_seq_block(1, 4096).hex() == "00000000000000010000000000001000"


def test_refuses() -> None:
    with pytest.raises(RequestError):
        store_records.encode_seq_block(-1, 4096)
    with pytest.raises(CorruptRecord, match="0102"):
        store_records.decode_seq_block(keys.SEQ_BLOCK_KEY, bytes(17))


# ---- checkpoint marks
def test_round_trip_and_limits() -> None:
    assert marks.encode_journal_position(258) == b"\x02\x01" + bytes(6)
    highest = marks.encode_journal_position(2**64 - 1)
    assert marks.decode_journal_position(keys.JOURNAL_POSITION_KEY, highest) == 2**64 - 1
    with pytest.raises(RequestError):
        marks.encode_journal_position(2**64)
    with pytest.raises(CorruptRecord):
        marks.decode_journal_position(keys.JOURNAL_POSITION_KEY, bytes(9))
