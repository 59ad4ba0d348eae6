"""Pages of a queue's waiting messages: all of them, each once, whatever the size of pages and buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.storage.read.queue_pages import AVAILABLE, DELAYED
from tests.support.engine import World, run, sized


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 8, 12, 20])
def test_the_pages_have_every_waiting_message_once(tmp_path: Path, limit: int) -> None:
    async def steps(world: World) -> None:
        ids = [world.publish("q") for _ in range(20)]
        await world.engine.commits.checkpoint()
        assert world.queue("q").messages.cold
        found: list[int] = []
        after, pages = -1, 0
        while pages == 0 or after != -1:
            rows, after = await world.engine.pages.waiting(world.queue("q"), after, limit, (AVAILABLE, DELAYED))
            assert len(rows) <= limit
            found += [row.id for row in rows]
            pages += 1
        assert found == ids

    run(tmp_path / "store", steps, sized(bucket_entries=4, loaded_buckets=2))
