"""Actions on replays, which route stored messages to a queue again."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ...protocol import messages as m
from ..brokers import UserBroker
from .action import Action, ActionOutcome, Preview, Report, counted
from .queue_actions import QueueParameters


class ReplayParameters(QueueParameters):
    start: str = Field(
        "first", title="From", description='"first", a message id, or a time with its offset', min_length=1
    )
    until: str = Field("now", title="Until", description='"now", a message id, or a time with its offset', min_length=1)
    where: str = Field("", title="Filter", description="only messages that match it")


def _point(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() else text


async def preview_replay(broker: UserBroker, given: ReplayParameters) -> Preview:
    consumers = (await broker.client.metrics(given.queue)).consumers
    notes = (f"{counted(consumers, 'consumer')} will run tasks that were done, once more.",) if consumers else ()
    return Preview(
        f"{given.queue} gets all stored messages that it would get now, again, in the background.", None, notes
    )


async def replay(broker: UserBroker, given: ReplayParameters, _report: Report) -> ActionOutcome:
    await broker.client.replay(given.queue, _point(given.start), _point(given.until), where=given.where)
    return ActionOutcome(f"A replay into {given.queue} has begun.", {}, "replays")


async def preview_stop(_broker: UserBroker, given: QueueParameters) -> Preview:
    return Preview(f"The replay into {given.queue} will stop where it is. What it has put there stays.")


async def stop(broker: UserBroker, given: QueueParameters, _report: Report) -> ActionOutcome:
    await broker.client.stop_replay(given.queue)
    return ActionOutcome(f"The replay into {given.queue} has stopped.", {}, "replays")


_QUEUE = frozenset(("queue",))
ACTIONS: tuple[Action[Any], ...] = (
    Action("replay", "Replay", m.Replay, ReplayParameters, preview_replay, replay, _QUEUE),
    Action("stop-replay", "Stop the replay", m.Replay, QueueParameters, preview_stop, stop, _QUEUE, is_dangerous=True),
)
