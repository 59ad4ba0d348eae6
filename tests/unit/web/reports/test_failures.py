"""Groups of failures, and what the actions on a group would concern."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import TypeAdapter, ValidationError

from kombu_opendata import AsyncQueueClient
from kombu_opendata.web.actions.failure_actions import OfFailures, preview_dismiss
from kombu_opendata.web.brokers import Broker
from kombu_opendata.web.masking import Masking
from kombu_opendata.web.reports.failures import Asked, Failures, Hours, failures


async def _fail(client: AsyncQueueClient, queue: str, *tasks: str) -> None:
    """Messages that failed: of these tasks, or of none where the name is empty."""
    await client.create(queue)
    for task in tasks:
        await client.send(queue, "x", {"task": task} if task else None)
    for message in await client.read(queue, 60, len(tasks)):
        await client.reject(queue, message)


def test_a_group_that_no_filter_selects_says_so() -> None:
    async def look() -> tuple[Failures, dict[str, int | None]]:
        async with AsyncQueueClient("opendata+memory://groups-of-failures") as client:
            await _fail(client, "mail", "", "app.pay", "app.pay")
            found = await failures(Broker(client), Masking(), Asked(), ("task",))
            previews = {
                one.values[0]: (await preview_dismiss(Broker(client), OfFailures(**one.asked.subject()))).count
                for one in found.groups
                if one.is_exact
            }
            return found, previews

    found, previews = asyncio.run(look())
    assert {one.values[0]: (one.count, one.is_exact) for one in found.groups} == {"": (1, False), "app.pay": (2, True)}
    assert previews == {"app.pay": 2}


@pytest.mark.parametrize("hours", ["1e9", "inf", "nan", "-1"])
def test_hours_that_no_calendar_has_are_refused(hours: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Hours).validate_python(hours)
    assert Asked(hours=TypeAdapter(Hours).validate_python("876600")).filters()["gte"]
