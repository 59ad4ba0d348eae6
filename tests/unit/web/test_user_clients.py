"""Answers that open pages share: how old they may be, and when the broker is asked again."""

from __future__ import annotations

import asyncio
import gc

from kombu_opendata import AsyncQueueClient
from kombu_opendata.web.user_clients import UserBroker, note_ages
from tests.support.waiting import turns


def answers(*seconds: float) -> list[int]:
    """Answers that are asked for one after the other, and take so many seconds; the last one takes no time."""
    times = [*seconds, 0.0]
    asked, now = 0, 1000.0

    async def show_dialog() -> int:
        nonlocal asked, now
        now += times[asked]
        asked += 1
        return asked

    async def recent(broker: UserBroker) -> int:
        nonlocal now
        answer = await broker.recent("figures", 0.0, show_dialog)
        now += 0.01  # older than it may be
        return answer

    async def all_answers() -> list[int]:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: now)
            return [await recent(broker) for _ in times]

    return asyncio.run(all_answers())


def test_an_answer_that_waited_for_a_new_connection_is_soon_asked_for_again() -> None:
    assert answers(0.1) == [1, 2], "100 ms once, as after a restart of the broker, were 20 s without an update"


def test_what_takes_the_broker_long_each_time_is_asked_for_less_often() -> None:
    assert answers(0.1, 0.1, 0.0) == [1, 2, 2, 2]


def test_an_error_is_no_answer() -> None:
    async def both() -> int:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client)

            async def fail() -> int:
                await turns()
                raise OSError

            async def show_dialog() -> int:
                return 1

            try:
                await broker.recent("figures", 0.0, fail)
            except OSError:
                return await broker.recent("figures", 0.0, show_dialog)
            return 0

    assert asyncio.run(both()) == 1


def test_a_task_learns_how_much_older_than_usual_its_answers_are() -> None:
    now = 0.0

    async def ages() -> tuple[list[float], list[float]]:
        nonlocal now
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: now)

            async def show_dialog() -> int:
                nonlocal now
                now += 0.1
                return 1

            async def record(seconds: float) -> list[float]:
                ages_of_task = note_ages()
                await asyncio.gather(broker.recent("figures", seconds, show_dialog))
                return ages_of_task

            await record(0.0)
            await record(0.0)
            fresh = await record(60.0)
            now += 0.1
            return fresh, await record(0.0)  # from before, as both answers took long

    fresh, old = asyncio.run(ages())
    assert max(fresh) == 0.0
    assert max(old) >= 0.1


def test_a_result_is_fresh_until_it_is_older_than_the_caller_allows() -> None:
    now = 1000.0

    async def both() -> list[int]:
        nonlocal now
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker, numbers = UserBroker(client, now=lambda: now), iter((1, 2))

            async def show_dialog() -> int:
                return next(numbers)

            results = []
            for seconds in (0.0, 2.0, 0.5):
                now += seconds
                results.append(await broker.recent("figures", 2.0, show_dialog))
            return results

    assert asyncio.run(both()) == [1, 1, 2]


def test_without_patience_a_caller_gets_the_previous_result_and_the_error_of_the_request_is_no_loose_end() -> None:
    now, loose_ends = 1000.0, []

    async def both() -> int:
        nonlocal now
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: loose_ends.append(context))
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: now)

            async def show_dialog() -> int:
                return 1

            gone = asyncio.Event()

            async def fail() -> int:
                await gone.wait()
                raise OSError

            await broker.recent("figures", 0.0, show_dialog)
            now += 1
            result = await broker.recent("figures", 0.0, fail, patience=0)
            gone.set()
            await turns(3)
            broker.forget_answers()
            gc.collect()
            return result

    assert asyncio.run(both()) == 1
    assert loose_ends == []


def test_a_client_is_new_until_the_broker_accepts_its_user() -> None:
    async def main() -> None:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: 1000.0)
            assert broker.client is client
            assert (broker.was_entered, broker.expects_standby, broker.who, broker.metrics) == (
                False,
                False,
                None,
                None,
            )
            assert broker.last_used_at == 1000.0

    asyncio.run(main())
