"""Definitions in the store: operators' changes go with the queue and fit its records, a removed binding is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.errors import RequestError
from kombu_opendata.storage.records.definitions import DELIVERIES, NO_OVERRIDES, QueueOverrides
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import World, run

pytestmark = pytest.mark.contract(10)

FIRST, SECOND = QueueOverrides(DELIVERIES, 5, {"x-delivery-limit": 7}), QueueOverrides(0, 0, {"x-lease": 90})


@pytest.mark.parametrize("again", [NO_OVERRIDES, SECOND])
def test_a_queue_that_is_deleted_and_declared_again_in_one_checkpoint(tmp_path: Path, again: QueueOverrides) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        engine.definitions.override_queue("q", FIRST)
        await engine.commits.checkpoint()
        engine.definitions.drop_queue("q")
        engine.definitions.declare_queue("q", QueueSettings())
        if again != NO_OVERRIDES:
            engine.definitions.override_queue("q", again)
        await engine.commits.checkpoint()
        assert engine.journal is not None
        await world.crash()
        assert world.queue("q").overrides == again
        assert world.queue("q").options.lease_seconds == again.arguments.get("x-lease", 60)

    run(tmp_path / "store", steps)


def test_settings_in_effect_are_the_declared_ones_with_the_overrides(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        queue, override = world.queue("q"), world.engine.definitions.override_queue
        override("q", QueueOverrides(0, 0, {"x-delivery-limit": -1, "x-done-retention": 5}))
        assert (queue.declared.max_attempts, *queue.options[:3]) == (2, 0xFFFF, 5, 14 * 86_400)
        override("q", QueueOverrides(0, 0, {"x-delivery-limit": None}))
        assert queue.options[:2] == (20, 86_400)
        override("q", NO_OVERRIDES)
        assert queue.options == queue.declared

    run(tmp_path / "store", steps)


def test_a_filter_that_would_not_fit_the_queues_record(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for number in range(190):
            world.engine.definitions.bind("q", "amq.direct", f"{number:0>240}", {})
        long = QueueOverrides(0, 0, {"x-filter": f"a = '{'x' * 16_000}'"})
        with pytest.raises(RequestError, match="give a shorter filter"):
            world.engine.definitions.override_queue("q", long)
        assert world.queue("q").overrides == NO_OVERRIDES
        await world.engine.commits.checkpoint()

    run(tmp_path / "store", steps)


def test_a_removed_binding_is_gone_after_a_crash(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        for routing_key in ("removed", "kept"):
            engine.definitions.bind("q", "amq.direct", routing_key, {})
        await engine.commits.checkpoint()
        engine.definitions.unbind("q", "amq.direct", "removed", {})
        await engine.commits.checkpoint()
        await world.crash()
        assert list(world.engine.state.topology.bindings()) == [("q", "amq.direct", "kept", {})]

    run(tmp_path / "store", steps)
