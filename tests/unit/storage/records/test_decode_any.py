from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage import records
from kombu_opendata.storage.records import keys


def test_every_kind_has_a_decoder() -> None:
    assert set(records._DECODERS) == set(keys.RecordKind)


def test_a_chunk_is_raw_bytes() -> None:
    assert records.decode_any(keys.chunk_key(1, 0), b"\xff\x00") == b"\xff\x00"


def test_unknown_keys_are_corrupt() -> None:
    with pytest.raises(CorruptRecord, match=r"0107.*unknown kind"):
        records.decode_any(b"\x01\x07", b"")
