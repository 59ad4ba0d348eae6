from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, settled

KEY = keys.done_key("q")


def test_joined_entries_are_the_encoded_list() -> None:
    entries = [(1, 2, 3), (4, -5, 6)]
    packed = settled.pack_entries(entries)
    assert settled.decode(KEY, settled.join(packed)) == entries
    assert {len(entry) for entry in packed} == {settled.ENTRY_BYTES}


def test_refuses() -> None:
    for entry in ((-1, 0, 0), (0, 2**63, 0), (0, 0, 65536)):
        with pytest.raises(RequestError):
            settled.pack_entry(*entry)
    with pytest.raises(RequestError):
        settled.join([settled.pack_entry(1, 2, 3)] * 65536)
    with pytest.raises(CorruptRecord):
        settled.decode(KEY, b"\x02\x00" + settled.pack_entry(1, 2, 3))
