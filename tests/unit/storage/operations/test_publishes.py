"""Publishes: stored once, however often they are repeated, and kept while a queue needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, World, run

pytestmark = pytest.mark.contract(1, 8, 9)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_repeated_publish_is_known_after_a_crash(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        for _ in range(3):
            world.publish("q")
        assert world.engine.operations.published(SESSION, 3) is not None
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        assert all(world.engine.operations.published(SESSION, seq) is not None for seq in (1, 2, 3))
        assert world.engine.operations.published(SESSION, 4) is None

    run(tmp_path / "s", steps)


def test_a_message_past_its_deadline_is_not_next(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", ttl_ms=10)
        kept = world.publish("q", ttl_ms=1000)
        world.clock.advance(11)
        assert (await world.claim("q")).id == kept
        assert world.engine.operations.expired == 1

    run(tmp_path / "s", steps)


def test_a_message_of_two_queues_stays_until_both_have_ended_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        id = world.publish("q", "r")
        await world.engine.commits.checkpoint()
        world.engine.operations.remove(world.queue("q"), list(world.queue("q").messages.available.values()))
        await world.engine.commits.checkpoint()
        await world.crash()
        assert (await world.claim("r")).id == id
        world.engine.operations.delete(world.queue("r"), list(world.queue("r").messages.in_flight.values()))
        await world.engine.commits.checkpoint()
        assert await world.engine.pages.metadata_of(id) is None

    run(tmp_path / "s", steps)
