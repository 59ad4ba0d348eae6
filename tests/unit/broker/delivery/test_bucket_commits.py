"""A commit to a bucket waits for the clients that were just answered."""

from __future__ import annotations

import asyncio

from kombu_opendata.broker.delivery.bucket_commits import CommitDelay
from tests.support.waiting import turns


def test_a_commit_waits_for_the_clients_that_were_answered_but_not_for_long() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        now = 1000.0
        loop.time = lambda: now  # type: ignore[method-assign]
        delay = CommitDelay(loop.time)

        async def waits_after(seconds: float, waiting: asyncio.Task[None]) -> bool:
            nonlocal now
            now += seconds
            for _ in range(10):
                await turns()
            return not waiting.done()

        def answered(clients: int, seconds: float, back: int) -> asyncio.Task[None]:
            delay.committed(now - seconds)
            delay.answering(clients)
            delay.have(back)
            return loop.create_task(delay.wait())

        waiting = answered(2, 10, 1)
        assert await waits_after(0.049, waiting)
        assert not await waits_after(0.002, waiting)  # not a fifth of ten seconds
        waiting = answered(2, 0.1, 1)
        assert await waits_after(0.019, waiting)
        assert not await waits_after(0.002, waiting)
        waiting = answered(2, 10, 1)
        delay.have(2)
        assert not await waits_after(0, waiting)
        assert not await waits_after(0, answered(1, 10, 0))  # a single client is not waited for
        answered(2, 10, 1).cancel()
        now += 0.1
        assert not await waits_after(0, loop.create_task(delay.wait()))  # nor is anybody after a pause

    asyncio.run(main())
