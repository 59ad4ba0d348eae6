"""Ids of messages by their time of receipt, without Spark."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kombu_opendata.offline import OfflineStore
from kombu_opendata.spark.read.store_scan import first_received
from kombu_opendata.storage.records import keys, metadata


class Records:
    """Records of messages whose ids have gaps."""

    def __init__(self, received: dict[int, int]) -> None:
        self._rows = [
            (keys.metadata_key(id), metadata.encode_with(id, at_ms, at_ms, at_ms, 0, 0, b""))
            for id, at_ms in sorted(received.items())
        ]

    async def scan(self, low: bytes, high: bytes, *, limit: int) -> list[tuple[bytes, bytes]]:
        return [row for row in self._rows if low <= row[0] < high][:limit]


@pytest.mark.parametrize(
    ("first", "last", "at_ms", "expected"),
    [(0, 20, 0, 0), (0, 20, 1_001, 4), (0, 20, 1_500, 8), (0, 20, 9_000, 21), (8, 4, 1_500, 8)],
)
def test_the_first_message_received_at_a_time(first: int, last: int, at_ms: int, expected: int) -> None:
    store: Any = Records({3: 1_000, 7: 1_200, 15: 1_500, 20: 2_000})
    assert asyncio.run(first_received(cast(OfflineStore, store), first, last, at_ms)) == expected
