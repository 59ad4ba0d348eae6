"""The commit of a staged job, which its driver repeats if the reply was lost."""

from __future__ import annotations

import pytest

from tests.unit.broker.model.test_queue import World, run

pytestmark = pytest.mark.contract(12)

JOB = "0123456789abcdef0123456789abcdef"


def test_a_repeated_commit_adds_nothing() -> None:
    async def steps(world: World) -> None:
        first, is_new = await world.instance.staging.commit(JOB, [])
        assert is_new
        await world.engine.commits.checkpoint()
        again, is_new = await world.instance.staging.commit(JOB, [])
        assert not is_new
        assert again.first_id == first.first_id

    run(True, steps)
