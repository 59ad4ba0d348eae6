"""Headers that are kept of collected messages, in a store at rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kombu_opendata.offline import StoreStats, VerifyStatus, stats
from kombu_opendata.offline.records.open_store import open_store
from kombu_opendata.offline.records.record_view import Record, scan
from kombu_opendata.storage.records.keys import RecordKind
from tests.support.engine import World, run
from tests.support.verified import describe, verify


async def purge_what_was_claimed(world: World) -> None:
    for number in range(3):
        world.publish("q", headers={"task": "add", "n": str(number)})
    for entry in [await world.claim("q") for _ in range(3)]:
        world.engine.operations.put_back(world.queue("q"), (entry,), "w", costs_attempt=False)
    await world.engine.definitions.purge(world.queue("q"))


def test_kept_headers_are_verified_counted_and_shown(tmp_path: Path) -> None:
    world = run(tmp_path / "s", purge_what_was_claimed)
    report = verify(world.root)
    assert report.status is VerifyStatus.CLEAN, describe(report)
    assert not report.findings
    assert report.records["history headers"] == 1

    async def look() -> tuple[StoreStats, list[Record]]:
        async with await open_store(world.root) as store:
            return await stats(store), [record async for record in scan(store, kind=RecordKind.HISTORY_HEADERS)]

    counted, (record,) = asyncio.run(look())
    assert counted.records["history headers"].records == 1
    assert counted.corrupt == 0
    assert (record.kind, record.of, record.problem) == ("history headers", {"numbers": [3, 0]}, "")
    assert record.value[1] == {"message_id": 1, "header_pairs": [["task", "add"], ["n", "1"]]}
