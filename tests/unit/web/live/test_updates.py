"""Streams of updates: many at a time don't keep the server from answering requests."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.web.live.pace import AT_ONCE, Pace
from kombu_opendata.web.live.updates import updates


def test_few_of_many_pages_are_rendered_at_a_time() -> None:
    rendering, most = 0, 0

    async def render() -> str:
        nonlocal rendering, most
        rendering += 1
        most = max(most, rendering)
        for _ in range(5):
            await asyncio.sleep(0)
        rendering -= 1
        return "shown"

    async def all_pages() -> list[str]:
        pace = Pace()
        streams = [updates(render, str, 60, pace) for _ in range(20 * AT_ONCE)]
        try:
            return list(await asyncio.wait_for(asyncio.gather(*(anext(stream) for stream in streams)), 60))
        finally:
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]

    assert asyncio.run(all_pages()) == ["data: shown\n\n"] * (20 * AT_ONCE)
    assert most == AT_ONCE


def test_a_page_that_came_late_rests_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("kombu_opendata.web.live.pace.pause", pause)
    for late in (0.5, 3.0, 1000.0):
        asyncio.run(Pace().rest(2, late))
    assert pauses == [2, 2, pytest.approx(12, abs=1), 2, 60]
