"""Streams of updates: many at a time don't keep the server from answering requests."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.errors import ConnectionLost
from kombu_opendata.web.live_updates import AT_ONCE, UpdatePace, away, updates
from tests.support.waiting import turns


def test_few_of_many_pages_are_rendered_at_a_time() -> None:
    rendering, most = 0, 0

    async def render() -> tuple[str, float]:
        nonlocal rendering, most
        rendering += 1
        most = max(most, rendering)
        for _ in range(5):
            await turns()
        rendering -= 1
        return "shown", 1.5

    async def all_pages() -> list[str]:
        pace = UpdatePace()
        streams = [updates(render, str, 60, pace) for _ in range(20 * AT_ONCE)]
        try:
            return list(await asyncio.wait_for(asyncio.gather(*(anext(stream) for stream in streams)), 60))
        finally:
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]

    assert asyncio.run(all_pages()) == ["data: shown\n\nevent: current\ndata: 1.5\n\n"] * (20 * AT_ONCE)
    assert most == AT_ONCE


def test_a_page_that_came_late_rests_longer() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    for late in (0.5, 3.0, 1000.0):
        asyncio.run(UpdatePace(pause).rest(2, late))
    assert pauses == [2, 2, pytest.approx(12, abs=1), 2, 60]


def test_a_page_learns_that_it_is_current_although_nothing_has_changed() -> None:
    ages = [0.0, 3.25]

    async def render() -> tuple[str, float]:
        return "shown", ages.pop(0)

    async def two() -> list[str]:
        stream = updates(render, str, 0, UpdatePace())
        events = [await anext(stream), await anext(stream)]
        await stream.aclose()  # type: ignore[attr-defined]
        return events

    assert asyncio.run(two()) == ["data: shown\n\nevent: current\ndata: 0.0\n\n", "event: current\ndata: 3.2\n\n"]


def test_a_page_that_waited_for_the_broker_does_not_rest_longer() -> None:
    """Pages that wait for a turn while others wait for a broker that is away do not find the server busy."""

    now = 0.0

    async def waiting() -> tuple[float, float]:
        pace = UpdatePace(now=lambda: now)

        async def wait_for_turn(*, is_away: bool, ended: asyncio.Event) -> float:
            async with pace.turn() as late:
                await ended.wait()
                if is_away:
                    pace.broker_was_away()
                return late

        async def last_of(*, is_away: bool) -> float:
            nonlocal now
            ended = asyncio.Event()
            first = [asyncio.create_task(wait_for_turn(is_away=is_away, ended=ended)) for _ in range(AT_ONCE)]
            await turns()
            last = asyncio.create_task(wait_for_turn(is_away=False, ended=ended))
            await turns()
            now += 0.3
            ended.set()
            await asyncio.gather(*first)
            return await last

        return await last_of(is_away=False), await last_of(is_away=True)

    busy, away = asyncio.run(waiting())
    assert busy == 0.3
    assert away == 0.0


def test_a_broker_that_is_away_keeps_the_last_figures_and_no_page_current() -> None:
    async def render() -> tuple[str, float]:
        raise ConnectionLost("it is away")

    async def first() -> str:
        stream = updates(render, lambda exc: away(str(exc)), 0, UpdatePace())
        events = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return events

    assert asyncio.run(first()) == "event: away\ndata: it is away\n\n"
