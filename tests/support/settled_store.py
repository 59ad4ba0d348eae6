"""A store with many settled messages, written as records: no broker could settle a million in a test's time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.engine_sizes import SIZES
from kombu_opendata.storage.records import active, keys, metadata, settled
from kombu_opendata.storage.state.store_state import QueueSettings

Record = tuple[bytes, bytes]

_RECORDS_PER_WRITE = 20_000


def done_records(queue: str, messages: int, *, received_at_ms: int, took_ms: int) -> Iterator[Record]:
    """Full buckets of done messages with the ids from 1 on, and the messages' metadata."""
    size = SIZES.settled_entries
    for bucket, first in enumerate(range(1, messages + 1, size)):
        ids = range(first, min(first + size, messages + 1))
        entries = [(id, received_at_ms + id % 1000 + took_ms, 1) for id in ids]
        yield keys.done_key(queue, bucket), settled.join(settled.pack_entries(entries))
    for id in range(1, messages + 1):
        received = received_at_ms + id % 1000
        headers = {"task": "t.done", "id": f"id-{id:08}", "routing_key": queue}
        yield keys.metadata_key(id), metadata.encode(id, received, received, received, 0, headers)


def active_records(queue: str, buckets: int, size: int) -> Iterator[Record]:
    """Buckets with ``size`` messages available, with even ids, and as many in flight, with odd ones."""
    for bucket in range(buckets):
        ids = range(2 * bucket * size, 2 * (bucket + 1) * size, 2)
        available = [(id, 255, 0, 0, 0) for id in ids]
        in_flight = [(id + 1, 250, 1_000, 2_000, 1) for id in ids]
        yield keys.active_key(queue, bucket), active.encode(available, in_flight)


def write_store(folder: Path, queue: str, records: Iterable[Record]) -> None:
    """Make a store with a queue and these records, which replace the queue's own."""

    async def write() -> None:
        engine = await Engine.open(f"file://{folder}", "default", SystemClock(), EngineSettings(sync=False))
        engine.definitions.declare_queue(queue, QueueSettings())
        await engine.close()
        # opened again: what the engine knows of the queue must not be written after the records
        engine = await Engine.open(f"file://{folder}", "default", SystemClock(), EngineSettings(sync=False))
        rest = iter(records)
        while some := list(islice(rest, _RECORDS_PER_WRITE)):
            batch = engine.store.batch()
            for key, value in some:
                batch.put(key, value)
            await engine.store.write(batch)
        await engine.store.flush_memtable()
        await engine.close()

    asyncio.run(write())
