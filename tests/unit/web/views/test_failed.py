"""Groups of failures, and what the actions on a group would concern."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from kombu_opendata import AsyncQueueClient
from kombu_opendata.masking import Masking
from kombu_opendata.web.actions.failure_actions import DeleteFailuresAction
from kombu_opendata.web.user_clients import UserBroker
from kombu_opendata.web.views.failed import Failures, FailureSelection, failures


async def _fail(client: AsyncQueueClient, queue: str, *tasks: str) -> None:
    """Messages that failed: of these tasks, or of none where the name is empty."""
    await client.create(queue)
    for task in tasks:
        await client.send(queue, "x", {"task": task} if task else None)
    for message in await client.read(queue, 60, len(tasks)):
        await client.reject(queue, message)


def test_an_action_on_a_group_concerns_that_group() -> None:
    """Also on a group without a value: what failed is no task."""

    async def look() -> tuple[Failures, dict[str, int | None]]:
        async with AsyncQueueClient("opendata+memory://groups-of-failures") as client:
            await _fail(client, "mail", "", "app.pay", "app.pay")
            found = await failures(UserBroker(client), Masking(), FailureSelection(), ("task", "exception"))
            previews = {}
            for one in found.groups:
                shown = await failures(UserBroker(client), Masking(), one.selection)
                preview = await DeleteFailuresAction(**one.selection.subject()).preview(UserBroker(client))
                assert shown.total == one.count == sum(bar.count for bar in shown.bars)
                previews[one.values[0]] = preview.count
            return found, previews

    found, previews = asyncio.run(look())
    assert {one.values: one.count for one in found.groups} == {("", ""): 1, ("app.pay", ""): 2}
    assert previews == {"": 1, "app.pay": 2}


def test_a_selected_failure_is_that_of_its_queue() -> None:
    """A message that failed in two queues has one id."""

    async def act() -> list[str]:
        async with AsyncQueueClient("opendata+memory://selected-failures") as client:
            await client.declare_exchange("both", "fanout")
            for queue in ("mail", "post office"):
                await client.create(queue)
                await client.bind(queue, "both")
            await client.publish("x", exchange="both")
            for queue in ("mail", "post office"):
                [message] = await client.read(queue, 60)
                await client.reject(queue, message)
            given = DeleteFailuresAction.model_validate({"selected": [f"{message.id} post office"]})
            assert (await given.preview(UserBroker(client))).count == 1
            assert (await given.perform_in_steps(UserBroker(client), lambda _progress: None)).counts == {
                "deleted": 1,
                "dismissed": 0,
            }
            return [one.queue for one in (await client.list_failures()).items]

    assert asyncio.run(act()) == ["mail"]


@pytest.mark.parametrize("selected", ["7", "billing", "x billing", "-1 billing", "7 "])
def test_what_is_no_failure_can_not_be_selected(selected: str) -> None:
    with pytest.raises(ValidationError, match="is not a message id, a space and the name of a queue"):
        DeleteFailuresAction.model_validate({"selected": [selected]})


@pytest.mark.parametrize("hours", ["1e9", "inf", "nan", "-1"])
def test_hours_that_no_calendar_has_are_refused(hours: str) -> None:
    with pytest.raises(ValidationError):
        FailureSelection.model_validate({"hours": hours})
    assert FailureSelection.model_validate({"hours": "876600"}).filters()["gte"]
