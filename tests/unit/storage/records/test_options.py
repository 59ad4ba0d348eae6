from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, options

KEY = keys.options_key("q")


def test_round_trip() -> None:
    settings = options.QueueOptionsRecord(1209600, 60, 2**64 - 1, 3, {"x-max-priority": 10})
    assert options.decode(KEY, options.encode(settings)) == settings


def test_refuses() -> None:
    with pytest.raises(RequestError, match="lease_seconds"):
        options.encode(options.QueueOptionsRecord(0, 2**32, 0, 0, {}))
    with pytest.raises(CorruptRecord, match="not JSON"):
        options.decode(KEY, bytes(24) + b"\x00\x00")
