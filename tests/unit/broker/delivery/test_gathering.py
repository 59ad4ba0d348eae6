"""When the next commit to a bucket begins."""

from __future__ import annotations

import asyncio

from kombu_opendata.broker.delivery.gathering import Gathering


def test_a_commit_waits_for_the_clients_that_were_answered_but_not_for_long() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        gathering = Gathering(loop.time)

        async def waited(clients: int, seconds: float, back: int) -> float:
            gathering.committed(loop.time() - seconds)
            gathering.answering(clients)
            loop.call_soon(gathering.have, back)
            began = loop.time()
            await gathering.wait()
            return loop.time() - began

        assert await waited(2, 10, 1) >= 0.05  # not a fifth of ten seconds
        assert await waited(2, 0.1, 1) >= 0.02
        assert await waited(2, 10, 2) < 0.05
        assert await waited(1, 10, 0) < 0.05  # a single client is not waited for
        await asyncio.sleep(0.1)
        began = loop.time()
        await gathering.wait()  # nor is anybody after a pause
        assert loop.time() - began < 0.05

    asyncio.run(main())
