"""A store with a bit of everything: what can be in a store is in it, with small buckets so that there are several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.engine_sizes import EngineSizes
from kombu_opendata.storage.records.results import FINAL
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import OTHER, SESSION, World
from tests.support.store_copy import copy_store

LARGE = bytes(range(256)) * 10_000
SMALL_BUCKET = 8


@dataclass
class Ids:
    """The messages that tests speak of."""

    waiting: int = -1  # in "many"
    shared: int = -1  # in three queues
    large: int = -1
    held: int = -1  # in flight in "held"
    done: int = -1
    failed: int = -1
    letter: int = -1  # failed, and a dead letter that nobody has sent yet
    expired: int = -1  # a dead letter that nothing else keeps the payload for
    returned: int = -1  # with an attempts record


def build(root: Path, *, tail: bool) -> Ids:
    """Make the store.

    Args:
        tail: as after a ``kill -9``: the last third is in the journal only.
    """
    # large bodies are in chunks, as in a store in memory, or of an earlier version
    sizes = EngineSizes(bucket_entries=SMALL_BUCKET, settled_entries=SMALL_BUCKET, large_body_bytes=1 << 30)
    settings = EngineSettings(journal_segment_bytes=64 << 10, sizes=sizes)  # synced, so that there is a sync point
    world = World(root if not tail else root.with_name(root.name + "-source"), settings)
    ids = Ids()

    async def main() -> None:
        await world.open()
        await _define(world)
        await _settle(world, ids)
        await world.engine.commits.checkpoint()
        await world.engine.upkeep.tidy()
        await _wait(world, ids)
        await world.engine.commits.checkpoint()
        await _hold(world, ids)
        await _results(world)
        await world.engine.commits.commit()
        if tail:
            copy_store(world.root, root)
        await world.engine.close()

    asyncio.run(main())
    return ids


async def _define(world: World) -> None:
    engine = world.engine
    letters = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "gone"}
    for name in ("many", "a", "b", "c", "held", "settled"):
        engine.definitions.declare_queue(name, QueueSettings(max_attempts=2))
    engine.definitions.declare_queue("letters", QueueSettings(max_attempts=1, arguments=letters))
    engine.definitions.declare_queue("späti 'ö'", QueueSettings(arguments={"x-message-ttl": 10_000}))
    engine.definitions.declare_exchange("x", "headers", False, {})
    engine.definitions.declare_exchange("t", "topic", False, {"alternate-exchange": "amq.fanout"})
    for arguments in ({"x-match": "any", "kind": "b"}, {"kind": "a", "n": 1}):
        engine.definitions.bind("a", "x", "", arguments)
    engine.definitions.bind("a", "t", "x.#", {})
    engine.definitions.bind("b", "t", "it's.*", {})
    engine.definitions.bind("a", "amq.direct", "key", {})
    await engine.commits.commit()


async def _settle(world: World, ids: Ids) -> None:
    engine = world.engine
    for number in range(3 * SMALL_BUCKET):
        world.publish("settled", envelope=b"s%d" % number)
    await engine.commits.commit()
    for number in range(3 * SMALL_BUCKET):
        entry = await world.claim("settled")
        if number % 3:
            report = TaskReport(TaskState.RAISED, 1500, 7, "task", "builtins.ValueError", "no", "Traceback: …")
            engine.task_runs.note(world.queue("settled"), entry, report)
            engine.operations.ack(world.queue("settled"), (entry,))
            ids.done = entry.id
        else:
            engine.operations.fail(world.queue("settled"), (entry,), "consumer")
            ids.failed = entry.id
    ids.large = world.publish("a", envelope=LARGE)
    ids.letter = world.publish("letters")
    ids.expired = world.publish("letters")
    await engine.commits.commit()
    entry = await world.claim("letters")
    engine.operations.put_back(world.queue("letters"), (entry,), "consumer", costs_attempt=True)
    last = await world.next("letters")
    assert last is not None
    engine.operations.remove(world.queue("letters"), (last,), "expired")


async def _wait(world: World, ids: Ids) -> None:
    now = world.clock.now_ms()
    for number in range(4 * SMALL_BUCKET):
        later = now + 3_600_000 if number % 4 == 0 else -1
        ids.waiting = world.publish("many", priority=number % 256, visible_at=later, ttl_ms=90_000 * (number % 2) - 1)
    ids.shared = world.publish("a", "b", "c", envelope=b"shared")
    world.publish("a", "b", envelope=LARGE[:70_000])
    world.publish("späti 'ö'", ttl_ms=5000)
    world.number += 3  # numbers that are not stored: holes
    world.publish("b")
    await world.engine.commits.commit()


async def _hold(world: World, ids: Ids) -> None:
    engine = world.engine
    engine.operations.name_session(SESSION, "holder@host")
    engine.operations.name_session(OTHER, "other@host")
    for _ in range(5):
        world.publish("held")
    await engine.commits.commit()
    for session in (SESSION, SESSION, OTHER):
        entry = await world.claim("held", session)
        ids.held = entry.id
    back = await world.claim("held")
    engine.operations.put_back(world.queue("held"), (back,), "consumer", costs_attempt=True)
    ids.returned = back.id
    shared = await world.claim("c")
    engine.task_runs.start(world.queue("c"), (shared,))
    await engine.commits.commit()


async def _results(world: World) -> None:
    results = world.engine.results
    results.store(b"final", FINAL, b"value", 3_600_000)
    results.store(b"for ever", FINAL, b"value", 0)
    results.store(b"large", FINAL, bytes(2_500_000), 0)
    results.open_chord(b"group", 3_600_000, 3, header=b"header")
    for index in range(2):
        results.store(b"part%d" % index, FINAL, b"value", 60_000, b"group", index, b"member%d" % index, 3_600_000)


def edit(root: Path, changes: Mapping[bytes, bytes | None], instance: str = "default") -> None:
    """Write records by hand, as no broker does; None deletes."""

    async def main() -> None:
        store = await SlateStore.open(f"file://{root}", instance)
        batch = store.batch()
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        await store.write(batch)
        await store.flush_memtable()
        await store.close()

    asyncio.run(main())
