from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, routes


def test_round_trip_and_limits() -> None:
    assert routes.decode(keys.routes_key(1), routes.encode(65535)) == 65535
    with pytest.raises(RequestError):
        routes.encode(65536)
    with pytest.raises(CorruptRecord):
        routes.decode(keys.routes_key(1), b"\x01")
