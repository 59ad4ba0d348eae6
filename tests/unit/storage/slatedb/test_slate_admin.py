"""The times in the ids of tables and compactions."""

from __future__ import annotations

import pytest

from kombu_opendata.storage.slatedb.slate_admin import earlier_ulid, ulid_number, ulid_time_ms


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
def test_the_time_of_a_ulid(id: str, at_ms: int) -> None:
    assert ulid_time_ms(id) == at_ms


def test_an_earlier_ulid_keeps_its_random_bits() -> None:
    id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    earlier = earlier_ulid(id, 86_400_000)
    assert ulid_time_ms(earlier) == 1_469_922_850_259 - 86_400_000
    assert ulid_number(id) - ulid_number(earlier) == 86_400_000 << 80
    assert earlier.endswith(id[10:])
    assert earlier_ulid(earlier, -86_400_000) == id


@pytest.mark.parametrize("id", ["", "01ARZ3NDEKTSV4RRFFQ69G5FA", "01ARZ3NDEKTSV4RRFFQ69G5FAU"])
def test_no_ulid(id: str) -> None:
    with pytest.raises(ValueError, match=r"ULID|substring"):
        ulid_number(id)
