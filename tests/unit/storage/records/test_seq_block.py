from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, seq_block


def test_big_endian() -> None:
    assert seq_block.encode(1, 4096).hex() == "00000000000000010000000000001000"


def test_refuses() -> None:
    with pytest.raises(RequestError):
        seq_block.encode(-1, 4096)
    with pytest.raises(CorruptRecord, match="0102"):
        seq_block.decode(keys.SEQ_BLOCK_KEY, bytes(17))
