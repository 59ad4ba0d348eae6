from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, NewerFormat
from kombu_opendata.storage.records import header, keys

KEY = keys.STORE_HEADER_KEY


def test_writes_the_current_version() -> None:
    stored = header.encode(header.StoreHeader(1769385600000, "default"))
    assert stored.hex() == "0200" + "00a499f79b010000" + "0700" + b"default".hex()
    assert header.decode(KEY, stored) == header.StoreHeader(1769385600000, "default", header.FORMAT_VERSION)


def test_newer_version_is_told_apart_from_damage() -> None:
    newer = (header.FORMAT_VERSION + 1).to_bytes(2, "little") + b"fields of a version to come"
    with pytest.raises(NewerFormat, match=r"version 3.*up to 2") as caught:
        header.decode(KEY, newer)
    assert caught.value.values == {"version": 3, "supported": 2}


def test_version_0_is_damage() -> None:
    with pytest.raises(CorruptRecord):
        header.decode(KEY, bytes(12))
