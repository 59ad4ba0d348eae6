"""Correction of a database's times, at steps that a crash may have interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kombu_opendata.storage.slatedb.clock_correction import correct, written
from kombu_opendata.storage.slatedb.object_store import locate

from ....support.engine import World

#: before the store was written
EARLIER_MS = 1_600_000_000_000


def test_a_crash_while_the_manifest_was_written(tmp_path: Path) -> None:
    world = World(tmp_path / "store")

    async def main() -> None:
        await world.open()
        await world.engine.close()
        location = locate(f"file://{world.root}", "default", create=False)
        assert (await written(location, 10))[0] > EARLIER_MS
        last = max((world.root / "default" / "manifest").glob("*.manifest"))
        begun = last.with_name(f"{int(last.stem) + 1:020d}.manifest.part")
        begun.write_bytes(b"half")
        await correct(location, EARLIER_MS)
        assert (await written(location, 10))[0] <= EARLIER_MS
        assert not begun.exists()

    asyncio.run(main())
