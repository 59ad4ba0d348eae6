"""The time in a compaction's id."""

from __future__ import annotations

import pytest

from kombu_opendata.storage.slatedb.compactions import planned_at_ms


@pytest.mark.parametrize(
    ("id", "at_ms"),
    [
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1_469_922_850_259),
        ("01arz3ndektsv4rrffq69g5fav", 1_469_922_850_259),
        ("0000000001TSV4RRFFQ69G5FAV", 1),
        ("not-a-ulid", 0),
        ("", 0),
    ],
    ids=["upper-case", "lower-case", "one", "no-ulid", "empty"],
)
def test_the_time_of_a_compaction(id: str, at_ms: int) -> None:
    assert planned_at_ms(id) == at_ms
