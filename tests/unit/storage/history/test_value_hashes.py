"""Hashes of headers: the same with a cache as without, and the bound of its memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import pytest

from kombu_opendata.storage.history.value_hashes import HEADER, Hashes, hash_of

MIB = 1 << 20


def messages(layouts: int, same: int, new: int, size: int = 10) -> Iterable[dict[str, str]]:
    """Yield messages: in each layout first the same header, then different texts of this size."""
    for layout in range(layouts):
        for number in range(same + new):
            yield {f"layout {layout}": "a", "text": str(max(number - same, 0)).rjust(size)}


@pytest.mark.parametrize(
    ("layouts", "same", "new", "size"),
    [
        pytest.param(40, 32, 700, 10, id="many groups of many layouts"),
        pytest.param(1, 32, 500, 60_000, id="groups with long texts"),
        pytest.param(50, 0, 20, 60_000, id="samples with long texts"),
    ],
)
def test_memory_is_bounded(layouts: int, same: int, new: int, size: int) -> None:
    hashes = Hashes()
    tracemalloc.start()
    try:
        for headers in messages(layouts, same, new, size):
            hashes.headers(headers)
        assert tracemalloc.get_traced_memory()[0] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_hashes_are_the_same_after_groups_were_forgotten() -> None:
    hashes = Hashes(32)
    for headers in messages(3, 32, 20):
        group, single = hashes.headers(headers)
        assert sorted(group + single) == sorted(hash_of(HEADER, *header) for header in headers.items())
