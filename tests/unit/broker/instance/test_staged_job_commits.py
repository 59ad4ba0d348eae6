"""The commit of a staged job: its driver repeats it if the reply was lost, and names each batch once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.errors import RequestError
from kombu_opendata.staging.job import StagingTarget
from tests.support import engine
from tests.support.batches import stage
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


def test_a_batch_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    async def steps(world: engine.World) -> None:
        staging = world.engine.staging
        instance = Instance("default", world.engine, grace_ms=1000, max_message_bytes=1 << 20)
        target = StagingTarget(staging.folder.url, "default", inline_bytes=0, inline_rows=0)
        first, second = stage(target, JOB, [[b"first"], [b"second"]])
        with pytest.raises(RequestError, match="a batch is named twice"):
            await instance.staging.commit(JOB, [first, second, first])
        assert staging.state.find(JOB) is None
        job, is_new = await instance.staging.commit(JOB, [first, second])
        assert (job.rows, is_new) == (2, True)
        instance.policies.stop()

    engine.run(tmp_path / "store", steps)
