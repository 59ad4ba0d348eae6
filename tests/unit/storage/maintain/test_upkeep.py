"""When a store is opened again for idleness, and when for use."""

from __future__ import annotations

import asyncio
import uuid

from kombu_opendata.storage.maintain.upkeep import IdleStore
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore

BUSY = SlateSettings()


def test_idle_after_a_time_and_busy_after_some_steps() -> None:
    async def main() -> None:
        loop, ahead = asyncio.get_running_loop(), 0.0
        real = loop.time
        loop.time = lambda: real() + ahead  # type: ignore[method-assign]
        store = await SlateStore.open(f"memory://{uuid.uuid4()}", "db", settings=BUSY)
        idle = IdleStore(store, BUSY, 3600)
        assert idle.change(0) is None
        ahead += 3601
        assert idle.change(1) is None  # it was written
        ahead += 3601
        settings = idle.change(0)
        assert settings == BUSY.for_idleness()
        await idle.reopen(settings)
        assert idle.is_idle
        for commits in (20, 20, 9, 20, 20):  # now and then is no use yet
            assert idle.change(commits) is None
        settings = idle.change(20)
        assert settings == BUSY
        await idle.reopen(settings)
        assert not idle.is_idle
        assert store.settings == BUSY
        await store.close()

    asyncio.run(main())
